"""What a prefix cache saves and spends: the rule, the pace it is learnt by, and what the counts of a cache say."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cachequant_lib as cq
from cachequant_lib.kv import ledger
from cachequant_lib.kv.ledger import Costs, Ledger, Pace

seconds = st.floats(1e-9, 10)


@given(seconds, seconds, seconds, st.floats(1.001, 1e6), st.integers(1, 10_000))
def test_at_the_break_even_nothing_is_gained_or_lost(lookup, copy, insert, times, num_tokens):
    costs = Costs(lookup, copy, insert, copy * times)
    found = costs.break_even(num_tokens)
    scale = lookup + found * costs.compute_s + num_tokens * insert
    assert abs(costs.gain_s(found, num_tokens)) <= 1e-9 * scale
    assert costs.gain_s(found + 1, num_tokens) > -1e-9 * scale
    assert costs.gain_s(found - 1, num_tokens) < 1e-9 * scale


def test_the_rule_by_hand():
    costs = Costs(lookup_s=2.0, copy_s=1.0, insert_s=1.0, compute_s=10.0)
    assert costs.gain_s(5, 20) == 5 * 9 - 2 - 15
    assert costs.break_even(18) == (2 + 18) / 10
    assert costs.break_even(0) == 0.2


@pytest.mark.parametrize("compute_s", [0.0, 0.5])
def test_what_is_cheaper_to_compute_than_to_copy_never_pays(compute_s):
    assert Costs(0.1, 3.0, 0.5, compute_s).break_even(100) == math.inf


def test_a_pace_is_the_price_of_one_token_more_and_not_the_share_of_a_pass():
    pace = Pace()
    pace.add(0, 10, 30.0 + 10 * 2.0)
    assert pace.per_token_s == 0  # one length tells nothing: 30 of the 50 s would be paid for a single token, too
    pace.add(0, 100, 30.0 + 100 * 2.0)
    assert pace.per_token_s == pytest.approx(2.0)


def test_one_slow_request_does_not_count_and_many_short_ones_do_not_push_out_a_long_one():
    pace = Pace()
    for n in (10, 10, 100, 100, 100):
        pace.add(0, n, 5.0 + n)
    pace.add(0, 10, 1e6)  # the compiler ran
    for _ in range(1000):
        pace.add(0, 10, 15.0)
    assert pace.per_token_s == pytest.approx(1.0)


def test_a_pace_is_never_negative():
    pace = Pace()
    pace.add(3, 10, 9.0)
    pace.add(4, 100, 1.0)
    assert (pace.per_token_s, pace.found) == (0, 7)


def test_paces_of_forgotten_namespaces_stay_in_the_sum(monkeypatch):
    monkeypatch.setattr(ledger, "MAX_PACES", 1)
    books = Ledger()
    for name in ("a", "b"):
        books.report(name, 5, 10, 10.0)
        books.report(name, 5, 100, 100.0)
    assert books.saved() == (pytest.approx(20.0), 20)
    assert books.pace_s("a") == 0
    assert books.pace_s("b") == pytest.approx(1.0)


def put(cache, ids, namespace=""):
    cache.insert(ids, np.zeros((len(ids), 1)), namespace)


def asked(cache, ids, prefill_s, namespace=""):
    with cache.match(ids, namespace) as match:
        pass
    match.report(prefill_s)
    put(cache, ids, namespace)


def test_a_cache_tells_what_it_spent_and_estimates_what_it_saved():
    cache = cq.PrefixCache(10_000)
    assert cache.stats.break_even_tokens is None
    asked(cache, range(100), 1 + 100.0)
    s = cache.stats
    assert (s.saved_s, s.break_even_tokens) == (0, None)
    assert s.match_s > 0 < s.insert_s
    asked(cache, range(110), 1 + 10.0)  # finds 100 of 110
    s = cache.stats
    assert s.saved_s == pytest.approx(100.0)
    assert s.spent_s == s.match_s + s.copy_s + s.insert_s < 1
    assert s.net_s == s.saved_s - s.spent_s
    costs = cache.costs()
    assert costs.compute_s == pytest.approx(1.0)
    assert costs.insert_s == s.insert_s / 110
    assert s.break_even_tokens == pytest.approx(costs.break_even(105))
    assert cache.costs("somebody else").compute_s == 0


def test_each_namespace_has_its_own_pace():
    cache = cq.PrefixCache(10_000)
    for name, pace in (("fp32", 1.0), ("int8", 3.0)):
        asked(cache, range(100), 100 * pace, name)
        asked(cache, range(110), 10 * pace, name)
        assert cache.costs(name).compute_s == pytest.approx(pace)
    assert cache.stats.saved_s == pytest.approx(400.0)


def test_too_short_to_pay_by_the_costs_so_far():
    cache = cq.PrefixCache(10_000)
    put(cache, [1, 2, 3, 4])
    assert cache.explain_miss([1, 9, 9]).reason == "different token"  # no pace is known
    cache._ledger.counts |= {"requests": 1, "match_s": 30.0, "insert_s": 0.0}
    for n in (10, 100):
        cache._ledger.report("", 0, n, 10.0 * n)
    found = cache.explain_miss([1, 9, 9])
    assert (found.reason, found.position) == ("too short", 1)  # it is served all the same
    assert found.message == "1 tokens are stored; by the costs so far, finding 3.0 would pay"
    assert cache.explain_miss([1, 2, 3, 9, 9]).reason == "different token"
    assert cache.explain_miss([9, 9, 9]).reason == "different token"


@pytest.fixture(scope="module")
def tiny():
    return cq.load("tiny")


def test_requests_report_what_they_computed(tiny):
    cache, text = (
        cq.PrefixCache(),
        "It is a truth universally acknowledged, that a single man must want a wife.",
    )
    outs = [cq.generate(tiny, prompt, 2, prefix_cache=cache) for prompt in (text, text + " However", text * 3)]
    assert [out.cached_tokens > 0 for out in outs] == [False, True, True]
    (name,) = cache._roots
    points = sorted(p for seen in cache._ledger._paces[name]._seen.values() for p in seen)
    assert points == sorted((out.prompt_tokens - out.cached_tokens, out.prefill_s) for out in outs)
    s = cache.stats
    assert s.copied_tokens == s.hit_tokens == sum(out.cached_tokens for out in outs)
    assert min(s.match_s, s.copy_s, s.insert_s) > 0


# ---- KV formats and their options ------------------------------------------------------------------------------------


class RoundedKV(cq.DenseKV):
    """A compressed cache in the small: mantissas are cut to so many bits, in what is stored and so in what is read."""

    format = "rounded"

    def __init__(self, *shape, bits):
        super().__init__(*shape)
        self.bits = bits

    @property
    def variant(self):
        return f"rounded, bits={self.bits}"

    def cut(self, x):
        return (x.view(np.uint32) & np.uint32(0xFFFFFFFF << (23 - self.bits) & 0xFFFFFFFF)).view(np.float32)

    def append(self, layer, k, v):
        super().append(layer, *(self.cut(np.ascontiguousarray(x, np.float32)) for x in (k, v)))

    read_into = cq.KVCache.read_into  # unpacked piece by piece

    def read_block(self, start, stop):
        rows = np.empty((stop - start, self.num_layers, 2, self.num_kv_heads, self.head_dim), np.float32)
        cq.DenseKV.read_into(self, start, stop, rows)
        return cq.KVBlock(rows)


def rounded(model, bits):
    c = model.config
    return RoundedKV(c.num_layers, c.num_kv_heads, c.head_dim, c.context_length, bits=bits)


def test_a_compressed_cache_is_served_and_each_option_only_by_its_own(tiny):
    cache, prompt = cq.PrefixCache(), "Elizabeth was surprised; but Mr. Darcy, who had been walking, said nothing."
    for kv in (lambda: "dense", lambda: rounded(tiny, 4), lambda: rounded(tiny, 8)):
        cold = cq.generate(tiny, prompt, 8, kv=kv())
        first, again = (cq.generate(tiny, prompt, 8, kv=kv(), prefix_cache=cache) for _ in range(2))
        assert (first.cached_tokens, again.cached_tokens) == (0, again.prompt_tokens - 1)
        assert first.token_ids == again.token_ids == cold.token_ids
        cache.check_invariants()
    assert len(cache._roots) == 3


def test_every_format_of_the_library_works_behind_a_prefix_cache(tiny):
    from cachequant_lib.model.base import KV_FORMATS

    cache, prompt = cq.PrefixCache(), "She had been a friend of the family for many years, and was fond of " * 6
    for kv in KV_FORMATS:
        cq.generate(tiny, prompt, 1, kv=kv, prefix_cache=cache)
        own, other = tiny.new_kv(kv), tiny.new_kv(kv)
        outs = [cq.generate(tiny, prompt, 9, kv=x, prefix_cache=cache, stop_at_eos=False) for x in (own, other)]
        assert [out.cached_tokens for out in outs] == [out.prompt_tokens - 1 for out in outs]
        assert outs[0].token_ids == outs[1].token_ids
        assert own.length == outs[0].prompt_tokens + 8
    assert len(cache._roots) == len(KV_FORMATS)
    cache.check_invariants()


# ---- Replies ---------------------------------------------------------------------------------------------------------


def test_a_kept_reply_serves_the_next_turn_and_changes_no_text(tiny):
    ids = tiny.tokenizer.encode("Mr. Bennet was among the earliest of those who waited on Mr. Bingley.")
    line = tiny.tokenizer.encode(" He had")
    for cache in (cq.PrefixCache(), cq.TokenTrie()):
        first = cq.generate(tiny, ids, 6, prefix_cache=cache, keep_reply=True, stop_at_eos=False)
        following = [*ids, *first.token_ids, *line]
        second = cq.generate(tiny, following, 6, prefix_cache=cache, keep_reply=True)
        assert second.cached_tokens == len(ids) + 5  # the last new token was never fed
        assert second.token_ids == cq.generate(tiny, following, 6).token_ids
        cache.check_invariants()
    cache = cq.PrefixCache()
    cq.generate(tiny, ids, 0, prefix_cache=cache, keep_reply=True)
    assert cache.stats.num_tokens == len(ids)
