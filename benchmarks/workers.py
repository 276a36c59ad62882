"""Each engine lives in a process of its own, and they take turns.

Two thread pools in one process disturb each other (see the traps in :mod:`cachequant_lib.bench`), so no
engine ever shares a process with another. A turn is one message to one worker; all the others sleep.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.peers import ROOT
from benchmarks.records import BenchmarkError

#: A worker's idle threads keep spinning for up to a tenth of a second after their last job.
REST_S = 0.15


def environment(num_threads: int) -> dict[str, str]:
    """Variables that pin every pool of a worker before its first import."""
    count = str(num_threads)
    pools = ("OMP", "MKL", "OPENBLAS", "NUMBA", "VECLIB")
    return {f"{p}_NUM_THREADS" if p != "VECLIB" else "VECLIB_MAXIMUM_THREADS": count for p in pools} | {
        "OMP_MAX_ACTIVE_LEVELS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


class Worker:
    """An object made and used in another process: ``worker.call("method", ...)`` returns what it returned."""

    def __init__(
        self,
        name: str,
        make: Callable[..., Any],
        *args: Any,
        num_threads: int,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, args), daemon=True)
        with _variables(environment(num_threads) | dict(variables or {})):
            self._process.start()
        theirs.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()  # the worker reads the end of the pipe and leaves by itself
        self._process.join(timeout=5 if kind is None else 0.5)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()

    def ready(self) -> float:
        """Wait until the object is made; seconds that took."""
        return float(self._receive())

    def call(self, method: str, *args: Any) -> Any:
        """Let the worker run one method, then leave its threads time to fall asleep."""
        with contextlib.suppress(BrokenPipeError):  # a dead worker is reported by the next line
            self._send(method, args)
        answer = self._receive()
        time.sleep(REST_S)
        return answer

    def _send(self, method: str, args: tuple[Any, ...]) -> None:
        self._pipe.send((method, args))

    def _receive(self) -> Any:
        try:
            good, answer = self._pipe.recv()
        except (EOFError, ConnectionError) as problem:
            self._process.join(timeout=5)
            code = self._process.exitcode
            raise BenchmarkError(
                f"engine {self.name!r} ended without an answer (exit code {code}); not enough memory?"
            ) from problem
        if not good:
            raise BenchmarkError(f"engine {self.name!r}: {answer}")
        return answer


class PeerWorker(Worker):
    """The same for an engine in another environment: ``benchmarks.peers.serve`` run by that environment's Python."""

    def __init__(self, name: str, python: Path, module: str, *args: object, num_threads: int) -> None:
        self.name = name
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._program = subprocess.Popen(
            [str(python), "-m", module, *map(str, args)],
            cwd=ROOT,
            env=os.environ | environment(num_threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            encoding="utf-8",
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._program.stdin is not None
        with contextlib.suppress(OSError):
            self._program.stdin.close()  # the worker reads the end of its input and leaves by itself
        try:
            self._program.wait(timeout=5 if kind is None else 0.5)
        except subprocess.TimeoutExpired:
            self._program.kill()
            self._program.wait()
        assert self._program.stdout is not None
        self._program.stdout.close()
        self._said.close()

    def _send(self, method: str, args: tuple[Any, ...]) -> None:
        assert self._program.stdin is not None
        self._program.stdin.write(json.dumps([method, args]) + "\n")
        self._program.stdin.flush()

    def _receive(self) -> Any:
        assert self._program.stdout is not None
        line = self._program.stdout.readline()
        if not line:
            code = self._program.wait()
            self._said.seek(0)
            last = (self._said.read().strip().splitlines() or ["it said nothing"])[-1]
            raise BenchmarkError(f"engine {self.name!r} ended without an answer (exit code {code}): {last}")
        good, answer = json.loads(line)
        if not good:
            raise BenchmarkError(f"engine {self.name!r}: {answer}")
        return answer


@contextmanager
def crew(
    makers: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]],
    num_threads: int,
    variables: Mapping[str, str] | None = None,
) -> Iterator[dict[str, Worker]]:
    """Workers by name, made one after the other so that none loads while another is timed.

    ``variables`` are environment variables for all of them, beside those that pin their threads.
    """
    with ExitStack() as stack:
        workers = {}
        for name, (make, args) in makers.items():
            worker = Worker(name, make, *args, num_threads=num_threads, variables=variables)
            workers[name] = stack.enter_context(worker)
            worker.ready()
        yield workers


@contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(pipe: Any, make: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """A worker's whole life: make the object, answer calls, end when the pipe closes."""
    try:
        start = time.perf_counter()
        target = make(*args)
        pipe.send((True, time.perf_counter() - start))
        while True:
            method, arguments = pipe.recv()
            pipe.send((True, getattr(target, method)(*arguments)))
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        pass
    except Exception as problem:
        pipe.send((False, f"{type(problem).__name__}: {problem}"))
