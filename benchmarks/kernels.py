"""Chapter 6: one linear layer, every kernel, every shape of the model: who wins, and how far from the limits?

A layer is timed alone, but as it would run inside a model: its weight comes from memory, not from a cache (each call
takes the next of many copies), and an integer layer quantises its input within the time. Rivals sit in processes of
their own and take turns. Beside them two limits: the multiply-adds that the kernel's tile makes on operands in the
first-level cache, and the bytes that the machine reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.layers import LibraryBench, NumpyBench, TorchBench
from benchmarks.records import significant, summary
from benchmarks.workers import Worker, crew

TITLE = "one linear layer: int8 and BFP8 kernels against fp32"
BASE, FP32 = "mkl", ("mkl", "blas")
ROWS = (1, 8, 128, 512)
MIN_SAMPLE_S = 0.05
LABELS = {
    "mkl": "PyTorch, fp32",
    "mkl_bf16": "PyTorch, bf16",
    "blas": "NumPy, fp32",
    "int8": "this library, int8",
    "bfp8": "this library, BFP8",
    "int8_loops": "readable loops, int8",
    "bfp8_loops": "readable loops, BFP8",
    "rung_0": "rung 0: naive",
    "rung_1": "rung 1: rows by rows",
    "rung_2": "rung 2: 32-bit totals",
    "rung_3": "rung 3: one instruction",
    "rung_4": "rung 4: packed tiles",
}
PROCESS = {"mkl": "torch", "mkl_bf16": "torch", "blas": "numpy"}  # the rest share the library's
# Beyond these a readable kernel takes seconds, and has lost long before. The rungs of the ladder use one thread.
MOST_ROWS = {"int8_loops": 128, "bfp8_loops": 8, "rung_0": 8, "rung_1": 8, "rung_2": 128}

Say = Callable[[str], None]


def run(model_name: str, threads: Sequence[int], repeats: int, say: Say) -> dict[str, Any]:
    """Measure at each thread count; returns the record's ``model``, ``settings`` and ``data``."""
    model, footprint = describe(model_name), footprint_bytes()
    data: dict[str, Any] = {"engines": LABELS, "base": BASE, "threads": {}}
    for n in threads:
        say(f"{n} thread{'s' if n > 1 else ''}: weights rotate through {footprint >> 20} MiB of copies")
        makers = {"torch": TorchBench, "numpy": NumpyBench, "library": LibraryBench}
        with crew({name: (make, (n, footprint)) for name, make in makers.items()}, n) as workers:
            data["threads"][str(n)] = _measure(workers, model["shapes"], n, repeats, say)
    settings = {
        "model": model_name,
        "threads": list(threads),
        "repeats": repeats,
        "rows": list(ROWS),
        "min_sample_s": MIN_SAMPLE_S,
        "footprint_bytes": footprint,
    }
    return {"model": model, "settings": settings, "data": data}


def describe(model_name: str) -> dict[str, Any]:
    """The record's ``model`` part: the shapes (K, N) of a decoder block's linear layers."""
    import cachequant_lib as cq
    from cachequant_lib.model.linear import Linear

    model = cq.load(model_name)
    layers = [layer for layer in vars(model.blocks[0]).values() if isinstance(layer, Linear)]
    shapes = sorted({(layer.in_features, layer.out_features) for layer in layers})
    return {"name": model.name, "fingerprint": model.fingerprint, "shapes": [list(shape) for shape in shapes]}


def footprint_bytes() -> int:
    """Bytes of copies to rotate through: three times the largest cache, 96 MiB at the least, 1 GiB at the most."""
    from cachequant_lib.machine import machine_info

    return min(max(3 * max(machine_info()["caches"].values(), default=0), 96 << 20), 1 << 30)


