"""Long runs in small jobs: nothing finished is lost, nothing is counted twice, and any executor may do the work.

A sweep is a list of named jobs and a function. Finished jobs are lines of a file, one JSON object each, written through
to the disk before the next one is waited for. The file's name holds a digest of everything that a result depends on
(model, text, protocol), and so does each line. After a kill the same command reads the file and does what is missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.records import BenchmarkError, prepare
from cachequant_lib.model.registry import cache_folder

Say = Callable[[str], None]
Do = Callable[[Any], Any]


@dataclass(frozen=True)
class Options:
    """How a sweep is to be run; none of it changes a number.

    Attributes
    ----------
    work : Path
        Folder of the files of finished jobs.
    minutes : float or None
        No job is started after this time; 0 only gathers what is there.
    workers : int
        Processes on this computer; 1 does the work in this one.
    scheduler : str or None
        Address of a Dask scheduler to send the jobs to instead, such as ``tcp://10.0.0.7:8786``.
    stored : Path or None
        The experiment's record, if there is one: what it holds need not be done again where `work` has been lost.
    """

    work: Path = field(default_factory=lambda: cache_folder() / "sweeps")
    minutes: float | None = None
    workers: int = 1
    scheduler: str | None = None
    stored: Path | None = None


class Serial(Executor):
    """Does each job at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call the function, and return its finished future."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as problem:
            future.set_exception(problem)
        return future


class Store:
    """Results of finished jobs by name, in a file that only grows. Use it in a ``with`` block: it holds a lock.

    Parameters
    ----------
    folder : Path
    name : str
        Of the experiment.
    key : mapping
        All that a result depends on; plain JSON values.
    say : callable
        Told about lines that cannot be used.
    """

    def __init__(self, folder: Path, name: str, key: Mapping[str, Any], say: Say) -> None:
        text = json.dumps(key, sort_keys=True)
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:24]
        self.path = folder / f"{name}-{self.digest}.jsonl"
        self.found: dict[str, Any] = {}
        self.cpu_s = 0.0
        self._key, self._say = key, say

    def __enter__(self) -> Store:
        from filelock import FileLock, Timeout

        prepare(self.path.parent, "--work")
        self._lock = FileLock(self.path.with_suffix(".lock"))
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise BenchmarkError(f"another run is adding to {self.path}; wait for it, or choose --work DIR") from None
        try:
            self._file = self.path.open("a+b")
            self._read()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *problem: object) -> None:
        self._file.close()
        self._lock.release()

    def add(self, name: str, result: Any, cpu_s: float) -> None:
        """Keep a result and what it cost; it is on the disk when this returns."""
        self._write({"key": self.digest, "job": name, "cpu_s": round(cpu_s, 3), "result": result})
        self.found[name] = result
        self.cpu_s += cpu_s

    def seed(self, stored: Path | None) -> None:
        """Take in the finished jobs that a stored record of the same key holds; they are not written again."""
        try:
            if stored is None or not stored.exists():
                return
            jobs = json.loads(stored.read_text("utf-8"))["data"]["jobs"]
            results = unpack(jobs)
        except (OSError, ValueError, KeyError, TypeError):
            self._say(f"{stored} is no record of a sweep; it is not used")
            return
        fresh = {name: result for name, result in results.items() if name not in self.found}
        if fresh and jobs["key"] == self.digest:
            self.found |= fresh
            self.cpu_s += jobs["cpu_s"] * len(fresh) / len(results)
            self._say(f"{len(fresh)} jobs are taken from the stored record")

    def record(self) -> dict[str, Any]:
        """All finished jobs, for the experiment's record: enough to go on from."""
        return {"key": self.digest, "cpu_s": round(self.cpu_s, 1), **pack(self.found)}

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> None:
        """Take in what an earlier run left, and cut off a last line that it did not finish."""
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        if torn := lines.pop():
            self._say(f"{self.path.name}: the last line was not finished ({len(torn)} bytes); that job is done again")
            self._file.truncate(self._file.seek(0, os.SEEK_END) - len(torn))
        refused = 0
        for line in lines:
            try:
                entry = json.loads(line)
                good = entry["key"] == self.digest and ("about" in entry or entry["job"] not in self.found)
                if good and "job" in entry:
                    self.found[entry["job"]] = entry["result"]
                    self.cpu_s += entry.get("cpu_s", 0.0)
            except (ValueError, KeyError, TypeError):
                good = False
            refused += not good
        if refused:
            self._say(f"{self.path.name}: {refused} damaged, foreign or repeated lines are not counted")
        if not lines:
            self._write({"key": self.digest, "about": self._key})


