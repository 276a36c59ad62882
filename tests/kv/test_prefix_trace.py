"""The diary of a prefix cache: what is written, that it replays, and what is refused."""

import contextlib
import json
import stat
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cachequant_lib as cq
from cachequant_lib.kv import policies, radix
from cachequant_lib.kv.trace import record, replay

ROW = 8


def rows_of(ids):
    return np.zeros((len(ids), 1))


def contents(cache):
    """Everything that says what will happen next: tokens, use, pins and hits of each node, in each namespace."""

    def told(node):
        path = b"".join(part.tokens for part in list(node.path())[::-1])
        return path, node.num_tokens, node.used, node.hits, node.pins

    return {name: sorted(map(told, root.walk())) for name, root in cache._roots.items()}


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def diary(tmp_path):
    """A short life: a miss, a hit held while others come, a refusal, evictions, a report."""
    path = tmp_path / "trace.jsonl"
    with record(cq.PrefixCache(5 * ROW), path) as cache:
        cache.match([1, 2, 3]).release()
        cache.insert([1, 2, 3], rows_of([1, 2, 3]))
        with cache.match([1, 2, 9]) as match:
            cache.insert([7] * 4, rows_of([7] * 4), ("ann", "x"))
            cache.insert([7] * 2, rows_of([7] * 2), ("ann", "x"))
        match.report(0.25)
        cache.insert([4, 5], rows_of([4, 5]))
        cache.evict(ROW)
    return path, cache


def test_a_trace_tells_each_event_with_its_size_and_time(diary):
    path, _ = diary
    lines = lines_of(path)
    assert [line["event"] for line in lines] == [
        *("begin", "match", "release", "insert", "match", "refuse", "insert", "insert", "release", "report"),
        *("drop", "insert", "drop", "evict", "end"),
    ]
    assert lines[0]["capacity_bytes"] == 40
    assert (lines[4]["token_ids"], lines[4]["hit_tokens"]) == ([1, 2, 9], 2)
    assert lines[5]["num_bytes"] == 4 * ROW
    assert (lines[7]["namespace"], lines[7]["inserted_tokens"]) == (["ann", "x"], 2)
    assert lines[9]["prefill_s"] == 0.25
    assert lines[13]["freed_bytes"] == ROW
    assert all(line["match_s"] > 0 for line in lines if line["event"] == "match")
    times = [line["at_s"] for line in lines]
    assert times == sorted(times)


def test_only_its_owner_can_read_a_trace(diary):
    assert stat.S_IMODE(diary[0].stat().st_mode) == 0o600


def test_a_replayed_cache_is_the_same_in_state_and_stats(diary):
    path, cache = diary
    again = replay(path)
    again.check_invariants()
    assert again.stats == cache.stats
    assert contents(again) == contents(cache)
    assert again.costs() == cache.costs()


def test_nothing_is_written_after_the_block(diary):
    path, cache = diary
    before = path.read_bytes()
    cache.match([1, 2, 3]).release()
    assert path.read_bytes() == before


