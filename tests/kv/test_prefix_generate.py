"""Requests with a PrefixCache: the text of cold ones, whoever else uses the cache and however small it is."""

import numpy as np
import pytest

import cachequant_lib as cq

PROMPTS = [
    "The cat sat",
    "The cat sat on the mat",
    "The cat sat near a lake",
    "Elizabeth was",
    "Elizabeth was surprised; but Mr. Darcy, who had been walking in the lane, said nothing.",
]


@pytest.fixture(scope="module")
def tiny():
    return cq.load("tiny")


@pytest.fixture(scope="module")
def row_bytes(tiny):
    c = tiny.config
    return c.num_layers * 2 * c.num_kv_heads * c.head_dim * 4


@pytest.mark.parametrize("scheme", [None, "int8", "bfp8"])
def test_cached_requests_give_the_text_of_cold_ones(tiny, scheme):
    model, cache = tiny if scheme is None else cq.quantize_model(tiny, scheme), cq.PrefixCache()
    for prompt in PROMPTS + PROMPTS:
        warm, cold = cq.generate(model, prompt, 6, prefix_cache=cache), cq.generate(model, prompt, 6)
        assert warm.token_ids == cold.token_ids
        cache.check_invariants()
    assert cache.stats.bytes_pinned == 0


@pytest.mark.parametrize("policy", ["lru", "lfu", "size"])
def test_a_tiny_cap_never_changes_the_text(tiny, row_bytes, policy):
    cache = cq.PrefixCache(9 * row_bytes, policy)
    for prompt in PROMPTS * 3:
        assert cq.generate(tiny, prompt, 4, prefix_cache=cache).token_ids == cq.generate(tiny, prompt, 4).token_ids
        cache.check_invariants()
        assert cache.bytes_used <= 9 * row_bytes
    assert cache.stats.evictions > 0
    assert cache.stats.refused > 0
    assert cache.stats.hits > 0


def test_a_token_costs_its_keys_and_values_and_nothing_else(tiny, row_bytes):
    cache = cq.PrefixCache()
    out = cq.generate(tiny, PROMPTS[4], 5, prefix_cache=cache)
    assert cache.bytes_used == out.prompt_tokens * row_bytes  # new tokens are never stored


def test_prompts_one_token_apart(tiny):
    ids = tiny.tokenizer.encode(PROMPTS[4])
    for first, second in ((ids, ids), (ids, ids[:-1]), (ids[:-1], ids)):
        cache = cq.PrefixCache()
        assert cq.generate(tiny, first, 1, prefix_cache=cache).cached_tokens == 0
        kv = tiny.new_kv()
        out = cq.generate(tiny, second, 32, kv=kv, prefix_cache=cache, stop_at_eos=False)
        assert out.cached_tokens == len(second) - 1
        assert kv.length == len(second) + 31
        assert out.token_ids == cq.generate(tiny, second, 32, stop_at_eos=False).token_ids


def test_logits_after_a_hit_are_the_cold_ones(tiny):
    ids, cache, kv = tiny.tokenizer.encode(PROMPTS[4]), cq.PrefixCache(), tiny.new_kv()
    cold = tiny.forward(ids, kv)
    cache.insert(ids, kv)
    warm_kv = tiny.new_kv()
    with cache.match(ids) as match:
        match.copy_into(warm_kv)
    warm = tiny.forward(ids[match.length :], warm_kv)
    np.testing.assert_allclose(warm, cold[-1:], atol=1e-4)
    assert warm_kv.length == len(ids)


def test_requests_from_one_prefix_do_not_see_each_other(tiny):
    cache, ids = cq.PrefixCache(), tiny.tokenizer.encode(PROMPTS[4])
    cq.generate(tiny, ids, 1, prefix_cache=cache)
    owner = next(iter(cache._roots))
    with cache.match(ids, owner) as match:
        before = match.block().rows
        first, second = tiny.new_kv(), tiny.new_kv()
        match.copy_into(first)
        match.copy_into(second)
        tiny.forward([5, 6, 7], first)
        tiny.forward([9], second)
        tiny.forward([8], first)
        assert (match.block().rows == before).all()
    assert (second.read_block(0, len(ids) - 1).rows == before).all()


def test_models_formats_and_tenants_are_kept_apart(tiny):
    cache, ids = cq.PrefixCache(), PROMPTS[4]
    models = [tiny, cq.quantize_model(tiny, "int8"), cq.quantize_model(tiny, "bfp8")]
    for model in models:
        for tenant in ("ann", "bob"):
            first = cq.generate(model, ids, 2, prefix_cache=cache, namespace=tenant)
            again = cq.generate(model, ids, 2, prefix_cache=cache, namespace=tenant)
            assert (first.cached_tokens, again.cached_tokens) == (0, again.prompt_tokens - 1)
    assert len(cache._roots) == 6


def test_what_raises_on_the_way_leaves_the_prefix_cache_alone(tiny, monkeypatch):
    cache = cq.PrefixCache()
    cq.generate(tiny, PROMPTS[0], 1, prefix_cache=cache)
    before = cache.bytes_used

    def fail(logits, rng):
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        cq.generate(tiny, PROMPTS[1], 3, prefix_cache=cache, sampler=fail)
    with monkeypatch.context() as patch:
        patch.setattr(cq.DenseKV, "attend", lambda *a: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            cq.generate(tiny, PROMPTS[1], 3, prefix_cache=cache)
    cache.check_invariants()
    assert (cache.bytes_used, cache.stats.bytes_pinned) == (before, 0)
    assert cq.generate(tiny, PROMPTS[1], 3, prefix_cache=cache).token_ids == cq.generate(tiny, PROMPTS[1], 3).token_ids


def test_a_cache_on_disk_serves_the_next_process(tiny, tmp_path):
    cache, fresh = cq.PrefixCache(), cq.PrefixCache()
    cq.generate(tiny, PROMPTS[4], 2, prefix_cache=cache, namespace="ann")
    cache.save(tmp_path / "x", tiny.fingerprint)
    fresh.load(tmp_path / "x", tiny.fingerprint)
    out = cq.generate(tiny, PROMPTS[4], 9, prefix_cache=fresh, namespace="ann")
    assert out.cached_tokens == out.prompt_tokens - 1
    assert out.token_ids == cq.generate(tiny, PROMPTS[4], 9).token_ids
    assert cq.generate(tiny, PROMPTS[4], 2, prefix_cache=fresh, namespace="bob").cached_tokens == 0
