"""The float32 kernel for few rows: its oracle bit for bit, the rounding of that, and when the layer uses it."""

import numba
import numpy as np
import pytest

import cachequant_lib as cq
from cachequant_lib.kernels import fp32
from cachequant_lib.kernels.float_reference import linear_fp32_ref
from cachequant_lib.kernels.fp32 import FEW_ROWS, multiply_fp32, tiles_fp32
from cachequant_lib.kernels.isa import best_instruction_set

pytestmark = pytest.mark.compiled


class Case:
    """Random operands between guards, and the kernel on them."""

    def __init__(self, isa, m, n, k, guarded, scale=1.0):
        rng = np.random.default_rng(m * 1000003 + n * 1009 + k)
        self.isa, self.guarded, self.parts = isa, guarded, []
        for shape in ((m, k), (n, k), (n,)):
            part = guarded(shape, np.float32)
            part[...] = rng.standard_normal(shape) * scale
            self.parts.append(part)

    def __call__(self, rows=slice(None), shares=2):
        x, weight, bias = self.parts
        out = self.guarded((len(x[rows]), len(weight)), np.float32)
        out[...] = np.nan
        multiply_fp32(*tiles_fp32(self.isa), x[rows], weight, bias, out, shares)
        return out

    def expected(self):
        return linear_fp32_ref(*self.parts)


def equal_bits(a, b):
    return a.shape == b.shape and (a.view(np.int32) == b.view(np.int32)).all()


@pytest.mark.parametrize("m", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 17])
def test_it_equals_its_oracle_for_any_shape(isa, guarded, m):
    for n in (1, 2, 3, 5, 6, 7, 12, 25):
        for k in (1, 15, 16, 17, 31, 32, 48, 77):
            case = Case(isa, m, n, k, guarded)
            assert equal_bits(case(), case.expected()), (m, n, k)


@pytest.mark.parametrize(("m", "n", "k"), [(9, 50, 768), (3, 7, 3072), (28, 13, 96)])
def test_it_equals_its_oracle_for_the_depths_of_a_model(isa, guarded, m, n, k):
    case = Case(isa, m, n, k, guarded)
    assert equal_bits(case(), case.expected())


def test_a_row_does_not_depend_on_how_many_come_with_it(isa, guarded):
    case = Case(isa, 11, 20, 83, guarded)
    together = case()
    for start in range(11):
        for stop in range(start + 1, 12):
            assert equal_bits(case(slice(start, stop)), together[start:stop]), (start, stop)


def test_threads_and_shares_change_no_bit(isa, guarded, each_thread_count):
    case = Case(isa, 6, 301, 50, guarded)
    expected = case.expected()
    for _ in each_thread_count():
        for shares in (1, 2, 3, 7, 200):  # more shares than groups of columns, too
            assert equal_bits(case(shares=shares), expected), shares


@pytest.mark.parametrize("k", [1, 15, 33, 768, 3079])
def test_the_oracle_errs_by_no_more_than_its_roundings(k, guarded):
    for scale in (1e-10, 1.0, 1e15):
        x, weight, bias = (part.astype(np.float64) for part in Case(None, 5, 9, k, guarded, scale).parts)
        exact, magnitude = x @ weight.T + bias, np.abs(x) @ np.abs(weight.T) + np.abs(bias)
        # on the longest way of a product into the result: K // 16 steps and 4 halvings, or its own rounding and one
        # addition each of what is left; and the bias at the end. None errs by more than 2**-24 of the magnitudes
        roundings = k // 16 + 4 + k % 16 + 2
        bound = roundings * 2.0**-24 / (1 - roundings * 2.0**-24) * magnitude * (1 + 1e-9)
        assert (np.abs(Case(None, 5, 9, k, guarded, scale).expected() - exact) <= bound).all()


def test_what_is_not_finite_stays_in_its_row_and_column(isa, guarded):
    case = Case(isa, 6, 8, 40, guarded)
    clean = case.expected()
    x, weight, _ = case.parts
    x[2, 17], weight[5, 39] = np.nan, np.inf
    out = case()
    assert np.isnan(out[2]).all()
    assert not np.isfinite(out[:, 5]).any()
    others = np.ix_([0, 1, 3, 4, 5], [0, 1, 2, 3, 4, 6, 7])
    assert equal_bits(out[others], clean[others])


# ---- In the layer ----------------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch):
    """Count the rows of each call of the kernel, and let it be used on this CPU whatever it is."""
    seen = []

    def multiply(tile, group, x, *rest):
        seen.append(len(x))
        multiply_fp32(tile, group, x, *rest)

    monkeypatch.setattr(fp32, "multiply_fp32", multiply)
    monkeypatch.setattr(fp32, "pays", lambda isa: True)
    monkeypatch.setattr(fp32, "MANY_WEIGHTS", 330)
    return seen


@pytest.mark.parametrize("threads", [1, 2])
def test_the_layer_uses_it_for_few_rows(calls, threads):
    before, fewest = numba.get_num_threads(), 1 if threads > 1 else 2  # one row: only to keep to one pool of threads
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((40, 96)).astype(np.float32), rng.standard_normal(40).astype(np.float32)
    layer, x = cq.Float32Linear(weight, bias), rng.standard_normal((2 * FEW_ROWS, 96)).astype(np.float32)
    numba.set_num_threads(threads)
    expected = linear_fp32_ref(x, weight, bias)
    for rows in (0, 1, 2, FEW_ROWS - 1, FEW_ROWS, FEW_ROWS + 1):
        np.testing.assert_allclose(layer(x[:rows]), expected[:rows], rtol=0, atol=1e-4)
    numba.set_num_threads(before)
    assert calls == [1, 2, FEW_ROWS - 1, FEW_ROWS][fewest - 1 :]
    assert equal_bits(layer(x[7:12]), expected[7:12])
    cq.Float32Linear(weight[:3])(x[:5])  # too small
    assert calls[-2:] == [FEW_ROWS, 5]


def test_any_array_will_do(calls):
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((5, 33)).astype(np.float32), rng.standard_normal((10, 33)).astype(np.float32)
    bias, frozen = rng.standard_normal(20).astype(np.float32)[::2], weight.copy()
    frozen.flags.writeable = False
    expected = linear_fp32_ref(x, weight, bias)
    for same in (x, np.asfortranarray(x), x.astype(np.float64), np.repeat(x, 2, axis=1)[:, ::2]):
        for matrix in (weight, np.asfortranarray(weight), frozen):
            assert equal_bits(cq.Float32Linear(matrix, bias)(same), expected)
    assert set(calls) == {5}


def test_it_is_left_alone_where_it_would_not_pay(monkeypatch):
    fp32.pays.cache_clear()
    best = best_instruction_set()
    monkeypatch.setattr(fp32, "target_features", lambda: frozenset({"avx2"}))
    assert not fp32.pays(best)
    fp32.pays.cache_clear()
    monkeypatch.setattr(fp32.numba.config, "DISABLE_JIT", 1)
    assert not fp32.pays(best)
    fp32.pays.cache_clear()
