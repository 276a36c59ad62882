"""Any corner of the scheme grid, fast: what :class:`cachequant_lib.model.linear.SchemeLinear` computes, bit for bit.

Two kernels find each group's largest magnitude and round each value to its code and back; the scale itself comes from
the library. Weights and inputs can be rounded apart, and the last group of a row may be shorter than the others, where
the library refuses: SmolLM2's rows of 576 do not divide by 128.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from cachequant_lib.errors import FormatError
from cachequant_lib.formats.scheme import SCALE_BITS, ScaleRule, Scheme, scales_of
from cachequant_lib.model.base import Model
from cachequant_lib.model.linear import Float32Linear, Linear
from cachequant_lib.model.ops import FloatArray

Rounding = Callable[[FloatArray, FloatArray], None]


@njit(cache=True, error_model="numpy")
def _largest(bits: Any, group: int, out: Any) -> None:  # pragma: no cover
    """Write the largest magnitude of each group of each row, as bit patterns: integers, since LLVM vectorises those."""
    for i in range(bits.shape[0]):
        for g in range(out.shape[1]):
            largest = np.int32(0)
            for k in range(np.uintp(g * group), np.uintp(min((g + 1) * group, bits.shape[1]))):
                largest = max(largest, np.int32(bits[i, k] & np.int32(0x7FFFFFFF)))
            out[i, g] = largest


@njit(cache=True, error_model="numpy")
def _round(x: Any, group: int, scales: Any, out: Any) -> None:  # pragma: no cover
    """Write ``rint(x / scale * 127) * scale / 127`` of each value, in float64 as the formats do."""
    for i in range(x.shape[0]):
        for g in range(scales.shape[1]):
            scale = np.float64(scales[i, g])
            safe = scale if scale > 0 else 1.0
            for k in range(np.uintp(g * group), np.uintp(min((g + 1) * group, x.shape[1]))):
                code = np.rint(np.float64(x[i, k]) / safe * 127.0)
                code = min(max(code, -127.0), 127.0)
                out[i, k] = np.float32(code * scale / 127.0)


def through(scheme: Scheme, x: FloatArray, out: FloatArray) -> None:
    """Write to `out` what is left of `x` (M, K) after the scheme: quantised, and given back as float32."""
    num_columns = x.shape[1]
    group = num_columns if isinstance(scheme.granularity, str) else int(scheme.granularity)
    peaks = np.empty((len(x), -(-num_columns // group)), np.float32)
    _largest(np.ascontiguousarray(x).view(np.int32), group, peaks.view(np.int32))
    if not np.isfinite(peaks).all():
        raise FormatError("cannot quantise NaN or infinity")
    if scheme.granularity == "tensor":
        peaks[:] = peaks.max(initial=0)
    _round(x, group, scales_of(peaks, scheme.scale), out)


def to_fp16(x: FloatArray, out: FloatArray) -> None:
    """Round to float16 and back."""
    out[:] = x.astype(np.float16)


def to_bf16(x: FloatArray, out: FloatArray) -> None:
    """Round to bfloat16 (float32's upper 16 bits), half to even, and back."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    out.view(np.uint32)[:] = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(
        0xFFFF0000
    )


def bits_per_value(scheme: Scheme, num_columns: int, num_rows: int = 1) -> float:
    """Storage of one value in bits, its share of the scales included; a shorter last group has a whole scale."""
    rule: ScaleRule = scheme.scale
    if scheme.granularity == "tensor":
        return 8 + SCALE_BITS[rule] / (num_columns * num_rows)
    group = num_columns if isinstance(scheme.granularity, str) else int(scheme.granularity)
    return 8 + SCALE_BITS[rule] * -(-num_columns // group) / num_columns


class _Inputs:
    """Rounds what goes into the layers of one model; q, k and v have one input, which is rounded once."""

    def __init__(self, rounding: Rounding | None) -> None:
        self.rounding = rounding
        self._last: tuple[FloatArray, FloatArray] | None = None

    def __call__(self, x: FloatArray) -> FloatArray:
        if self.rounding is None:
            return x
        if self._last is None or self._last[0] is not x:
            rounded = np.empty_like(x)
            self.rounding(x, rounded)
            self._last = (x, rounded)
        return self._last[1]


class SimulatedLinear(Float32Linear):
    """A float32 layer whose weight was rounded, and whose input is."""

    arithmetic = "simulated (round and multiply in float32)"

    def __init__(self, weight: FloatArray, bias: FloatArray | None, inputs: _Inputs) -> None:
        super().__init__(weight, bias)
        self._inputs = inputs

    def _apply(self, x: FloatArray) -> FloatArray:
        return super()._apply(self._inputs(x))


@dataclass
class Simulator:
    """One set of rounded weights of a model, written again for each rounding: memory is touched once.

    Use one model at a time: :meth:`model` overwrites the weights of those it returned before, unless they were rounded
    under the same name.
    """

    original: Model

    def __post_init__(self) -> None:
        self._rounded: str | None = None
        self._buffers: list[FloatArray] = []

    def model(self, name: str, weights: Rounding | None, inputs: Rounding | None) -> Model:
        """Return the model with its weights, the inputs of its linears, or both rounded; `name` is the weights'."""
        layers = _linears(self.original)
        held, shared = [layer.weight for layer in layers], _Inputs(inputs)
        if weights is not None:
            if self._rounded != name:
                self._rounded = None
                self._buffers = self._buffers or [np.empty_like(weight) for weight in held]
                for weight, buffer in zip(held, self._buffers, strict=True):
                    weights(weight, buffer)
                self._rounded = name
            held = self._buffers
        made = iter([SimulatedLinear(w, layer.bias, shared) for w, layer in zip(held, layers, strict=True)])
        blocks = []
        for block in self.original.blocks:
            parts = {f.name: getattr(block, f.name) for f in fields(block)}
            blocks.append(replace(block, **{n: next(made) for n, x in parts.items() if isinstance(x, Linear)}))
        return replace(self.original, blocks=tuple(blocks), weight_format=f"{name}, simulated")


def shapes(model: Model) -> list[tuple[int, int]]:
    """Shapes (N, K) of all weights that quantising replaces."""
    return [(layer.out_features, layer.in_features) for layer in _linears(model)]


def mean_bits(scheme: Scheme, model: Model) -> float:
    """Storage of one weight in bits, on average over all that quantising replaces."""
    sizes = shapes(model)
    bits = sum(bits_per_value(scheme, k, n) * n * k for n, k in sizes)
    return bits / sum(n * k for n, k in sizes)


def _linears(model: Model) -> list[Float32Linear]:
    found = [getattr(block, field.name) for block in model.blocks for field in fields(block)]
    return [layer for layer in found if isinstance(layer, Float32Linear)]


def rounder(scheme: Scheme) -> Rounding:
    """The scheme as a rounding."""

    def rounding(x: NDArray[np.float32], out: NDArray[np.float32]) -> None:
        through(scheme, x, out)

    return rounding
