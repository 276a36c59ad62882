"""The readable kernel equals the exact oracle, bit for bit, for any shape and any number of threads."""

import numba
import numpy as np
import pytest

from cachequant_lib.kernels import loops
from cachequant_lib.kernels.reference import matmul_bfp8_ref, matmul_int8_ref

SHAPES = [(1, 1, 1), (1, 5, 3), (2, 3, 4), (3, 7, 31), (1, 9, 32), (4, 2, 33), (2, 5, 64), (1, 3, 768), (2, 2, 3072)]


def random_codes(rng, rows, columns):
    """Random int8 codes, a quarter of them at the ends of the range."""
    codes = rng.integers(-127, 128, (rows, columns))
    extremes = rng.choice([-128, -127, 0, 127], (rows, columns))
    return np.where(rng.random((rows, columns)) < 0.25, extremes, codes).astype(np.int8)


@pytest.mark.parametrize("shape", SHAPES)
def test_int8_equals_the_oracle(shape):
    rng = np.random.default_rng(0)
    m, n, k = shape
    a, b = random_codes(rng, m, k), random_codes(rng, n, k)
    a_scales, b_scales = rng.random(m).astype(np.float32), rng.random(n).astype(np.float32)
    bias, out = rng.standard_normal(n).astype(np.float32), np.empty((m, n), np.float32)
    loops.matmul_int8(a, a_scales.astype(np.float64), b, b_scales.astype(np.float64), bias, out)
    assert (out == matmul_int8_ref(a, a_scales, b, b_scales, bias)).all()


@pytest.mark.parametrize("value", [-128, -127, 127])
@pytest.mark.parametrize("k", [1, 2, 31, 32, 33, 64, 768, 4096])
def test_no_sum_saturates(value, k):
    # pairs of products overflow 16 bits here: a kernel built on a saturating instruction would be wrong
    a, b = np.full((1, k), value, np.int8), np.full((2, k), -value if value == 127 else value, np.int8)
    ones, out = np.ones(2), np.empty((1, 2), np.float32)
    loops.matmul_int8(a, ones[:1], b, ones, np.zeros(2, np.float32), out)
    truth = a.astype(np.int64) @ b.astype(np.int64).T
    assert (out == (truth / 127**2).astype(np.float32)).all()


@pytest.mark.compiled
def test_longest_safe_sum_does_not_overflow():
    codes = np.full((1, loops.MAX_K), 127, np.int8)
    one, out = np.ones(1), np.empty((1, 1), np.float32)
    loops.matmul_int8(codes, one, codes, one, np.zeros(1, np.float32), out)
    assert out[0, 0] == loops.MAX_K
    assert (loops.MAX_K + 1) * 127**2 > 2**31 - 1


@pytest.mark.parametrize(("m", "n", "blocks"), [(1, 1, 1), (3, 5, 2), (1, 4, 24), (2, 3, 7)])
def test_bfp8_equals_the_oracle(m, n, blocks):
    rng = np.random.default_rng(0)
    a, b = random_codes(rng, m, 32 * blocks), random_codes(rng, n, 32 * blocks)
    a_exponents = rng.integers(-30, 30, (m, blocks), dtype=np.int32)
    b_exponents = rng.integers(-30, 30, (n, blocks), dtype=np.int32)
    bias, out = rng.standard_normal(n).astype(np.float32), np.empty((m, n), np.float32)
    loops.matmul_bfp8(a, np.ldexp(1.0, a_exponents), b, np.ldexp(1.0, b_exponents), bias, out)
    assert (out == matmul_bfp8_ref(a, a_exponents, b, b_exponents, bias)).all()


@pytest.mark.compiled
def test_every_thread_count_gives_the_same_bits():
    rng = np.random.default_rng(0)
    a, b = random_codes(rng, 7, 256), random_codes(rng, 129, 256)
    a_scales, b_scales = rng.random((7, 8)), rng.random((129, 8))
    bias = rng.standard_normal(129).astype(np.float32)
    outputs = []
    before = numba.get_num_threads()
    try:
        for threads in range(1, numba.config.NUMBA_NUM_THREADS + 1):
            numba.set_num_threads(threads)
            for _ in range(20):
                out = np.empty((7, 129), np.float32)
                loops.matmul_bfp8(a, a_scales, b, b_scales, bias, out)
                outputs.append(out)
    finally:
        numba.set_num_threads(before)
    assert all((out == outputs[0]).all() for out in outputs)


def test_nothing_is_written_outside_the_output():
    rng = np.random.default_rng(0)
    a, b = random_codes(rng, 3, 32), random_codes(rng, 5, 32)
    padded = np.full((5, 7), 12345.0, np.float32)
    loops.matmul_int8(a, np.ones(3), b, np.ones(5), np.zeros(5, np.float32), padded[1:4, 1:6])
    border = np.ones(padded.shape, bool)
    border[1:4, 1:6] = False
    assert (padded[border] == 12345.0).all()
    assert (padded[~border] != 12345.0).all()


def test_both_schemes_share_one_kernel(monkeypatch):
    calls = []
    monkeypatch.setattr(loops, "matmul_blocks", lambda *operands: calls.append([x.shape for x in operands]))
    codes = np.zeros((2, 64), np.int8)
    bias, out = np.zeros(2, np.float32), np.zeros((2, 2), np.float32)
    loops.matmul_int8(codes, np.ones(2), codes, np.ones(2), bias, out)
    loops.matmul_bfp8(codes, np.ones((2, 2)), codes, np.ones((2, 2)), bias, out)
    assert calls[0][:2] == [(2, 1, 64), (2, 1)]
    assert calls[1][:2] == [(2, 2, 32), (2, 2)]
