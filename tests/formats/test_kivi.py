"""KIVI's codes: nearest on the stored grid at any number of bits, along either axis, and groups without a spread."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import cachequant_lib as cq
from cachequant_lib.formats.kivi import quantize_kivi

HALVES = st.floats(-1000, 1000, width=16)


@given(hnp.arrays(np.float32, (3, 8, 4), elements=HALVES), st.integers(2, 12), st.sampled_from([0, 1, 2, -1]))
def test_codes_are_the_nearest_on_the_grid_as_stored(x, bits, axis):
    size = x.shape[axis]
    t = quantize_kivi(x, bits, axis, size)
    moved = np.moveaxis(x, axis, -1)
    scales, zeros = (part.astype(np.float64) for part in (t.scales, t.zeros))  # (..., 1)
    grid = zeros[..., None] + scales[..., None] * np.arange(2**bits)  # (..., 1, levels)
    best = np.abs(moved[..., None] - grid).min(axis=-1)
    found = np.abs(moved - np.moveaxis(t.dequantize(), axis, -1).astype(float))
    assert (found <= best + 1e-6 * np.abs(moved).max(initial=1)).all()
    assert t.codes.max() < 2**bits


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 9, 10, 16])
def test_any_number_of_bits(bits):
    x = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    t = quantize_kivi(x, bits)
    assert t.codes.dtype == (np.uint8 if bits <= 8 else np.uint16)
    assert t.codes.max() == 2**bits - 1
    step = t.scales.astype(np.float32).repeat(32, axis=1)
    assert (np.abs(t.dequantize() - x) <= step * 0.5 + np.abs(x).max() * 2.0**-10).all()
    assert t.bits_per_value == bits + 1


def test_ten_bits_with_groups_of_32_are_really_eleven():
    assert quantize_kivi(np.ones((32, 4)), 10, axis=0).bits_per_value == 11


def test_a_group_without_spread_has_codes_zero():
    t = quantize_kivi(np.full((2, 32), -1.5), 4)
    assert (t.codes == 0).all()
    assert (t.dequantize() == -1.5).all()
    tiny = quantize_kivi(np.linspace(0, 1e-6, 32, dtype=np.float32), 10)  # its step is below fp16
    assert (tiny.dequantize() == 0).all()


def test_groups_follow_the_axis():
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    by_column, by_row = quantize_kivi(x, 2, 0, 4), quantize_kivi(x, 2, 1, 4)
    assert by_column.zeros.tolist() == [[c, c + 32] for c in range(8)]
    assert by_row.zeros.tolist() == [[8 * r, 8 * r + 4] for r in range(8)]
    assert (by_column.dequantize().argsort(axis=0, kind="stable") == np.arange(8)[:, None]).all()
    assert (by_row.dequantize() == x).all()  # four levels for four numbers


def test_a_second_pass_changes_almost_nothing():
    x = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float16).astype(np.float32)
    once = quantize_kivi(x, 4).dequantize()
    np.testing.assert_allclose(quantize_kivi(once, 4).dequantize(), once, atol=0.01)


@pytest.mark.parametrize(
    ("x", "options"),
    [
        (np.ones(32), {"bits": 0}),
        (np.ones(32), {"bits": 17}),
        (np.ones(32), {"bits": 2.5}),
        (np.ones(33), {"bits": 4}),
        (np.ones(32), {"bits": 4, "axis": 1}),
        (np.ones(32), {"bits": 4, "group_size": 0}),
        (np.full(32, np.nan), {"bits": 4}),
        (np.linspace(-65504, 65504, 32), {"bits": 1}),
        (np.full(32, 1e6), {"bits": 4}),
    ],
)
def test_what_cannot_be_is_refused(x, options):
    with pytest.raises(cq.FormatError):
        quantize_kivi(x, **options)
