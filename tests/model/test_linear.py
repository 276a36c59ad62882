"""The linear layers: drop-in for each other, exact where they say so, clear where they refuse."""

import os
import subprocess
import sys

import numpy as np
import pytest

import cachequant_lib as cq
from cachequant_lib.kernels import loops
from cachequant_lib.kernels.reference import matmul_bfp8_ref, matmul_int8_ref
from cachequant_lib.model.linear import SchemeLinear
from cachequant_lib.model.matmul import matmul_bfp8, matmul_int8

LAYERS = [cq.Float32Linear, cq.Int8Linear, cq.BFP8Linear]


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 96)).astype(np.float32)
    weight = rng.standard_normal((40, 96)).astype(np.float32)
    bias = rng.standard_normal(40).astype(np.float32)
    return x, weight, bias


@pytest.mark.parametrize("layer", LAYERS)
def test_close_to_the_exact_product(layer, case):
    x, weight, bias = case
    truth = x.astype(np.float64) @ weight.T.astype(np.float64) + bias
    y = layer(weight, bias)(x)
    assert (y.shape, y.dtype) == ((6, 40), np.float32)
    assert np.abs(y - truth).mean() / np.abs(truth).mean() < (1e-6 if layer is cq.Float32Linear else 0.02)


@pytest.mark.parametrize("layer", LAYERS)
def test_rows_do_not_see_each_other(layer, case):
    x, weight, bias = case
    linear = layer(weight, bias)
    together, apart = linear(x), np.concatenate([linear(row[None]) for row in x])
    if layer is cq.Float32Linear:  # BLAS may add in another order for another number of rows
        np.testing.assert_allclose(together, apart, rtol=1e-5, atol=1e-5)
    else:
        assert (together == apart).all()


@pytest.mark.parametrize("layer", LAYERS)
def test_no_bias_is_a_zero_bias(layer, case):
    x, weight, _ = case
    assert (layer(weight)(x) == layer(weight, np.zeros(40, np.float32))(x)).all()


def test_integer_products_equal_the_oracles(case):
    x, weight, bias = case
    a, b = cq.quantize_int8(x), cq.quantize_int8(weight)
    assert (matmul_int8(a, b, bias) == matmul_int8_ref(a.codes, a.scales, b.codes, b.scales, bias)).all()
    p, q = cq.quantize_bfp8(x), cq.quantize_bfp8(weight)
    truth = matmul_bfp8_ref(p.mantissas, p.exponents, q.mantissas, q.exponents, bias)
    assert (matmul_bfp8(p, q, bias) == truth).all()


def test_oracles_are_the_product_of_the_dequantised_operands(case):
    x, weight, bias = case
    for quantize, multiply in ((cq.quantize_int8, matmul_int8), (cq.quantize_bfp8, matmul_bfp8)):
        a, b = quantize(x), quantize(weight)
        truth = cq.dequantize(a).astype(np.float64) @ cq.dequantize(b).T.astype(np.float64) + bias
        np.testing.assert_allclose(multiply(a, b, bias), truth, rtol=1e-5, atol=1e-5)


def test_layers_keep_nothing_of_the_callers_weight(case):
    x, weight, bias = case
    linear = cq.Int8Linear(weight, bias)
    y = linear(x)
    weight[:] = 0  # the caller's array is no longer looked at
    assert (linear(x) == y).all()


@pytest.mark.parametrize(("layer", "quantize"), [(cq.Int8Linear, cq.quantize_int8), (cq.BFP8Linear, cq.quantize_bfp8)])
def test_the_packed_weight_can_be_looked_at(layer, quantize, case):
    _, weight, bias = case
    linear, expected = layer(weight, bias), quantize(weight)
    for name in vars(expected):
        assert (getattr(linear.tensor, name) == getattr(expected, name)).all(), name
    assert (linear.bias == bias).all()


