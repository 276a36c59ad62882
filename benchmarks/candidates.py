"""The weight formats that `quality` compares: one entry makes the model and tells what it stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from benchmarks import simulate
from benchmarks.windows import known_model
from cachequant_lib.formats.scheme import Scheme
from cachequant_lib.model.base import Model
from cachequant_lib.model.quantize import quantize_model

BASE = "fp32"
REAL, SIMULATED = "true integer", "simulated (round and multiply in float32)"
ROW, SNAPPED, TENSOR = Scheme("row", "exact"), Scheme("row", "snapped"), Scheme("tensor", "exact")


@dataclass(frozen=True)
class Format:
    """One way to store the weights of the blocks' linears, and to round what is multiplied by them.

    Attributes
    ----------
    label : str
    arithmetic : str
        "float32", "true integer" or simulated.
    make : callable
        The model in this format.
    bits : callable
        Bits of one weight of the blocks, on average.
    """

    label: str
    arithmetic: str
    make: Callable[[Model], Model]
    bits: Callable[[Model], float]


def _stored(scheme: Scheme) -> Callable[[Model], float]:
    return lambda model: simulate.mean_bits(scheme, model)


def _simulated(name: str, weights: simulate.Rounding, inputs: simulate.Rounding) -> Callable[[Model], Model]:
    return lambda model: simulate.Simulator(model).model(name, weights, inputs)


def _layers(scheme: str, head: str = "fp32") -> Callable[[Model], Model]:
    """One linear layer after the other, in the order of sums that the simulated formats have."""
    return lambda model: replace(quantize_model(model, scheme, head=head), layer_by_layer=True)


_row, _snapped, _tensor = map(simulate.rounder, (ROW, SNAPPED, TENSOR))

FORMATS = {
    BASE: Format("float32", "float32", lambda model: model, lambda _: 32.0),
    "fp16": Format("float16", SIMULATED, _simulated("fp16", simulate.to_fp16, simulate.to_fp16), lambda _: 16.0),
    "bf16": Format("bfloat16", SIMULATED, _simulated("bf16", simulate.to_bf16, simulate.to_bf16), lambda _: 16.0),
    "bfp8": Format("BFP8", REAL, _layers("bfp8"), _stored(Scheme(32, "pow2"))),
    "int8": Format("int8", REAL, _layers("int8"), _stored(ROW)),
    "int8-whole": Format(
        "int8, one compiled pass over all layers", REAL, lambda model: quantize_model(model, "int8"), _stored(ROW)
    ),
    "int8-head": Format("int8, the head too", REAL, _layers("int8", head="int8"), _stored(ROW)),
    "int8-snapped": Format(
        "int8, scales in 8 steps an octave", SIMULATED, _simulated("snapped", _snapped, _snapped), _stored(SNAPPED)
    ),
    "int8-tensor-weights": Format(
        "int8, one scale a weight matrix", SIMULATED, _simulated("tensor-weights", _tensor, _row), _stored(TENSOR)
    ),
    "int8-tensor": Format(
        "int8, one scale a matrix, inputs too", SIMULATED, _simulated("tensor", _tensor, _tensor), _stored(TENSOR)
    ),
}


@lru_cache(maxsize=len(FORMATS))
def known_format(model_name: str, fingerprint: str, name: str) -> Model:
    """A model in a format, kept: a sweep comes back to each of them for every block of windows."""
    return FORMATS[name].make(known_model(model_name, fingerprint))