def pack(results: Mapping[str, Any]) -> dict[str, Any]:
    """Results by name, shorter: of jobs ``CELL/PLACE`` that gave numbers by name, one list for each cell and number."""
    packed: dict[str, Any] = {"cells": {}, "others": {}}
    for name, result in results.items():
        cell, _, place = name.rpartition("/")
        if isinstance(result, dict) and place.isdigit() and all(type(v) in (int, float) for v in result.values()):
            lists = packed["cells"].setdefault(cell, {"place": []})
            lists["place"].append(int(place))
            for kind, value in result.items():
                lists.setdefault(kind, []).append(value)
        else:
            packed["others"][name] = result
    return packed


def unpack(packed: Mapping[str, Any]) -> dict[str, Any]:
    """Undo :func:`pack`."""
    results = dict(packed["others"])
    for cell, lists in packed["cells"].items():
        kinds = [kind for kind in lists if kind != "place"]
        for place, *values in zip(*(lists[kind] for kind in ("place", *kinds)), strict=True):
            results[f"{cell}/{place}"] = dict(zip(kinds, values, strict=True))
    return results


@contextlib.contextmanager
def executor(options: Options) -> Iterator[tuple[Executor, int]]:
    """The executor that the options ask for, and how many jobs to hand to it at a time.

    Raises
    ------
    BenchmarkError
        Dask is not installed, or its scheduler does not answer.
    """
    if options.scheduler is not None:
        with _dask(options.scheduler) as client:
            yield client.get_executor(), 2 * max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
    elif options.workers == 1:
        yield Serial(), 1
    else:
        pool = ProcessPoolExecutor(options.workers, mp_context=get_context("spawn"), initializer=_ignore_ctrl_c)
        try:
            yield pool, options.workers
        finally:
            pool.shutdown(cancel_futures=True)


def _dask(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError as problem:
        raise BenchmarkError("--scheduler needs Dask: pip install 'cachequant-lib[cluster]'") from problem
    try:
        return Client(address, timeout=10)
    except (OSError, ValueError, TimeoutError) as problem:
        raise BenchmarkError(f"no Dask scheduler answers at {address}: {problem}") from problem


def _ignore_ctrl_c() -> None:
    """Leave Ctrl-C to the process that waits: it lets running jobs end and keeps what is finished."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def sweep(jobs: Sequence[tuple[str, Any]], do: Do, store: Store, options: Options, say: Say) -> None:
    """Do the jobs that the store does not hold, in their order, until all are done or time is up.

    Parameters
    ----------
    jobs : sequence of (name, argument)
        Names are unique; arguments and results can be pickled, and results are plain JSON values.
    do : callable
        A function at the top level of a module, so that other processes can find it.
    store, options
    say : callable
        Told about progress, at most every ten seconds.

    Raises
    ------
    BenchmarkError
        A job failed. What was finished before is kept.
    """
    end = time.monotonic() + 60 * options.minutes if options.minutes is not None else float("inf")
    waiting = iter([job for job in jobs if job[0] not in store.found])
    left, told = sum(name not in store.found for name, _ in jobs), time.monotonic()
    say(f"{len(jobs) - left} of {len(jobs)} jobs are done already" + (f"; adding to {store.path}" if left else ""))
    with executor(options) as (pool, at_once):
        running: dict[Future[Any], str] = {}
        while True:
            while len(running) < at_once and time.monotonic() < end and (job := next(waiting, None)):
                running[pool.submit(timed, do, job[1])] = job[0]
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name = running.pop(future)
                store.add(name, *_result(name, future))
                left -= 1
            if time.monotonic() > told + 10:
                told = time.monotonic()
                say(f"{len(jobs) - left} of {len(jobs)} jobs done; last: {name}")


def timed(do: Do, job: Any) -> tuple[Any, float]:
    """Do a job where it was sent; its result, and the processor time it took there."""
    start = time.process_time()
    return do(job), time.process_time() - start


def _result(name: str, future: Future[tuple[Any, float]]) -> tuple[Any, float]:
    try:
        return future.result()
    except Exception as problem:
        raise BenchmarkError(f"job {name!r}: {type(problem).__name__}: {problem}") from problem