@pytest.mark.parametrize("layer", [cq.Int8Linear, cq.BFP8Linear])
def test_layers_agree_with_the_exact_product_of_their_operands(layer, case):
    x, weight, bias = case
    linear = layer(weight, bias)
    quantize, multiply = (cq.quantize_int8, matmul_int8) if layer is cq.Int8Linear else (cq.quantize_bfp8, matmul_bfp8)
    np.testing.assert_allclose(linear(x), multiply(quantize(x), linear.tensor, bias), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("layer", LAYERS)
def test_any_memory_layout_of_the_input(layer, case):
    x, weight, bias = case
    linear = layer(weight, bias)
    frozen = x.copy()
    frozen.flags.writeable = False
    for same in (np.asfortranarray(x), x.astype(np.float64), np.repeat(x, 2, axis=1)[:, ::2], frozen):
        np.testing.assert_allclose(linear(same), linear(x), rtol=1e-5, atol=1e-5)


def test_scales_lie_along_the_outputs(case):
    _, weight, _ = case
    linear = cq.Int8Linear(weight)
    assert linear.tensor.scales.shape == (40,)
    louder = weight.copy()
    louder[7] *= 1000  # one huge output channel
    others = np.arange(40) != 7
    assert (cq.Int8Linear(louder).tensor.codes[others] == linear.tensor.codes[others]).all()


def test_bits_and_bytes(case):
    _, weight, bias = case
    assert cq.Float32Linear(weight, bias).nbytes == 4 * 40 * 97
    int8, bfp8 = cq.Int8Linear(weight, bias), cq.BFP8Linear(weight, bias)
    assert int8.nbytes == 40 * (96 + 4 + 4)
    assert bfp8.nbytes == 40 * (96 + 3 + 4)
    assert 40 * (96 + 4 + 4 + 4) <= int8.packed_nbytes <= 48 * (96 + 4 + 4 + 4)  # panels hold 48 outputs at the most
    assert 40 * (96 + 3 + 4) <= bfp8.packed_nbytes <= 48 * (96 + 3 + 4)
    assert cq.Int8Linear(weight).bits_per_weight() == 8 + 32 / 96
    assert cq.BFP8Linear(weight).bits_per_weight() == 8.25
    assert SchemeLinear(weight, scheme=cq.Scheme(32, "exact")).bits_per_weight() == 9.0
    assert "96 -> 40" in cq.BFP8Linear(weight).describe()
    assert "simulated" in SchemeLinear(weight, scheme=cq.Scheme()).describe()


def test_simulated_scheme_agrees_with_the_true_integers(case):
    x, weight, bias = case
    simulated = SchemeLinear(weight, bias, scheme=cq.Scheme(32, "pow2"))(x)
    np.testing.assert_allclose(simulated, cq.BFP8Linear(weight, bias)(x), rtol=1e-4, atol=1e-4)


def test_zero_rows_in_and_zero_weights(case):
    _, weight, bias = case
    for layer in LAYERS:
        assert (layer(weight, bias)(np.zeros((2, 96), np.float32)) == bias).all()
        assert layer(weight, bias)(np.zeros((0, 96), np.float32)).shape == (0, 40)
        assert (layer(np.zeros_like(weight), bias)(np.ones((1, 96), np.float32)) == bias).all()


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    ("weight", "bias"),
    [(np.zeros((0, 32)), None), (np.zeros(32), None), (np.zeros((4, 32)), np.zeros(5)), (np.zeros((4, 32)), 0.5)],
)
def test_shapes_that_do_not_fit_are_refused(layer, weight, bias):
    bias = None if bias is None else np.asarray(bias, np.float32)
    with pytest.raises(cq.FormatError, match="expected a"):
        layer(weight.astype(np.float32), bias)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("shape", [(96,), (2, 95), (1, 2, 96)])
def test_inputs_that_do_not_fit_are_refused(layer, shape, case):
    _, weight, bias = case
    with pytest.raises(cq.FormatError, match=r"expected x \(M, 96\)"):
        layer(weight, bias)(np.zeros(shape, np.float32))


@pytest.mark.parametrize("layer", [cq.Int8Linear, cq.BFP8Linear])
def test_nan_is_refused_before_the_kernel(layer, case):
    x, weight, bias = case
    x[2, 3] = np.nan
    with pytest.raises(cq.FormatError, match="not finite"):
        layer(weight, bias)(x)


