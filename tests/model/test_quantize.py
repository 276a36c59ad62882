"""quantize_model: exactly the right layers, nothing else, and the model still works."""

from dataclasses import fields

import numpy as np
import pytest

import cachequant_lib as cq
from cachequant_lib.model.linear import Linear, SchemeLinear

PROMPT = "It was a very fine day, and she walked to the village"


@pytest.fixture(scope="module")
def tiny():
    return cq.load("tiny")


def linears(model):
    return [getattr(b, f.name) for b in model.blocks for f in fields(b) if isinstance(getattr(b, f.name), Linear)]


def last_logits(model):
    return model.forward(model.tokenizer.encode(PROMPT), model.new_kv(), last_only=True)[0]


@pytest.mark.parametrize(("scheme", "kind"), [("int8", cq.Int8Linear), ("bfp8", cq.BFP8Linear)])
def test_four_linears_a_block_and_nothing_else(tiny, scheme, kind):
    quantized = cq.quantize_model(tiny, scheme)
    assert [type(layer) for layer in linears(quantized)] == [kind] * 4 * tiny.config.num_layers
    assert [type(layer) for layer in linears(tiny)] == [cq.Float32Linear] * 4 * tiny.config.num_layers
    assert quantized.embedding is tiny.embedding
    assert quantized.head is tiny.head
    assert quantized.weight_format == scheme
    shapes = {(layer.in_features, layer.out_features) for layer in linears(quantized)}
    assert shapes == {(256, 768), (256, 256), (256, 1024), (1024, 256)}


@pytest.mark.parametrize("scheme", ["int8", "bfp8", cq.Scheme(32, "exact"), cq.Scheme("row", "fp16")])
def test_logits_stay_close_and_the_choice_is_the_same(tiny, scheme):
    exact, quantized = last_logits(tiny), last_logits(cq.quantize_model(tiny, scheme))
    assert np.abs(quantized - exact).max() < 0.02 * np.abs(exact).max()
    assert quantized.argmax() == exact.argmax()


def test_one_scale_for_a_whole_tensor_is_worse(tiny):
    exact = last_logits(tiny)
    error = {
        granularity: np.linalg.norm(last_logits(cq.quantize_model(tiny, cq.Scheme(granularity, "exact"))) - exact)
        for granularity in (32, "tensor")
    }
    assert error["tensor"] > 1.5 * error[32]


def test_a_quarter_of_the_bytes_in_the_linears(tiny):
    fp32 = sum(layer.nbytes for layer in linears(tiny))
    int8 = sum(layer.nbytes for layer in linears(cq.quantize_model(tiny, "int8")))
    assert 3.8 < fp32 / int8 < 4.0


def test_the_head_is_a_choice_of_its_own(tiny):
    quantized = cq.quantize_model(tiny, "bfp8", head="int8")
    assert isinstance(quantized.head, cq.Int8Linear)
    assert quantized.embedding is tiny.embedding
    assert quantized.weight_format == "bfp8, int8 head"
    assert last_logits(quantized).argmax() == last_logits(tiny).argmax()


def test_a_certified_head_shares_the_embedding(tiny):
    quantized = cq.quantize_model(tiny, "fp32", head="certified")
    assert quantized.blocks is tiny.blocks
    assert quantized.head.weight is tiny.embedding
    assert quantized.weight_format == "fp32, certified head"
    extra = tiny.config.vocab_size * (tiny.config.width + 12)  # codes, a unit and two lengths a row
    assert quantized.nbytes == tiny.nbytes + extra
    assert cq.quantize_model(tiny, "fp32").fingerprint == tiny.fingerprint != quantized.fingerprint


def test_each_format_is_another_model_to_a_cache(tiny):
    variants = [tiny, *(cq.quantize_model(tiny, s) for s in ("int8", "bfp8")), cq.quantize_model(tiny, "int8", "int8")]
    assert len({model.fingerprint for model in variants}) == 4
    assert cq.quantize_model(tiny, "int8").fingerprint == variants[1].fingerprint


def test_unknown_names_list_the_valid_ones(tiny):
    with pytest.raises(
        cq.FormatError, match=r"scheme must be one of \('fp32', 'int8', 'bfp8'\) or a Scheme, got 'int4'"
    ):
        cq.quantize_model(tiny, "int4")
    with pytest.raises(cq.FormatError, match=r"head must be one of \('fp32', 'int8', 'certified'\), got 'fp16'"):
        cq.quantize_model(tiny, "int8", head="fp16")


def test_quantising_a_quantised_model_is_refused(tiny):
    with pytest.raises(cq.FormatError, match="quantise the original"):
        cq.quantize_model(cq.quantize_model(tiny, "int8"), "bfp8")


def test_schemes_say_that_they_are_simulated(tiny):
    quantized = cq.quantize_model(tiny, cq.Scheme("row", "snapped"))
    assert {type(layer) for layer in linears(quantized)} == {SchemeLinear}
    assert all("simulated" in layer.describe() for layer in linears(quantized))