def _measure(
    workers: dict[str, Worker], shapes: list[list[int]], num_threads: int, repeats: int, say: Say
) -> dict[str, Any]:
    limits = workers["library"].call("limits")
    say(
        f"  {limits['instruction_set']}: {limits['tile_rate'] / 1e9:.0f} G multiply-adds/s a thread in the cache; "
        f"reads {limits['read_bandwidth'] / 1e9:.1f} GB/s"
    )
    cells = []
    for depth, columns in shapes:
        for rows in ROWS:
            engines = [name for name in LABELS if rows <= MOST_ROWS.get(name, rows)]
            if num_threads > 1:
                engines = [name for name in engines if not name.startswith("rung")]
            samples: dict[str, list[float]] = {name: [] for name in engines}
            for number in range(repeats):
                for name in engines if number % 2 == 0 else reversed(engines):
                    worker = workers[PROCESS.get(name, "library")]
                    samples[name].append(worker.call("time", name, depth, columns, rows, MIN_SAMPLE_S))
            cells.append(cell(depth, columns, rows, num_threads, samples, limits))
            ratios = (f"{k} {v['speedup_over_base']['median']:.2f}x" for k, v in cells[-1]["engines"].items())
            say(f"  {depth} -> {columns}, {rows} rows: " + ", ".join(ratios))
    return {"limits": limits, "cells": cells}


WEIGHT_BYTES = {"mkl": 4, "blas": 4, "mkl_bf16": 2, "bfp8": 33 / 32, "bfp8_loops": 33 / 32}  # the rest: 1


def cell(
    depth: int,
    columns: int,
    rows: int,
    num_threads: int,
    samples: dict[str, list[float]],
    limits: dict[str, Any],
) -> dict[str, Any]:
    """One shape: for each engine its times, its speed over fp32, round by round, and its shares of the limits.

    PyTorch's fp32 is the base that most readers have; which fp32 is the faster differs by CPU, so that ratio is beside.
    """
    products = depth * columns * rows
    engines = {}
    fastest = min((name for name in FP32 if name in samples), key=lambda name: summary(samples[name])["median"])
    for name, times in samples.items():
        seconds = summary(times)
        engines[name] = {
            "samples_s": [significant(value) for value in times],
            "seconds": seconds,
            "speedup_over_base": summary([b / t for b, t in zip(samples[BASE], times, strict=True)], 4),
            "speedup_over_fastest_fp32": summary([b / t for b, t in zip(samples[fastest], times, strict=True)], 4),
            "share_of_tile_rate": significant(products / seconds["median"] / (num_threads * limits["tile_rate"]), 3),
            "share_of_read_bandwidth": significant(
                WEIGHT_BYTES.get(name, 1) * depth * columns / seconds["median"] / limits["read_bandwidth"], 3
            ),
        }
    shape = {"in_features": depth, "out_features": columns, "rows": rows}
    return {**shape, "fastest_fp32": fastest, "engines": engines}


def table(record: dict[str, Any]) -> str:
    """One row a shape and engine."""
    lines = []
    for n, part in record["data"]["threads"].items():
        limits = part["limits"]
        lines.append(
            f"\n{n} thread(s), {limits['instruction_set']}; limits: {limits['tile_rate'] / 1e9:.0f} G multiply-adds/s "
            f"a thread, reads {limits['read_bandwidth'] / 1e9:.1f} GB/s"
        )
        columns = f"{'ms':>9s}{'x PyTorch fp32':>24s}{'x best':>8s}{'of tile':>9s}{'of reads':>9s}"
        lines.append(f"{'shape':>14s}{'rows':>6s}  {'engine':24s}{columns}")
        for found in part["cells"]:
            shape = f"{found['in_features']} -> {found['out_features']}"
            for name, engine in found["engines"].items():
                ratio, best = engine["speedup_over_base"], engine["speedup_over_fastest_fp32"]["median"]
                spread = f"{ratio['median']:.2f} [{ratio['low']:.2f} .. {ratio['high']:.2f}]"
                lines.append(
                    f"{shape:>14s}{found['rows']:6d}  {record['data']['engines'][name]:24s}"
                    f"{engine['seconds']['median'] * 1e3:9.3f}{spread:>24s}{best:8.2f}"
                    f"{engine['share_of_tile_rate']:9.1%}{engine['share_of_read_bandwidth']:9.1%}"
                )
    return "\n".join(lines).strip()


def charts(record: dict[str, Any]) -> dict[str, str]:
    """No pictures of its own yet: the kernel chapter draws from the record."""
    return {}
