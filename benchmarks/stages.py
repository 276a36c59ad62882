"""The parts of a quantised forward pass, each timed alone: what the experiment ``breakdown`` asks its processes for.

A kernel that scales its sums cannot be stopped before it does. So there is a bare one here, which multiplies the same
codes and leaves the scales out; the difference of the two is what scaling costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numba
import numpy as np
from numba import njit

from benchmarks import compiled_stages
from benchmarks.formats import linears_of
from benchmarks.layers import LibraryBench
from cachequant_lib.kernels.int8 import AHEAD
from cachequant_lib.kernels.simd import broadcast, dot4, load, prefetch, store, to_float, zeros

CONTEXT = 270  # tokens behind a decode step


@njit
def _bare_tile(tile, codes, panels, weight_first, i, j, out, column):  # type: ignore[no-untyped-def]
    depth, at = codes.shape[1], j * codes.shape[1]
    total = zeros(tile)  # (R, C)
    for k in range(0, depth, 4):
        prefetch(tile, panels, at + AHEAD)
        inputs, row = broadcast(tile, codes, i * depth + k, depth), load(tile, panels, at)  # (R, 1), (1, C)
        total = dot4(total, row, inputs) if weight_first else dot4(total, inputs, row)
        at += 4 * tile.width
    store(out, i * out.shape[1] + column, out.shape[1], to_float(total))


@njit(parallel=True)
def multiply_bare(tile, codes, panels, weight_first, out):  # type: ignore[no-untyped-def]
    """Sums of products of codes (M, K) and panels, cut into tiles as the kernels do; out (M, N), N whole panels.

    `weight_first` says which operand the instruction takes as unsigned: BFP8's kernel gives it the weight.
    """
    num_rows = codes.shape[0]
    for panel in numba.prange(panels.shape[0]):
        j, i = panel * tile.width, 0
        while i + tile.rows <= num_rows:
            _bare_tile(tile, codes, panels, weight_first, i, j, out, j)
            i += tile.rows
        while i + tile.half.rows <= num_rows:
            _bare_tile(tile.half, codes, panels, weight_first, i, j, out, j)
            i += tile.half.rows
        while i < num_rows:
            _bare_tile(tile.single, codes, panels, weight_first, i, j, out, j)
            i += 1


class Operands(tuple[Any, ...]):
    """Arrays with one row a token; a slice cuts all of them."""

    def __getitem__(self, key: Any) -> Any:
        return Operands(part[key] for part in self) if isinstance(key, slice) else super().__getitem__(key)


class LayerStages(LibraryBench):
    """A layer whole, ``int8``, and its stages, ``int8_quantize``, ``int8_multiply`` and ``int8_bare``; so for BFP8."""

    _out = np.zeros((0, 0), np.float32)

    def _make(self, engine: str, weight: Any, bias: Any) -> tuple[Any, int, Callable[[], Any]]:
        scheme, _, stage = engine.partition("_")
        if not stage:
            return super()._make(scheme, weight, bias)
        if stage == "quantize":
            return self._quantizer(scheme), self._footprint, lambda: self._quantizer(scheme)  # it reads no weight
        packed, columns = packed_weight(scheme, weight, bias), len(weight)
        wrap = self._bare if stage == "bare" else self._multiplier
        return (
            wrap(scheme, packed, columns),
            packed.nbytes,
            lambda: wrap(scheme, type(packed)(*(part.copy() for part in packed)), columns),
        )

    def _input(self, engine: str, x: Any) -> Any:
        scheme, _, stage = engine.partition("_")
        if not stage:
            return x
        prepared = quantized_arrays(scheme, x)
        self._quantizer(scheme)((x, *prepared))
        return Operands((x, *prepared) if stage == "quantize" else prepared)

    def _quantizer(self, scheme: str) -> Callable[[Any], Any]:
        from cachequant_lib.kernels.quantize import quantize_rows_bfp8, quantize_rows_int8

        kernel: Any = quantize_rows_int8 if scheme == "int8" else quantize_rows_bfp8
        tile = tile_of(scheme)
        return lambda arrays: kernel(tile, *arrays)

    def _multiplier(self, scheme: str, packed: Any, columns: int) -> Callable[[Any], Any]:
        from cachequant_lib.kernels.bfp8 import multiply_bfp8
        from cachequant_lib.kernels.int8 import multiply_int8

        kernel: Any = multiply_int8 if scheme == "int8" else multiply_bfp8
        tile = tile_of(scheme)

        def multiply(arrays: Any) -> None:
            kernel(tile, *arrays, packed, self._output(len(arrays[0]), columns))

        return multiply

    def _bare(self, scheme: str, packed: Any, columns: int) -> Callable[[Any], Any]:
        tile = tile_of(scheme)
        width = packed.panels.shape[0] * tile.width

        def multiply(arrays: Any) -> None:
            multiply_bare(tile, arrays[0], packed.panels, scheme == "bfp8", self._output(len(arrays[0]), width))

        return multiply

    def _output(self, num_rows: int, columns: int) -> Any:
        """Room for a result, the same for all copies: making it is the layer's affair, and part of its call."""
        if self._out.shape != (num_rows, columns):
            self._out = np.zeros((num_rows, columns), np.float32)
        return self._out


