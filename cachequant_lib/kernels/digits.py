"""Keys and values as balanced digits, stored and multiplied: what :mod:`cachequant_lib.kernels.aligned` is made of.

Keys and values are 16-bit integers times a power of two: keys share the power in a block of 64 tokens of one channel,
values in one token. Each integer is split into two *balanced digits* of a byte, ``256 * high + low``, both in
-128..127. So a high digit alone is a number rounded to nearest, and the low digit is one more addend, wanted or not::

    keys   = 2**exponent[block, channel] * (256 * high + low)
    values = 2**exponent[token] * (256 * high + low)

The same numbers as :mod:`cachequant_lib.formats.fixedpoint`, bit for bit.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from cachequant_lib.kernels.attention import AHEAD, BLOCK, LOWEST, SUMS, power_of_two, prefetch_row
from cachequant_lib.kernels.jit import cached_njit

LARGEST = 32639  # 127 * 256 + 127, the largest integer whose two digits fit in bytes
LOWEST_EXPONENT = -39  # the smallest fp16 number, 2**-24, still has 15 digits; what is far below becomes 0
MAGNITUDE = np.int32(0x7FFFFFFF)  # all bits of a float32 but its sign
TOO_LARGE = 0x5F800001  # bit patterns from here on mean more than 2**64, infinity or NaN


class AlignedLayer(NamedTuple):
    """One layer as stored, or one head of it without the first axis. P is the capacity in whole blocks.

    Attributes
    ----------
    key_high, key_low, value_high, value_low : int8, shape (Hkv, P, D)
        The digits.
    key_exponents : int8, shape (Hkv, P / 64, D)
    value_exponents : int8, shape (Hkv, P)
        Of tokens not yet stored: anything from -126 to 127.
    open_keys : float32, shape (Hkv, 64, D)
        Keys of the newest L mod 64 tokens, which have no block yet.
    """

    key_high: NDArray[np.int8]
    key_low: NDArray[np.int8]
    key_exponents: NDArray[np.int8]
    open_keys: NDArray[np.float32]
    value_high: NDArray[np.int8]
    value_low: NDArray[np.int8]
    value_exponents: NDArray[np.int8]


# ---- Storing ---------------------------------------------------------------------------------------------------------


@njit
def _peak(bits):  # type: ignore[no-untyped-def]
    """Bit pattern of the largest magnitude. Integers, since LLVM vectorises their maximum and not that of floats."""
    largest = np.int32(0)
    for i in range(bits.size):
        largest = max(largest, np.int32(bits[i] & MAGNITUDE))
    return largest


@njit
def _exponent(tile, bits):  # type: ignore[no-untyped-def]
    """Smallest exponent, but at least ``LOWEST_EXPONENT``, with ``magnitude <= 2**exponent * LARGEST``."""
    exponent = max(np.int32(bits >> 23) - np.int32(127 + 14), np.int32(LOWEST_EXPONENT))
    if np.int32(bits).view(np.float32) > power_of_two(exponent) * np.float32(LARGEST):
        exponent += np.int32(1)
    return exponent


@njit
def _write_digits(row, factors, high, low):  # type: ignore[no-untyped-def]
    """Write the digits of ``round(row * factors)``, half to even."""
    for c in range(row.size):
        integer = np.int32(np.rint(row[c] * factors[c]))
        digit = (integer + np.int32(128)) >> np.int32(8)
        high[c] = digit
        low[c] = integer - (digit << np.int32(8))


@njit
def _seal(tile, rows, high, low, exponents, factors):  # type: ignore[no-untyped-def]
    """Store a full block of keys, float32 (64, D): one exponent a channel."""
    peaks = factors.view(np.int32)
    for c in range(factors.size):
        peaks[c] = 0
    for t in range(BLOCK):
        bits = rows[t].view(np.int32)
        for c in range(factors.size):
            peaks[c] = max(peaks[c], np.int32(bits[c] & MAGNITUDE))
    for c in range(factors.size):
        exponents[c] = _exponent(tile, peaks[c])
        factors[c] = power_of_two(-exponents[c])
    for t in range(BLOCK):
        _write_digits(rows[t], factors, high[t], low[t])


@cached_njit()
def append_aligned(tile: Any, k: NDArray[np.float32], v: NDArray[np.float32], layer: AlignedLayer, start: int) -> bool:
    """Store keys and values (T, Hkv, D) as tokens `start` and following; False, and nothing stored, if too large.

    Any `tile` will do: it names the source of what is called.
    """
    num_tokens, num_heads, head_dim = k.shape
    for i in range(num_tokens):
        for h in range(num_heads):
            if max(_peak(k[i, h].view(np.int32)), _peak(v[i, h].view(np.int32))) >= TOO_LARGE:
                return False
    factors = np.empty(head_dim, np.float32)
    for h in range(num_heads):
        for i in range(num_tokens):
            t = start + i
            block, row = t // BLOCK, t % BLOCK
            exponent = _exponent(tile, _peak(v[i, h].view(np.int32)))
            layer.value_exponents[h, t] = exponent
            for c in range(head_dim):
                factors[c] = power_of_two(-exponent)
                layer.open_keys[h, row, c] = k[i, h, c]
            _write_digits(v[i, h], factors, layer.value_high[h, t], layer.value_low[h, t])
            if row == BLOCK - 1:
                high, low = layer.key_high[h, t - row : t + 1], layer.key_low[h, t - row : t + 1]
                _seal(tile, layer.open_keys[h], high, low, layer.key_exponents[h, block], factors)
    return True


# ---- Multiplying ---------------------------------------------------------------------------------------------------


@njit(fastmath=SUMS)
def dot(tile, a, row):  # type: ignore[no-untyped-def]
    """Multiply float32 (D,) with digits, or float32, (D,)."""
    total = np.float32(0)
    for c in range(tile.width):
        total += a[c] * np.float32(row[c])
    return total


@njit(fastmath=SUMS)
def scale_queries(tile, q, exponents, scaled):  # type: ignore[no-untyped-def]
    """Write queries in units of the high digits; return the largest sigma of a score, root of a sum of squares / 12."""
    most = np.float32(0)
    for g in range(tile.rows):
        square = np.float32(0)
        for c in range(tile.width):
            x = q[g, c] * power_of_two(np.int32(exponents[c]) + np.int32(8))
            scaled[g, c] = x
            square += x * x
        most = max(most, np.sqrt(square / np.float32(12)))
    return most


@njit(fastmath=SUMS)
def dot_block(tile, a, digits, first, scores):  # type: ignore[no-untyped-def]
    """Write the scores of a block, four tokens at a time; return the largest. Asks for what is wanted 4 KB later."""
    peak = LOWEST
    for t in range(first, first + BLOCK, 4):
        for j in range(4):
            prefetch_row(tile, digits, (t + j) * tile.width + AHEAD)
        d0, d1, d2, d3 = digits[t], digits[t + 1], digits[t + 2], digits[t + 3]
        x0 = x1 = x2 = x3 = np.float32(0)
        for c in range(tile.width):
            x0 += a[c] * np.float32(d0[c])
            x1 += a[c] * np.float32(d1[c])
            x2 += a[c] * np.float32(d2[c])
            x3 += a[c] * np.float32(d3[c])
        scores[t], scores[t + 1], scores[t + 2], scores[t + 3] = x0, x1, x2, x3
        peak = max(peak, max(max(x0, x1), max(x2, x3)))
    return peak


@njit(fastmath=SUMS)
def add_values(tile, scores, exponents, up, digits, index, count, out):  # type: ignore[no-untyped-def]
    """Add the digits of the tokens in ``index[:count]``, times ``2**up``, four tokens at a time."""
    for i in range(0, count, 4):
        for j in range(4):
            prefetch_row(tile, digits, index[i + 32 + j] * tile.width)
        t0, t1, t2, t3 = index[i], index[i + 1], index[i + 2], index[i + 3]
        f0, f1 = power_of_two(exponents[t0] + up), power_of_two(exponents[t1] + up)
        f2, f3 = power_of_two(exponents[t2] + up), power_of_two(exponents[t3] + up)
        d0, d1, d2, d3 = digits[t0], digits[t1], digits[t2], digits[t3]
        for g in range(tile.rows):
            p0, p1, p2, p3 = scores[g, t0] * f0, scores[g, t1] * f1, scores[g, t2] * f2, scores[g, t3] * f3
            row = out[g]
            for c in range(tile.width):
                low = p0 * np.float32(d0[c]) + p1 * np.float32(d1[c])
                row[c] += low + (p2 * np.float32(d2[c]) + p3 * np.float32(d3[c]))
