"""int8 with one exact scale a row: the rounding, the outlier, the zero row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cachequant_lib as cq


def test_the_same_four_values_as_bfp8():
    t = cq.quantize_int8([1.5, -0.7, 0.2, -1.9])
    assert t.scales == np.float32(1.9)
    assert t.codes.tolist() == [100, -47, 13, -127]
    assert round(float(cq.dequantize(t)[0]), 3) == 1.496  # as BFP8's, by another code


@given(top=st.floats(2.0**-100, 2.0**127, width=32))
def test_row_maximum_takes_the_whole_code(top):
    assert cq.quantize_int8([top, -top, 0.0]).codes.tolist() == [127, -127, 0]


def test_maximum_comes_back_exactly():
    x = np.random.default_rng(0).standard_normal((1000, 33)).astype(np.float32)
    at = (np.arange(1000), np.abs(x).argmax(axis=1))
    assert (cq.dequantize(cq.quantize_int8(x))[at] == x[at]).all()


def test_rounding_is_done_in_float64():
    # in float32 about two codes in a million differ: enough values show it
    x = np.random.default_rng(0).standard_normal((3072, 768)).astype(np.float32)
    scales = np.abs(x).max(axis=1, keepdims=True)
    in_float32 = np.rint(x / scales * np.float32(127)).astype(np.int8)
    in_float64 = np.rint(x.astype(np.float64) / scales * 127).astype(np.int8)
    assert (in_float32 != in_float64).any()
    assert (cq.quantize_int8(x).codes == in_float64).all()


def test_one_outlier_costs_its_own_row_only():
    x = np.full((2, 64), 0.01, np.float32)
    x[0, 0] = 100.0
    restored = cq.dequantize(cq.quantize_int8(x))
    assert (restored[0, 1:] == 0).all()
    assert (restored[1] == x[1]).all()


def test_zero_row():
    t = cq.quantize_int8([[0.0, 0.0], [1.0, -1.0]])
    assert t.scales.tolist() == [0.0, 1.0]
    assert t.codes.tolist() == [[0, 0], [127, -127]]
    assert cq.dequantize(t).tolist() == [[0.0, 0.0], [1.0, -1.0]]


def test_scale_moves_under_a_small_push():
    x = np.array([0.3, -1.7, 0.9], np.float32)
    assert cq.quantize_int8(x).scales != cq.quantize_int8(x * np.float32(1 + 1e-6)).scales


def test_shapes_types_and_bits():
    t = cq.quantize_int8(np.ones((2, 3, 768)))
    assert (t.codes.shape, t.codes.dtype) == ((2, 3, 768), np.int8)
    assert (t.scales.shape, t.scales.dtype) == ((2, 3), np.float32)
    assert t.bits_per_value == 8 + 32 / 768
    assert t.nbytes == 2 * 3 * (768 + 4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(bad):
    with pytest.raises(ValueError, match="not finite"):
        cq.quantize_int8([[1.0, bad]])