def tile_of(scheme: str) -> Any:
    """The tile that a format's layers use on this CPU."""
    from cachequant_lib.kernels.isa import best_instruction_set
    from cachequant_lib.kernels.tiles import Tile

    isa = best_instruction_set()
    return Tile(isa, *(isa.int8_tile if scheme == "int8" else isa.bfp8_tile))


def packed_weight(scheme: str, weight: Any, bias: Any) -> Any:
    """A weight (N, K) as the kernels read it."""
    import cachequant_lib as cq
    from cachequant_lib.kernels.bfp8 import pack_bfp8
    from cachequant_lib.kernels.int8 import pack_int8

    if scheme == "int8":
        codes = cq.quantize_int8(weight)
        return pack_int8(tile_of(scheme), codes.codes, codes.scales, bias)
    blocks = cq.quantize_bfp8(weight)
    return pack_bfp8(tile_of(scheme), blocks.mantissas, blocks.exponents, bias)


def quantized_arrays(scheme: str, x: Any) -> tuple[Any, ...]:
    """Empty arrays for what the row quantisers write."""
    if scheme == "int8":
        padded = -(-x.shape[1] // 4) * 4
        return np.empty((len(x), padded), np.int8), np.empty(len(x), np.float32)
    shape = len(x), x.shape[1] // 32
    return np.empty(x.shape, np.int8), np.empty(shape, np.float32), np.empty(shape, np.int32)


class ModelStages:
    """What surrounds the linear layers, and the forward pass as a whole, of one model in several formats."""

    def __init__(self, model_name: str, num_threads: int, formats: dict[str, tuple[str, str]]) -> None:
        import cachequant_lib as cq

        self._pin = cq.pin_threads(num_threads)
        self._pin.__enter__()
        plain = cq.load(model_name)
        self._models: dict[str, Any] = {
            name: plain if scheme == "fp32" else cq.quantize_model(plain, scheme, head=head)
            for name, (scheme, head) in formats.items()
        }
        self._compiled = [name for name, model in self._models.items() if model.whole_pass is not None]
        self._models |= {
            f"{name}_layers": replace(self._models[name], layer_by_layer=True)
            for name in self._compiled
            if formats[name][1] == "fp32"
        }
        self._num_threads = num_threads
        self._options = {
            n: {"num_best": 1} if h == "certified" else {"last_only": True} for n, (_, h) in formats.items()
        }
        self._plain, self._config = plain, plain.config
        self._kv = plain.new_kv(capacity=min(1024, plain.config.context_length))
        self._ids = np.random.default_rng(0).integers(0, plain.config.vocab_size, CONTEXT).tolist()
        self._filled = ""

    def describe(self) -> dict[str, Any]:
        """The record's ``model`` part: shapes of the linears with how many a block has, and the layers."""
        counts: dict[tuple[int, int], int] = {}
        for layer in linears_of(self._plain.blocks[0]):
            shape = layer.in_features, layer.out_features
            counts[shape] = counts.get(shape, 0) + 1
        return {
            "name": self._plain.name,
            "fingerprint": self._plain.fingerprint,
            "num_layers": self._config.num_layers,
            "compiled": self._compiled,
            "layered": [name for name in self._models if name.endswith("_layers")],
            "shapes": [{"in_features": k, "out_features": n, "per_block": m} for (k, n), m in counts.items()],
        }

    def time(self, stage: str, rows: int, min_sample_s: float) -> float:
        """Seconds of a stage in one forward pass: ``norm``, ``attention``, ``head_int8``, ``whole_int8`` and so on.

        ``norm_compiled`` is that of the compiled pass; ``whole_int8_layers`` calls one layer after the other.
        """
        kind, _, name = stage.partition("_")
        rng = np.random.default_rng(1)
        x = rng.standard_normal((rows, self._config.width), dtype=np.float32)
        if kind in ("whole", "attention"):
            self._fill(name if kind == "whole" else "fp32", rows)
        work = self._compiled_stage(kind, x) if name == "compiled" else self._stage(kind, name, x)
        next(work)
        spent, calls = 0.0, 0
        while spent < min_sample_s or calls < 2:
            start = time.perf_counter()
            next(work)
            spent += time.perf_counter() - start
            calls += 1
        return spent / calls

    def _stage(self, kind: str, name: str, x: Any) -> Iterator[None]:
        stages: dict[str, Callable[[], Iterator[None]]] = {
            "whole": lambda: self._whole(name, len(x)),
            "attention": lambda: self._attention(len(x)),
            "norm": lambda: self._norms(x),
            "residual": lambda: self._residuals(x),
            "activation": lambda: self._activations(len(x)),
            "head": lambda: self._heads(name, x),
        }
        return stages[kind]()

    def _compiled_stage(self, kind: str, x: Any) -> Iterator[None]:
        c, rng, tile = self._config, np.random.default_rng(2), tile_of("int8")
        if kind == "norm":
            return compiled_stages.norms(tile, self._plain, x, self._num_threads)
        if kind == "activation":
            h = rng.standard_normal((len(x), c.hidden_width), dtype=np.float32)
            return compiled_stages.activations(tile, self._plain, h, self._num_threads)
        q = rng.standard_normal((len(x), c.num_heads * c.head_dim), dtype=np.float32)
        return compiled_stages.attention(tile, self._plain, self._kv, q, self._start, self._num_threads)

    def _fill(self, name: str, rows: int) -> None:
        """Leave in the cache what a prefill starts from (nothing) or a decode step: a context of this model's own."""
        state = f"{name}, {rows}"
        if self._filled != state:
            self._kv.truncate(0)
            if rows == 1:
                self._models[name].forward(self._ids, self._kv, last_only=True)
        self._filled, self._start = state, CONTEXT if rows == 1 else 0

    def _whole(self, name: str, rows: int) -> Iterator[None]:
        model, ids = self._models[name], self._ids[:rows]
        options = self._options.get(name, {"last_only": True})
        while True:
            self._kv.truncate(self._start)
            model.forward(ids, self._kv, **options)
            yield

    def _attention(self, rows: int) -> Iterator[None]:
        c, rng = self._config, np.random.default_rng(2)
        q = rng.standard_normal((rows, c.num_heads, c.head_dim), dtype=np.float32)
        k = rng.standard_normal((rows, c.num_kv_heads, c.head_dim), dtype=np.float32)
        while True:
            self._kv.truncate(self._start)
            for layer in range(c.num_layers):
                self._kv.append(layer, k, k)
                self._kv.attend(layer, q)
            yield

    def _norms(self, x: Any) -> Iterator[None]:
        norms = [norm for block in self._plain.blocks for norm in (block.norm_1, block.norm_2)]
        while True:
            for norm in norms:
                norm(x)
            self._plain.final_norm(x[-1:])
            yield

    def _residuals(self, x: Any) -> Iterator[None]:
        y = np.zeros_like(x)
        while True:
            for _ in range(2 * self._config.num_layers):
                y += x
            yield

    def _activations(self, rows: int) -> Iterator[None]:
        from cachequant_lib.model.ops import gelu, silu

        h = np.random.default_rng(2).standard_normal((rows, self._config.hidden_width), dtype=np.float32)
        while True:
            for _ in range(self._config.num_layers):
                gelu(h) if self._config.architecture == "gpt2" else silu(h) * h
            yield

    def _heads(self, name: str, x: Any) -> Iterator[None]:
        head, last = self._models[name].head, x[-1:]
        best = "num_best" in self._options[name]
        while True:
            head.largest(last, 1) if best else head(last)
            yield
