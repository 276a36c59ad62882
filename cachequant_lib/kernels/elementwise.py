"""What happens to a row between two products: norms and activations in float32, the same bits wherever a number lies.

Every function here is one fixed series of float32 operations for each number, and sums over a row run in one order:
column k is added to lane ``k % 16``, and the 16 lanes are added in halves. So a row's result does not depend on the
rows beside it, nor on what a register holds. :mod:`cachequant_lib.kernels.reference` says it in NumPy.
"""

import numpy as np
from numba import njit

from cachequant_lib.kernels.floats import max_row, multiply_add, sum_row, times_power, where_less
from cachequant_lib.kernels.simd import load, splat, store, to_float, zeros
from cachequant_lib.kernels.tiles import STRIP

ROUNDER = np.float32(1.5 * 2**23)  # adding it rounds to a whole number, which its low bits then hold
LOG2_E = np.float32(1.4426950408889634)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)  # the first has 9 bits: n times it is exact
C2, C3, C4, C5, C6, C7 = (np.float32(1 / n) for n in (2, 6, 24, 120, 720, 5040))
ONE = np.float32(1)
FLOOR, CEILING = np.float32(-80), np.float32(80)  # exp of less counts as zero: no denormal numbers, which are slow
GELU_LINEAR = np.float32(-2 * 0.7978845608028654)  # -2 sqrt(2 / pi)
GELU_CUBIC = np.float32(-2 * 0.7978845608028654 * 0.044715)


@njit(forceinline=True)
def exp(tile, x):  # type: ignore[no-untyped-def]
    """Exponential of a grid: ``2**n`` times a polynomial of what is left, |rest| <= ln(2) / 2.

    Below -80 it is zero, above 80 it stays ``exp(80)``; NaN stays NaN.
    """
    x = where_less(splat(tile, CEILING), x, splat(tile, CEILING), x)
    shifted = multiply_add(x, splat(tile, LOG2_E), splat(tile, ROUNDER))
    n = shifted - splat(tile, ROUNDER)
    rest = multiply_add(n, splat(tile, -LN2_LOW), multiply_add(n, splat(tile, -LN2_HIGH), x))
    y = multiply_add(splat(tile, C7), rest, splat(tile, C6))
    y = multiply_add(y, rest, splat(tile, C5))
    y = multiply_add(y, rest, splat(tile, C4))
    y = multiply_add(y, rest, splat(tile, C3))
    y = multiply_add(y, rest, splat(tile, C2))
    y = multiply_add(y, rest, splat(tile, ONE))
    y = times_power(multiply_add(y, rest, splat(tile, ONE)), shifted)
    return where_less(x, splat(tile, FLOOR), to_float(zeros(tile)), y)


@njit
def copy_row(tile, source, start, target, place, count):  # type: ignore[no-untyped-def]
    """Copy `count` numbers from ``source[start]`` on to ``target[place]`` on."""
    whole = count - count % STRIP
    for k in range(0, whole, STRIP):
        store(target, place + k, 0, load(tile.strip, source, start + k))
    for k in range(whole, count):
        target[place + k] = source[start + k]


@njit
def turn_row(tile, source, start, target, place, cos, sin):  # type: ignore[no-untyped-def]
    """Copy a head's row, each pair k and ``k + D / 2`` turned by its angle."""
    half = cos.size
    whole = half - half % STRIP
    for k in range(0, whole, STRIP):
        first, second = load(tile.strip, source, start + k), load(tile.strip, source, start + half + k)
        c, s = load(tile.strip, cos, k), load(tile.strip, sin, k)
        store(target, place + k, 0, first * c - second * s)
        store(target, place + half + k, 0, second * c + first * s)
    for k in range(whole, half):
        x, y = source[start + k], source[start + half + k]
        target[place + k] = x * cos[k] - y * sin[k]
        target[place + half + k] = y * cos[k] + x * sin[k]


@njit
def gelu_row(tile, x):  # type: ignore[no-untyped-def]
    """Replace each number of x by its GELU; x holds whole registers, as a panel does.

    ``x / 2 * (1 + tanh(u))`` is ``x / (1 + exp(-2 u))``.
    """
    for k in range(0, x.size, tile.square.rows):
        y = load(tile.square.single, x, k)
        slope = multiply_add(y * y, splat(tile, GELU_CUBIC), splat(tile, GELU_LINEAR))  # -2 u / y
        store(x, k, 0, y / (exp(tile.square.single, slope * y) + splat(tile, ONE)))


@njit
def gate_row(tile, x, up):  # type: ignore[no-untyped-def]
    """Replace each number g of x by ``g / (1 + exp(-g)) * up``: SwiGLU. Both hold the same whole registers."""
    for k in range(0, x.size, tile.square.rows):
        gate = load(tile.square.single, x, k)
        silu = gate / (exp(tile.square.single, to_float(zeros(tile.square.single)) - gate) + splat(tile, ONE))
        store(x, k, 0, silu * load(tile.square.single, up, k))


@njit
def normalize_row(tile, x, width, scale, shift, eps, centred, y):  # type: ignore[no-untyped-def]
    """Write LayerNorm (`centred`) or RMSNorm of the first `width` numbers of x to `y`. RMSNorm has a shift of zero.

    `y`, `scale` and `shift` hold a multiple of 16 numbers, and x at least as many. Past `width`, x, `scale` and `shift`
    are zero, and so is what is written.
    """
    padded, total, mean = y.size, to_float(zeros(tile.strip)), np.float32(0)
    if centred:
        for k in range(0, padded, STRIP):
            total = total + load(tile.strip, x, k)
        mean = sum_row(total) / np.float32(width)
    for k in range(0, padded, STRIP):
        store(y, k, 0, load(tile.strip, x, k) - splat(tile, mean))
    y[width:] = 0
    squares = to_float(zeros(tile.strip))
    for k in range(0, padded, STRIP):
        centre = load(tile.strip, y, k)
        squares = multiply_add(centre, centre, squares)
    factor = ONE / np.sqrt(sum_row(squares) / np.float32(width) + eps)
    for k in range(0, padded, STRIP):
        scaled = load(tile.strip, y, k) * splat(tile, factor)
        store(y, k, 0, multiply_add(scaled, load(tile.strip, scale, k), load(tile.strip, shift, k)))


@njit
def softmax_row(tile, x, start, visible, stop, factor):  # type: ignore[no-untyped-def]
    """Replace the first `visible` scores at ``x[start]`` by ``exp(factor * (score - largest))``; return their sum.

    The rest, up to `stop`, becomes zero: a later position than its own is hidden from a row. `stop` is at least
    `visible`, and room goes on to the next multiple of 16.
    """
    whole = -(-visible // STRIP) * STRIP
    for k in range(start + visible, start + whole):
        x[k] = -np.inf
    largest = load(tile.strip, x, start)
    for k in range(start + STRIP, start + whole, STRIP):
        score = load(tile.strip, x, k)
        largest = where_less(largest, score, score, largest)
    top, total = splat(tile, max_row(largest)), to_float(zeros(tile.strip))
    for k in range(start, start + whole, STRIP):
        share = exp(tile.strip, (load(tile.strip, x, k) - top) * splat(tile, factor))
        total = total + share
        store(x, k, 0, share)
    x[start + whole : start + stop] = 0
    return sum_row(total)
