"""Bounds on logits from int8 codes: which tokens can still be the most likely one, once the rounding is counted.

A head multiplies one hidden state x with a row of the weight for every token. To find the largest products, a quarter
of the bytes is enough, if what rounding can change is known. A row is stored as ``w = unit * codes + e``, with int8
codes and the length of its error e. The hidden state is split when it arrives, ``x = step * (128 * high + low) + d``:
two digits of 8 bits, so that a weight is read once and multiplied twice, and the length of what they miss, d, is
about 1/128 of what a single digit would miss. With w^ and x^ for the codes and the digits in their units::

    w.x - w^.x^ = w^.d + e.x        so        |w.x - w^.x^| <= |w^| |d| + |e| |x|         (Cauchy-Schwarz)

What is bounded is not w.x itself but the float32 number that a float32 head gives for it. Let ``u = 2**-24``, the
largest relative error of one float32 operation, and ``g = K u / (1 - K u)``.

1. The float32 head adds K rounded products. *In whatever order* it does, with fused multiply-adds or without, it is
   off by at most ``g sum |w_k x_k| <= g |w| |x| <= g (|w^| + |e|) |x|``.
2. w^.x^ is ``step * unit * (128 H + L)`` with exact integers H and L, but computed in float32. Converting H and L,
   adding them and multiplying twice is off by at most ``4 u (1 + 5 u) step unit (128 |H| + |L|)``, and
   ``step unit (128 |H| + |L|) <= |w^| X`` with ``X = step (|128 high| + |low|)``, Cauchy-Schwarz again.
3. Adding the radius to that number, or taking it away, is off by at most u times both: ``u (1 + 5 u) |w^| X`` of the
   one; of the other, see 4.

So the float32 logit lies within ``|w^| alpha + |e| beta`` of what is computed here, where::

    alpha = |d| + 6 u X + g |x|            beta = (1 + g) |x|

4. alpha and beta are computed in float64, then made larger by 2**-20 = 16 u. That covers their own rounding (2 u), that
   of the radius, of which each part is rounded three times (3 u), and the second part of 3 (u). The lengths |w^| and
   |e| are rounded up when the weight is packed.
5. Below the normal range of float32 a product errs by 2**-150 whatever its size. K + 4 such errors are far below
   ``FLOOR``, which is added. Nothing overflows while |x| and the rows lie below ``LONGEST``; below ``SHORTEST``, steps
   would lose digits. Outside of these limits nothing is claimed, and the caller does without.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
from numba import njit
from numpy.typing import NDArray

from cachequant_lib.kernels.jit import cached_njit, start_threads
from cachequant_lib.kernels.simd import broadcast, dot4, load, prefetch, splat, store, to_float, zeros
from cachequant_lib.kernels.tiles import Tile, pack_panels

AHEAD = 4096  # bytes of the weight between what is multiplied and what is asked for: the time a read takes
LEVELS = 127 * 128  # largest value that two digits hold, the upper one at most 127 and the lower one in -64..63
BASE, MINUS = np.float32(128), np.float32(-1)
ROUNDING = 2.0**-24
SAFETY = 1 + 2.0**-20
FLOOR = np.float32(2.0**-120)
SHORTEST, LONGEST = 2.0**-60, 2.0**60
CHUNK_ROWS = 4096  # rows that are measured in float64 at a time


class PackedHead(NamedTuple):
    """An int8 head as the kernel reads it, its V rows padded with zeros to whole panels.

    Attributes
    ----------
    panels : int8, shape (panels, K / 4, width, 4)
        Codes; K is padded with zeros to a multiple of four.
    starts : int32, shape (V padded,)
        As in :class:`PackedInt8`.
    units : float32, shape (V padded,)
        What a code counts.
    lengths, errors : float32, shape (V padded,)
        At least the length of the row of codes in its unit, and at least that of its difference to the exact row.
    """

    panels: NDArray[np.int8]
    starts: NDArray[np.int32]
    units: NDArray[np.float32]
    lengths: NDArray[np.float32]
    errors: NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        """Bytes held, padding included."""
        return sum(part.nbytes for part in self)


def pack_head(
    tile: Tile, codes: NDArray[np.int8], units: NDArray[np.float32], weight: NDArray[np.float32]
) -> PackedHead:
    """Pack codes (V, K) in units (V,) that stand for a weight (V, K), and measure how well they do. Costs a copy."""
    start_threads()  # whoever multiplies has packed before
    panels = pack_panels(tile, codes)
    padding = (0, panels.shape[0] * tile.width - len(codes))
    starts = np.pad(codes.sum(axis=1, dtype=np.int64) * tile.flip, padding).astype(np.int32)
    measured = np.zeros((2, len(codes)))
    for first in range(0, len(codes), CHUNK_ROWS):
        rows = slice(first, first + CHUNK_ROWS)
        stand_in = codes[rows] * units[rows, None].astype(np.float64)  # (R, K)
        measured[:, rows] = [np.linalg.norm(part, axis=1) for part in (stand_in, weight[rows] - stand_in)]  # (2, R)
    rounded_up = np.nextafter((measured * SAFETY).astype(np.float32), np.float32(np.inf))
    lengths, errors = np.pad(rounded_up, ((0, 0), padding))
    return PackedHead(panels, starts, np.pad(units, padding), lengths, errors)


def rounding_bound(depth: int) -> float:
    """Return g: what a float32 sum of `depth` products can be off by, in any order, over the sum of magnitudes."""
    return depth * ROUNDING / (1 - depth * ROUNDING)


@njit(error_model="numpy")
def _split(tile, x, step, digits):  # type: ignore[no-untyped-def]
    """Write the two digits of each value; return the lengths of what they miss, of the upper ones and of the lower."""
    flip, missed, upper, lower = np.int8(tile.flip), 0.0, 0.0, 0.0
    for k in range(x.size):
        code = np.int32(np.rint(np.float64(x[k]) / step))
        high = np.int32((code + 64) >> 7)
        low = np.int32(code - 128 * high)
        digits[0, k], digits[1, k] = np.int8(high) ^ flip, np.int8(low) ^ flip
        missed += (np.float64(x[k]) - step * code) ** 2
        upper += np.float64(high) * np.float64(high)
        lower += np.float64(low) * np.float64(low)
    digits[:, x.size :] = flip
    return np.sqrt(missed), 128 * step * np.sqrt(upper), step * np.sqrt(lower)


@njit
def _panel_head(tile, digits, factors, weight, j, bounds):  # type: ignore[no-untyped-def]
    """Bound the logits of the panel that begins at column j. Factors are step, alpha and beta."""
    depth, num_columns = digits.shape[1], bounds.shape[1]
    start, high, low = load(tile, weight.starts, j), zeros(tile), zeros(tile)  # (1, C)
    high, low = high + start, low + start
    at = j * depth
    for k in range(0, depth, 4):
        prefetch(tile, weight.panels, at + AHEAD)
        codes = load(tile, weight.panels, at)  # (1, C)
        high = dot4(high, broadcast(tile, digits, k, 0), codes)
        low = dot4(low, broadcast(tile, digits, depth + k, 0), codes)
        at += 4 * tile.width
    total = to_float(high) * splat(tile, BASE) + to_float(low)
    logit = total * splat(tile, factors[0]) * load(tile, weight.units, j)
    missed = load(tile, weight.lengths, j) * splat(tile, factors[1])
    radius = missed + load(tile, weight.errors, j) * splat(tile, factors[2]) + splat(tile, FLOOR)
    store(bounds, j, 0, logit + radius * splat(tile, MINUS))
    store(bounds, num_columns + j, 0, logit + radius)


@cached_njit(parallel=True)
def bound_columns(
    tile: Any, digits: NDArray[np.int8], factors: NDArray[np.float32], weight: PackedHead, bounds: NDArray[np.float32]
) -> None:
    """Multiply two digits with every row of the weight, and write how low and how high each logit can be.

    Parameters
    ----------
    tile : Tile
        The one that `weight` was packed for, with one row.
    digits : int8, shape (2, K rounded up to 4)
        Upper and lower, each as ``digit ^ tile.flip``.
    factors : float32, shape (3,)
        Step, alpha and beta.
    weight : PackedHead
    bounds : float32, shape (2, V padded)
        Written: the lowest and the highest value of each logit.

    Notes
    -----
    2 V K multiply-adds; the weight is read once. Threads share out the panels. :func:`reference.bound_columns_ref` says
    it in NumPy.
    """
    for panel in numba.prange(weight.panels.shape[0]):  # type: ignore[no-untyped-call,attr-defined]
        _panel_head(tile, digits, factors, weight, panel * tile.width, bounds)


@cached_njit()
def bound_logits(tile: Any, x: NDArray[np.float32], weight: PackedHead, bounds: NDArray[np.float32]) -> bool:
    """Write bounds (2, V padded) between which the float32 logits of one hidden state x (K,) lie.

    Returns False, and has written nothing, if `x` is not finite or its length outside ``SHORTEST .. LONGEST``.
    """
    square, peak = 0.0, 0.0
    for k in range(x.size):
        square += np.float64(x[k]) * np.float64(x[k])
        peak = max(peak, abs(np.float64(x[k])))
    length = np.sqrt(square)
    if not (SHORTEST <= length <= LONGEST):
        return False
    digits, factors = np.empty((2, 4 * weight.panels.shape[1]), np.int8), np.empty(3, np.float32)
    factors[0] = np.float32(peak / LEVELS)
    missed, upper, lower = _split(tile, x, np.float64(factors[0]), digits)
    rounding = x.size * ROUNDING / (1 - x.size * ROUNDING)
    factors[1] = np.float32((missed + 6 * ROUNDING * (upper + lower) + rounding * length) * SAFETY)
    factors[2] = np.float32((1 + rounding) * length * SAFETY)
    bound_columns(tile, digits, factors, weight, bounds)
    return True


@cached_njit()
def score_rows(
    weight: NDArray[np.float32],
    x: NDArray[np.float32],
    rows: NDArray[np.intp],
    scores: NDArray[np.float64],
    magnitudes: NDArray[np.float64],
) -> None:
    """Write ``sum w_k x_k`` and ``sum |w_k x_k|`` of some rows of a weight (V, K), in float64.

    A product of two float32 is exact there, so a score is off by at most ``K 2**-53`` of its magnitude.
    """
    for n in range(rows.size):
        score, magnitude = 0.0, 0.0
        for k in range(x.size):
            product = np.float64(weight[rows[n], k]) * np.float64(x[k])
            score += product
            magnitude += abs(product)
        scores[n], magnitudes[n] = score, magnitude
