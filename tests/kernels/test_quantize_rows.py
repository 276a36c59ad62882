"""Row quantisation gives the codes of the formats, bit for bit, on every instruction set."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cachequant_lib.formats import quantize_bfp8, quantize_int8
from cachequant_lib.kernels.quantize import LARGEST_POWER, NOT_FINITE, quantize_rows_bfp8, quantize_rows_int8
from cachequant_lib.kernels.tiles import Tile

pytestmark = pytest.mark.compiled

FLOATS = st.floats(-(2.0**126), 2.0**126, width=32)


def run_int8(isa, x, guarded=np.empty):
    codes, steps = guarded((len(x), -(-x.shape[1] // 4) * 4), np.int8), guarded(len(x), np.float32)
    tile = Tile(isa, 1, 1)
    peak = quantize_rows_int8(tile, x, codes, steps)
    codes ^= np.int8(tile.flip)
    assert (codes[:, x.shape[1] :] == 0).all()  # the padding
    return peak, codes[:, : x.shape[1]], steps


def run_bfp8(isa, x, guarded=np.empty):
    num_blocks = x.shape[1] // 32
    codes, powers = guarded(x.shape, np.int8), guarded((len(x), num_blocks), np.float32)
    starts = guarded((len(x), num_blocks), np.int32)
    return quantize_rows_bfp8(Tile(isa, 1, 1), x, codes, powers, starts), codes, powers, starts


def check_int8(isa, x, guarded=np.empty):
    expected = quantize_int8(x)
    peak, codes, steps = run_int8(isa, x, guarded)
    assert (codes == expected.codes).all()
    assert (steps == (expected.scales.astype(np.float64) / 127**2).astype(np.float32)).all()
    assert peak == expected.scales.max(initial=0).view(np.int32)


def check_bfp8(isa, x, guarded=np.empty):
    expected = quantize_bfp8(x)
    peak, codes, powers, starts = run_bfp8(isa, x, guarded)
    assert (codes == expected.mantissas).all()
    assert (powers == np.ldexp(np.float32(1), expected.exponents)).all()
    sums = expected.mantissas.astype(np.int32).reshape(*starts.shape, 32).sum(axis=2)
    assert (starts == (0 if isa.signed else -128) * sums).all()
    assert peak == np.abs(x).max(initial=0).view(np.int32)


@pytest.mark.parametrize("num_columns", [1, 3, 4, 31, 32, 33, 255, 256, 257, 768, 3072])
@pytest.mark.parametrize("exponent", [-44, -38, -30, -3, 0, 30, 37])
def test_int8_over_the_range_of_float32(isa, guarded, num_columns, exponent):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((4, num_columns)) * 10.0**exponent).astype(np.float32)
    x[2] = 0  # a row of zeros has codes of zero
    check_int8(isa, x, guarded)


@pytest.mark.parametrize("num_blocks", [1, 2, 7, 24, 96])
@pytest.mark.parametrize("exponent", [-44, -38, -30, -3, 0, 30, 37])
def test_bfp8_over_the_range_of_float32(isa, guarded, num_blocks, exponent):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((4, 32 * num_blocks)) * 10.0**exponent).astype(np.float32)
    x[2, :32] = 0
    check_bfp8(isa, x, guarded)


def test_values_on_and_beside_every_half(isa):
    # k + 1/2 is where float32 and float64 part: the exact half, its neighbours, and theirs
    halves = np.arange(-127, 127) + 0.5
    for scale in (127.0, 1.0, 0.1, 3.7e-5, 128.0, 2.0**-20):
        exact = (halves * scale / 127).astype(np.float32)
        near = [exact, np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(-np.inf))]
        row = np.concatenate([*near, np.array([scale, -scale], np.float32)])
        check_int8(isa, row[None])
        padded = np.zeros((len(row), 32), np.float32)  # each value in a block with the scale itself
        padded[:, 0], padded[:, 1] = scale, row
        check_bfp8(isa, padded)


@given(x=hnp.arrays(np.float32, st.tuples(st.integers(1, 3), st.just(64)), elements=FLOATS), data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_numbers(isa, x, data):
    check_int8(isa, x[:, : data.draw(st.integers(1, 64))].copy())
    check_bfp8(isa, x)


def test_a_million_values_without_a_difference_on_any_number_of_threads(isa, each_thread_count):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((256, 4096)).astype(np.float32)
    for _count in each_thread_count():
        check_int8(isa, x)
        check_bfp8(isa, x)


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0, 0), (1, 31), (2, 63)])
def test_what_is_not_finite_is_reported(isa, bad, place):
    x = np.ones((3, 64), np.float32)
    assert run_int8(isa, x)[0] < NOT_FINITE
    assert run_bfp8(isa, x)[0] <= LARGEST_POWER
    x[place] = bad
    assert run_int8(isa, x)[0] >= NOT_FINITE
    assert run_bfp8(isa, x)[0] > LARGEST_POWER


def test_the_largest_power_is_the_last_that_bfp8_takes(isa):
    x = np.full((1, 32), 2.0**127, np.float32)
    check_bfp8(isa, x)
    x[0, 5] = np.nextafter(x[0, 5], np.float32(np.inf))
    assert run_bfp8(isa, x)[0] > LARGEST_POWER


def test_no_rows(isa):
    assert run_int8(isa, np.zeros((0, 64), np.float32))[0] == 0
    assert run_bfp8(isa, np.zeros((0, 64), np.float32))[0] == 0
