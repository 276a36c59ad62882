"""``make peers``: install the other projects' engines into ``.venv-peers``, and say plainly which are there.

Each peer is installed by itself, so that one that fails takes no other with it; the speed experiment does without it
and says so. llama.cpp is compiled here, with the instructions of this processor, which takes some minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.peers import ENVIRONMENT, PEERS, PINS, Peer, interpreter, section

Run = Callable[[Sequence[str], Mapping[str, str]], int]


def main(run: Run | None = None) -> int:
    """Install; 0 if every peer is there, 1 if one is not."""
    run = run or _run
    if not _usable():
        shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        print(f"Making {ENVIRONMENT.name}", flush=True)
        if run([sys.executable, "-m", "venv", str(ENVIRONMENT)], {}):
            print(f"Stop: '{sys.executable} -m venv' failed; its own words are above.", file=sys.stderr)
            return 1
    missing = [peer for peer in PEERS if not _install(peer, run)]
    there = [peer.label for peer in PEERS if peer not in missing]
    print(f"\nInstalled in {ENVIRONMENT.name}: {', '.join(there) or 'none'}.")
    for peer in missing:
        print(f"Not installed: {peer.label}. pip's own words are above; run `make peers` again to retry.")
    if missing:
        print("`python -m benchmarks speed` runs without them, and its record says that they were absent.")
    return int(bool(missing))


def _usable() -> bool:
    return interpreter().exists() and subprocess.run([interpreter(), "-c", ""], check=False).returncode == 0


def _install(peer: Peer, run: Run) -> bool:
    began = time.perf_counter()
    print(f"\n{peer.label}{' (compiled here, some minutes)' if peer.build else ''}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        constraints = Path(place) / "constraints.txt"
        pins = [line for line in PINS.read_text("utf-8").splitlines() if "==" in line]
        constraints.write_text("\n".join(pins), encoding="utf-8")
        wanted = [word for name in ("common", peer.name) for line in section(name) for word in line.split()]
        command = [str(interpreter()), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-q"]
        # The variable reaches the environment in which pip compiles, the option does not.
        failed = run([*command, "--retries", "1", *wanted], {"PIP_CONSTRAINT": str(constraints)} | peer.build)
    failed = failed or run([str(interpreter()), "-c", f"import {peer.module}"], {})  # it may be there, and not load
    print(f"  {'FAILED' if failed else 'ready'} after {time.perf_counter() - began:.0f} s", flush=True)
    return not failed


def _run(command: Sequence[str], variables: Mapping[str, str]) -> int:
    return subprocess.run(command, env=os.environ | variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
