"""The head's bounds: the bits of the oracle everywhere, and around every logit that float32 can produce.

What is proved on paper in the module is checked here in exact arithmetic: fractions, and square roots to 60 digits.
"""

import decimal
from decimal import Decimal
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cachequant_lib.formats import quantize_int8
from cachequant_lib.kernels.head import LONGEST, SHORTEST, bound_columns, bound_logits, pack_head, score_rows
from cachequant_lib.kernels.reference import bound_columns_ref
from cachequant_lib.kernels.tiles import Tile, unpack_panels

pytestmark = pytest.mark.compiled

U = Fraction(1, 2**24)


class Head:
    """A weight, packed for an instruction set, and its bounds for a hidden state."""

    def __init__(self, isa, weight, guarded=np.empty):
        tensor = quantize_int8(weight)
        self.weight, self.codes = weight, tensor.codes
        self.units = (tensor.scales.astype(np.float64) / 127).astype(np.float32)
        self.tile, self.guarded = Tile(isa, 1, isa.int8_tile[1]), guarded
        self.packed = pack_head(self.tile, self.codes, self.units, weight)

    def columns(self, digits, factors):
        """The parallel kernel alone, on digits (2, K)."""
        padded = np.pad(digits, ((0, 0), (0, -digits.shape[1] % 4))) ^ np.int8(self.tile.flip)
        bounds = self.guarded((2, len(self.packed.units)), np.float32)
        bound_columns(self.tile, padded, factors, self.packed, bounds)
        return bounds[:, : len(self.weight)]

    def expected(self, digits, factors):
        lengths, errors = self.packed.lengths[: len(self.weight)], self.packed.errors[: len(self.weight)]
        return bound_columns_ref(self.codes, self.units, lengths, errors, digits, factors)

    def __call__(self, x):
        """Lowest and highest logits (2, V), or None where nothing is claimed."""
        bounds = self.guarded((2, len(self.packed.units)), np.float32)
        return bounds[:, : len(self.weight)] if bound_logits(self.tile, x, self.packed, bounds) else None


def random_digits(rng, depth):
    """Digits of random codes, some at the ends of the range."""
    codes = rng.integers(-127 * 128, 127 * 128 + 1, depth)
    codes[rng.random(depth) < 0.25] = rng.choice([-127 * 128, 127 * 128])
    high = (codes + 64) >> 7
    return np.stack([high, codes - 128 * high]).astype(np.int8)


# ---- The bits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 3, 4, 31, 33, 64, 768, 4096])
@pytest.mark.parametrize("rows", [1, 5, 47, 48, 49, 300])
def test_bounds_are_those_of_the_oracle(isa, guarded, rows, depth):
    rng = np.random.default_rng(rows * 1009 + depth)
    head = Head(isa, rng.standard_normal((rows, depth)).astype(np.float32), guarded)
    factors = rng.random(3).astype(np.float32)
    digits = random_digits(rng, depth)
    assert (head.columns(digits, factors) == head.expected(digits, factors)).all()


def test_sums_at_the_ends_of_the_range_do_not_overflow(isa):
    depth = 133144
    head = Head(isa, np.array([[1.0], [-1.0]], np.float32) * np.ones(depth, np.float32))
    for high, low in ((127, 63), (-127, -64), (127, -64)):
        digits, factors = np.full((2, depth), [[high], [low]], np.int8), np.ones(3, np.float32)
        assert (head.columns(digits, factors) == head.expected(digits, factors)).all()


def test_every_thread_count_gives_the_same_bits(isa, each_thread_count):
    rng = np.random.default_rng(0)
    head = Head(isa, rng.standard_normal((2000, 64)).astype(np.float32))
    x = rng.standard_normal(64).astype(np.float32)
    first = head(x).copy()
    for _ in each_thread_count():
        assert all((head(x) == first).all() for _ in range(10))


def test_codes_are_packed_as_they_are(isa):
    head = Head(isa, np.random.default_rng(0).standard_normal((50, 33)).astype(np.float32))
    assert (unpack_panels(head.packed.panels, 50, 33) == head.codes).all()
    assert head.packed.nbytes == len(head.packed.units) * (36 + 4 * 4)


