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
WORTH_SHARING = 1 << 16  # with fewer values than this, one thread is done before a second has woken up
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


@njit(error_model="numpy")
def quantize_row_int8(row, bits, flip, codes, peaks, steps, i):  # type: ignore[no-untyped-def]
    """Write the codes, the peak and the step of row `i`."""
    peaks[i] = _largest_bits(bits, 0, row.size)
    scale = peaks.view(np.float32)[i]
    steps[i] = np.float32(np.float64(scale) / STEPS)
    inverse = np.float32(127.0 / np.float64(scale))
    for start in range(0, row.size, STRETCH):
        _round_codes(row, scale, inverse, flip, start, min(start + STRETCH, row.size), codes)
    codes[row.size :] = flip


@njit(error_model="numpy")
def quantize_row_bfp8(row, bits, flip, codes, powers, starts, peaks, i):  # type: ignore[no-untyped-def]
    """Write the mantissas, powers and starts of one row, and the peak of row `i`."""
    peaks[i] = _block_scales(bits, powers)
    for b in range(powers.size):
        _round_codes(row, powers[b], np.float32(127.0) / powers[b], np.int8(0), b * BLOCK, (b + 1) * BLOCK, codes)
    for b in range(powers.size):
        starts[b] = np.int32(_sum_codes(codes, b * BLOCK, (b + 1) * BLOCK) * np.int32(flip))


@cached_njit(parallel=True)
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
    num_rows = x.shape[0]
    bits, flip, peaks = x.view(np.int32), np.int8(tile.flip), np.zeros(num_rows, np.int32)
    if x.size < WORTH_SHARING:
        for i in range(num_rows):
            quantize_row_int8(x[i], bits[i], flip, codes[i], peaks, steps, i)
    else:
        for i in numba.prange(num_rows):  # type: ignore[no-untyped-call,attr-defined]
            quantize_row_int8(x[i], bits[i], flip, codes[i], peaks, steps, i)
    return int(peaks.max()) if num_rows else 0


@cached_njit(parallel=True)
def quantize_rows_bfp8(
    tile: Any,
    x: NDArray[np.float32],
    codes: NDArray[np.int8],
    powers: NDArray[np.float32],
    starts: NDArray[np.int32],
) -> int:
    """Quantise each row of `x` in blocks of 32 for :func:`multiply_bfp8`.

    Parameters
    ----------
    tile : Tile
    x : float32, shape (M, K), C-contiguous, K a multiple of 32
    codes : int8, shape (M, K)
        Written: the mantissas.
    powers : float32, shape (M, K / 32)
        Written: two to the exponent of the block.
    starts : int32, shape (M, K / 32)
        Written: ``tile.flip`` times the sum of the block's mantissas, which undoes the 128 added to each weight.

    Returns
    -------
    int
        Bit pattern of the largest magnitude in `x`. Above ``LARGEST_POWER``, that of 2**127, no exponent fits and
        what was written means nothing.
    """
    num_rows = x.shape[0]
    bits, peaks = x.view(np.int32), np.zeros(num_rows, np.int32)
    if x.size < WORTH_SHARING:
        for i in range(num_rows):
            quantize_row_bfp8(x[i], bits[i], tile.flip, codes[i], powers[i], starts[i], peaks, i)
    else:
        for i in numba.prange(num_rows):  # type: ignore[no-untyped-call,attr-defined]
            quantize_row_bfp8(x[i], bits[i], tile.flip, codes[i], powers[i], starts[i], peaks, i)
    return int(peaks.max()) if num_rows else 0
