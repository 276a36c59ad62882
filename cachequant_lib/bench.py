"""Measure time so that a number can be trusted: cold call apart, warm-up, pinned threads, spread.

:func:`measure` keeps the first call apart from the rest (it pays for
compilation, thread start-up and empty caches), :func:`interleave` times rivals in turns so that a slow
minute of the machine hits all of them, and :func:`pin_threads` holds every thread pool at one size.
:mod:`cachequant_lib.machine` says what it was measured on.

Two traps no timer can see:

* **Hot weights.** One small weight matrix called again and again stays in the CPU's cache and reads
  several times faster than the same matrix inside a whole model. Use :func:`rotate` over copies that
  together exceed the last cache level.
* **Nested pools.** After one Numba parallel loop on the OpenMP layer, some PyTorch operations run up to a
  hundred times slower at two threads. Set ``OMP_MAX_ACTIVE_LEVELS=1`` before Python starts, or time
  PyTorch in its own process. :func:`cachequant_lib.machine.timing_traps` tells when it applies.
"""

from __future__ import annotations

import contextlib
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import threadpoolctl

from cachequant_lib.errors import MeasurementError
from cachequant_lib.machine import machine_info

__all__ = [
    "CostModel",
    "Measurement",
    "Spread",
    "interleave",
    "machine_info",
    "measure",
    "percentile",
    "pin_threads",
    "rotate",
]


@dataclass(frozen=True)
class Spread:
    """A middle value with the lowest and highest seen beside it. Unit: that of the samples."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Summarise samples by median, minimum and maximum."""
        if not samples:
            raise MeasurementError("no samples to summarise")
        return cls(float(statistics.median(samples)), float(min(samples)), float(max(samples)))

    def __str__(self) -> str:
        """Median first, then the range."""
        return f"{self.median:.4g} [{self.low:.4g} .. {self.high:.4g}]"


@dataclass(frozen=True)
class Measurement:
    """What the clock said about one function.

    Attributes
    ----------
    samples_s : tuple of float
        Seconds per call, one entry per timed round, in the order taken.
    first_call_s : float
        Seconds of the very first call, the cold one. Never part of ``samples_s``.
    """

    samples_s: tuple[float, ...]
    first_call_s: float

    @property
    def median(self) -> float:
        """Middle sample, seconds."""
        return Spread.of(self.samples_s).median

    @property
    def low(self) -> float:
        """Fastest sample, seconds."""
        return min(self.samples_s)

    @property
    def high(self) -> float:
        """Slowest sample, seconds."""
        return max(self.samples_s)

    def ratio(self, other: Measurement) -> Spread:
        """How many times as long this took as ``other``, round by round.

        Pairing is what makes a ratio steadier than either time: both halves of a pair saw the same
        machine. Above 1 means this one is slower.

        Raises
        ------
        MeasurementError
            The two were not timed in the same number of rounds, so there are no pairs.
        """
        if len(self.samples_s) != len(other.samples_s):
            raise MeasurementError(
                f"{len(self.samples_s)} samples cannot be paired with {len(other.samples_s)}: "
                "time both in one interleave(...) call"
            )
        return Spread.of([a / b for a, b in zip(self.samples_s, other.samples_s, strict=True)])

    def __str__(self) -> str:
        """Milliseconds: median, range, number of samples and the cold call."""
        return (
            f"{self.median * 1e3:.3g} ms [{self.low * 1e3:.3g} .. {self.high * 1e3:.3g}], "
            f"{len(self.samples_s)} samples; first call {self.first_call_s * 1e3:.3g} ms"
        )


def measure(fn: Callable[[], Any], repeats: int = 5, warmup: int = 1, *, min_sample_s: float = 0.0) -> Measurement:
    """Time ``fn()``: one cold call kept apart, ``warmup`` thrown away, then ``repeats`` samples.

    Parameters
    ----------
    fn : callable
        Takes nothing; what it returns is ignored.
    repeats : int
        Number of samples kept.
    warmup : int
        Calls between the cold call and the first sample.
    min_sample_s : float
        A sample repeats ``fn`` until it lasts at least this long (found once, after the warm-up), and is
        divided by the number of calls. Use 0.05 or more for functions that last microseconds.

    Raises
    ------
    MeasurementError
        ``repeats`` is below 1 or ``warmup`` below 0.
    """
    return interleave({"fn": fn}, repeats, warmup, min_sample_s=min_sample_s)["fn"]