def test_an_exception_still_ends_the_trace(tmp_path):
    cache = cq.PrefixCache(100)

    def fail():
        with record(cache, tmp_path / "x"):
            cache.insert([1], rows_of([1]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert replay(tmp_path / "x").stats == cache.stats


def test_a_trace_begins_with_a_new_cache(tmp_path):
    used, own = cq.PrefixCache(100), cq.PrefixCache(100, policies.LRU())
    used.match([1])
    for cache in (used, own):
        with pytest.raises(cq.CacheError, match="begins with a new cache"), record(cache, tmp_path / "x"):
            pass
    fresh = cq.PrefixCache(100)
    with record(fresh, tmp_path / "x"), pytest.raises(cq.CacheError, match="not recorded yet"):
        record(fresh, tmp_path / "y").__enter__()


def test_a_trace_that_is_cut_anywhere_is_refused(diary, tmp_path):
    text = diary[0].read_text()
    lines = text.splitlines(keepends=True)
    for kept in range(len(lines)):
        (tmp_path / "cut").write_text("".join(lines[:kept]))
        with pytest.raises(cq.CacheError, match="cut short" if kept else "no trace"):
            replay(tmp_path / "cut")
    for size in range(1, len(text) - 1, 7):
        (tmp_path / "cut").write_text(text[:size])
        with pytest.raises(cq.CacheError, match="cut"):
            replay(tmp_path / "cut")


def test_a_trace_without_one_of_its_lines_is_refused(diary, tmp_path):
    lines = diary[0].read_text().splitlines(keepends=True)
    for i in range(len(lines)):
        (tmp_path / "hole").write_text("".join(lines[:i] + lines[i + 1 :]))
        with pytest.raises(cq.CacheError, match="hole"):
            replay(tmp_path / "hole")


def test_a_trace_of_a_cache_that_behaves_in_another_way_names_the_line(diary, tmp_path):
    lines = lines_of(diary[0])
    for i, change in ((4, {"hit_tokens": 1}), (7, {"inserted_tokens": 1}), (10, {"evicted_tokens": 3})):
        changed = [*lines[:i], lines[i] | change, *lines[i + 1 :]]
        (tmp_path / "other").write_text("\n".join(map(json.dumps, changed)))
        with pytest.raises(cq.CacheError, match=rf"other, line {i + 1}: the trace says"):
            replay(tmp_path / "other")
    (tmp_path / "other").write_text("\n".join(map(json.dumps, [*lines[:-1], lines[-1] | {"stats": {"saved_s": 5.0}}])))
    with pytest.raises(cq.CacheError, match="the trace ends with"):
        replay(tmp_path / "other")


@pytest.mark.parametrize("text", ["", "hello", "[]", "{}", '{"event": "begin"}', '{"event": "begin", "format": "mine"}',
                                  "1", "null", '"event"', "\x00\xff"])  # fmt: skip
def test_a_foreign_file_is_refused(text, tmp_path):
    (tmp_path / "mine.txt").write_bytes(text.encode("latin-1"))
    with pytest.raises(cq.CacheError, match=r"mine\.txt"):
        replay(tmp_path / "mine.txt")
    with pytest.raises(FileNotFoundError):
        replay(tmp_path / "none")


def test_loading_a_snapshot_is_in_the_trace(tmp_path):
    old = cq.PrefixCache(100)
    for ids in ([1, 2, 3], [1, 2, 4], [8]):
        old.insert(ids, rows_of(ids))
    old.save(tmp_path / "snapshot")
    with record(cq.PrefixCache(100), tmp_path / "x") as cache:
        cache.load(tmp_path / "snapshot")
    again = replay(tmp_path / "x")
    assert again.stats == cache.stats
    assert contents(again) == contents(cache)


def test_requests_of_a_model_replay(tmp_path):
    tiny = cq.load("tiny")
    c = tiny.config
    room = 20 * c.num_layers * 2 * c.num_kv_heads * c.head_dim * 4
    with record(cq.PrefixCache(room), tmp_path / "x") as cache:
        for prompt in ("Elizabeth was", "The cat sat", "Elizabeth was surprised", "The cat sat on the mat") * 3:
            cq.generate(tiny, prompt, 3, prefix_cache=cache, keep_reply=True)
    again = replay(tmp_path / "x")
    assert again.stats == cache.stats
    assert again.stats.saved_s == cache.stats.saved_s
    assert contents(again) == contents(cache)
    again.evict(3 * ROW)
    assert replace(cache.stats, num_tokens=0) != again.stats


calls = st.tuples(st.sampled_from("imrevb"), st.lists(st.integers(0, 2), max_size=7), st.sampled_from(["", ("a", "b")]))


@given(st.lists(calls, max_size=40), st.sampled_from(["lru", "lfu", "size"]), st.integers(1, 12), st.integers(1, 3))
def test_any_life_replays(tmp_path_factory, life, policy, capacity, min_tokens):
    path = tmp_path_factory.mktemp("trace") / "x"
    held = []

    class Broken(cq.DenseKV):
        def read_into(self, start, stop, rows):
            raise OSError

    with record(cq.PrefixCache(capacity * ROW, policy, min_tokens=min_tokens), path) as cache:
        for call, ids, name in life:
            if call == "i":
                cache.insert(ids, two(ids), name)
            elif call == "m":
                held.append(cache.match(ids, name))
            elif call == "r" and held:
                match = held.pop(0)
                match.report(len(ids) / 7)
                match.release()
            elif call == "e":
                cache.evict(ROW * len(ids))
            elif call == "v":
                kv = cq.DenseKV(1, 1, 1, 20)
                with cache.match(ids, name) as match:
                    match.copy_into(kv)
            elif call == "b" and ids:
                kv = Broken(1, 1, 1, len(ids))
                kv.write_block(cq.KVBlock(two(ids)))
                with contextlib.suppress(OSError):
                    cache.insert(ids, kv, name)
    again = replay(path)
    again.check_invariants()
    assert again.stats == cache.stats
    assert contents(again) == contents(cache)
    assert again._clock == cache._clock
    assert [radix.unpack(token) for _, token in again._gone] == [radix.unpack(token) for _, token in cache._gone]


def two(ids):
    """Rows of one layer, one head, one number: 8 bytes, as float32 keys and values."""
    return np.zeros((len(ids), 1, 2, 1, 1), np.float32)
