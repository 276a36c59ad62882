"""One request: the tokens, the accounting, the prefix cache, and every refusal before any compute."""

import time

import numpy as np
import pytest

import cachequant_lib as cq
from cachequant_lib import generation

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


def test_greedy_is_the_argmax_of_the_whole_text_each_time(tiny):
    out = cq.generate(tiny, PROMPTS[4], 8)
    ids = tiny.tokenizer.encode(PROMPTS[4])
    for token in out.token_ids:
        assert token == tiny.forward(ids, tiny.new_kv())[-1].argmax()
        ids.append(token)
    assert out.text == tiny.tokenizer.decode(out.token_ids)


def test_text_and_ids_are_the_same_prompt(tiny):
    ids = tiny.tokenizer.encode(PROMPTS[1])
    assert cq.generate(tiny, PROMPTS[1], 5).token_ids == cq.generate(tiny, np.array(ids), 5).token_ids


def test_the_accounting_adds_up(tiny):
    started = time.perf_counter()
    out = cq.generate(tiny, PROMPTS[4], 6)
    wall = time.perf_counter() - started
    assert len(out.token_ids) == 6
    assert len(out.decode_step_s) == 5  # the first new token comes out of prefill
    assert out.decode_s == sum(out.decode_step_s)
    assert out.overhead_s > 0
    assert out.prefill_s + out.decode_s + out.overhead_s <= wall
    n, c = out.prompt_tokens, tiny.config
    positions = n + sum(range(n + 1, n + 6))  # prefill reads its own rows, each step all rows so far
    assert out.kv_bytes_read == positions * c.num_layers * 2 * c.num_kv_heads * c.head_dim * 4
    assert (out.cached_tokens, out.hit_rate) == (0, 0.0)


def test_it_stops_after_the_end_token(tiny):
    end = tiny.config.eos_token_id
    out = cq.generate(tiny, PROMPTS[0], 9, sampler=lambda logits, rng: end)
    assert out.token_ids == (end,)
    assert len(cq.generate(tiny, PROMPTS[0], 9, sampler=lambda logits, rng: end, stop_at_eos=False).token_ids) == 9


def test_no_new_tokens_is_a_prefill(tiny):
    trie = cq.TokenTrie()
    out = cq.generate(tiny, PROMPTS[1], 0, prefix_cache=trie)
    assert (out.token_ids, out.text, out.decode_step_s) == ((), "", ())
    assert trie.num_tokens == out.prompt_tokens


@pytest.mark.parametrize("scheme", [None, "int8", "bfp8"])
def test_cached_requests_give_the_text_of_cold_ones(tiny, scheme):
    model = tiny if scheme is None else cq.quantize_model(tiny, scheme)
    trie = cq.TokenTrie()
    for prompt in PROMPTS + PROMPTS:
        warm, cold = cq.generate(model, prompt, 6, prefix_cache=trie), cq.generate(model, prompt, 6)
        assert warm.token_ids == cold.token_ids
        trie.check_invariants()


def test_the_last_prompt_token_is_always_computed(tiny):
    trie = cq.TokenTrie()
    cq.generate(tiny, PROMPTS[4], 3, prefix_cache=trie)
    stored = trie.num_tokens
    again = cq.generate(tiny, PROMPTS[4], 3, prefix_cache=trie)
    assert again.cached_tokens == again.prompt_tokens - 1
    assert again.hit_rate == (again.prompt_tokens - 1) / again.prompt_tokens
    assert trie.num_tokens == stored == again.prompt_tokens  # new tokens are never stored


def test_what_is_reused_is_the_common_prefix_in_tokens(tiny):
    pairs = [("Hello wor", "Hello world"), ("x ", "x y"), ("a\n", "a\n\nb"), ("\U0001f469", "\U0001f469‍\U0001f4bb")]
    for first, second in pairs:
        trie = cq.TokenTrie()
        assert cq.generate(tiny, first, 1, prefix_cache=trie).cached_tokens == 0
        a, b = tiny.tokenizer.encode(first), tiny.tokenizer.encode(second)
        common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        assert cq.generate(tiny, second, 1, prefix_cache=trie).cached_tokens == min(common, len(b) - 1)


