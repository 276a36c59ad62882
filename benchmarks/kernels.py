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
MAKERS: dict[str, Callable[..., Any]] = {"torch": TorchBench, "numpy": NumpyBench, "library": LibraryBench}
# The same contest as on a processor without AVX-512: every library is told so, in the words that it understands.
AVX2 = {
    "CACHEQUANT_ISA": "avx2",
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+lzcnt,+avx,+avx2,+fma,+f16c,+bmi,+bmi2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "OPENBLAS_CORETYPE": "Haswell",
}
AVX2_ENGINES = ("mkl", "blas", "int8", "bfp8")
# Engine, rows, and times as fast as the base that we set out to reach, at the model's shapes: the least of them counts.
GOALS = (
    ("int8", 1, 4.0),
    ("int8", 8, 7.0),
    ("int8", 128, 4.0),
    ("int8", 512, 3.8),
    ("bfp8", 1, 4.3),
    ("bfp8", 128, 2.8),
    ("bfp8", 512, 2.8),
)
AVX2_GOALS = (("int8", 1, 4.0), ("int8", 128, 1.1), ("int8", 512, 1.1))

Say = Callable[[str], None]


def run(model_name: str, threads: Sequence[int], repeats: int, say: Say) -> dict[str, Any]:
    """Measure at each thread count; returns the record's ``model``, ``settings`` and ``data``."""
    model, footprint = describe(model_name), footprint_bytes()
    data: dict[str, Any] = {"engines": LABELS, "base": BASE, "threads": {}}
    for n in threads:
        say(f"{n} thread{'s' if n > 1 else ''}: weights rotate through {footprint >> 20} MiB of copies")
        with crew({name: (make, (n, footprint)) for name, make in MAKERS.items()}, n) as workers:
            data["threads"][str(n)] = _measure(workers, model["shapes"], n, repeats, say)
    first = data["threads"].get("1")
    if first:
        data["goals"] = goals(GOALS, first["cells"])
    if first and first["limits"]["instruction_set"].startswith("avx"):
        say("1 thread, every library held to AVX2")
        with crew({name: (make, (1, footprint)) for name, make in MAKERS.items()}, 1, AVX2) as workers:
            data["avx2"] = _measure(workers, model["shapes"], 1, repeats, say, AVX2_ENGINES)
        data["avx2_goals"] = goals(AVX2_GOALS, data["avx2"]["cells"])
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
    """Bytes of copies to rotate through: eight times the largest cache, 256 MiB at the least, 1 GiB at the most.

    A last-level cache does not forget in the order of use, so a ring of three times its size is still found in it in
    part, and would seem to be read faster than memory can be.
    """
    from cachequant_lib.machine import machine_info

    return min(max(8 * max(machine_info()["caches"].values(), default=0), 256 << 20), 1 << 30)


def _measure(
    workers: dict[str, Worker],
    shapes: list[list[int]],
    num_threads: int,
    repeats: int,
    say: Say,
    only: Sequence[str] = tuple(LABELS),
) -> dict[str, Any]:
    limits = workers["library"].call("limits")
    limits["torch_rate"] = workers["torch"].call("rate")
    seen, timed = [limits["read_bandwidth"]], []
    say(
        f"  {limits['instruction_set']}: {limits['tile_rate'] / 1e9:.0f} G multiply-adds/s a thread in the cache; "
        f"reads {limits['read_bandwidth'] / 1e9:.1f} GB/s"
    )
    for depth, columns in shapes:
        for rows in ROWS:
            engines = [name for name in only if num_threads == 1 or not name.startswith("rung")]
            samples: dict[str, list[float]] = {name: [] for name in engines}
            for number in range(repeats):
                for name in engines if number % 2 == 0 else reversed(engines):
                    worker = workers[PROCESS.get(name, "library")]
                    samples[name].append(worker.call("time", name, depth, columns, rows, MIN_SAMPLE_S))
            timed.append((depth, columns, rows, samples))
            base = summary(samples[BASE])["median"]
            ratios = (f"{name} {base / summary(times)['median']:.2f}x" for name, times in samples.items())
            say(f"  {depth} -> {columns}, {rows} rows: " + ", ".join(ratios))
        seen.append(workers["library"].call("read_bandwidth"))
    limits |= {"read_bandwidth": max(seen), "read_bandwidth_seen": seen}
    return {"limits": limits, "cells": [cell(*of, num_threads, samples, limits) for *of, samples in timed]}


def goals(wanted: Sequence[tuple[str, int, float]], cells: list[dict[str, Any]]) -> dict[str, Any]:
    """What was set out for, and the least that was reached over the shapes; ``met`` counts the shapes."""
    found: dict[str, dict[str, Any]] = {"goal": {}, "least": {}, "most": {}, "met": {}}
    for engine, rows, goal in wanted:
        medians = [c["engines"][engine]["speedup_over_base"]["median"] for c in cells if c["rows"] == rows]
        if medians:
            name = f"{LABELS[engine]}, {rows} {'row' if rows == 1 else 'rows'}"
            found["goal"][name] = goal
            found["least"][name], found["most"][name] = min(medians), max(medians)
            found["met"][name] = f"{sum(median >= goal for median in medians)} of {len(medians)}"
    return found


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
    parts = {f"{n} thread(s)": part for n, part in record["data"]["threads"].items()}
    if "avx2" in record["data"]:
        parts["1 thread(s), AVX2 only"] = record["data"]["avx2"]
    for title, part in parts.items():
        limits = part["limits"]
        lines.append(
            f"\n{title}, {limits['instruction_set']}; limits: {limits['tile_rate'] / 1e9:.0f} G multiply-adds/s "
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
    """SVG pictures of a record, by file name: the model's largest layer, against PyTorch and against the limits."""
    from cachequant_lib import figures

    drawn, labels = {}, record["data"]["engines"]
    for n, part in record["data"]["threads"].items():
        large = max(c["in_features"] * c["out_features"] for c in part["cells"])
        columns = max(c["out_features"] for c in part["cells"] if c["in_features"] * c["out_features"] == large)
        cells = [c for c in part["cells"] if (c["in_features"] * columns, c["out_features"]) == (large, columns)]
        ratios: dict[str, dict[str, Any]] = {}
        shares: dict[str, dict[str, Any]] = {}
        for name in cells[0]["engines"]:
            for found in (c for c in cells if name in c["engines"]):
                engine, rows = found["engines"][name], f"{found['rows']} row{'s' * (found['rows'] > 1)}"
                near = max(engine["share_of_tile_rate"], engine["share_of_read_bandwidth"])
                ratios.setdefault(labels[name], {})[rows] = engine["speedup_over_base"]
                shares.setdefault(labels[name], {})[rows] = {"median": near, "low": near, "high": near}
        shape = f"{cells[0]['in_features']} → {columns}"
        drawn[f"ladder-{n}-threads"] = figures.svg(
            figures.speedups(ratios, f"{shape}: times as fast as {labels[BASE]}").figure
        )
        drawn[f"limits-{n}-threads"] = figures.svg(
            figures.speedups(shares, f"{shape}: share of the nearer limit, multiplying or reading").figure
        )
    return drawn
