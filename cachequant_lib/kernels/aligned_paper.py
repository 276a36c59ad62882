"""AlignedKV as its paper has it: fp16 in three planes of 8, 4 and 4 bits, of which attention reads one, two or three.

A number read at 8 or 12 bits is filled up with ``100...``, the middle of what was lost. How much is read of a key is
decided for a whole channel, of a value for a whole token:

- *Keys.* The exponent of ``|q[c]|`` plus that of the largest key ever seen in channel c bounds the addends of that
  channel. Channels whose bound lies ``spare`` binades below the largest read 16 bits if spare < 4, 12 if < 8, else 8.
- *Values.* The output is estimated from 32 likely tokens and ``|V|`` at 8 bits. A token whose largest addend may lie
  ``spare`` binades below the smallest such estimate, over the channels, reads 16, 12 or 8 bits alike.

Where query heads share a key-value head, the one that needs most decides. A byte of nibbles holds the elements j and
j + n / 2 of a row of n, which vector instructions can take apart; the paper pairs neighbours.
"""

from typing import Any

import numba
import numpy as np
from numba import njit
from numpy.typing import NDArray

from cachequant_lib.kernels.attention import (
    BLOCK,
    LOWEST,
    SUMS,
    half_to_float,
    power_of_two,
    prefetch_row,
    softmax_numerators,
)
from cachequant_lib.kernels.jit import cached_njit
from cachequant_lib.kernels.planes import PlanesLayer

CLASSES = 32  # the likely tokens are the best of each class of positions modulo this
AHEAD = 8  # tokens between a value that is added and the one asked for


@njit
def read_row(tile, high, middle, low, bits, row):  # type: ignore[no-untyped-def]
    """Put planes together again at 8, 12 or 16 bits, as float32 `row`; what is not read is filled with 100..."""
    half = middle.size
    if bits == 8:
        for j in range(row.size):
            row[j] = half_to_float(tile, np.uint16(np.uint16(high[j]) << 8 | 0x80))
    elif bits == 12:
        for j in range(half):
            row[j] = half_to_float(tile, np.uint16(np.uint16(high[j]) << 8 | (middle[j] & 15) << 4 | 8))
        for j in range(half):
            row[j + half] = half_to_float(tile, np.uint16(np.uint16(high[j + half]) << 8 | (middle[j] & 0xF0) | 8))
    else:
        for j in range(half):
            wide = np.uint16(high[j]) << 8 | (middle[j] & 15) << 4 | (low[j] & 15)
            row[j] = half_to_float(tile, np.uint16(wide))
        for j in range(half):
            wide = np.uint16(high[j + half]) << 8 | (middle[j] & 0xF0) | low[j] >> 4
            row[j + half] = half_to_float(tile, np.uint16(wide))


@njit
def _choose_key_bits(tile, q, peaks, first, second, bits):  # type: ignore[no-untyped-def]
    """Write the width of each channel (D,), from exponents alone."""
    spare = np.empty(tile.width, np.int32)
    for c in range(tile.width):
        spare[c] = 1000
    for g in range(tile.rows):
        fields, top = q[g].view(np.int32), np.int32(0)
        for c in range(tile.width):
            top = max(top, ((fields[c] >> 23) & 255) + np.int32(peaks[c]))
        for c in range(tile.width):
            spare[c] = min(spare[c], top - ((fields[c] >> 23) & 255) - np.int32(peaks[c]))
    for c in range(tile.width):
        bits[c] = 16 if spare[c] < first else 12 if spare[c] < second else 8