def test_stored_rows_do_not_grow_or_change(tiny):
    trie = cq.TokenTrie()
    ids = tiny.tokenizer.encode(PROMPTS[4])
    cq.generate(tiny, ids, 1, prefix_cache=trie)
    before = trie.lookup(ids)[1]
    cq.generate(tiny, ids, 20, prefix_cache=trie)
    assert (trie.lookup(ids)[1] == before).all()


def test_eviction_pressure_never_changes_the_text(tiny):
    trie = cq.TokenTrie(max_tokens=6)
    for prompt in PROMPTS * 3:
        expected = cq.generate(tiny, prompt, 4).token_ids
        assert cq.generate(tiny, prompt, 4, prefix_cache=trie).token_ids == expected
        trie.check_invariants()
    assert trie.num_evicted > 0


def test_a_sampler_that_raises_leaves_the_prefix_cache_alone(tiny):
    trie = cq.TokenTrie()

    def fail(logits, rng):
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        cq.generate(tiny, PROMPTS[0], 3, prefix_cache=trie, sampler=fail)
    assert trie.num_tokens == 0


def test_a_prefix_cache_serves_one_model_and_one_namespace(tiny):
    trie = cq.TokenTrie()
    cq.generate(tiny, PROMPTS[0], 1, prefix_cache=trie, namespace="ann")
    assert cq.generate(tiny, PROMPTS[0], 1, prefix_cache=trie, namespace="ann").cached_tokens > 0
    with pytest.raises(cq.CacheError, match="another model or namespace"):
        cq.generate(tiny, PROMPTS[0], 1, prefix_cache=trie, namespace="bob")
    with pytest.raises(cq.CacheError, match="another model or namespace"):
        cq.generate(cq.quantize_model(tiny, "int8"), PROMPTS[0], 1, prefix_cache=trie, namespace="ann")


def test_a_cache_of_ones_own(tiny):
    kv = tiny.new_kv("dense", capacity=64)
    out = cq.generate(tiny, PROMPTS[1], 5, kv=kv)
    assert out.token_ids == cq.generate(tiny, PROMPTS[1], 5).token_ids
    assert kv.length == out.prompt_tokens + 4
    with pytest.raises(cq.CacheError, match="kv must be empty"):
        cq.generate(tiny, PROMPTS[1], 5, kv=kv)


def test_a_cache_that_is_too_small_is_refused_before_any_compute(tiny):
    kv = tiny.new_kv(capacity=5)
    with pytest.raises(cq.CapacityError, match="12 positions are needed, kv has room for 5"):
        cq.generate(tiny, [5, 6, 7], 10, kv=kv)
    assert (kv.length, kv.bytes_read) == (0, 0)


def test_a_request_that_fails_leaves_a_trie_to_anybody(tiny):
    trie = cq.TokenTrie()
    with pytest.raises(cq.CapacityError):
        cq.generate(tiny, "It is a", 10, kv=tiny.new_kv(capacity=1), prefix_cache=trie)
    assert cq.generate(cq.quantize_model(tiny, "int8"), "It is a", 1, prefix_cache=trie).cached_tokens == 0


def test_what_was_found_may_be_evicted_meanwhile(tiny):
    trie = cq.TokenTrie(max_tokens=8)
    ids = tiny.tokenizer.encode(PROMPTS[1])
    cq.generate(tiny, ids, 1, prefix_cache=trie)

    def crowd_out(logits, rng):
        trie.insert(range(1000, 1008), np.zeros((8, *trie.lookup(ids)[1].shape[1:]), np.float32))
        return cq.greedy(logits, rng)

    out = cq.generate(tiny, ids, 1, prefix_cache=trie, sampler=crowd_out)
    assert out.cached_tokens == len(ids) - 1
    assert cq.generate(tiny, ids, 1, prefix_cache=trie).cached_tokens == len(ids) - 1
    trie.check_invariants()


