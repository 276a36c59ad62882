"""KIVI's numbers: a few bits each, with a smallest value and a step for every group, in fp16."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cachequant_lib.errors import FormatError
from cachequant_lib.formats.scheme import FloatArray, check_values, is_whole, split_groups


@dataclass(frozen=True)
class KiviTensor:
    """Codes, and a scale and a zero point for each group of neighbours along one axis.

    Attributes
    ----------
    codes : ndarray of uint8 or uint16
        In ``0..2**bits - 1``, in the shape of what was quantised.
    scales, zeros : ndarray of float16
        Step and smallest value; the grouped axis last, G times shorter.
    bits, axis : int
    """

    codes: NDArray[np.uint8] | NDArray[np.uint16]
    scales: NDArray[np.float16]
    zeros: NDArray[np.float16]
    bits: int
    axis: int

    def dequantize(self) -> FloatArray:
        """Return ``code * scale + zero`` as float32."""
        groups = split_groups(np.moveaxis(self.codes, self.axis, -1), self.scales.shape[-1])
        scales, zeros = (part[..., None].astype(np.float32) for part in (self.scales, self.zeros))
        values = groups * scales + zeros
        return np.moveaxis(values.reshape(*values.shape[:-2], -1), -1, self.axis)  # (..., K/G, G) -> (..., K)

    @property
    def nbytes(self) -> int:
        """Bytes held: codes take one or two each, whatever their bits."""
        return self.codes.nbytes + self.scales.nbytes + self.zeros.nbytes

    @property
    def bits_per_value(self) -> float:
        """Bits of a code, packed, and a share of 16 bits of scale and 16 of zero point."""
        return self.bits + 32 * self.scales.size / self.codes.size


def quantize_kivi(x: ArrayLike, bits: int, axis: int = -1, group_size: int = 32) -> KiviTensor:
    """Quantise numbers to ``bits`` bits, evenly from the smallest to the largest of each group.

    Parameters
    ----------
    x : array_like
        Finite real numbers within fp16.
    bits : int
        1 to 16.
    axis : int, default -1
        Along which neighbours form groups: tokens for keys, channels for values.
    group_size : int, default 32
        Must divide that axis.

    Returns
    -------
    KiviTensor
        ``round((x - min) / step)`` with both as stored. A group whose step is 0 in fp16 gets codes 0.

    Raises
    ------
    FormatError
        For impossible settings, numbers that are not finite, or a group wider than fp16.
    """
    values = check_values(x)
    if not (is_whole(bits, 1) and bits <= 16 and is_whole(group_size, 1) and -values.ndim <= axis < values.ndim):
        raise FormatError(f"need 1 to 16 bits, a group size and an axis, got {bits!r}, {group_size!r}, {axis!r}")
    if values.shape[axis] % group_size:
        raise FormatError(f"{values.shape[axis]} values along axis {axis} do not divide into groups of {group_size}")
    groups = split_groups(np.moveaxis(values, axis, -1), values.shape[axis] // group_size)  # (..., K/G, G)
    smallest, top = groups.min(axis=-1), np.float32(2**bits - 1)
    with np.errstate(over="ignore"):
        zeros = smallest.astype(np.float16)
        scales = ((groups.max(axis=-1) - smallest) / top).astype(np.float16)
    if not (np.isfinite(zeros).all() and np.isfinite(scales).all()):
        raise FormatError(f"a group from {values.min():g} to {values.max():g} has no fp16 scale and zero point")
    steps = np.where(scales == 0, np.float32(np.inf), scales)[..., None]
    codes = np.clip(np.rint((groups - zeros[..., None].astype(np.float32)) / steps), 0, top)
    codes = np.moveaxis(codes.reshape(*codes.shape[:-2], -1), -1, axis)  # (..., K/G, G) -> (..., K)
    return KiviTensor(codes.astype(np.uint8 if bits <= 8 else np.uint16), scales, zeros, int(bits), axis)
