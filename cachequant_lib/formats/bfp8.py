"""BFP8: block floating point, one power-of-two scale shared by 32 neighbours."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cachequant_lib.errors import FormatError
from cachequant_lib.formats.scheme import (
    MAX_CODE,
    SCALE_BITS,
    CodeArray,
    FloatArray,
    Scheme,
    check_values,
    codes_of,
    is_whole,
    pow2_exponent,
    split_groups,
)


@dataclass(frozen=True)
class BFP8Tensor:
    """Mantissas and one exponent a block.

    Attributes
    ----------
    mantissas : ndarray of int8, shape (..., K)
        In -127..127.
    exponents : ndarray of int32, shape (..., K / block_size)
        The scale is ``2.0 ** exponent``; 0 for a block of zeros. Eight bits are enough to store one.
    """

    mantissas: CodeArray
    exponents: NDArray[np.int32]

    @property
    def block_size(self) -> int:
        """Values that share an exponent."""
        return int(self.mantissas.shape[-1] // self.exponents.shape[-1])

    def dequantize(self) -> FloatArray:
        """Return ``mantissa * 2**exponent / 127`` as float32, shape (..., K)."""
        blocks = split_groups(self.mantissas, self.exponents.shape[-1])  # (..., K) -> (..., K/32, 32)
        values = blocks * np.ldexp(1.0, self.exponents)[..., None] / MAX_CODE
        return values.reshape(self.mantissas.shape).astype(np.float32)  # (..., K/32, 32) -> (..., K)

    @property
    def nbytes(self) -> int:
        """Bytes as stored: one a mantissa, one an exponent."""
        return self.mantissas.size + self.exponents.size

    @property
    def bits_per_value(self) -> float:
        """8 bits and a share of the block's 8-bit exponent."""
        return 8 + SCALE_BITS["pow2"] / self.block_size


def quantize_bfp8(x: ArrayLike, block_size: int = 32) -> BFP8Tensor:
    """Quantise `x` in blocks along its last axis, each with a power-of-two scale.

    Parameters
    ----------
    x : array_like, shape (..., K)
        Finite real numbers; K must be a multiple of `block_size`.
    block_size : int, default 32

    Returns
    -------
    BFP8Tensor
        ``exponent = ceil(log2(max|x|))`` and ``mantissa = round_half_even(x / 2**exponent * 127)``. The largest
        magnitude of a block lands on 64..127, so nothing is clipped and up to one bit goes unused.

    Raises
    ------
    FormatError
        If K is not a multiple of `block_size` (nothing is padded), a value is not finite, or one is above 2**127.

    Notes
    -----
    The error of a value is at most ``2**exponent / 254``, half a step. About three passes over `x` in float64.

    Examples
    --------
    >>> t = quantize_bfp8([1.5, -0.7, 0.2, -1.9], block_size=4)
    >>> t.exponents.tolist(), t.mantissas.tolist()
    ([1], [95, -44, 13, -121])
    """
    values = check_values(x)
    num_columns = values.shape[-1]
    if not is_whole(block_size, 1):
        raise FormatError(f"block_size must be a positive int, got {block_size!r}")
    num_blocks = num_columns // Scheme(block_size, "pow2").group_size(num_columns)
    blocks = split_groups(values, num_blocks)  # (..., K) -> (..., K/32, 32)
    exponents = pow2_exponent(np.abs(blocks).max(axis=-1))  # (..., K/32)
    mantissas = codes_of(blocks, np.ldexp(1.0, exponents)[..., None])
    return BFP8Tensor(mantissas.reshape(values.shape), exponents)  # (..., K/32, 32) -> (..., K)
