"""Compressed caches in whole requests: the same greedy tokens as a plain cache, with prefix cache and int8 weights."""

import numpy as np
import pytest

import cachequant_lib as cq

pytestmark = [pytest.mark.compiled, pytest.mark.slow]

PROMPT = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a "
    "wife. However little known the feelings or views of such a man may be on his first entering a neighbourhood, this "
    "truth is so well fixed in the minds of the surrounding families, that he is considered as the rightful property"
)
FORMATS = [
    ("aligned", {"tolerance": 2.0**-11}),
    ("aligned", {"control": True}),
    ("aligned", {"design": "paper"}),
    ("aligned", {"design": "paper", "control": True}),
    ("kivi", {"bits": 10}),
    ("gear", {"bits": 10}),
]
EACH = pytest.mark.parametrize(("name", "options"), FORMATS, ids=str)


@pytest.fixture(scope="module")
def tiny():
    return cq.load("tiny")


@EACH
def test_greedy_tokens_are_those_of_a_plain_cache(tiny, name, options):
    kv = tiny.new_kv(name, capacity=200, **options)
    found, plain = cq.generate(tiny, PROMPT, 60, kv=kv), cq.generate(tiny, PROMPT, 60)
    assert found.token_ids == plain.token_ids
    assert found.kv_bytes_read < 0.65 * plain.kv_bytes_read
    assert kv.reads.num_values > 0


def test_the_name_alone_is_enough(tiny):
    assert len(cq.generate(tiny, PROMPT, 5, kv="aligned").token_ids) == 5


@EACH
def test_logits_stay_close_token_by_token(tiny, name, options):
    ids = tiny.tokenizer.encode(PROMPT)
    kv, plain = tiny.new_kv(name, capacity=100, **options), tiny.new_kv(capacity=100)
    for token in ids[:80]:
        found, wanted = (tiny.forward([token], cache)[0] for cache in (kv, plain))
        assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()


def test_with_a_prefix_cache_and_int8_weights(tiny):
    model, cache = cq.quantize_model(tiny, "int8"), cq.PrefixCache(64 << 20)
    cold = cq.generate(model, PROMPT, 30, kv="aligned")
    first = cq.generate(model, PROMPT, 30, kv="aligned", prefix_cache=cache)
    second = cq.generate(model, PROMPT, 30, kv="aligned", prefix_cache=cache)
    assert first.cached_tokens == 0
    assert second.cached_tokens == second.prompt_tokens - 1
    assert cold.token_ids == first.token_ids == second.token_ids
    others = [model.new_kv(), model.new_kv("aligned", tolerance=0.1), model.new_kv("aligned", design="paper")]
    for other in others:  # rows of another format or setting are never reused
        assert cq.generate(model, PROMPT, 1, kv=other, prefix_cache=cache).cached_tokens == 0


def test_with_the_teaching_trie(tiny):
    trie = cq.TokenTrie()
    first = cq.generate(tiny, PROMPT, 20, kv="aligned", prefix_cache=trie)
    second = cq.generate(tiny, PROMPT, 20, kv="aligned", prefix_cache=trie)
    assert second.cached_tokens == second.prompt_tokens - 1
    assert first.token_ids == second.token_ids


def test_unknown_formats_and_options_are_refused(tiny):
    with pytest.raises(cq.FormatError, match="no KV format 'half'"):
        tiny.new_kv("half")
    with pytest.raises(cq.FormatError, match="no option 'tolerance'"):
        tiny.new_kv("dense", tolerance=1)
    with pytest.raises(cq.FormatError, match="no option 'capacity_bytes'"):
        tiny.new_kv("aligned", capacity_bytes=1)
    with pytest.raises(cq.FormatError, match="design must be"):
        tiny.new_kv("aligned", design="d3")