def test_a_tree_built_without_rows_is_filled_in(tiny):
    trie = cq.TokenTrie()
    ids = tiny.tokenizer.encode(PROMPTS[1])
    trie.insert(ids)
    assert [cq.generate(tiny, ids, 1, prefix_cache=trie).cached_tokens for _ in range(2)] == [0, len(ids) - 1]


def test_a_very_low_temperature_is_greedy():
    logits = np.array([0.0, 3.0, 2.9], np.float32)
    assert cq.sample(temperature=1e-310)(logits, np.random.default_rng(0)) == 1


def test_sampling_is_repeatable_and_seeded(tiny):
    sampler = cq.sample(temperature=0.9, top_k=50, top_p=0.95)
    texts = [cq.generate(tiny, PROMPTS[3], 20, sampler=sampler, seed=seed).text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_sampler_draws_from_the_cut_softmax():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    rng = np.random.default_rng(0)

    def share(sampler):
        return np.bincount([sampler(logits, rng) for _ in range(4000)], minlength=4) / 4000

    np.testing.assert_allclose(share(cq.sample()), [0.5, 0.3, 0.15, 0.05], atol=0.03)
    np.testing.assert_allclose(share(cq.sample(top_k=2)), [0.625, 0.375, 0, 0], atol=0.03)
    np.testing.assert_allclose(share(cq.sample(top_p=0.8)), [0.625, 0.375, 0, 0], atol=0.03)
    np.testing.assert_allclose(share(cq.sample(temperature=0.5)), np.array([100, 36, 9, 1]) / 146, atol=0.03)
    assert share(cq.sample(temperature=1e-6))[0] == 1.0


def test_greedy_takes_the_first_of_equals():
    assert cq.greedy(np.array([0.0, 2.0, 2.0]), np.random.default_rng(0)) == 1


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"temperature": float("nan")}, {"top_k": 0}, {"top_k": 2.5}, {"top_p": 0.0}]
)
def test_impossible_sampling_is_refused(options):
    with pytest.raises(cq.SamplingError, match="need temperature > 0"):
        cq.sample(**options)


def test_the_context_is_checked_before_any_compute(tiny, monkeypatch):
    monkeypatch.setattr(type(tiny), "hidden_states", lambda *a: pytest.fail("computed before checking"))
    with pytest.raises(cq.ContextLengthError, match=r"1020 prompt tokens and 6 new ones need 1025 positions.*1024"):
        cq.generate(tiny, [5] * 1020, 6)
    with pytest.raises(cq.ContextLengthError, match=r"1100 prompt tokens"):
        cq.generate(tiny, [5] * 1100, 0)
    with pytest.raises(cq.TokenError, match="max_new_tokens must be a whole number of at least 0, got -1"):
        cq.generate(tiny, "x", -1)
    with pytest.raises(cq.TokenError, match=r"got 2\.5"):
        cq.generate(tiny, "x", 2.5)
    with pytest.raises(cq.TokenError):
        cq.generate(tiny, "", 5)
    with pytest.raises(cq.TokenError):
        cq.generate(tiny, [4096], 5)
    with pytest.raises(cq.FormatError, match="dense"):
        cq.generate(tiny, "x", 5, kv="sparse")


def test_the_very_edge_of_the_context(tiny):
    out = cq.generate(tiny, [5] * 1021, 4, stop_at_eos=False)
    assert len(out.token_ids) == 4  # the last new token needs no position


def test_the_largest_logits_are_those_of_a_stable_sort():
    rng = np.random.default_rng(0)
    for size in (1, 7, 300):
        for logits in (rng.standard_normal(size), rng.integers(0, 4, size), np.full(size, -np.inf)):
            values = logits.astype(np.float32)
            for count in {1, min(5, size), size}:
                expected = np.argsort(-values, kind="stable")[:count]
                assert generation._largest(values, count).tolist() == expected.tolist()