def interleave(
    functions: Mapping[str, Callable[[], Any]],
    repeats: int = 5,
    warmup: int = 1,
    *,
    min_sample_s: float = 0.0,
) -> dict[str, Measurement]:
    """Time rivals in turns: A B, B A, A B, ... so that noise falls on all of them alike.

    The order is reversed in every second round: whoever goes second finds the caches as the first left them.

    Parameters
    ----------
    functions : mapping of str to callable
        What to time, by name.
    repeats, warmup, min_sample_s
        As in :func:`measure`.

    Returns
    -------
    dict of str to Measurement
        Same keys. ``result["a"].ratio(result["b"])`` gives the paired ratio with its spread.

    Raises
    ------
    MeasurementError
        Nothing to time, ``repeats`` below 1 or ``warmup`` below 0.
    """
    if not functions or repeats < 1 or warmup < 0:
        raise MeasurementError(
            f"need at least one function, repeats >= 1 and warmup >= 0; "
            f"got {len(functions)} functions, repeats={repeats}, warmup={warmup}"
        )
    first = {name: _seconds(fn, 1) for name, fn in functions.items()}
    for _ in range(warmup):
        for fn in functions.values():
            fn()
    calls = {name: _calls_to_fill(fn, min_sample_s) for name, fn in functions.items()}
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for round_number in range(repeats):
        order = list(functions) if round_number % 2 == 0 else list(reversed(list(functions)))
        for name in order:
            samples[name].append(_seconds(functions[name], calls[name]))
    return {name: Measurement(tuple(samples[name]), first[name]) for name in functions}


def _seconds(fn: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        fn()
    return (time.perf_counter() - start) / calls


def _calls_to_fill(fn: Callable[[], Any], min_sample_s: float) -> int:
    calls = 1
    while min_sample_s > 0 and (spent := _seconds(fn, calls) * calls) < min_sample_s:
        calls = max(2 * calls, min(1000 * calls, int(calls * min_sample_s / max(spent, 1e-9)) + 1))
    return calls


def rotate(functions: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    """One function that calls the given ones in turn: for timing copies of a weight that must stay cold.

    Raises
    ------
    MeasurementError
        The sequence is empty.
    """
    if not functions:
        raise MeasurementError("rotate() needs at least one function, got none")
    turn = cycle(functions)
    return lambda: next(turn)()


def percentile(samples: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile: the sample at index ``round(percent / 100 * (n - 1))`` once sorted.

    It is always one of the samples, never a value between two. The definition of the source project.

    Raises
    ------
    MeasurementError
        No samples, or a percentage outside 0..100.
    """
    if not samples or not 0 <= percent <= 100:
        raise MeasurementError(f"need samples and 0 <= percent <= 100; got {len(samples)} and {percent}")
    return sorted(samples)[round(percent / 100 * (len(samples) - 1))]


@dataclass(frozen=True)
class CostModel:
    """A rented machine's price, so that seconds can be read as money.

    The default is the price the source project used, so that its tables compare. The book was not measured
    on that instance: read the result as a common unit.
    """

    dollars_per_hour: float = 0.357
    instance: str = "AWS c7i.2xlarge (8 vCPU, 16 GiB), us-east-1"
    source: str = "price used by the CacheQuant source project"

    def per_1k_tokens(self, wall_s: float, generated_tokens: int) -> float:
        """Dollars per thousand *generated* tokens; the prefill's time is spread over them.

        Raises
        ------
        MeasurementError
            No generated token to spread the cost over, or a negative time.
        """
        if generated_tokens < 1 or wall_s < 0:
            raise MeasurementError(f"need wall_s >= 0 and generated_tokens >= 1; got {wall_s}, {generated_tokens}")
        return self.dollars_per_hour / 3600 * wall_s / generated_tokens * 1000


@contextlib.contextmanager
def pin_threads(num_threads: int) -> Iterator[int]:
    """Hold every thread pool at ``num_threads`` inside the block, and put the old sizes back after it.

    Pools: the BLAS behind NumPy, Numba's, and PyTorch's if PyTorch is already imported. Numba cannot go
    beyond the number it started with (``NUMBA_NUM_THREADS``, by default the core count).

    Yields
    ------
    int
        The number of threads Numba was really given.

    Raises
    ------
    MeasurementError
        ``num_threads`` is below 1.
    """
    if num_threads < 1:
        raise MeasurementError(f"num_threads must be at least 1, got {num_threads}")
    numba: Any = importlib.import_module("numba")
    torch = sys.modules.get("torch")
    torch_before = torch.get_num_threads() if torch else 0
    numba_before = numba.get_num_threads()  # first: asking Numba can reset PyTorch's own number
    numba_now = min(num_threads, numba.config.NUMBA_NUM_THREADS)
    with threadpoolctl.threadpool_limits(limits=num_threads, user_api="blas"):
        numba.set_num_threads(numba_now)
        if torch:
            torch.set_num_threads(num_threads)
        try:
            yield numba_now
        finally:
            numba.set_num_threads(numba_before)
            if torch:
                torch.set_num_threads(torch_before)