@njit(fastmath=SUMS)
def _score_planes(tile, q, kv, length, bits, row, scores, peaks):  # type: ignore[no-untyped-def]
    """Write the scores of all tokens, and the largest of each query."""
    sealed = length // BLOCK * BLOCK
    for b in range(length // BLOCK):
        for g in range(tile.rows):
            for t in range(b * BLOCK, (b + 1) * BLOCK):
                scores[g, t] = np.float32(0)
        for c in range(tile.width):
            at = (b + 1) * tile.width + c  # the same channel of the next block
            prefetch_row(tile, kv.key_high, at * BLOCK)
            if bits[c] > 8:
                prefetch_row(tile, kv.key_middle, at * (BLOCK // 2))
            if bits[c] > 12:
                prefetch_row(tile, kv.key_low, at * (BLOCK // 2))
            read_row(tile, kv.key_high[b, c], kv.key_middle[b, c], kv.key_low[b, c], bits[c], row[:BLOCK])
            for g in range(tile.rows):
                x, line = q[g, c], scores[g, b * BLOCK : (b + 1) * BLOCK]
                for t in range(BLOCK):
                    line[t] += x * row[t]
    for g in range(tile.rows):
        for t in range(sealed, length):
            x = np.float32(0)
            for c in range(tile.width):
                x += q[g, c] * half_to_float(tile, kv.open_keys[t - sealed, c])
            scores[g, t] = x
        peaks[g] = LOWEST
        for t in range(length):
            peaks[g] = max(peaks[g], scores[g, t])


@njit(fastmath=SUMS)
def _smallest_ratio(tile, kv, sealed, scores, total, row, estimate):  # type: ignore[no-untyped-def]
    """Return the smallest of estimated output over largest value, over the channels, in powers of two."""
    for c in range(tile.width):
        estimate[c] = np.float32(0)
    for j in range(CLASSES):
        best = j
        for t in range(j, sealed, CLASSES):
            if scores[t] > scores[best]:
                best = t
        read_row(tile, kv.value_high[best], kv.value_middle[best], kv.value_low[best], 8, row[: tile.width])
        weight = scores[best] / total
        for c in range(tile.width):
            estimate[c] += weight * abs(row[c])
    fields, smallest = estimate.view(np.int32), np.int32(100)
    for c in range(tile.width):  # one less, since absolute values over-estimate; fp16 counts exponents from -15
        smallest = min(smallest, (fields[c] >> 23) - 127 - 1 - (np.int32(kv.value_peaks[c]) - 15))
    return power_of_two(max(smallest, np.int32(-100)))


@njit(fastmath=SUMS)
def _choose_value_bits(tile, kv, sealed, scores, sums, thresholds, row, estimate, sizes, bits):  # type: ignore[no-untyped-def]
    """Write the width of each stored token."""
    for t in range(sealed):
        sizes[t] = np.float32(0)
    for g in range(tile.rows):
        ratio = _smallest_ratio(tile, kv, sealed, scores[g], sums[g], row, estimate)
        factor = np.float32(1) / (sums[g] * ratio)
        for t in range(sealed):
            sizes[t] = max(sizes[t], scores[g, t] * factor)
    wide, narrow = power_of_two(-thresholds[2]), power_of_two(-thresholds[3])
    for t in range(sealed):
        bits[t] = np.uint8(16 if sizes[t] > wide else 12 if sizes[t] > narrow else 8)


@njit(fastmath=SUMS)
def _add_planes(tile, kv, length, scores, bits, row, out):  # type: ignore[no-untyped-def]
    """Add the values, weighted with scores (G, L), to `out` (G, D)."""
    sealed = length // BLOCK * BLOCK
    for t in range(length):
        if t < sealed:
            ahead = min(t + AHEAD, sealed - 1)
            prefetch_row(tile, kv.value_high, ahead * tile.width)
            if bits[ahead] > 8:
                prefetch_row(tile, kv.value_middle, ahead * (tile.width // 2))
            if bits[ahead] > 12:
                prefetch_row(tile, kv.value_low, ahead * (tile.width // 2))
            read_row(tile, kv.value_high[t], kv.value_middle[t], kv.value_low[t], bits[t], row[: tile.width])
        else:
            for c in range(tile.width):
                row[c] = half_to_float(tile, kv.open_values[t - sealed, c])
        for g in range(tile.rows):
            x, line = scores[g, t], out[g]
            for c in range(tile.width):
                line[c] += x * row[c]


@njit
def _attend_head(tile, q, kv, length, thresholds, out, key_bits, value_bits, work):  # type: ignore[no-untyped-def]
    """Answer the queries (G, D) of one key-value head."""
    scores, sizes, row, estimate, peaks, sums = work
    sealed = length // BLOCK * BLOCK
    _choose_key_bits(tile, q, kv.key_peaks, thresholds[0], thresholds[1], key_bits)
    _score_planes(tile, q, kv, length, key_bits, row, scores, peaks)
    softmax_numerators(tile, scores, peaks, length, sums)
    for t in range(length):
        value_bits[t] = 16
    if thresholds[0] <= 100 and sealed:
        _choose_value_bits(tile, kv, sealed, scores, sums, thresholds, row, estimate, sizes, value_bits)
    for g in range(tile.rows):
        for c in range(tile.width):
            out[g, c] = np.float32(0)
    _add_planes(tile, kv, length, scores, value_bits, row, out)
    for g in range(tile.rows):
        for c in range(tile.width):
            out[g, c] /= sums[g]


@cached_njit(parallel=True)
def attend_planes(
    tile: Any,
    q: NDArray[np.float32],
    layer: PlanesLayer,
    length: int,
    thresholds: tuple[int, int, int, int],
    out: NDArray[np.float32],
    key_bits: NDArray[np.uint8],
    value_bits: NDArray[np.uint8],
    workers: int,
) -> None:
    """Attend from one query to the first `length` tokens of a layer, with sums in float32.

    Parameters
    ----------
    tile : Tile
        From :func:`~cachequant_lib.kernels.attention.head_tile`.
    q : float32, shape (Hkv, G, D)
        Already divided by the root of D.
    layer : PlanesLayer
    length : int
    thresholds : (int, int, int, int)
        Spare binades from which 12 and 8 bits are read of keys, and of values. All 1000 read 16 bits: the control.
    out : float32, shape (Hkv, G, D)
        Written.
    key_bits, value_bits : uint8, shapes (Hkv, D) and (Hkv, P)
        Written: the width read of each channel of the keys, and of each token of the values.
    workers : int
        Threads that share out the heads; the result is the same for every number.
    """
    room = layer.value_high.shape[1]
    for worker in numba.prange(workers):  # type: ignore[no-untyped-call,attr-defined]
        scores, sizes = np.empty((tile.rows, room), np.float32), np.empty(room, np.float32)
        row, estimate = np.empty(max(BLOCK, tile.width), np.float32), np.empty(tile.width, np.float32)
        work = (scores, sizes, row, estimate, np.empty(tile.rows, np.float32), np.empty(tile.rows, np.float32))
        for h in range(worker, q.shape[0], workers):
            kv = PlanesLayer(
                layer.key_high[h],
                layer.key_middle[h],
                layer.key_low[h],
                layer.value_high[h],
                layer.value_middle[h],
                layer.value_low[h],
                layer.key_peaks[h],
                layer.value_peaks[h],
                layer.open_keys[h],
                layer.open_values[h],
            )
            _attend_head(tile, q[h], kv, length, thresholds, out[h], key_bits[h], value_bits[h], work)
