"""AlignedKV with aligned storage: fixed-point digits, of which attention reads only as many as the output can feel.

Keys and values lie in memory as :mod:`cachequant_lib.kernels.digits` stores them: a high digit, a low digit, and
a power of two that many share. One query of a head is answered in four passes. Tokens count by their *share*: softmax
numerator times 2**exponent of the value, over the sum of these. ``limit`` below is the tolerance over the root of L,
for errors add in quadrature.

1. Score all tokens with the high digits of their keys. Such a score is uncertain by sigma, one for a block: the digit
   is off by up to half a unit, evenly spread, in every channel.
2. Softmax, and the shares.
3. Read the low digit of a key where ``share * sigma > 0.4 * limit``. A small change of a score is a factor on its
   numerator.
4. Values: skip the smallest shares while they sum to a sixth of the tolerance; read both digits where
   ``share > 71 * limit``, one digit in between.

A tolerance of 0 reads everything: the control.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
from numba import njit
from numpy.typing import NDArray

from cachequant_lib.kernels.attention import BLOCK, LOWEST, SUMS, exp_of, power_of_two, prefetch_row, softmax_numerators
from cachequant_lib.kernels.digits import AlignedLayer, add_values, dot, dot_block, scale_queries
from cachequant_lib.kernels.jit import cached_njit

LOW = np.float32(2.0**-8)  # worth of a low digit, in units of the high one
UNSURE = np.float32(0.5)  # with a larger sigma high digits do not even tell which tokens matter


class Scratch(NamedTuple):
    """Room to work in, one for each thread.

    Attributes
    ----------
    scores : float32, shape (G, P)
        Scores, then softmax numerators.
    peaks, sums : float32, shape (G,)
        Largest score, and sum of the numerators.
    shares : float32, shape (P,)
    sigma : float32, shape (P / 64,)
        Uncertainty of the scores of a block.
    scaled : float32, shape (G, D)
        Queries times the power of two of a block's keys.
    index : int64, shape (2, P + 40)
        Tokens whose values are read with one digit or more, and with two.
    """

    scores: Any
    peaks: Any
    sums: Any
    shares: Any
    sigma: Any
    scaled: Any
    index: Any


@njit
def _sum(numbers, length):  # type: ignore[no-untyped-def]
    total = np.int32(0)
    for t in range(length):
        total += np.int32(numbers[t])
    return total


@njit(fastmath=SUMS)
def _score_keys(tile, q, kv, length, work, key_bits):  # type: ignore[no-untyped-def]
    """Pass 1: scores from the high digits, the open block in full, and sigma of each block."""
    scores, scaled, peaks, sealed = work.scores, work.scaled, work.peaks, length // BLOCK * BLOCK
    for g in range(tile.rows):
        peaks[g] = LOWEST
    for b in range(length // BLOCK):
        first, sigma = b * BLOCK, scale_queries(tile, q, kv.key_exponents[b], scaled)
        sure = sigma <= UNSURE
        work.sigma[b] = sigma if sure else np.float32(0)
        for g in range(tile.rows):
            peak = dot_block(tile, scaled[g], kv.key_high, first, scores[g])
            if not sure:
                peak = LOWEST
                for t in range(first, first + BLOCK):
                    key_bits[t] = np.uint8(16)
                    scores[g, t] += dot(tile, scaled[g], kv.key_low[t]) * LOW
                    peak = max(peak, scores[g, t])
            peaks[g] = max(peaks[g], peak)
    for t in range(sealed, length):
        for g in range(tile.rows):
            x = dot(tile, q[g], kv.open_keys[t - sealed])
            scores[g, t] = x
            peaks[g] = max(peaks[g], x)


@njit(fastmath=SUMS)
def _share_out(tile, kv, length, work):  # type: ignore[no-untyped-def]
    """Pass 2: how much of the output hangs on each token, for the query that it matters to most; returns the sum."""
    shares, whole = work.shares, np.float32(0)
    for t in range(length):
        shares[t] = np.float32(0)
    for g in range(tile.rows):
        inverse = np.float32(1) / work.sums[g]
        for t in range(length):
            shares[t] = max(shares[t], work.scores[g, t] * inverse)
    for t in range(length):
        shares[t] *= power_of_two(kv.value_exponents[t])
        whole += shares[t]
    return whole


@njit(fastmath=SUMS)
def _list_keys(tile, length, limit, work):  # type: ignore[no-untyped-def]
    """List the tokens whose keys are to be read in full; returns how many."""
    count = 0
    for b in range(length // BLOCK):
        total, sigma = np.float32(0), work.sigma[b]
        for t in range(b * BLOCK, (b + 1) * BLOCK):
            total += work.shares[t]
        if sigma > 0 and total * sigma >= limit:  # the sum of a block bounds its largest
            for t in range(b * BLOCK, (b + 1) * BLOCK):
                work.index[0, count] = t
                count += work.shares[t] * sigma >= limit
    return count


@njit(fastmath=SUMS)
def _refine_keys(tile, q, kv, count, work, key_bits):  # type: ignore[no-untyped-def]
    """Pass 3: the low digit of the keys where it can be felt."""
    block = -1
    for i in range(count):
        prefetch_row(tile, kv.key_low, work.index[0, min(i + 8, count - 1)] * tile.width)
        t = work.index[0, i]
        if t // BLOCK != block:
            block = t // BLOCK
            scale_queries(tile, q, kv.key_exponents[block], work.scaled)
        key_bits[t] = np.uint8(16)
        for g in range(tile.rows):
            before = work.scores[g, t]
            after = before * exp_of(dot(tile, work.scaled[g], kv.key_low[t]) * LOW)
            work.scores[g, t] = after
            work.sums[g] += after - before


@njit(fastmath=SUMS)
def _choose_values(length, tolerance, whole, limit, work, value_bits):  # type: ignore[no-untyped-def]
    """Pass 4: list the tokens whose values are read with one digit, and those with two; returns how many."""
    shares, index = work.shares, work.index
    budget = tolerance * whole / np.float32(6)
    low, high = budget / np.float32(length), np.float32(71) * limit
    for _ in range(6):
        higher, skipped = low * np.float32(2.5), np.float32(0)
        for t in range(length):
            skipped += shares[t] if shares[t] < higher else np.float32(0)
        if skipped > budget:
            break
        low = higher
    one, two = 0, 0
    for t in range(length):
        index[0, one], index[1, two] = t, t
        one += shares[t] >= low
        two += shares[t] >= high
    for t in range(length):
        value_bits[t] = np.uint8(8 if shares[t] >= low else 0) + np.uint8(8 if shares[t] >= high else 0)
    for i in range(40):
        index[0, one + i] = index[1, two + i] = length  # a token that weighs nothing
    return one, two


@njit(fastmath=SUMS)
def _attend_head(tile, q, kv, length, tolerance, out, bits, work):  # type: ignore[no-untyped-def]
    """Answer the queries (G, D) of one key-value head."""
    for t in range(length):
        bits[0, t] = np.uint8(8 if t < length // BLOCK * BLOCK else 32)
    _score_keys(tile, q, kv, length, work, bits[0])
    softmax_numerators(tile, work.scores, work.peaks, length, work.sums)
    whole = _share_out(tile, kv, length, work)
    limit = tolerance * whole / np.sqrt(np.float32(length))
    _refine_keys(tile, q, kv, _list_keys(tile, length, np.float32(0.4) * limit, work), work, bits[0])
    one, two = _choose_values(length, tolerance, whole, limit, work, bits[1])
    for g in range(tile.rows):
        work.scores[g, length] = np.float32(0)
        for c in range(tile.width):
            out[g, c] = np.float32(0)
    add_values(tile, work.scores, kv.value_exponents, np.int32(8), kv.value_high, work.index[0], one, out)
    add_values(tile, work.scores, kv.value_exponents, np.int32(0), kv.value_low, work.index[1], two, out)
    for g in range(tile.rows):
        for c in range(tile.width):
            out[g, c] /= work.sums[g]


@cached_njit(parallel=True)
def attend_aligned(
    tile: Any,
    q: NDArray[np.float32],
    layer: AlignedLayer,
    length: int,
    tolerance: np.float32,
    out: NDArray[np.float32],
    bits: NDArray[np.uint8],
    counts: NDArray[np.int64],
    workers: int,
) -> None:
    """Attend from one query to the first `length` tokens of a layer.

    Parameters
    ----------
    tile : Tile
        From :func:`~cachequant_lib.kernels.attention.head_tile`.
    q : float32, shape (Hkv, G, D)
        Already divided by the root of D.
    layer : AlignedLayer
        With at least one more token of room than `length`.
    length : int
    tolerance : float32
        Aimed at: error of the output, relative to its size. 0 reads all digits.
    out : float32, shape (Hkv, G, D)
        Written.
    bits : uint8, shape (Hkv, 2, P)
        Written: bits read of each token's key (8, 16, or 32 in the open block) and value (0, 8 or 16).
    counts : int64, shape (Hkv, 2)
        Written: the sums of `bits` over the tokens.
    workers : int
        Threads that share out the heads; the result is the same for every number.
    """
    num_heads, room, _ = layer.key_high.shape
    for worker in numba.prange(workers):  # type: ignore[no-untyped-call,attr-defined]
        work = Scratch(
            np.empty((tile.rows, room), np.float32),
            np.empty(tile.rows, np.float32),
            np.empty(tile.rows, np.float32),
            np.empty(room, np.float32),
            np.empty(room // BLOCK, np.float32),
            np.empty((tile.rows, tile.width), np.float32),
            np.empty((2, room + 40), np.int64),
        )
        for h in range(worker, num_heads, workers):
            kv = AlignedLayer(
                layer.key_high[h],
                layer.key_low[h],
                layer.key_exponents[h],
                layer.open_keys[h],
                layer.value_high[h],
                layer.value_low[h],
                layer.value_exponents[h],
            )
            _attend_head(tile, q[h], kv, length, tolerance, out[h], bits[h], work)
            counts[h, 0], counts[h, 1] = _sum(bits[h, 0], length), _sum(bits[h, 1], length)