@pytest.mark.parametrize("layer", [cq.Int8Linear, cq.BFP8Linear])
def test_only_real_numbers_are_multiplied(layer, case):
    x, weight, bias = case
    linear = layer(weight, bias)
    with pytest.raises(cq.FormatError, match="expected real numbers, got an array of complex64"):
        linear(x.astype(np.complex64))
    assert (linear(np.ones((2, 96), int)) == linear(np.ones((2, 96), np.float32))).all()


def test_bfp8_refuses_rows_that_do_not_divide():
    with pytest.raises(cq.FormatError, match="a row of 33 values does not divide into blocks of 32"):
        cq.BFP8Linear(np.zeros((4, 33), np.float32))


def test_operands_of_the_other_scheme_are_refused(case):
    x, weight, _ = case
    with pytest.raises(cq.FormatError, match="takes two Int8Tensor, got BFP8Tensor"):
        matmul_int8(cq.quantize_int8(x), cq.quantize_bfp8(weight))
    with pytest.raises(cq.FormatError, match="takes two BFP8Tensor, got Int8Tensor"):
        matmul_bfp8(cq.quantize_int8(x), cq.quantize_bfp8(weight))


def test_products_that_do_not_fit_are_refused(case):
    x, weight, _ = case
    with pytest.raises(cq.FormatError, match="expected codes"):
        matmul_int8(cq.quantize_int8(x), cq.quantize_int8(weight[:, :95]))
    with pytest.raises(cq.FormatError, match="expected a bias"):
        matmul_int8(cq.quantize_int8(x), cq.quantize_int8(weight), np.zeros(39, np.float32))
    with pytest.raises(cq.FormatError, match="block sizes differ: 32 and 16"):
        matmul_bfp8(cq.quantize_bfp8(x), cq.quantize_bfp8(weight, 16))


def test_sums_that_could_overflow_are_refused():
    too_long = np.zeros((1, loops.MAX_K + 1), np.float32)
    with pytest.raises(cq.FormatError, match="can overflow int32"):
        cq.Int8Linear(too_long)
    with pytest.raises(cq.FormatError, match="can overflow int32"):
        matmul_int8(cq.quantize_int8(too_long), cq.quantize_int8(too_long))


@pytest.mark.parametrize(
    ("codes", "scales"),
    [
        (np.ones((3, 8), np.int8), np.ones(1, np.float32)),  # fewer scales than rows: the kernel would read past them
        (np.ones((3, 8), np.int8), np.ones((3, 1), np.float32)),
        (np.full((3, 8), 0.9), np.ones(3, np.float32)),
        (np.full((3, 8), -128, np.int8), np.ones(3, np.float32)),
    ],
)
def test_tensors_built_by_hand_are_checked(codes, scales, case):
    good = cq.quantize_int8(case[1][:, :8])
    for operands in ((cq.Int8Tensor(codes, scales), good), (good, cq.Int8Tensor(codes, scales))):
        with pytest.raises(cq.FormatError):
            matmul_int8(*operands)


@pytest.mark.parametrize("shape", [(1, 2), (3, 5), (3,)])
def test_exponents_built_by_hand_are_checked(shape):
    good, mantissas = cq.quantize_bfp8(np.ones((4, 64))), np.ones((3, 64), np.int8)
    with pytest.raises(cq.FormatError):
        matmul_bfp8(cq.BFP8Tensor(mantissas, np.zeros(shape, np.int32)), good)


@pytest.mark.parametrize("layer", LAYERS)
def test_every_real_input_gives_float32(layer, case):
    x, weight, bias = case
    linear = layer(weight, list(bias))
    assert linear(x.astype(np.float64)).dtype == np.float32
    assert (linear(x.astype(np.float64)) == linear(x)).all()


@pytest.mark.compiled
def test_two_threads_may_use_one_model_on_the_plainest_threading_layer():
    code = """
import threading, numpy as np, cachequant_lib as cq
linear = cq.Int8Linear(np.ones((64, 64), np.float32))
work = lambda: [linear(np.ones((4, 64), np.float32)) for _ in range(200)]
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
"""
    environment = os.environ | {"NUMBA_THREADING_LAYER": "workqueue"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=300)
