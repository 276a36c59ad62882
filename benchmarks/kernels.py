"""Chapter 6: one linear layer, every kernel, every shape of the model: who wins, and how far from the limits?

A layer is timed alone, but as it would run inside a model: its weight comes from memory, not from a cache (each call
takes the next of many copies), and an integer layer quantises its input within the time. Rivals sit in processes of
their own and take turns. Beside them two limits: the multiply-adds that the kernel's tile makes on operands in the
first-level cache, and the bytes that the machine reads.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

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
}
PROCESS = {"mkl": "torch", "mkl_bf16": "torch", "blas": "numpy"}  # the rest share the library's
MOST_ROWS = {"int8_loops": 128, "bfp8_loops": 8}  # beyond it a readable kernel takes seconds, and has lost long before

Say = Callable[[str], None]
Layer = Callable[[], Any]


class Bench:
    """What every process does: make a layer of random weights, and time calls of it while its weight is cold."""

    def __init__(self, num_threads: int, footprint_bytes: int) -> None:
        self._threads, self._footprint = num_threads, footprint_bytes
        self._shape = (0, 0)
        self._layers: dict[str, list[Callable[[Any], Any]]] = {}

    def time(self, engine: str, depth: int, columns: int, rows: int, min_sample_s: float) -> float:
        """Seconds for one call with x (rows, depth) and a weight (columns, depth)."""
        if self._shape != (depth, columns):
            self._shape = depth, columns
            self._layers.clear()
        if engine not in self._layers:
            self._layers[engine] = self._copies(engine, depth, columns)
        layers = self._layers[engine]
        x = self._input(engine, np.random.default_rng(1).standard_normal((rows, depth), dtype=np.float32))
        layers[0](x)  # compiles, and starts the threads
        calls, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < min_sample_s or calls < 2:
            layers[calls % len(layers)](x)
            calls += 1
        return spent / calls

    def _copies(self, engine: str, depth: int, columns: int) -> list[Callable[[Any], Any]]:
        rng = np.random.default_rng(0)
        weight = rng.standard_normal((columns, depth), dtype=np.float32) * np.float32(0.02)
        layer, nbytes, clone = self._make(engine, weight, rng.standard_normal(columns, dtype=np.float32))
        return [layer, *(clone() for _ in range(self._footprint // nbytes))]

    def _make(self, engine: str, weight: Any, bias: Any) -> tuple[Any, int, Callable[[], Any]]:
        """A layer, the bytes of its weight, and a function that copies both."""
        raise NotImplementedError

    def _input(self, engine: str, x: Any) -> Any:
        return x


class NumpyBench(Bench):
    """The BLAS behind NumPy."""

    def _make(self, engine: str, weight: Any, bias: Any) -> tuple[Any, int, Callable[[], Any]]:
        def layer(weight: Any) -> Callable[[Any], Any]:
            return lambda x: x @ weight.T + bias

        return layer(weight), weight.nbytes, lambda: layer(weight.copy())


class TorchBench(Bench):
    """MKL and oneDNN, called through PyTorch."""

    def __init__(self, num_threads: int, footprint_bytes: int) -> None:
        import torch

        super().__init__(num_threads, footprint_bytes)
        torch.set_num_threads(num_threads)
        torch.set_grad_enabled(False)

    def _make(self, engine: str, weight: Any, bias: Any) -> tuple[Any, int, Callable[[], Any]]:
        import torch

        def layer(weight: Any, bias: Any) -> Callable[[Any], Any]:
            return lambda x: torch.nn.functional.linear(x, weight, bias)

        matrix, vector = self._input(engine, weight), self._input(engine, bias)
        return layer(matrix, vector), matrix.nbytes, lambda: layer(matrix.clone(), vector)

    def _input(self, engine: str, x: Any) -> Any:
        import torch

        return torch.from_numpy(x).to(torch.bfloat16 if engine == "mkl_bf16" else torch.float32)


class LibraryBench(Bench):
    """The layers of this library, the quantisation of the input included, and the limits of the machine."""

    def __init__(self, num_threads: int, footprint_bytes: int) -> None:
        import numba

        super().__init__(num_threads, footprint_bytes)
        numba.set_num_threads(num_threads)

    def _make(self, engine: str, weight: Any, bias: Any) -> tuple[Any, int, Callable[[], Any]]:
        import cachequant_lib as cq

        layer: Any = {"int8": cq.Int8Linear, "bfp8": cq.BFP8Linear}[engine[:4]](weight, bias)
        if engine.endswith("_loops"):
            quantize, multiply = {
                "int8_loops": (cq.quantize_int8, cq.matmul_int8),
                "bfp8_loops": (cq.quantize_bfp8, cq.matmul_bfp8),
            }[engine]
            tensor = layer.tensor

            def loops(tensor: Any) -> Callable[[Any], Any]:
                return lambda x: multiply(quantize(x), tensor, bias)

            return loops(tensor), tensor.nbytes, lambda: loops(copy.deepcopy(tensor))

        def clone() -> Any:
            other = copy.copy(layer)
            other._packed = type(layer._packed)(*(part.copy() for part in layer._packed))
            return other

        return layer, layer.nbytes, clone

    def limits(self) -> dict[str, Any]:
        """The instruction set, multiply-adds a second of one thread's tile in the cache, and bytes read a second."""
        from cachequant_lib.checkup import read_bandwidth
        from cachequant_lib.kernels.isa import best_instruction_set

        isa = best_instruction_set()
        return {
            "instruction_set": isa.name,
            "instruction": isa.instruction,
            "tile_rate": significant(tile_rate(isa)),
            "read_bandwidth": significant(read_bandwidth(self._threads, budget_s=1.5)),
        }


