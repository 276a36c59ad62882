"""One linear layer in each engine's hands: made of random weights, copied until its copies leave the cache, timed.

Each class lives in a process of its own (see :mod:`benchmarks.workers`), and imports its engine only there.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.records import significant


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
        layers[0](x[:1])  # compiles, and starts the threads
        calls, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < min_sample_s or calls < 1:
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

    def rate(self) -> float:
        """Multiply-adds a second of the fastest fp32 product of two square matrices."""
        import torch

        a, best = torch.randn(1024, 1024), float("inf")
        for _ in range(20):
            start = time.perf_counter()
            a @ a
            best = min(best, time.perf_counter() - start)
        return significant(1024**3 / best)

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

        if engine.startswith("rung"):
            arrays = rung_operands(engine, weight, bias)
            return rung(engine, arrays), arrays[0].nbytes, lambda: rung(engine, tuple(part.copy() for part in arrays))
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

        return layer, layer.packed_nbytes, clone

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

    def read_bandwidth(self) -> float:
        """Bytes read a second, measured once more: a limit is the best of all that was seen."""
        from cachequant_lib.checkup import read_bandwidth

        return significant(read_bandwidth(self._threads, budget_s=0.5))


def rung_operands(engine: str, weight: Any, bias: Any) -> tuple[Any, ...]:
    """The weight as a rung of the ladder reads it: codes first, then what is said of each column."""
    import cachequant_lib as cq
    from cachequant_lib.kernels.int8 import pack_int8

    tensor = cq.quantize_int8(weight)
    if engine == "rung_0":
        return np.ascontiguousarray(tensor.codes.T), tensor.scales, bias  # (N, K) -> (K, N)
    if engine in ("rung_1", "rung_2"):
        return tensor.codes, tensor.scales, bias
    packed = pack_int8(rung_tile("rung_4"), tensor.codes, tensor.scales, bias)
    if engine == "rung_4":
        return tuple(packed)
    return tensor.codes, packed.starts[: len(bias)].copy(), tensor.scales, bias


def rung_tile(engine: str) -> Any:
    """The tile of a rung: the plain loops multiply signed codes, and rung 3 uses one register."""
    from cachequant_lib.kernels.isa import INSTRUCTION_SETS, best_instruction_set
    from cachequant_lib.kernels.tiles import Tile

    if engine in ("rung_0", "rung_1", "rung_2"):
        return Tile(INSTRUCTION_SETS[-1], 1, 1)
    isa = best_instruction_set()
    return Tile(isa, 1, 1) if engine == "rung_3" else Tile(isa, *isa.int8_tile)


def rung(engine: str, weight: tuple[Any, ...]) -> Callable[[Any], Any]:
    """A layer made of one rung of the ladder, with the fast quantisation of its input, as the packed layer has it."""
    from cachequant_lib.kernels import ladder
    from cachequant_lib.kernels.int8 import PackedInt8
    from cachequant_lib.kernels.quantize import quantize_rows_int8

    tile = rung_tile(engine)
    kernels: dict[str, Any] = {
        "rung_0": ladder.multiply_int8_0_naive,
        "rung_1": ladder.multiply_int8_1_rows,
        "rung_2": ladder.multiply_int8_2_int32,
        "rung_3": lambda *operands: ladder.multiply_int8_3_dot4(tile, *operands),
        "rung_4": lambda codes, steps, *parts: ladder.multiply_int8_4_tiles(
            tile, codes, steps, PackedInt8(*parts[:-1]), parts[-1]
        ),
    }
    num_columns = weight[0].shape[1] if engine == "rung_0" else len(weight[-1])

    def layer(x: Any) -> Any:
        codes, steps = np.empty(x.shape, np.int8), np.empty(len(x), np.float32)
        out = np.empty((len(x), num_columns), np.float32)
        quantize_rows_int8(tile, x, codes, steps)
        kernels[engine](codes, steps, *weight, out)
        return out

    return layer


def tile_rate(isa: Any, depth: int = 256, budget_s: float = 1.0) -> float:
    """Multiply-adds a second of one int8 tile that is computed again and again; its operands never leave the cache."""
    from numba import njit

    from cachequant_lib.kernels.int8 import _tile_int8, pack_int8
    from cachequant_lib.kernels.tiles import Tile

    @njit
    def repeat(tile, codes, steps, weight, out, times):  # type: ignore[no-untyped-def]
        for _ in range(times):
            _tile_int8(tile, codes, steps, weight, 0, 0, out, 0, False)

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
