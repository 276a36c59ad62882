"""The linear layers, one class a weight format.

This is where a format meets its kernel. A quantised layer quantises its input a row at a time and multiplies
integers; the weight is quantised once, when the layer is made.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numba
import numpy as np
from numpy.typing import NDArray

from cachequant_lib.errors import FormatError
from cachequant_lib.formats import BFP8Tensor, Int8Tensor, Scheme, quantize_bfp8, quantize_int8
from cachequant_lib.formats.scheme import check_values
from cachequant_lib.kernels import bfp8, fp32, int8, loops
from cachequant_lib.kernels.isa import best_instruction_set
from cachequant_lib.kernels.jit import PARALLEL
from cachequant_lib.kernels.quantize import LARGEST_POWER, NOT_FINITE
from cachequant_lib.kernels.tiles import Tile

FloatArray = NDArray[np.float32]


class Linear(ABC):
    """``y = x @ weight.T + bias`` for x (M, K), weight (N, K) and bias (N,).

    Attributes
    ----------
    in_features, out_features : int
        K and N.
    """

    arithmetic: ClassVar[str]

    def __init__(self, weight: FloatArray, bias: FloatArray | None = None) -> None:
        weight, bias = np.asarray(weight), None if bias is None else np.asarray(bias)
        if weight.ndim != 2 or weight.size == 0:
            raise FormatError(f"expected a weight (N, K), got shape {weight.shape}")
        if bias is not None and bias.shape != weight.shape[:1]:
            raise FormatError(f"expected a bias of shape ({len(weight)},), got {bias.shape}")
        self.out_features, self.in_features = map(int, weight.shape)
        self.bias = np.zeros(len(weight), np.float32) if bias is None else bias.astype(np.float32, copy=False)

    def __call__(self, x: FloatArray) -> FloatArray:
        """Apply the layer to x (M, K) float32; returns (M, N) float32."""
        if x.ndim != 2 or x.shape[1] != self.in_features:
            raise FormatError(f"expected x (M, {self.in_features}), got shape {x.shape}")
        return self._apply(x)

    def largest(self, x: FloatArray, count: int) -> FloatArray:
        """Apply the layer to one row x (1, K), for a caller who looks at the `count` largest outputs (1, N) alone.

        A layer that finds these without computing all others may put minus infinity in their place.
        """
        return self(x)

    @abstractmethod
    def _apply(self, x: FloatArray) -> FloatArray: ...

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the stored weight and bias."""

    @abstractmethod
    def bits_per_weight(self) -> float:
        """Storage of one weight in bits, its share of the scales included."""

    def content(self) -> dict[str, Any]:
        """Return what the layer computes with, by name: a model's fingerprint is taken of it."""
        return vars(self)

    def describe(self) -> str:
        """One line: shape, arithmetic and storage."""
        shape = f"{self.in_features} -> {self.out_features}"
        return f"{type(self).__name__} {shape}, {self.arithmetic}, {self.bits_per_weight():.4g} bits per weight"


class Float32Linear(Linear):
    """The exact layer: float32 weight, multiplied by our kernel if there are a few rows, else by NumPy's BLAS.

    A contiguous float32 weight is used where it lies, not copied: a tied head shares the embedding's memory.
    """

    arithmetic = "float32"

    def __init__(self, weight: FloatArray, bias: FloatArray | None = None) -> None:
        super().__init__(weight, bias)
        self.weight = np.ascontiguousarray(weight, dtype=np.float32)

    def _apply(self, x: FloatArray) -> FloatArray:
        return _multiply_float32(x, self.weight, self.bias)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored weight and bias."""
        return self.weight.nbytes + self.bias.nbytes

    def bits_per_weight(self) -> float:
        """32."""
        return 32.0


class PackedLinear(Linear):
    """A layer whose weight is packed for the best instruction set of this CPU.

    Attributes
    ----------
    stacked : PackedInt8, PackedBFP8 or None
        The arrays of all layers of a model, if this one holds views of them: see :mod:`cachequant_lib.model.whole`.
    place : tuple of int
        Which layer of those this is, and which linear of it.
    """

    _tile: Tile
    _packed: Any
    stacked: Any = None
    place: tuple[int, int] = (0, 0)

    def move_to(self, packed: Any, stacked: Any, place: tuple[int, int]) -> None:
        """Keep the weight in arrays that hold a copy of it from now on."""
        self._packed, self.stacked, self.place = packed, stacked, place
        self.bias = packed.bias[: self.out_features]

    @property
    def packed_nbytes(self) -> int:
        """Bytes held on this CPU: outputs are padded to whole panels, and int8 keeps four bytes more for each."""
        return int(self._packed.nbytes)


class Int8Linear(PackedLinear):
    """int8 weight with one exact scale an output channel, int8 input with one a token; integers multiplied exactly.

    The weight is kept once, packed for the best instruction set of this CPU; `tensor` unpacks it. The sums of products
    are scaled in float32, the same way on every CPU and for any number of rows: see :mod:`cachequant_lib.kernels.int8`.
    """

    arithmetic = "true integer"

    def __init__(self, weight: FloatArray, bias: FloatArray | None = None) -> None:
        super().__init__(weight, bias)
        check_sum_length(self.in_features)
        tensor, isa = quantize_int8(weight), best_instruction_set()
        self._tile = Tile(isa, *isa.int8_tile)
        self._packed = int8.pack_int8(self._tile, tensor.codes, tensor.scales, self.bias)
        self.bias = self._packed.bias[: self.out_features]

    @property
    def tensor(self) -> Int8Tensor:
        """The weight's codes (N, K) and scales (N,), unpacked: a copy."""
        return Int8Tensor(*int8.unpack_int8(self._packed, self.out_features, self.in_features))

    def content(self) -> dict[str, Any]:
        """Return the unpacked weight and the bias, which are the same on every CPU."""
        return {"tensor": self.tensor, "bias": self.bias}

    def _apply(self, x: FloatArray) -> FloatArray:
        out = np.empty((len(x), self.out_features), np.float32)
        with PARALLEL:
            flags = int8.linear_int8(self._tile, _kernel_input(x), self._packed, out)
        if flags >= NOT_FINITE:
            quantize_int8(x)  # raises, and says what is wrong
        return out

    @property
    def nbytes(self) -> int:
        """Bytes of the weight and bias in their format, the same on every CPU."""
        return self.out_features * (self.in_features + 4 + 4)  # a code a weight, a scale and a bias an output

    def bits_per_weight(self) -> float:
        """8 and a share of the row's float32 scale."""
        return Scheme("row", "exact").bits_per_value(self.in_features)


