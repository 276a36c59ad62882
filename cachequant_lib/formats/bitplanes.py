"""fp16 in three planes of 8, 4 and 4 bits, so that a reader may stop after 8 or 12.

The first plane holds sign, exponent and two digits of the mantissa, the others four digits each. Nothing is lost: all
planes together are the number. What was not read is filled up; ``100`` is the middle of all that it may have been.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cachequant_lib.errors import FormatError
from cachequant_lib.formats.scheme import FloatArray, check_values

LARGEST_HALF = 65504.0
"""The largest number of fp16."""

Fill = Literal["000", "100", "111"]


@dataclass(frozen=True)
class BitPlanes:
    """Three planes of an array of fp16 numbers.

    Attributes
    ----------
    high : ndarray of uint8, shape (..., K)
        Sign, five bits of exponent, two of mantissa.
    middle, low : ndarray of uint8, shape (..., K / 2)
        The next four bits, and the last four: of element j in the lower half of byte j, of element j + K / 2 in the
        upper.
    """

    high: NDArray[np.uint8]
    middle: NDArray[np.uint8]
    low: NDArray[np.uint8]

    def patterns(self, bits: int = 16, fill: Fill = "100") -> NDArray[np.uint16]:
        """Return fp16 patterns (..., K) of which 8, 12 or 16 bits were read and the others filled up.

        Raises
        ------
        FormatError
            For other widths or fills.
        """
        if bits not in (8, 12, 16) or fill not in get_args(Fill):
            raise FormatError(f"read 8, 12 or 16 bits and fill with {get_args(Fill)}, not {bits!r} and {fill!r}")
        whole = self.high.astype(np.uint16) << 8
        for plane, shift in ((self.middle, 4), (self.low, 0))[: bits // 4 - 2]:
            nibbles = np.concatenate([plane & 15, plane >> 4], axis=-1)  # (..., K / 2) -> (..., K)
            whole |= nibbles.astype(np.uint16) << shift
        beyond = 1 << (16 - bits)
        tail = {"000": 0, "100": beyond >> 1, "111": beyond - 1}[fill]
        return np.asarray(whole | tail, np.uint16)

    def dequantize(self, bits: int = 16, fill: Fill = "100") -> FloatArray:
        """Return the numbers as float32, shape (..., K); exactly what was stored if `bits` is 16."""
        return self.patterns(bits, fill).view(np.float16).astype(np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of all planes: two a number."""
        return self.high.nbytes + self.middle.nbytes + self.low.nbytes

    @property
    def bits_per_value(self) -> float:
        """16, of which a reader may take fewer."""
        return 16.0


def split_planes(patterns: NDArray[np.uint16]) -> BitPlanes:
    """Cut fp16 patterns (..., K) into planes; every pattern, NaN and infinity included, comes back as it was.

    Raises
    ------
    FormatError
        If they are not uint16, or K is odd.
    """
    if patterns.dtype != np.uint16 or patterns.ndim == 0 or patterns.shape[-1] % 2:
        raise FormatError(f"expected uint16 and an even last axis, got {patterns.dtype} {patterns.shape}")
    first, second = np.split(patterns, 2, axis=-1)  # (..., K) -> 2 x (..., K / 2)
    middle, low = (((first >> s) & 15) | (((second >> s) & 15) << 4) for s in (4, 0))
    return BitPlanes((patterns >> 8).astype(np.uint8), middle.astype(np.uint8), low.astype(np.uint8))


def quantize_bitplanes(x: ArrayLike) -> BitPlanes:
    """Round numbers to fp16 and cut them into planes.

    Parameters
    ----------
    x : array_like, shape (..., K)
        Finite real numbers of at most 65504 in magnitude; K even.

    Raises
    ------
    FormatError
        If K is odd, or a number is not finite or too large.
    """
    values = check_values(x)
    if np.abs(values).max(initial=0) > LARGEST_HALF:
        raise FormatError(f"fp16 ends at {LARGEST_HALF:.0f}, got {np.abs(values).max():.6g}")
    return split_planes(values.astype(np.float16).view(np.uint16))
