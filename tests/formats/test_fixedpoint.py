"""Fixed point in balanced digits: nearest rounding with both digits and with one, and the smallest exponents."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import cachequant_lib as cq
from cachequant_lib.formats.fixedpoint import LARGEST_INTEGER, quantize_fixedpoint

ARRAYS = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=1, max_dims=3, max_side=9),
    elements=st.floats(-(2.0**64), 2.0**64, width=32, allow_subnormal=True),
)


@given(ARRAYS, st.sampled_from([-1, 0]))
def test_errors_stay_within_half_a_unit(x, axis):
    t = quantize_fixedpoint(x, axis)
    unit = np.ldexp(1.0, t.exponents.astype(int))
    assert (np.abs(t.dequantize() - x.astype(float)) <= unit / 2).all()
    assert (np.abs(t.dequantize(1) - x.astype(float)) <= unit * 128.5).all()
    assert np.abs(t.high.astype(int) * 256 + t.low).max() <= LARGEST_INTEGER


@given(ARRAYS)
def test_exponents_are_the_smallest_that_fit(x):
    t = quantize_fixedpoint(x)
    smaller = np.ldexp(1.0, t.exponents.astype(int) - 1) * LARGEST_INTEGER
    largest = np.abs(x).max(axis=-1, keepdims=True)
    assert ((largest > smaller) | (t.exponents == -39)).all()


@given(ARRAYS)
def test_a_second_pass_changes_nothing(x):
    t = quantize_fixedpoint(x)
    again = quantize_fixedpoint(t.dequantize())
    assert (again.dequantize() == t.dequantize()).all()


def test_codes_are_nearest_not_truncated():
    unit = 2.0**-15
    x = np.array([1.0, 3.75 * unit, -3.75 * unit, 2.5 * unit, -200 * unit], np.float32)
    t = quantize_fixedpoint(x)
    assert t.exponents.tolist() == [-14]  # 1.0 = 2**-14 * 16384; 2**-15 would need 32768, and 32639 is the end
    assert (t.high.astype(int) * 256 + t.low).tolist() == [16384, 2, -2, 1, -100]


def test_high_digits_alone_have_no_bias():
    x = np.random.default_rng(0).standard_normal((1000, 64)).astype(np.float32)
    t = quantize_fixedpoint(x)
    error = (t.dequantize(1) - x) / np.ldexp(256.0, t.exponents.astype(int))
    assert abs(error.mean()) < 0.01
    assert np.sqrt((error**2).mean()) == pytest.approx(12**-0.5, rel=0.01)  # evenly spread over one unit


def test_largest_integer_and_its_negative():
    t = quantize_fixedpoint([32639.0, -32639.0, -32512.0])
    assert t.exponents.tolist() == [0]
    assert t.high.tolist() == [127, -127, -127]
    assert t.low.tolist() == [127, -127, 0]
    assert quantize_fixedpoint([32640.0]).exponents.tolist() == [1]


def test_every_fp16_number_comes_back_to_16_bits_of_its_size():
    x = np.arange(0x7C00).astype(np.uint16).view(np.float16).astype(np.float32)[:, None]
    assert (quantize_fixedpoint(x).dequantize() == x).all()  # each alone has all the digits it needs


def test_bits_per_value_counts_the_exponents():
    assert quantize_fixedpoint(np.ones((4, 64))).bits_per_value == 16 + 8 / 64
    t = quantize_fixedpoint(np.ones((64, 128)), axis=0)
    assert t.bits_per_value == 8 * t.nbytes / (64 * 128) == 16 + 8 / 64


@pytest.mark.parametrize("x", [[np.nan], [np.inf], [2.0**65]])
def test_what_has_no_digits_is_refused(x):
    with pytest.raises(cq.FormatError):
        quantize_fixedpoint(x)


def test_no_such_axis_or_digit():
    with pytest.raises(cq.FormatError, match="no axis 2"):
        quantize_fixedpoint([1.0], axis=2)
    with pytest.raises(cq.FormatError, match="1 or 2 digits"):
        quantize_fixedpoint([1.0]).dequantize(3)
