"""int8 with one exact float32 scale per row (an output channel of a weight, a token of an activation)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cachequant_lib.formats.scheme import MAX_CODE, SCALE_BITS, CodeArray, FloatArray, Scheme

_SCHEME = Scheme("row", "exact")


@dataclass(frozen=True)
class Int8Tensor:
    """Codes and one scale a row.

    Attributes
    ----------
    codes : ndarray of int8, shape (..., K)
        In -127..127.
    scales : ndarray of float32, shape (...,)
        The row's largest magnitude, exactly; 0 for a row of zeros.
    """

    codes: CodeArray
    scales: FloatArray

    def dequantize(self) -> FloatArray:
        """Return ``codes * scale / 127`` as float32, shape (..., K)."""
        values = self.codes * self.scales[..., None].astype(np.float64) / MAX_CODE
        return values.astype(np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    @property
    def bits_per_value(self) -> float:
        """8 bits and a share of the row's 32-bit scale."""
        return 8 + SCALE_BITS["exact"] / int(self.codes.shape[-1])


def quantize_int8(x: ArrayLike) -> Int8Tensor:
    """Quantise each row of `x` to int8 with the row's largest magnitude as its scale.

    Parameters
    ----------
    x : array_like, shape (..., K)
        Finite real numbers, any row length.

    Returns
    -------
    Int8Tensor
        ``round_half_even(x / scale * 127)`` computed in float64, so no code lands on the wrong side of a half.

    Raises
    ------
    FormatError
        If a value is not finite, or the rows are empty.

    Notes
    -----
    The error of a value is at most ``scale / 254``, half a step. About three passes over `x` in float64.
    """
    tensor = _SCHEME.quantize(x)
    return Int8Tensor(tensor.codes, tensor.scales[..., 0])  # (..., 1) -> (...,)
