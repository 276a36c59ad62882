"""The float32 kernels equal their oracles bit for bit, and the oracles lie close to exact arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from numba import njit
from numpy.testing import assert_array_equal

from cachequant_lib.kernels import floats, simd
from cachequant_lib.kernels.causal import KeptHeads, attend, room_needed
from cachequant_lib.kernels.elementwise import exp, gate_row, gelu_row, normalize_row
from cachequant_lib.kernels.float_reference import (
    attend_ref,
    exp_ref,
    gate_ref,
    gelu_ref,
    multiply_add_ref,
    normalize_ref,
    sum_strips_ref,
)
from cachequant_lib.kernels.tiles import Tile

pytestmark = pytest.mark.compiled


def equal_bits(a, b):
    assert_array_equal(np.asarray(a).view(np.int32), np.asarray(b).view(np.int32))


def normal(*shape, scale=1.0, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


# ---- Oracles against exact arithmetic --------------------------------------------------------------------------------


def test_the_oracle_of_multiply_add_rounds_once():
    rng = np.random.default_rng(1)
    x, y, z = (np.ldexp(rng.standard_normal(3000), rng.integers(-30, 30, 3000)).astype(np.float32) for _ in range(3))
    z[::2] = -(x * y)[::2]  # what is left is the rounding of the product alone
    z[1::4] = (x * y * np.float32(2**24))[1::4]  # near a half of the last place of z
    for a, b, c, got in zip(x, y, z, multiply_add_ref(x, y, z), strict=True):
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        error = abs(Fraction(float(got)) - exact)
        for neighbour in (np.nextafter(got, np.float32(-np.inf)), np.nextafter(got, np.float32(np.inf))):
            assert error <= abs(Fraction(float(neighbour)) - exact)


def test_exp_is_within_two_units_in_the_last_place():
    x = np.concatenate([np.linspace(-80, 80, 200001), normal(10000, scale=1e-3)]).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(exp_ref(x) - exact) <= 2 * np.spacing(exact.astype(np.float32))).all()
    assert exp_ref(np.float32([0, -80.1, -1e30, -np.inf, 1000])).tolist() == [1, 0, 0, 0, exp_ref(np.float32([80]))[0]]


def test_activations_and_norms_are_close_to_exact():
    x, scale, shift = normal(5, 77, scale=3), 1 + normal(77, seed=1), normal(77, seed=2)
    wide = x.astype(np.float64)
    u = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    assert np.abs(gelu_ref(x) - wide / 2 * (1 + np.tanh(u))).max() < 2e-6
    assert np.abs(gate_ref(x, x[::-1]) - wide / (1 + np.exp(-wide)) * wide[::-1]).max() < 1e-5
    for centred in (True, False):
        centre = wide - wide.mean(axis=1, keepdims=True) * centred
        exact = centre / np.sqrt((centre**2).mean(axis=1, keepdims=True) + 1e-5) * scale + shift
        assert np.abs(normalize_ref(x, scale, shift, 1e-5, centred) - exact).max() < 5e-6


def test_the_oracle_of_attention_is_close_to_exact():
    q, keys, values = normal(9, 6, 12), normal(40, 3, 12, seed=1), normal(40, 3, 12, seed=2)
    y = attend_ref(q, keys, values)
    for i in range(9):
        for h in range(6):
            seen = 40 - 9 + i + 1
            weights = np.exp(keys[:seen, h // 2].astype(np.float64) @ q[i, h] / np.sqrt(12))
            assert np.abs(weights @ values[:seen, h // 2] / weights.sum() - y[i, h]).max() < 2e-6


# ---- Kernels against oracles -----------------------------------------------------------------------------------------


@njit
def run_words(tile, x, y, z, out, numbers):
    a, b, c = simd.load(tile, x, 0), simd.load(tile, y, 0), simd.load(tile, z, 0)
    simd.store(out, 0, 0, floats.multiply_add(a, b, c))
    simd.store(out, tile.width, 0, a - b)
    simd.store(out, 2 * tile.width, 0, a / b)
    simd.store(out, 3 * tile.width, 0, floats.where_less(a, b, c, a))
    numbers[0], numbers[1] = floats.sum_row(a), floats.max_row(a)


def test_words(isa):
    tile = Tile(isa, 1, 1).strip
    for seed in range(50):
        x, y, z = (normal(tile.width, seed=3 * seed + n, scale=10.0**n) for n in range(3))
        y[0] = x[0]
        out, numbers = np.empty((4, tile.width), np.float32), np.empty(2, np.float32)
        run_words(tile, x, y, z, out.reshape(-1), numbers)
        equal_bits(out, [multiply_add_ref(x, y, z), x - y, x / y, np.where(x < y, z, x)])
        equal_bits(numbers, [sum_strips_ref(x), x.max()])


@njit
def run_transpose(tile, x, stride, count, out):
    simd.store(out, 0, tile.rows, floats.transpose(floats.load_rows(tile, x, 1, stride, count)))


def test_a_square_is_transposed_and_rows_past_the_end_are_the_last(isa):
    tile = Tile(isa, 1, 1).square
    for count in (1, tile.rows - 1, tile.rows, 3 * tile.rows):
        used = min(count, tile.rows)
        x, out = normal(1 + (used - 1) * 20 + tile.rows), np.empty((tile.rows, tile.rows), np.float32)
        run_transpose(tile, x, 20, count, out)
        rows = [x[1 + min(r, used - 1) * 20 :][: tile.rows] for r in range(tile.rows)]
        equal_bits(out, np.transpose(rows))


@njit
def run_exp(tile, x):
    for k in range(0, x.size, tile.width):
        simd.store(x, k, 0, exp(tile, simd.load(tile, x, k)))


def test_exp(isa):
    x = np.concatenate([np.linspace(-90, 90, 16000), [-np.inf, -1e30, 0.0, -0.0] * 4]).astype(np.float32)
    out = x.copy()
    run_exp(Tile(isa, 1, 1).strip, out)
    equal_bits(out, exp_ref(x))
    x = np.full(16, np.nan, np.float32)
    run_exp(Tile(isa, 1, 1).strip, x)
    assert np.isnan(x).all()


@pytest.mark.parametrize("panels", [1, 20])
def test_activations(isa, guarded, panels):
    tile = Tile(isa, *isa.int8_tile)
    size = panels * tile.width  # 8 columns and 12 occur: a panel may be narrower than 16
    x, up, out = np.linspace(-20, 20, size).astype(np.float32), normal(size), guarded((size,), np.float32)
    out[:] = x
    gelu_row(tile, out)
    equal_bits(out, gelu_ref(x))
    out[:] = x
    gate_row(tile, out, up)
    equal_bits(out, gate_ref(x, up))


@pytest.mark.parametrize("width", [1, 15, 16, 77, 768])
@pytest.mark.parametrize("centred", [True, False])
def test_norms(isa, guarded, width, centred):
    tile, padding = Tile(isa, *isa.int8_tile), (0, -width % 16)
    x, scale, shift = normal(width, scale=5) + np.float32(2), normal(width, seed=1), normal(width, seed=2) * centred
    out = guarded((width + padding[1],), np.float32)
    parts = (np.pad(part, padding) for part in (scale, shift))
    normalize_row(tile, np.pad(x, padding), width, *parts, np.float32(1e-5), centred, out)
    equal_bits(out[:width], normalize_ref(x[None], scale, shift, 1e-5, centred)[0])
    assert (out[width:] == 0).all()


def run_attend(isa, q, keys, values, guarded, cuts=()):
    """Attend on copies of all operands between guards, the queries in shares."""
    num_heads, head_dim = keys.shape[1:]
    tile = Tile(isa, *isa.int8_tile)
    out = guarded((len(q), q.shape[1] * head_dim), np.float32)
    out[:] = q.reshape(len(q), -1)
    kept = [guarded((part.size,), np.float32) for part in (keys, values)]
    for copy, part in zip(kept, (keys, values), strict=True):
        copy[:] = part.reshape(-1)
    room = guarded((room_needed(tile, head_dim, len(keys)),), np.float32)
    room[:] = np.nan  # whatever it held before
    total = len(q) * q.shape[1]
    for first, last in zip((0, *cuts), (*cuts, total), strict=True):
        attend(tile, out, len(keys) - len(q), first, last, KeptHeads(*kept, 0, num_heads, head_dim), room)
    return out.reshape(q.shape)


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(2, 2, 64), (6, 2, 16), (3, 1, 10), (4, 4, 48)])
def test_attention(isa, guarded, num_heads, num_kv_heads, head_dim):
    for num_queries, num_positions in [(1, 1), (1, 67), (5, 5), (8, 8), (17, 80), (30, 130)]:
        q = normal(num_queries, num_heads, head_dim, scale=2)
        keys, values = (normal(num_positions, num_kv_heads, head_dim, seed=s, scale=2) for s in (1, 2))
        expected = attend_ref(q, keys, values)
        equal_bits(run_attend(isa, q, keys, values, guarded), expected)
        middle = num_queries * num_heads // 2
        equal_bits(run_attend(isa, q, keys, values, guarded, (middle, middle, middle + 1)), expected)


def test_a_far_score_weighs_nothing_and_makes_no_denormal_number(isa, guarded):
    q, keys, values = np.ones((3, 1, 16), np.float32), np.zeros((20, 1, 16), np.float32), normal(20, 1, 16)
    keys[7] = 30  # 120 above the others
    y = run_attend(isa, q, keys, values, guarded)
    equal_bits(y, np.broadcast_to(values[7], y.shape))
