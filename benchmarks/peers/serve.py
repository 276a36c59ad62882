"""One peer's engine in a process of its own: a line of JSON comes in, a line of JSON goes out.

``python -m benchmarks.peers.serve NAME FOLDER THREADS EXACT`` is started by :class:`benchmarks.workers.PeerWorker`
with the Python of the peers' environment. The first line out says that the engine is made, and in how many seconds.
EXACT is ``True`` for an engine in fp32, to see that the model is the right one before it is quantised.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any

from benchmarks.peers import PEERS


def main() -> None:
    """Serve until the input ends."""
    name, folder, threads, exact = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not mix with the answers

    def answer(good: bool, value: Any) -> None:
        answers.write(json.dumps([good, value]) + "\n")
        answers.flush()

    try:
        start = time.perf_counter()
        (peer,) = (peer for peer in PEERS if peer.name == name)
        make = getattr(importlib.import_module(f"benchmarks.peers.{name}"), peer.class_name)
        engine = make(folder, int(threads), exact == "True")
        answer(True, time.perf_counter() - start)
        for line in sys.stdin:
            method, arguments = json.loads(line)
            answer(True, getattr(engine, method)(*arguments))
    except Exception as problem:
        answer(False, f"{type(problem).__name__}: {problem}")


if __name__ == "__main__":
    main()