def tile_rate(isa: Any, depth: int = 256, budget_s: float = 1.0) -> float:
    """Multiply-adds a second of one int8 tile that is computed again and again; its operands never leave the cache."""
    from numba import njit

    from cachequant_lib.kernels.int8 import _tile_int8, pack_int8
    from cachequant_lib.kernels.tiles import Tile

    @njit
    def repeat(tile, codes, steps, weight, out, times):  # type: ignore[no-untyped-def]
        for _ in range(times):
            _tile_int8(tile, codes, steps, weight, 0, 0, out, 0)

    tile, times = Tile(isa, *isa.int8_tile), 2000
    ones = np.ones(tile.width, np.float32)
    weight = pack_int8(tile, np.ones((tile.width, depth), np.int8), ones, ones)
    codes, out = np.ones((tile.rows, depth), np.int8), np.empty((tile.rows, tile.width), np.float32)
    arguments = tile, codes, ones[: tile.rows].copy(), weight, out
    repeat(*arguments, 1)
    best, deadline = float("inf"), time.perf_counter() + budget_s
    while time.perf_counter() < deadline:
        start = time.perf_counter()
        repeat(*arguments, times)
        best = min(best, time.perf_counter() - start)
    return times * tile.rows * tile.width * depth / best


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
            samples: dict[str, list[float]] = {name: [] for name in engines}
            for number in range(repeats):
                for name in engines if number % 2 == 0 else reversed(engines):
                    worker = workers[PROCESS.get(name, "library")]
                    samples[name].append(worker.call("time", name, depth, columns, rows, MIN_SAMPLE_S))
            cells.append(cell(depth, columns, rows, num_threads, samples, limits))
            ratios = (f"{k} {v['speedup_over_base']['median']:.2f}x" for k, v in cells[-1]["engines"].items())
            say(f"  {depth} -> {columns}, {rows} rows: " + ", ".join(ratios))
    return {"limits": limits, "cells": cells}


WEIGHT_BYTES = {"mkl": 4, "blas": 4, "mkl_bf16": 2, "int8": 1, "int8_loops": 1, "bfp8": 33 / 32, "bfp8_loops": 33 / 32}


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
                WEIGHT_BYTES[name] * depth * columns / seconds["median"] / limits["read_bandwidth"], 3
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
        lines.append(
            f"{'shape':>14s}{'rows':>6s}  {'engine':24s}{'ms':>9s}{'x PyTorch fp32':>24s}{'x best':>8s}{'of tile':>9s}{'of reads':>9s}"
        )
        for found in part["cells"]:
            shape = f"{found['in_features']} -> {found['out_features']}"
            for name, engine in found["engines"].items():
                ratio = engine["speedup_over_base"]
                spread = f"{ratio['median']:.2f} [{ratio['low']:.2f} .. {ratio['high']:.2f}]"
                lines.append(
                    f"{shape:>14s}{found['rows']:6d}  {record['data']['engines'][name]:24s}"
                    f"{engine['seconds']['median'] * 1e3:9.3f}{spread:>24s}{engine['speedup_over_fastest_fp32']['median']:8.2f}"
                    f"{engine['share_of_tile_rate']:9.1%}{engine['share_of_read_bandwidth']:9.1%}"
                )
    return "\n".join(lines).strip()


def charts(record: dict[str, Any]) -> dict[str, str]:
    """No pictures of its own yet: the kernel chapter draws from the record."""
    return {}
