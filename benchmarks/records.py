"""What a stored result looks like, and how it reaches the disk whole or not at all.

One file per experiment and kind of machine: ``benchmarks/results/<machine>/<name>.json``.

============  ======================================================================================
``schema``    version of this layout, 1
``name``      the experiment, such as ``"baseline"``
``title``     what it asks, one line
``machine``   the folder's name: processor, core, core count; never a host name
``date``      when it ended, UTC, to the minute
``command``   the command that makes it again
``commit``    the project's commit, with ``+`` if files had been changed; null outside a checkout
``settings``  every option of the run
``model``     name, fingerprint, number of parameters
``system``    :func:`cachequant_lib.machine.machine_info` of the process that ran the experiment
``quiet``     share of the machine that other programs used while it ran, where Linux tells it; and the load
``data``      the experiment's own part; every sample is kept, summaries are beside them
============  ======================================================================================

A summary of samples is always ``{"median": m, "low": l, "high": h}``. Times are in seconds and end in ``_s``.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cachequant_lib.bench import Spread

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SCHEMA = 1


class BenchmarkError(RuntimeError):
    """An experiment cannot start, or broke; the message says what to do."""


def summary(samples: Sequence[float], digits: int = 6) -> dict[str, float]:
    """Median, lowest and highest of some samples, rounded to ``digits`` significant figures."""
    spread = Spread.of(samples)
    return {name: significant(getattr(spread, name), digits) for name in ("median", "low", "high")}


def significant(value: float, digits: int = 6) -> float:
    """Round to significant figures, so that a file holds what the clock can tell and no more."""
    return float(f"{value:.{digits}g}")


@contextlib.contextmanager
def prepared(folder: Path) -> Iterator[None]:
    """:func:`prepare` a folder for what is done inside; folders made for it go again if it fails."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]  # innermost first
    try:
        prepare(folder)
        yield
    except BaseException:
        for place in made:
            with contextlib.suppress(OSError):  # it is not empty, or was never made
                place.rmdir()
        raise


def prepare(folder: Path, option: str = "--out") -> None:
    """Make the folder and prove that it can be written to, before minutes are spent measuring.

    Raises
    ------
    BenchmarkError
        It cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe-"):
            pass
    except OSError as problem:
        raise BenchmarkError(
            f"cannot write results to {folder} ({problem.strerror}); choose another place with {option} DIR"
        ) from problem


def write(record: dict[str, Any], folder: Path) -> Path:
    """Store a record as ``<folder>/<name>.json``; an older one is replaced in one step or stays as it was."""
    path = folder / f"{record['name']}.json"
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{record['name']}-", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(dumps(record))
        Path(temporary).chmod(0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return path


def dumps(record: dict[str, Any]) -> str:
    """JSON with an indent, but lists of numbers on one line: samples are data, not a layout."""

    def lay_out(value: Any, indent: int) -> str:
        pad = " " * (indent + 1)
        if isinstance(value, dict) and value:
            inner = ",\n".join(f"{pad}{json.dumps(k)}: {lay_out(v, indent + 1)}" for k, v in value.items())
            return f"{{\n{inner}\n{' ' * indent}}}"
        if isinstance(value, list) and any(isinstance(v, dict) for v in value):
            inner = ",\n".join(f"{pad}{lay_out(v, indent + 1)}" for v in value)
            return f"[\n{inner}\n{' ' * indent}]"
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    return lay_out(record, 0) + "\n"


def now() -> str:
    """UTC, to the minute."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def commit() -> str | None:
    """Short commit of the checkout, ``+`` if tracked files differ from it; None outside a checkout."""
    try:
        head, changes = (
            subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "-uno"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if changes else "")


class Quiet:
    """How much of the machine others used between ``start`` and ``stop``, told by Linux's counters."""

    def __init__(self) -> None:
        self.load_before = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        self._start = self._read()

    @staticmethod
    def _read() -> tuple[float, float] | None:
        """Seconds of work of all programs, and of this one with its finished children."""
        try:
            with open("/proc/stat") as file:
                fields = [int(v) for v in file.readline().split()[1:9]]
        except OSError:
            return None
        ticks = os.sysconf("SC_CLK_TCK")
        busy = (fields[0] + fields[1] + fields[2] + fields[5] + fields[6]) / ticks
        used = os.times()
        return busy, used.user + used.system + used.children_user + used.children_system

    def stop(self, elapsed_s: float) -> dict[str, Any]:
        """The record's ``quiet`` part. Call it after every child process has ended."""
        end = self._read()
        share = None
        if self._start and end:
            others = (end[0] - self._start[0]) - (end[1] - self._start[1])
            share = significant(max(0.0, others) / (elapsed_s * (os.cpu_count() or 1)), 3)
        return {
            "others_share": share,
            "load_before": self.load_before,
            "elapsed_s": significant(elapsed_s, 4),
        }
