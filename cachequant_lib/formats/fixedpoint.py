"""Fixed point with a shared exponent, in balanced digits: numbers stored aligned, because they will be added.

A number is ``2**exponent * (256 * high + low)``. Both digits are bytes in -128..127, *balanced* around zero, so the
high digit alone is the number rounded to nearest: it needs no fill, and the low digit is one more addend.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cachequant_lib.errors import FormatError
from cachequant_lib.formats.scheme import CodeArray, FloatArray, check_values

LARGEST_INTEGER = 127 * 256 + 127  # of two balanced digits; the smallest used is its negative
LOWEST_EXPONENT = -39  # with it the smallest fp16 number, 2**-24, still has 15 binary digits
LARGEST = 2.0**64


@dataclass(frozen=True)
class FixedPointTensor:
    """Two digits a number, and exponents that neighbours along an axis share.

    Attributes
    ----------
    high, low : ndarray of int8
        Digits, in the shape of what was quantised.
    exponents : ndarray of int8
        Of the same number of axes, with length 1 along the shared ones.
    """

    high: CodeArray
    low: CodeArray
    exponents: NDArray[np.int8]

    def dequantize(self, digits: int = 2) -> FloatArray:
        """Return the numbers as float32, from both digits or from the high ones alone.

        Off by half a unit of the last digit read at most: ``2**exponent / 2``, or ``2**exponent * 128``.
        """
        if digits not in (1, 2):
            raise FormatError(f"there are 1 or 2 digits to read, not {digits!r}")
        integers = self.high * np.float32(256)
        return (integers + self.low if digits == 2 else integers) * np.ldexp(np.float32(1), self.exponents)

    @property
    def nbytes(self) -> int:
        """Bytes of digits and exponents."""
        return self.high.nbytes + self.low.nbytes + self.exponents.nbytes

    @property
    def bits_per_value(self) -> float:
        """16 bits and a share of the exponent's 8."""
        return 16 + 8 * self.exponents.size / self.high.size


def quantize_fixedpoint(x: ArrayLike, axis: int = -1) -> FixedPointTensor:
    """Quantise numbers to two digits, with one exponent for all along an axis.

    Parameters
    ----------
    x : array_like
        Finite real numbers of at most 2**64 in magnitude.
    axis : int, default -1
        The axis along which they share an exponent: channels for the value of a token, tokens for a block of keys.

    Returns
    -------
    FixedPointTensor
        The exponent is the smallest, but at least -39, at which the largest magnitude fits in two digits.

    Raises
    ------
    FormatError
        If a number is not finite or too large, or there is no such axis.
    """
    values = check_values(x)
    if not -values.ndim <= axis < values.ndim:
        raise FormatError(f"no axis {axis} in shape {values.shape}")
    largest = np.abs(values).max(axis=axis, keepdims=True, initial=0).astype(np.float64)
    if largest.max(initial=0) > LARGEST:
        raise FormatError(f"fixed point ends at 2**64, got {largest.max():.6g}")
    fraction, exponent = np.frexp(largest / LARGEST_INTEGER)
    exponent = np.where(fraction == 0.5, exponent - 1, exponent)  # 2**k itself is 0.5 * 2**(k + 1)
    exponents = np.where(largest == 0, LOWEST_EXPONENT, np.maximum(exponent, LOWEST_EXPONENT)).astype(np.int8)
    integers = np.rint(np.ldexp(values, -exponents.astype(np.int32))).astype(np.int32)
    high = (integers + 128) >> 8
    return FixedPointTensor(high.astype(np.int8), (integers - (high << 8)).astype(np.int8), exponents)
