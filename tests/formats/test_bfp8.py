"""BFP8: the worked example, the rounding, and what the format refuses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cachequant_lib as cq


def test_worked_example():
    t = cq.quantize_bfp8([1.5, -0.7, 0.2, -1.9], block_size=4)
    assert t.exponents.tolist() == [1]
    assert t.mantissas.tolist() == [95, -44, 13, -121]
    assert cq.dequantize(t)[0] == np.float32(95 * 2 / 127)
    assert round(float(cq.dequantize(t)[0]), 3) == 1.496


@given(exponent=st.integers(-120, 120))
def test_power_of_two_maximum_is_the_whole_code(exponent):
    t = cq.quantize_bfp8([2.0**exponent, 0, 0, -(2.0**exponent)], block_size=4)
    assert t.exponents.tolist() == [exponent]
    assert t.mantissas.tolist() == [127, 0, 0, -127]


@given(exponent=st.integers(-100, 100))
def test_just_above_a_power_of_two_takes_the_next_exponent(exponent):
    above = np.nextafter(np.float32(2.0**exponent), np.float32(np.inf))
    t = cq.quantize_bfp8([above, 0.0], block_size=2)
    assert t.exponents.tolist() == [exponent + 1]
    assert t.mantissas.tolist() == [64, 0]  # the unused bit, at its worst


@given(top=st.floats(2.0**-100, 2.0**100, width=32))
def test_block_maximum_lands_in_the_upper_half(top):
    mantissa = abs(int(cq.quantize_bfp8([top, 0.0], block_size=2).mantissas[0]))
    assert 64 <= mantissa <= 127


def test_no_sign_flip_at_the_top():
    # 0.996875 * 128 rounds to 128, which as int8 would be -128
    t = cq.quantize_bfp8([127.6 / 128] * 32)
    assert t.mantissas.tolist() == [127] * 32


def test_halves_round_to_even():
    steps = np.array([0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5, 127.0])
    t = cq.quantize_bfp8(steps / 127 * 2.0**0, block_size=8)
    assert t.mantissas.tolist() == np.rint(np.float32(steps / 127).astype(np.float64) * 127).tolist()
    exact = cq.quantize_bfp8([254.0, 1.0, 3.0, 5.0, -1.0, -3.0, 256.0, 0.0], block_size=8)  # scale 256
    assert exact.mantissas[6] == 127


def test_zero_block_beside_a_full_one():
    x = np.concatenate([np.zeros(32), np.ones(32)])
    t = cq.quantize_bfp8(x)
    assert t.exponents.tolist() == [0, 0]
    assert t.mantissas[:32].tolist() == [0] * 32
    assert cq.dequantize(t).tolist() == x.tolist()


def test_subnormal_blocks_do_not_overflow_the_exponent():
    t = cq.quantize_bfp8(np.full(32, 1e-45, np.float32))
    assert t.exponents.tolist() == [-126]
    assert np.abs(cq.dequantize(t)).max() <= 2.0**-126


def test_every_code_survives_a_round_trip():
    codes = np.concatenate([np.arange(-127, 128), [127]])  # 256 codes: each block of 32 gets a 127
    blocks = np.stack([codes[i::8] for i in range(8)])
    blocks[:, 0] = 127
    for exponent in (-126, -7, 0, 1, 64):
        values = np.ldexp(blocks / 127, exponent)
        assert (cq.quantize_bfp8(values).mantissas == blocks).all()


@pytest.mark.parametrize("columns", [1, 31, 33, 100])
def test_rows_that_do_not_divide_are_refused(columns):
    with pytest.raises(ValueError, match=f"a row of {columns} values does not divide into blocks of 32"):
        cq.quantize_bfp8(np.zeros((2, columns)))


def test_shapes_types_and_bits():
    t = cq.quantize_bfp8(np.ones((2, 3, 64)))
    assert (t.mantissas.shape, t.mantissas.dtype) == ((2, 3, 64), np.int8)
    assert (t.exponents.shape, t.exponents.dtype) == ((2, 3, 2), np.int32)
    assert (t.block_size, t.bits_per_value, t.nbytes) == (32, 8.25, 2 * 3 * 66)


def test_relative_error_on_normal_values():
    x = np.random.default_rng(0).standard_normal((64, 768)).astype(np.float32)
    error = np.abs(cq.dequantize(cq.quantize_bfp8(x)) - x)
    assert error.mean() / np.abs(x).mean() < 0.01


def test_exponent_stands_still_under_a_small_push():
    x = np.random.default_rng(0).standard_normal((64, 768)).astype(np.float32)
    pushed = x * np.float32(1 + 1e-6)
    assert (cq.quantize_bfp8(x).exponents == cq.quantize_bfp8(pushed).exponents).all()
