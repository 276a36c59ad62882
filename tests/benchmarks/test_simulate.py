"""Rounding fast is rounding as the library does it, bit for bit."""

import numpy as np
import pytest
import torch

import cachequant_lib as cq
from benchmarks import simulate
from cachequant_lib.formats.scheme import Scheme

CORNERS = [
    Scheme(granularity, scale)
    for granularity in (32, 64, "row", "tensor")
    for scale in ("pow2", "exact", "fp16", "snapped")
]


def rows(num_columns=128):
    x = np.random.default_rng(0).standard_normal((9, num_columns)).astype(np.float32)
    x[2] = 0
    x[3, :40] = 0
    x[4] *= 1e-39  # denormal numbers
    x[5] *= 1e4
    x[6, 7] = 3e4
    x[7] = np.round(x[7] * 64) / 127  # halves between two codes
    return x


def through(scheme, x):
    out = np.full_like(x, np.nan)
    simulate.through(scheme, x, out)
    return out


@pytest.mark.parametrize("scheme", CORNERS, ids=str)
def test_it_equals_the_scheme(scheme):
    x = rows()
    assert np.array_equal(through(scheme, x), scheme.quantize(x).dequantize())


@pytest.mark.parametrize("scale", ["pow2", "exact", "fp16", "snapped"])
def test_a_shorter_last_group_is_a_group(scale):
    x = rows(72)
    found = through(Scheme(32, scale), x)
    for part in (slice(0, 32), slice(32, 64), slice(64, 72)):
        assert np.array_equal(found[:, part], Scheme("row", scale).quantize(x[:, part]).dequantize())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(bad):
    x = rows()
    x[1, 3] = bad
    with pytest.raises(cq.FormatError, match="cannot quantise NaN or infinity"):
        through(Scheme("row", "exact"), x)


def test_the_16_bit_formats_round_as_torch_does():
    x = np.append(rows().ravel(), np.float32([1.00390625, 1.01171875, -1.00390625])).reshape(1, -1)
    for rounding, dtype in ((simulate.to_fp16, torch.float16), (simulate.to_bf16, torch.bfloat16)):
        out = np.empty_like(x)
        rounding(x, out)
        assert np.array_equal(out, torch.from_numpy(x).to(dtype).float().numpy())


@pytest.mark.parametrize("scheme", CORNERS, ids=str)
def test_bits_are_those_of_the_scheme(scheme):
    assert simulate.bits_per_value(scheme, 128, 9) == scheme.bits_per_value(128, 9)


def test_a_shorter_last_group_pays_for_a_whole_scale():
    assert simulate.bits_per_value(Scheme(128, "exact"), 576) == 8 + 32 * 5 / 576


@pytest.fixture(scope="module")
def tiny():
    return cq.load("tiny")


def logits(model):
    ids = model.tokenizer.encode("It was a very fine day.")
    return model.forward(ids, model.new_kv(capacity=len(ids)))


def test_a_simulated_model_is_the_librarys(tiny):
    simulator = simulate.Simulator(tiny)
    for scheme in (Scheme(32, "pow2"), Scheme("row", "snapped"), Scheme(32, "pow2")):
        rounding = simulate.rounder(scheme)
        found = simulator.model(str(scheme), rounding, rounding)
        assert np.array_equal(logits(found), logits(cq.quantize_model(tiny, scheme)))
        assert simulate.mean_bits(scheme, tiny) == pytest.approx(
            np.average([x.bits_per_weight() for x in linears(found, scheme)], weights=sizes(tiny))
        )


def sizes(model):
    return [n * k for n, k in simulate.shapes(model)]


def linears(model, scheme):
    library = cq.quantize_model(cq.load("tiny"), scheme)
    return [x for block in library.blocks for x in (block.attn_qkv, block.attn_out, block.mlp_up, block.mlp_down)]


def test_weights_and_inputs_are_rounded_apart(tiny):
    rounding, simulator = simulate.rounder(Scheme("tensor", "pow2")), simulate.Simulator(tiny)
    exact = logits(tiny)
    found = {}
    for name, parts in {"w": (rounding, None), "both": (rounding, rounding), "x": (None, rounding)}.items():
        found[name] = logits(simulator.model("tensor", *parts))
    assert np.array_equal(logits(simulator.model("none", None, None)), exact)
    gaps = [
        np.abs(one - other).max() for one in found.values() for other in [exact, *found.values()] if one is not other
    ]
    assert min(gaps) > 1e-4
    assert np.array_equal(logits(tiny), exact)
