"""Exact oracles of the float32 kernels in NumPy: every operation, in its order, rounded as the kernels round it."""

import numpy as np
from numpy.typing import NDArray

from cachequant_lib.kernels import elementwise as constants

FloatArray = NDArray[np.float32]
Floats = FloatArray | np.float32


def multiply_add_ref(x: Floats, y: Floats, z: Floats) -> FloatArray:
    """Compute ``x * y + z`` of float32, rounded once.

    The product is exact in float64. Its sum with z is rounded to odd there, that is, the last bit is set if anything
    was lost, so that the rounding to float32 that follows still sees on which side of a half it lies (Boldo and
    Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE Transactions on Computers 57, 2008).
    """
    product, term = np.float64(x) * np.float64(y), np.float64(z)
    total = np.asarray(product + term)
    back = total - product
    lost = (product - (total - back)) + (term - back)
    bits = total.view(np.int64)
    towards = np.where((lost > 0) == (total > 0), 1, -1)
    odd = np.where((lost != 0) & (bits & 1 == 0), bits + towards, bits)
    return odd.view(np.float64).astype(np.float32)


def sum_strips_ref(x: FloatArray) -> FloatArray:
    """Sum the last axis: each 16th number to the same lane, from left to right, then the lanes in halves."""
    padded = np.concatenate([x, np.zeros((*x.shape[:-1], -x.shape[-1] % 16), np.float32)], axis=-1)
    lanes = np.zeros((*x.shape[:-1], 16), np.float32)
    for start in range(0, padded.shape[-1], 16):
        lanes = lanes + padded[..., start : start + 16]
    return _halve(lanes)


def exp_ref(x: FloatArray) -> FloatArray:
    """Compute what :func:`cachequant_lib.kernels.elementwise.exp` does; x is finite or minus infinity."""
    tiny = x < constants.FLOOR
    x = np.where(tiny, np.float32(0), np.minimum(x, constants.CEILING))
    n = multiply_add_ref(x, constants.LOG2_E, constants.ROUNDER) - constants.ROUNDER
    rest = multiply_add_ref(n, -constants.LN2_LOW, multiply_add_ref(n, -constants.LN2_HIGH, x))
    y: Floats = constants.C7
    for coefficient in (
        constants.C6,
        constants.C5,
        constants.C4,
        constants.C3,
        constants.C2,
        constants.ONE,
        constants.ONE,
    ):
        y = multiply_add_ref(y, rest, coefficient)
    return np.where(tiny, np.float32(0), np.ldexp(y, n.astype(np.int32)))


def gelu_ref(x: FloatArray) -> FloatArray:
    """Compute what :func:`cachequant_lib.kernels.elementwise.gelu_row` does."""
    slope = multiply_add_ref(x * x, constants.GELU_CUBIC, constants.GELU_LINEAR)
    return x / (exp_ref(slope * x) + constants.ONE)


def gate_ref(gate: FloatArray, up: FloatArray) -> FloatArray:
    """Compute what :func:`cachequant_lib.kernels.elementwise.gate_row` does."""
    return gate / (exp_ref(np.float32(0) - gate) + constants.ONE) * up


def normalize_ref(x: FloatArray, scale: FloatArray, shift: FloatArray, eps: float, centred: bool) -> FloatArray:
    """Compute what :func:`cachequant_lib.kernels.elementwise.normalize_row` does, for rows x (T, C)."""
    width = np.float32(x.shape[1])
    mean = sum_strips_ref(x) / width if centred else np.zeros(len(x), np.float32)
    centre = x - mean[:, None]
    padded = np.pad(centre, ((0, 0), (0, -x.shape[1] % 16)))
    lanes = np.zeros((len(x), 16), np.float32)
    for start in range(0, padded.shape[1], 16):
        part = padded[:, start : start + 16]
        lanes = multiply_add_ref(part, part, lanes)
    factor = constants.ONE / np.sqrt(_halve(lanes) / width + np.float32(eps))
    return multiply_add_ref(centre * factor[:, None], scale, shift)


def attend_ref(q: FloatArray, keys: FloatArray, values: FloatArray) -> FloatArray:
    """Compute what :func:`cachequant_lib.kernels.causal.attend` does.

    `q` is (T, H, D), the newest T of the positions of `keys` and `values` (L, Hkv, D); returns (T, H, D).
    """
    (num_queries, num_heads, head_dim), num_positions = q.shape, len(keys)
    keys, values = (part.repeat(num_heads // part.shape[1], axis=1) for part in (keys, values))  # -> (L, H, D)
    scores = np.zeros((num_queries, num_heads, num_positions), np.float32)
    for d in range(head_dim):
        scores = multiply_add_ref(q[:, :, d, None], keys.T[d], scores)  # (T, H, 1), (H, L)
    hidden = np.arange(num_positions) > np.arange(num_positions - num_queries, num_positions)[:, None, None]
    scores = np.where(hidden, -np.inf, scores).astype(np.float32)
    factor = np.float32(1) / np.sqrt(np.float32(head_dim))
    shares = exp_ref((scores - scores.max(axis=-1, keepdims=True)) * factor)
    y = np.zeros(q.shape, np.float32)
    for t in range(num_positions):
        y = multiply_add_ref(shares[:, :, t, None], values[t], y)  # (T, H, 1), (H, D)
    return y / sum_strips_ref(shares)[..., None]


def _halve(lanes: FloatArray) -> FloatArray:
    """Sum 16 lanes: the first half with the second, and so on."""
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]
