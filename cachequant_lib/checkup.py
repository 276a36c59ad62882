"""Say what this machine has, and what that will mean for the numbers in this book.

Run it with ``python -m cachequant_lib.checkup``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np

from cachequant_lib.bench import pin_threads
from cachequant_lib.kernels.isa import best_instruction_set
from cachequant_lib.kernels.jit import cached_njit
from cachequant_lib.kernels.simd import load, prefetch, store, zeros
from cachequant_lib.kernels.tiles import Tile
from cachequant_lib.machine import machine_info, timing_traps

__all__ = ["MULTIPLY", "doctor", "doctor_report", "inner_loop", "matmul_rate", "read_bandwidth"]

#: Streams of addresses a thread in :func:`read_bandwidth`, and how many int32 ahead of its use a line is asked for.
STREAMS, AHEAD = 4, 256

#: Bytes of fp32 weights GPT-2 small reads for one token: all parameters, but 1 of 1,024 positions.
GPT2_BYTES_PER_TOKEN = 4 * (124_439_808 - 1023 * 768)

#: The integer multiplications of x86 and of ARM, as an assembler writes them.
MULTIPLY = re.compile(r"(imul[bwlq]?|v?pm(add|ul)\w+|vpdp\w+|[su]dot|[su]?(mul|mla|mull|mlal)2?|madd)(?=\s)")


def read_bandwidth(num_threads: int = 1, *, num_bytes: int = 256 << 20, budget_s: float = 0.4) -> float:
    """Measure the bytes a second that ``num_threads`` cores together read from memory, best of several passes.

    Two readers take turns over a large int32 array, and the best pass of either counts, because this is a limit, not a
    typical value. One is ``np.max``: one stream of addresses a thread. The other adds up registers from several streams
    a thread and asks for each line ahead of its use. A core waits for memory on a fixed number of lines at a time, and
    several cores make each line wait longer, so one stream alone leaves part of a shared memory unused.

    Parameters
    ----------
    num_threads : int
        Cores to read with.
    num_bytes : int
        Size of the array, several times the last cache level; rounded up to whole pieces of all streams.
    budget_s : float
        Seconds to keep trying; at least two passes are made.
    """
    tile = Tile(best_instruction_set(), 1, 4)
    piece = num_threads * STREAMS * tile.width
    values = np.ones(-(-num_bytes // 4 // piece) * piece, np.int32)
    shares = np.array_split(values, num_threads)
    readers: list[Callable[[Any], object]] = [np.max, lambda share: _read_streams(tile, share)]
    readers[1](shares[0])  # compiles, or loads what was compiled
    best, deadline, passes = float("inf"), time.perf_counter() + budget_s, 0
    with ThreadPoolExecutor(num_threads) as pool:
        while passes < 2 or time.perf_counter() < deadline:
            start = time.perf_counter()
            list(pool.map(readers[passes % 2], shares))
            best = min(best, time.perf_counter() - start)
            passes += 1
    return values.nbytes / best


@cached_njit(nogil=True)
def _read_streams(tile: Any, values: Any) -> int:
    """Add up int32 values in four streams; returning the sum keeps the reads from being left out."""
    stream, total = len(values) // 4, zeros(tile)
    b, c, d = stream, 2 * stream, 3 * stream
    for a in range(0, stream, tile.width):
        prefetch(tile, values, a + AHEAD)
        prefetch(tile, values, b + a + AHEAD)
        prefetch(tile, values, c + a + AHEAD)
        prefetch(tile, values, d + a + AHEAD)
        total = total + load(tile, values, a) + load(tile, values, b + a)
        total = total + load(tile, values, c + a) + load(tile, values, d + a)
    out = np.empty(tile.width, np.int32)
    store(out, 0, tile.width, total)
    return int(out.sum())


def matmul_rate(num_threads: int = 1, *, size: int = 1024, budget_s: float = 0.3) -> float:
    """Measure the floating-point operations a second of NumPy's fp32 matrix product, best of several passes.

    A product of two (size, size) matrices is ``2 * size**3`` operations.
    """
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, size, size), dtype=np.float32)  # (size, size) each
    best, deadline, passes = float("inf"), time.perf_counter() + budget_s, 0
    with pin_threads(num_threads):
        while passes < 2 or time.perf_counter() < deadline:
            start = time.perf_counter()
            a @ b
            best = min(best, time.perf_counter() - start)
            passes += 1
    return 2 * size**3 / best


def inner_loop(kernel: Any, *arguments: Any) -> list[str]:
    """Return the loop of a Numba kernel that holds most multiplications: its instructions, one a line.

    The kernel is compiled anew for arguments like these, and not run: the cache on disk keeps no text.
    """
    fresh = numba.njit(kernel.py_func)
    fresh.compile(tuple(map(numba.typeof, arguments)))
    label, body, loops = "", list[str](), list[list[str]]()
    for line in next(iter(fresh.inspect_asm().values())).splitlines():
        words = re.split(r"#|//|;", line)[0].split(None, 1)
        if len(words) == 1 and words[0].endswith(":"):
            label, body = words[0][:-1], []
        elif words and not words[0].startswith("."):
            body = [*body, " ".join(word.strip() for word in words)]
            if len(words) > 1 and words[1].split()[-1] == label:  # a jump back to where the piece began
                loops.append(body)
    return max(loops, key=lambda loop: sum(bool(MULTIPLY.match(line)) for line in loop), default=[])


def doctor_report() -> dict[str, Any]:
    """Collect the facts and verdicts behind :func:`doctor`, as data. Takes about two seconds.

    Returns
    -------
    dict
        ``machine`` (see :func:`cachequant_lib.machine.machine_info`), ``read_bandwidth`` and
        ``matmul_rate`` (thread count to bytes or operations a second), ``decode_floor_s`` (thread count to
        the least seconds one fp32 GPT-2 small token can take here), ``traps`` and ``verdicts``.
    """
    machine = machine_info()
    threads = sorted({1, machine["cores"]})
    bandwidth = {n: read_bandwidth(n) for n in threads}
    rate = {n: matmul_rate(n) for n in threads}
    return {
        "machine": machine,
        "read_bandwidth": bandwidth,
        "matmul_rate": rate,
        "decode_floor_s": {n: GPT2_BYTES_PER_TOKEN / bandwidth[n] for n in threads},
        "traps": timing_traps(),
        "verdicts": _verdicts(machine),
    }


def _verdicts(machine: dict[str, Any]) -> list[str]:
    has = set(machine["instruction_sets"])
    verdicts = []
    if has & {"AVX-512 VNNI", "AVX-VNNI", "NEON dot product", "AMX int8"}:
        verdicts.append("8-bit multiply-accumulate: yes. int8 and BFP8 can beat fp32 at prefill and decode.")
    else:
        verdicts.append(
            "8-bit multiply-accumulate: no. Expect a gain at decode (fewer bytes), little or none at prefill."
        )
    if not has & {"AVX2", "NEON"}:
        verdicts.append("No AVX2 and no NEON: kernels take the generic path, exact but slow.")
    if not has & {"AVX-512 BF16", "AVX-512 FP16", "AMX int8", "SVE"}:
        verdicts.append("16-bit floats have no arithmetic of their own here: they save bytes, not time.")
    if machine["threading_layer"] == "workqueue":
        verdicts.append("Numba's workqueue layer costs tens of microseconds a parallel region; omp or tbb is better.")
    memory = machine["memory_bytes"]
    if memory is not None and memory < 4 << 30:
        verdicts.append("Less than 4 GiB of memory: stay with the embedded model, gpt2-random may not fit.")
    if machine["cores"] == 1:
        verdicts.append("One core: the two-thread rows of the book cannot be reproduced here.")
    return verdicts


def doctor() -> None:
    """Print what this machine has, how fast it reads and multiplies, and what that means for you."""
    report = doctor_report()
    machine = report["machine"]
    blas = machine["blas"]
    caches = ", ".join(f"{name} {size >> 10:,} KiB" for name, size in machine["caches"].items())
    memory = machine["memory_bytes"]
    print(f"processor         {machine['cpu']} ({machine['cpu_core']}), {machine['cores']} cores")
    print(f"instruction sets  {', '.join(machine['instruction_sets']) or 'none of those the book uses'}")
    print(f"caches            {caches or 'not told by this system'}")
    print(f"memory            {f'{memory / 2**30:.1f} GiB' if memory else 'not told by this system'}")
    print(f"system            {machine['system']}, {machine['architecture']}, Python {machine['python']}")
    print(f"libraries         {', '.join(f'{k} {v}' for k, v in machine['versions'].items())}")
    print(f"matrix library    {blas['name']} {blas['version']}, kernels for {blas['kernel']}")
    print(f"threading layer   {machine['threading_layer']}")
    for n, speed in report["read_bandwidth"].items():
        floor_ms = report["decode_floor_s"][n] * 1e3
        print(
            f"{n} thread{'s' if n > 1 else ' '}         reads {speed / 1e9:.1f} GB/s, multiplies "
            f"{report['matmul_rate'][n] / 1e9:.0f} GFLOP/s (fp32): "
            f"no fp32 GPT-2 small token in less than {floor_ms:.1f} ms"
        )
    print("\nWhat that means")
    for line in report["verdicts"]:
        print(f"  - {line}")
    for line in report["traps"]:
        print(f"  ! {line}")


if __name__ == "__main__":
    doctor()