# ---- The proof, in exact arithmetic ----------------------------------------------------------------------------------


def fractions(values):
    return [Fraction(float(value)) for value in values]


def exact_ranges(weight, x):
    """For each row the range in which a float32 sum of K products can lie, whatever its order: exact fractions."""
    bound = len(x) * U / (1 - len(x) * U)
    for row in weight:
        products = [a * b for a, b in zip(fractions(row), fractions(x), strict=True)]
        slack = bound * sum(map(abs, products)) + len(x) * Fraction(1, 2**149)
        yield sum(products) - slack, sum(products) + slack


def check_ranges(head, x):
    bounds = head(x)
    lower, upper = map(fractions, bounds)
    for low, high, (least, most) in zip(lower, upper, exact_ranges(head.weight, x), strict=True):
        assert low <= least <= most <= high


def length(values):
    """Square root of a sum of squares, to 60 digits."""
    square = sum(value * value for value in values)
    with decimal.localcontext(prec=60):
        return (Decimal(square.numerator) / Decimal(square.denominator)).sqrt()


def as_decimal(value):
    with decimal.localcontext(prec=60):
        return Decimal(value.numerator) / Decimal(value.denominator)


FLOATS = st.one_of(
    st.floats(-4, 4, width=32),
    st.floats(-(2.0**40), 2.0**40, width=32),
    st.floats(-(2.0**-130), 2.0**-130, width=32),
    st.just(0.0),
)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_float32_logit_lies_outside_its_bounds(isa, data):
    depth, rows = data.draw(st.integers(1, 24)), data.draw(st.integers(1, 6))
    weight = data.draw(hnp.arrays(np.float32, (rows, depth), elements=FLOATS))
    x = data.draw(hnp.arrays(np.float32, depth, elements=FLOATS))
    head = Head(isa, weight)
    if SHORTEST * 1.01 < np.linalg.norm(x.astype(np.float64)) < LONGEST / 1.01:
        check_ranges(head, x)
    elif not x.any():
        assert head(x) is None


@pytest.mark.parametrize("scale_x", [2.0**-59, 1e-6, 1.0, 1e9, 2.0**54])
@pytest.mark.parametrize("scale_w", [2.0**-146, 2.0**-126, 1e-20, 1.0, 2.0**54])
def test_at_every_scale(isa, scale_x, scale_w):
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((8, 60)) * scale_w).astype(np.float32)
    weight[1], weight[2, ::2], weight[3] = 0, 0, weight[0]
    weight[4, 7] *= 300  # a row in which all but one code is zero
    x = (rng.standard_normal(60) * scale_x).astype(np.float32)
    head = Head(isa, weight)
    check_ranges(head, x)
    x[5] *= 30
    check_ranges(head, x)


def test_where_codes_and_digits_are_exact_the_rounding_of_float32_is_all_that_is_left(isa):
    rng = np.random.default_rng(0)
    weight = rng.integers(-127, 128, (20, 300)).astype(np.float32)
    x = rng.integers(-127 * 128, 127 * 128 + 1, 300).astype(np.float32)
    weight[:, 0], x[1] = 127, 127 * 128  # units and step are 1
    head = Head(isa, weight)
    assert (head.packed.errors < 1e-40).all()
    check_ranges(head, x)


