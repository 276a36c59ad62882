"""Quantise the rows of an activation: the codes of :mod:`cachequant_lib.formats`, bit for bit, at vector speed.

The formats round ``x / scale * 127`` in float64, since in float32 about two codes in a million land on the wrong side
of a half. Here float32 does the work and says when it cannot be trusted: if a value comes out within ``DOUBT`` of a
half, its neighbourhood is rounded again as the formats do it. The float32 product errs by 1.6e-5 at most, so a
value that passes has been rounded to the same code.
"""

from typing import Any

import numba
import numpy as np
from numba import njit
from numpy.typing import NDArray

from cachequant_lib.kernels.jit import cached_njit

BLOCK = 32  # values that share a BFP8 scale
STRETCH = 256  # values of an int8 row that are rounded again together
ROUNDER = np.float32(1.5 * 2**23)  # a float32 of this size has no fraction bits: adding it rounds, half to even
DOUBT = np.float32(0.5 - 2e-5)  # further from its code than this, and a value may belong to the next one
MAGNITUDE = np.int32(0x7FFFFFFF)  # all bits of a float32 but its sign; without the sign, floats sort as integers do
NOT_FINITE = 0x7F800000  # bit pattern of infinity; those of NaN are larger
LARGEST_POWER = 0x7F000000  # bit pattern of 2**127
SMALL, LARGE = np.float32(2.0**-100), np.float32(2.0**100)  # scales between these have a float32 inverse
STEPS = 127 * 127  # a product of two codes counts in units of scale * scale / 127**2


@njit(error_model="numpy")
def _round_codes(x, scale, inverse, flip, start, stop, codes):  # type: ignore[no-untyped-def]
    """Write the codes of ``x[start:stop]`` to `codes`, each as ``code ^ flip``: half to even of ``x / scale * 127``.

    `inverse` is 127 / scale in float32. Unsigned indices cannot mean "from the end", so LLVM is free to take 16 values
    at a time.
    """
    in_doubt = np.int32(not (SMALL < scale < LARGE))
    for k in range(np.uintp(start), np.uintp(stop)):
        exact = x[k] * inverse
        rounded = (exact + ROUNDER) - ROUNDER
        codes[k] = np.int8(np.int32(rounded)) ^ flip
        in_doubt |= np.int32(abs(exact - rounded) > DOUBT)
    if in_doubt:
        for k in range(start, stop):
            code = np.rint(np.float64(x[k]) / np.float64(scale) * 127.0) if scale > 0 else 0.0
            codes[k] = np.int8(np.int32(code)) ^ flip


@njit
def _largest_bits(bits, start, stop):  # type: ignore[no-untyped-def]
    """Bit pattern of the largest magnitude. Integers, since LLVM vectorises their maximum and not that of floats."""
    largest = np.int32(0)
    for k in range(np.uintp(start), np.uintp(stop)):
        largest = max(largest, np.int32(bits[k] & MAGNITUDE))
    return largest


@njit
def _sum_codes(codes, start, stop):  # type: ignore[no-untyped-def]
    """Sum of ``codes[start:stop]``."""
    total = np.int32(0)
    for k in range(np.uintp(start), np.uintp(stop)):
        total = np.int32(total + np.int32(codes[k]))
    return total


@njit
def _block_scales(bits, scales):  # type: ignore[no-untyped-def]
    """Write the power of two at or above the largest magnitude of each block; return the row's largest bit pattern.

    The exponent field of a float32 is its upper bits: adding one less than the lowest of them rounds it up, unless
    all bits below are zero and the value is a power of two itself. A block of zeros gets 2**0.
    """
    fields, peak = scales.view(np.int32), np.int32(0)
    for b in range(scales.size):
        largest = _largest_bits(bits, b * BLOCK, (b + 1) * BLOCK)
        field = (np.int64(largest) + 0x7FFFFF) >> 23 if largest else 127
        fields[b] = np.int32(field << 23)
        peak = max(peak, largest)
    return peak


@cached_njit(parallel=True, error_model="numpy")
def quantize_rows_int8(tile: Any, x: NDArray[np.float32], codes: NDArray[np.int8], steps: NDArray[np.float32]) -> int:
    """Quantise each row of `x` for :func:`multiply_int8`.

    Parameters
    ----------
    tile : Tile
    x : float32, shape (M, K), C-contiguous
    codes : int8, shape (M, K rounded up to 4)
        Written: the codes as this instruction set wants them (see ``Tile.flip``), padded with code 0.
    steps : float32, shape (M,)
        Written: largest magnitude of the row over 127**2.

    Returns
    -------
    int
        Bit pattern of the largest magnitude in `x`. From ``NOT_FINITE`` on, `x` holds a NaN or an infinity, and what
        was written means nothing.
    """
    num_rows, depth = x.shape
    bits, flip = x.view(np.int32), np.int8(tile.flip)
    peaks = np.empty(num_rows, np.int32)
    scales = peaks.view(np.float32)
    for i in numba.prange(num_rows):  # type: ignore[no-untyped-call,attr-defined]
        row, row_codes = x[i], codes[i]
        peaks[i] = _largest_bits(bits[i], 0, depth)
        steps[i] = np.float32(np.float64(scales[i]) / STEPS)
        inverse = np.float32(127.0 / np.float64(scales[i]))
        for start in range(0, depth, STRETCH):
            _round_codes(row, scales[i], inverse, flip, start, min(start + STRETCH, depth), row_codes)
        row_codes[depth:] = flip
    return int(peaks.max()) if num_rows else 0


@cached_njit(parallel=True, error_model="numpy")
def quantize_rows_bfp8(
    tile: Any,
    x: NDArray[np.float32],
    codes: NDArray[np.int8],
    scales: NDArray[np.float32],
    starts: NDArray[np.int32],
) -> int:
    """Quantise each row of `x` in blocks of 32 for :func:`multiply_bfp8`.

    Parameters
    ----------
    tile : Tile
    x : float32, shape (M, K), C-contiguous, K a multiple of 32
    codes : int8, shape (M, K)
        Written: the mantissas.
    scales : float32, shape (M, K / 32)
        Written: two to the exponent of the block.
    starts : int32, shape (M, K / 32)
        Written: ``tile.flip`` times the sum of the block's mantissas, which undoes the 128 added to each weight.

    Returns
    -------
    int
        Bit pattern of the largest magnitude in `x`. Above ``LARGEST_POWER``, that of 2**127, no exponent fits and
        what was written means nothing.
    """
    num_rows, num_blocks = scales.shape
    bits, peaks = x.view(np.int32), np.zeros(num_rows, np.int32)
    for i in numba.prange(num_rows):  # type: ignore[no-untyped-call,attr-defined]
        peaks[i] = _block_scales(bits[i], scales[i])
        row, row_codes, row_starts = x[i], codes[i], starts[i]
        for b in range(num_blocks):
            inverse = np.float32(127.0) / scales[i, b]
            _round_codes(row, scales[i, b], inverse, np.int8(0), b * BLOCK, (b + 1) * BLOCK, row_codes)
        for b in range(num_blocks):
            row_starts[b] = np.int32(_sum_codes(row_codes, b * BLOCK, (b + 1) * BLOCK) * np.int32(tile.flip))
    return int(peaks.max()) if num_rows else 0