class BFP8Linear(PackedLinear):
    """BFP8 weight and input, one power-of-two scale for 32 values; integers multiplied exactly block by block.

    Packed and scaled as :class:`Int8Linear` is: see :mod:`cachequant_lib.kernels.bfp8`.
    """

    arithmetic = "true integer"

    def __init__(self, weight: FloatArray, bias: FloatArray | None = None) -> None:
        super().__init__(weight, bias)
        tensor, isa = quantize_bfp8(weight), best_instruction_set()
        self._tile = Tile(isa, *isa.bfp8_tile)
        self._packed = bfp8.pack_bfp8(self._tile, tensor.mantissas, tensor.exponents, self.bias)
        self.bias = self._packed.bias[: self.out_features]

    @property
    def tensor(self) -> BFP8Tensor:
        """The weight's mantissas (N, K) and exponents (N, K / 32), unpacked: a copy."""
        return BFP8Tensor(*bfp8.unpack_bfp8(self._tile, self._packed, self.out_features, self.in_features))

    def content(self) -> dict[str, Any]:
        """Return the unpacked weight and the bias, which are the same on every CPU."""
        return {"tensor": self.tensor, "bias": self.bias}

    def _apply(self, x: FloatArray) -> FloatArray:
        out = np.empty((len(x), self.out_features), np.float32)
        with PARALLEL:
            power = bfp8.linear_bfp8(self._tile, _kernel_input(x), self._packed, out)
        if power > LARGEST_POWER:
            quantize_bfp8(x)  # raises, and says what is wrong
        return out

    @property
    def nbytes(self) -> int:
        """Bytes of the weight and bias in their format, the same on every CPU."""
        num_blocks = self.in_features // bfp8.BLOCK
        return self.out_features * (self.in_features + num_blocks + 4)  # a mantissa, an exponent a block, a bias

    def bits_per_weight(self) -> float:
        """8 and a share of the block's exponent."""
        return Scheme(bfp8.BLOCK, "pow2").bits_per_value(self.in_features)


class SchemeLinear(Linear):
    """Any corner of the scheme grid, simulated: quantise, dequantise, multiply in float32.

    It loses what the scheme loses and saves no time, which is what an experiment about quality needs.
    """

    arithmetic = "simulated (dequantise and multiply)"

    def __init__(self, weight: FloatArray, bias: FloatArray | None = None, *, scheme: Scheme) -> None:
        super().__init__(weight, bias)
        self.scheme = scheme
        self.weight = scheme.quantize(weight).dequantize()

    def _apply(self, x: FloatArray) -> FloatArray:
        return _multiply_float32(self.scheme.quantize(x).dequantize(), self.weight, self.bias)

    @property
    def nbytes(self) -> int:
        """Bytes the scheme would need; the simulation itself holds float32."""
        return round(self.bits_per_weight() * self.weight.size / 8) + self.bias.nbytes

    def bits_per_weight(self) -> float:
        """8 and a share of the scheme's scale."""
        return self.scheme.bits_per_value(self.in_features, self.out_features)


def _multiply_float32(x: FloatArray, weight: FloatArray, bias: FloatArray) -> FloatArray:
    """Return ``x @ weight.T + bias``: by our kernel if there are a few rows, else by NumPy's BLAS."""
    isa, shares = best_instruction_set(), numba.get_num_threads()  # type: ignore[no-untyped-call]
    fewest = 1 if shares > 1 else 2  # one row gains nothing, but two pools of threads would fight for the cores
    if fewest <= len(x) <= fp32.FEW_ROWS and weight.size >= fp32.MANY_WEIGHTS and fp32.pays(isa):
        out = np.empty((len(x), len(weight)), np.float32)
        rows, added = (np.require(part, np.float32, ["C", "W"]) for part in (x, bias))
        with PARALLEL:
            fp32.multiply_fp32(*fp32.tiles_fp32(isa), rows, weight, added, out, shares)
        return out
    y: FloatArray = x.astype(np.float32, copy=False) @ weight.T  # (M, K) @ (K, N) -> (M, N)
    y += bias
    return y


def _kernel_input(x: FloatArray) -> FloatArray:
    """Return `x` as the one kind of array that the packed kernels are compiled for."""
    return np.require(x if x.dtype == np.float32 else check_values(x), np.float32, ["C", "W"])


def check_sum_length(count: int) -> None:
    """Raise if `count` products of codes could overflow the kernel's int32 sum."""
    if count > loops.MAX_K:
        raise FormatError(f"a sum of {count} products can overflow int32; the longest safe one is {loops.MAX_K}")