@pytest.mark.parametrize("depth", [576, 768, 3072])
def test_at_the_width_of_a_model_with_outliers(isa, depth):
    rng = np.random.default_rng(depth)
    weight, x = rng.standard_normal((40, depth)).astype(np.float32), rng.standard_normal(depth).astype(np.float32)
    x[[3, depth // 2, depth - 1]] *= [20, 50, 300]
    weight[:8] = np.sign(x) * np.abs(weight[:8])  # nothing cancels: the largest sums, and the largest rounding
    check_ranges(Head(isa, weight), x)


def test_real_sums_in_many_orders_lie_within(isa):
    rng = np.random.default_rng(1)
    weight, x = rng.standard_normal((30, 512)).astype(np.float32), rng.standard_normal(512).astype(np.float32)
    weight += 3  # cancels badly
    lower, upper = Head(isa, weight)(x)
    products = weight * x  # (V, K)
    orders = [np.arange(512), np.arange(512)[::-1], np.argsort(x), np.argsort(-np.abs(x)), rng.permutation(512)]
    sums = [reduce(np.add, products[:, order].T) for order in orders]  # one by one
    sums += [products.sum(axis=1), weight @ x, np.einsum("vk,k->v", weight, x)]
    for logits in sums:
        assert logits.dtype == np.float32
        assert ((lower <= logits) & (logits <= upper)).all()


@pytest.mark.parametrize("depth", [1, 7, 96, 768])
def test_factors_are_at_least_what_the_proof_asks_for(isa, depth):
    """A row of length 1 and no error, and the reverse: their upper bounds are the factors, compared with exact ones."""
    rng = np.random.default_rng(depth)
    x = (rng.standard_normal(depth) * 10 ** rng.uniform(-3, 3, depth)).astype(np.float32)
    step = np.float32(np.abs(x).max().astype(np.float64) / (127 * 128))
    codes = np.rint(x.astype(np.float64) / np.float64(step)).astype(int)
    high = (codes + 64) >> 7
    low = codes - 128 * high
    exact = Fraction(float(step))
    bound = depth * U / (1 - depth * U)
    missed = length([v - exact * int(c) for v, c in zip(fractions(x), codes, strict=True)])
    digits = length([128 * exact * int(h) for h in high]) + length([exact * int(v) for v in low])
    norm = length(fractions(x))
    alpha = missed + as_decimal(6 * U) * digits + as_decimal(bound) * norm
    beta = as_decimal(1 + bound) * norm
    head = Head(isa, np.zeros((2, depth), np.float32))
    head.packed.lengths[:2], head.packed.errors[:2] = [1, 0], [0, 1]
    lower, upper = head(x)
    for found, asked in zip(upper, (alpha, beta), strict=True):
        assert asked <= Decimal(float(found)) <= asked * Decimal("1.000002")
    assert (lower == -upper).all()


def test_lengths_are_rounded_up(isa):
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((6, 33)).astype(np.float32)
    weight[1], weight[2], weight[3] = 0, 2.0**-140, weight[3] * np.float32(2.0**-140)
    head = Head(isa, weight)
    for n, row in enumerate(weight):
        stand_in = [Fraction(float(head.units[n])) * int(code) for code in head.codes[n]]
        assert length(stand_in) <= Decimal(float(head.packed.lengths[n]))
        error = length([a - b for a, b in zip(fractions(row), stand_in, strict=True)])
        assert error <= Decimal(float(head.packed.errors[n]))
        assert error > 0 or head.packed.errors[n] < 1e-44  # and no further up than needed
    assert (head.packed.lengths[6:] == 0).all()


# ---- What it says nothing about --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38, 2.0**61])
def test_nothing_is_claimed_for_what_is_not_finite_or_too_long(isa, bad):
    head = Head(isa, np.ones((3, 40), np.float32))
    x = np.ones(40, np.float32)
    assert head(x) is not None
    x[17] = bad
    assert head(x) is None


@pytest.mark.parametrize("size", [0.0, 1e-45, 2.0**-70])
def test_nothing_is_claimed_for_what_is_too_short(isa, size):
    assert Head(isa, np.ones((3, 40), np.float32))(np.full(40, size, np.float32)) is None


# ---- Scores ----------------------------------------------------------------------------------------------------------


def test_scores_are_off_by_the_rounding_of_float64_alone(guarded):
    rng = np.random.default_rng(0)
    weight, x = rng.standard_normal((20, 300)).astype(np.float32), rng.standard_normal(300).astype(np.float32)
    rows = np.array([0, 19, 7, 7])
    scores, magnitudes = guarded(4, np.float64), guarded(4, np.float64)
    score_rows(weight, x, rows, scores, magnitudes)
    for n, row in enumerate(rows):
        products = [a * b for a, b in zip(fractions(weight[row]), fractions(x), strict=True)]
        magnitude = sum(map(abs, products))
        assert abs(Fraction(float(scores[n])) - sum(products)) <= 300 * Fraction(1, 2**53) * magnitude
        assert abs(Fraction(float(magnitudes[n])) - magnitude) <= 300 * Fraction(1, 2**53) * magnitude
