"""The scheme grid: every corner keeps its promises."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import cachequant_lib as cq
from cachequant_lib.formats.scheme import scales_of

RULES = ["pow2", "exact", "fp16", "snapped"]
GRANULARITIES = [8, 32, "row", "tensor"]

# fp16 scales end at 65504; every other rule takes these too
values = st.floats(-6e4, 6e4, width=32)
matrices = arrays(np.float32, (3, 64), elements=values)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("granularity", GRANULARITIES)
@given(x=matrices)
def test_error_is_at_most_half_a_step(granularity, rule, x):
    tensor = cq.Scheme(granularity, rule).quantize(x)
    scales = np.broadcast_to(tensor.scales, (3, tensor.scales.shape[1]))
    half_step = np.repeat(scales, 64 // scales.shape[1], axis=1).astype(np.float64) / 254
    error = np.abs(tensor.dequantize().astype(np.float64) - x)
    # the restored value is rounded to float32 once more
    assert (error <= half_step * (1 + 1e-6) + np.spacing(np.abs(x))).all()


@pytest.mark.parametrize("rule", RULES)
@given(x=matrices)
def test_scale_is_never_below_the_largest_magnitude(rule, x):
    top = np.abs(x).max(axis=1)
    scales = scales_of(top, rule)
    assert (scales >= top).all()
    assert ((scales == 0) == (top == 0)).all()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("granularity", GRANULARITIES)
@given(x=matrices)
def test_negating_values_negates_codes(granularity, rule, x):
    scheme = cq.Scheme(granularity, rule)
    tensor, negated = scheme.quantize(x), scheme.quantize(-x)
    assert (tensor.codes == -negated.codes).all()
    assert tensor.codes.min() >= -127


@pytest.mark.parametrize("rule", ["pow2", "exact"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_quantising_twice_changes_nothing(granularity, rule):
    rng = np.random.default_rng(0)
    scheme = cq.Scheme(granularity, rule)
    x = rng.standard_normal((1000, 64)) * np.exp(rng.uniform(-20, 20, (1000, 1)))
    once = scheme.quantize(x)
    twice = scheme.quantize(once.dequantize())
    assert (twice.codes == once.codes).all()
    assert (twice.scales == once.scales).all()


def test_bits_per_value():
    assert cq.Scheme(32, "pow2").bits_per_value(768) == 8.25
    assert cq.Scheme(32, "exact").bits_per_value(768) == 9.0
    assert cq.Scheme("row", "pow2").bits_per_value(768) == 8 + 8 / 768
    assert cq.Scheme("row", "exact").bits_per_value(3072) == 8 + 32 / 3072
    assert cq.Scheme(32, "fp16").bits_per_value(768) == 8.5  # llama.cpp's Q8_0
    assert cq.Scheme("tensor", "exact").bits_per_value(768, 2304) == 8 + 32 / (768 * 2304)


def test_corners_are_the_two_shipped_formats():
    x = np.random.default_rng(0).standard_normal((5, 96)).astype(np.float32)
    bfp8, int8 = cq.quantize_bfp8(x), cq.quantize_int8(x)
    block, row = cq.Scheme(32, "pow2").quantize(x), cq.Scheme("row", "exact").quantize(x)
    assert (block.codes == bfp8.mantissas).all()
    assert (block.scales == np.ldexp(1.0, bfp8.exponents)).all()
    assert (row.codes == int8.codes).all()
    assert (row.scales[:, 0] == int8.scales).all()


def test_snapped_scale_stands_still_under_a_small_push():
    x = np.array([0.3, -1.7, 0.9], np.float32)
    pushed = x * np.float32(1 + 1e-5)
    assert cq.Scheme("row", "snapped").quantize(x).scales == cq.Scheme("row", "snapped").quantize(pushed).scales
    assert cq.Scheme("row", "exact").quantize(x).scales != cq.Scheme("row", "exact").quantize(pushed).scales


@pytest.mark.parametrize("granularity", [0, -32, 1.5, True, "column", None])
def test_unknown_granularity(granularity):
    with pytest.raises(cq.FormatError, match="granularity"):
        cq.Scheme(granularity)


def test_unknown_scale_lists_the_valid_ones():
    with pytest.raises(cq.FormatError, match=r"pow2.*exact.*fp16.*snapped"):
        cq.Scheme(32, "ceil")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_values_that_are_not_finite_are_refused(rule, bad):
    with pytest.raises(cq.FormatError, match="1 of 32 values are not finite"):
        cq.Scheme(32, rule).quantize([bad] + [1.0] * 31)


@pytest.mark.parametrize(
    ("rule", "too_large"), [("fp16", 65600.0), ("pow2", 3e38), ("snapped", np.finfo(np.float32).max)]
)
def test_magnitudes_beyond_a_rule_are_refused(rule, too_large):
    with pytest.raises(cq.FormatError, match="magnitude"):
        cq.Scheme(2, rule).quantize([1.0, too_large])


@pytest.mark.parametrize("x", [[[1], [1, 2]], 3.0, np.zeros((4, 0)), np.zeros(3, complex), ["a", "b"]])
def test_what_is_no_array_of_rows_is_refused(x):
    with pytest.raises(cq.FormatError):
        cq.Scheme("row", "exact").quantize(x)


@pytest.mark.parametrize("container", [list, tuple, np.array, lambda x: np.array(x, np.float64)])
def test_containers_are_equal(container):
    rows = [[1.5, -0.7], [0.2, -1.9]]
    assert cq.Scheme("row", "exact").quantize(container(rows)).codes.tolist() == [[127, -59], [13, -127]]


def test_sizes_may_be_numpy_integers():
    assert cq.Scheme(np.int64(32)).bits_per_value(64) == 8.25
    assert cq.quantize_bfp8(np.ones(8), block_size=np.int64(4)).block_size == 4
    with pytest.raises(cq.FormatError, match="block_size"):
        cq.quantize_bfp8(np.ones(8), block_size="tensor")


def test_dequantize_wants_a_quantised_tensor():
    with pytest.raises(cq.FormatError, match="got ndarray"):
        cq.dequantize(np.ones(3))


def test_no_rows_at_all_is_fine():
    for granularity in GRANULARITIES:
        assert cq.Scheme(granularity).quantize(np.zeros((0, 32))).dequantize().shape == (0, 32)
