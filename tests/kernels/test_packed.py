"""The packed kernels equal their oracles, bit for bit: each instruction set, shape, thread count and number of rows."""

import numpy as np
import pytest

from cachequant_lib.formats import quantize_bfp8, quantize_int8
from cachequant_lib.kernels.bfp8 import linear_bfp8, multiply_bfp8, pack_bfp8, unpack_bfp8
from cachequant_lib.kernels.int8 import linear_int8, multiply_int8, pack_int8, unpack_int8
from cachequant_lib.kernels.loops import MAX_K
from cachequant_lib.kernels.reference import linear_bfp8_ref, linear_int8_ref, matmul_bfp8_ref, matmul_int8_ref
from cachequant_lib.kernels.tiles import Tile

pytestmark = pytest.mark.compiled

ROWS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 17]
COLUMNS = [1, 5, 47, 48, 49]
DEPTHS = [1, 3, 4, 31, 32, 33, 64]
LONG_DEPTHS = [768, 3072]


def random_codes(rng, rows, columns):
    """Random codes, a quarter of them at the ends of the range."""
    codes = rng.integers(-127, 128, (rows, columns))
    return np.where(rng.random((rows, columns)) < 0.25, rng.choice([-127, 127], codes.shape), codes).astype(np.int8)


class Int8Case:
    """Random int8 operands, the kernel on them, and what it must give."""

    def __init__(self, isa, m, n, k, guarded=np.empty, codes=random_codes):
        rng = np.random.default_rng(m * 1000003 + n * 1009 + k)
        self.a, self.b = codes(rng, m, k), codes(rng, n, k)
        self.a_scales, self.b_scales = rng.random(m).astype(np.float32), rng.random(n).astype(np.float32)
        self.bias = rng.standard_normal(n).astype(np.float32)
        self.tile = Tile(isa, *isa.int8_tile)
        self.weight = pack_int8(self.tile, self.b, self.b_scales, self.bias)
        self.guarded = guarded

    def __call__(self, rows=slice(None)):
        a, scales = self.a[rows], self.a_scales[rows]
        padded = np.pad(a, ((0, 0), (0, -a.shape[1] % 4))) ^ np.int8(self.tile.flip)
        steps = (scales.astype(np.float64) / 127**2).astype(np.float32)
        out = self.guarded((len(a), len(self.b)), np.float32)
        multiply_int8(self.tile, padded, steps, self.weight, out)
        return out

    def expected(self):
        return linear_int8_ref(self.a, self.a_scales, self.b, self.b_scales, self.bias)

    def exact(self):
        return matmul_int8_ref(self.a, self.a_scales, self.b, self.b_scales, self.bias)


class BFP8Case:
    """Random BFP8 operands, the kernel on them, and what it must give."""

    def __init__(self, isa, m, n, k, guarded=np.empty, codes=random_codes):
        rng = np.random.default_rng(m * 1000003 + n * 1009 + k)
        self.a, self.b = codes(rng, m, k), codes(rng, n, k)
        self.a_exponents = rng.integers(-12, 12, (m, k // 32), dtype=np.int32)
        self.b_exponents = rng.integers(-12, 12, (n, k // 32), dtype=np.int32)
        self.bias = rng.standard_normal(n).astype(np.float32)
        self.tile = Tile(isa, *isa.bfp8_tile)
        self.weight = pack_bfp8(self.tile, self.b, self.b_exponents, self.bias)
        self.guarded = guarded

    def __call__(self, rows=slice(None)):
        a, exponents = np.ascontiguousarray(self.a[rows]), self.a_exponents[rows]
        sums = a.astype(np.int32).reshape(*exponents.shape, 32).sum(axis=2, dtype=np.int32)
        out = self.guarded((len(a), len(self.b)), np.float32)
        powers = np.ldexp(np.float32(1), exponents)
        multiply_bfp8(self.tile, a, powers, sums * np.int32(self.tile.flip), self.weight, out)
        return out

    def expected(self):
        return linear_bfp8_ref(self.a, self.a_exponents, self.b, self.b_exponents, self.bias)

    def exact(self):
        return matmul_bfp8_ref(self.a, self.a_exponents, self.b, self.b_exponents, self.bias)


BOTH = pytest.mark.parametrize("case", [Int8Case, BFP8Case])


# ---- Every shape -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", ROWS)
def test_int8_equals_its_oracle_for_any_shape(isa, guarded, m):
    for n in COLUMNS:
        for k in DEPTHS + LONG_DEPTHS * (n == 49):
            case = Int8Case(isa, m, n, k, guarded)
            assert (case() == case.expected()).all(), (m, n, k)


@pytest.mark.parametrize("m", ROWS)
def test_bfp8_equals_its_oracle_for_any_shape(isa, guarded, m):
    for n in COLUMNS:
        for k in [32, 64, 96] + LONG_DEPTHS * (n == 49):
            case = BFP8Case(isa, m, n, k, guarded)
            assert (case() == case.expected()).all(), (m, n, k)


@BOTH
def test_a_vocabulary_of_columns(isa, guarded, case):
    made = case(isa, 3, 50257, 32, guarded)
    assert (made() == made.expected()).all()


@BOTH
@pytest.mark.parametrize("signs", [(127, 127), (127, -127), (-127, 127), (-127, -127)])
@pytest.mark.parametrize("k", [32, 64, 768, 4096])
def test_no_sum_saturates(isa, case, signs, k):
    made = case(isa, 2, 3, k, codes=lambda rng, rows, columns: np.full((rows, columns), signs[rows == 3], np.int8))
    assert (made() == made.expected()).all()


def test_the_longest_safe_sum_does_not_overflow(isa):
    made = Int8Case(isa, 1, 2, MAX_K, codes=lambda rng, rows, columns: np.full((rows, columns), 127, np.int8))
    assert (made() == made.expected()).all()


# ---- One definition for all ------------------------------------------------------------------------------------------


@BOTH
def test_a_row_does_not_depend_on_how_many_come_with_it(isa, case):
    made = case(isa, 19, 50, 96)
    together = made()
    for start in range(19):
        for stop in range(start + 1, 20):
            assert (made(slice(start, stop)) == together[start:stop]).all(), (start, stop)


@BOTH
def test_every_thread_count_and_every_repeat_gives_the_same_bits(isa, case, each_thread_count):
    made = case(isa, 9, 1000, 64)
    for count in each_thread_count():
        assert all((made() == made.expected()).all() for _ in range(20)), count


@BOTH
def test_oracles_are_close_to_the_exact_product(case, isa):
    made = case(isa, 9, 49, 768)
    magnitudes = case(isa, 9, 49, 768)
    magnitudes.a, magnitudes.b, magnitudes.bias = (np.abs(part) for part in (made.a, made.b, made.bias))
    # every rounding to float32 errs by at most 2**-24 of a partial result, and none of those exceeds the sum of
    # magnitudes: five of a product and one of a sum for int8, and K / 32 + 2 for BFP8
    num_roundings = 6 if case is Int8Case else 768 // 32 + 2
    bound = num_roundings * 2.0**-24 * magnitudes.exact() * 1.001
    assert (np.abs(made.expected().astype(np.float64) - made.exact()) <= bound).all()


# ---- Quantise and multiply in one call -------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n", "k"), [(1, 48, 768), (5, 49, 33), (17, 5, 64), (0, 3, 8)])
def test_linear_int8_quantises_its_rows(isa, guarded, m, n, k):
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((n, k)).astype(np.float32)
    bias, out = rng.standard_normal(n).astype(np.float32), guarded((m, n), np.float32)
    tile, a, b = Tile(isa, *isa.int8_tile), quantize_int8(x), quantize_int8(weight)
    peak = linear_int8(tile, x, pack_int8(tile, b.codes, b.scales, bias), out)
    assert (out == linear_int8_ref(a.codes, a.scales, b.codes, b.scales, bias)).all()
    assert peak == np.abs(x).max(initial=0).view(np.int32)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 48, 768), (5, 49, 96), (17, 5, 64), (0, 3, 32)])
def test_linear_bfp8_quantises_its_rows(isa, guarded, m, n, k):
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((n, k)).astype(np.float32)
    bias, out = rng.standard_normal(n).astype(np.float32), guarded((m, n), np.float32)
    tile, a, b = Tile(isa, *isa.bfp8_tile), quantize_bfp8(x), quantize_bfp8(weight)
    peak = linear_bfp8(tile, x, pack_bfp8(tile, b.mantissas, b.exponents, bias), out)
    assert (out == linear_bfp8_ref(a.mantissas, a.exponents, b.mantissas, b.exponents, bias)).all()
    assert peak == np.abs(x).max(initial=0).view(np.int32)


# ---- Packing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "k"), [(1, 32), (47, 64), (48, 96), (49, 32), (1000, 64)])
def test_what_was_packed_can_be_unpacked(isa, n, k):
    made = Int8Case(isa, 1, n, k)
    codes, scales = unpack_int8(made.weight, n, k)
    assert (codes == made.b).all()
    assert (scales == made.b_scales).all()
    made = BFP8Case(isa, 1, n, k)
    mantissas, exponents = unpack_bfp8(made.tile, made.weight, n, k)
    assert (mantissas == made.b).all()
    assert (exponents == made.b_exponents).all()


def test_packed_bytes_are_those_of_the_format_and_the_padding(isa):
    made = Int8Case(isa, 1, 50, 33)
    padded = -(-50 // made.tile.width) * made.tile.width
    assert made.weight.nbytes == padded * (36 + 3 * 4)  # codes, a scale, a start, a bias
    made = BFP8Case(isa, 1, 50, 64)
    padded = -(-50 // made.tile.width) * made.tile.width
    assert made.weight.nbytes == padded * (64 + 2 + 4)  # mantissas, exponents, a bias
