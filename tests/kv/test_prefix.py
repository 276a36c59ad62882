"""PrefixCache, promise by promise: what matches, who is kept apart, what is never evicted, what is evicted first."""

import threading
from dataclasses import replace

import numpy as np
import pytest

import cachequant_lib as cq
from cachequant_lib.kv import arena, policies, radix, store, trace

ROW = 8  # bytes: one float64
A, B, C, D = 1, 2, 3, 4


def rows_of(ids):
    """A row that tells which prefix it was computed for, as real keys and values do."""
    return np.array([hash(tuple(ids[: i + 1])) % 2**31 for i in range(len(ids))], np.float64)[:, None]


def cache_of(num_tokens, *args, **options):
    return cq.PrefixCache(num_tokens * ROW, *args, **options)


def put(cache, ids, namespace=""):
    stored = cache.insert(ids, rows_of(ids), namespace)
    cache.check_invariants()
    return stored


def matched(cache, ids, namespace=""):
    with cache.match(ids, namespace) as match:
        return match.length


def known(cache, ids, namespace=""):
    """Tokens stored of this beginning, without touching anything."""
    return radix.find(cache._roots[namespace], radix.pack(ids))[2]


# ---- What matches ----------------------------------------------------------------------------------------------------


def test_the_longest_common_beginning_but_never_the_last_token():
    cache = cache_of(100)
    assert matched(cache, [1, 2, 3]) == 0
    assert put(cache, [1, 2, 3, 4]) == 4
    assert put(cache, [1, 2, 3, 4]) == 0
    assert put(cache, [1, 2, 5]) == 1
    assert matched(cache, [1, 2, 3, 4]) == 3
    assert matched(cache, [1, 2, 3, 4, 9]) == 4
    assert matched(cache, [1, 2, 9]) == 2
    assert matched(cache, [1, 2, 5, 6]) == 3
    assert [matched(cache, ids) for ids in ([1], [], [2, 3], [1, 2])] == [0, 0, 0, 1]
    assert cache.stats.num_tokens == 5


def test_the_rows_are_those_of_the_tokens():
    cache = cache_of(100)
    put(cache, [1, 2, 3, 4])
    put(cache, [1, 2, 5, 6])
    with cache.match([1, 2, 5, 6, 7]) as match:
        assert (match.block().rows == rows_of([1, 2, 5, 6])).all()


def test_rows_are_copied_in_and_out():
    cache = cache_of(10)
    mine = rows_of([1, 2, 3])
    cache.insert([1, 2, 3], mine)
    mine[:] = 0
    with cache.match([1, 2, 3, 4]) as match:
        got = match.block().rows
        got[:] = 0
        assert (match.block().rows == rows_of([1, 2, 3])).all()


def test_tokens_already_there_keep_their_rows():
    cache = cache_of(10)
    put(cache, [1, 2, 3])
    assert cache.insert([1, 2, 3, 4], np.zeros((4, 1))) == 1
    with cache.match([1, 2, 3, 4, 5]) as match:
        assert (match.block().rows[:3] == rows_of([1, 2, 3])).all()
        assert match.block().rows[3] == 0


def test_containers_are_equal():
    import torch

    ids = [5, 6, 7, 300, 50_256]
    forms = [list, tuple, np.array, lambda x: np.array(x, np.int32), lambda x: np.array(x, np.uint64), torch.tensor]
    forms += [lambda x: np.array(x, ">i4"), lambda x: [np.int64(i) for i in x], lambda x: list(torch.tensor(x))]
    for write in forms:
        cache = cache_of(10)
        cache.insert(write(ids), rows_of(ids))
        assert [matched(cache, read(ids)) for read in forms] == [4] * len(forms)


@pytest.mark.parametrize("ids", ["abc", [1.0, 2.0], [[1, 2]], np.array(3), [2**63], np.array([2**63], np.uint64), [-1],
                                 [None], np.array([True])])  # fmt: skip
def test_what_is_no_token_id_is_refused(ids):
    with pytest.raises(cq.TokenError):
        cache_of(10).match(ids)
    with pytest.raises(cq.TokenError):
        cache_of(10).insert(ids, np.zeros((1, 1)))


def test_unequal_tokens_never_match_whatever_their_bytes():
    cache = cache_of(10)
    put(cache, [2**32, 1])  # the bytes of 32-bit ids would be 0 1 1 0
    assert [matched(cache, ids) for ids in ([0, 1, 1, 0], [1, 2**32], [2**32 + 1, 1, 1])] == [0, 0, 0]
    assert matched(cache, [2**32, 1, 0]) == 2


def test_short_matches_can_be_left_alone():
    cache = cache_of(10, min_tokens=3)
    put(cache, [1, 2, 3, 4])
    assert [matched(cache, [1, 2, 9]), matched(cache, [1, 2, 3, 9])] == [0, 3]
    assert cache.stats.hits == 1


def test_counts():
    cache = cache_of(4)
    put(cache, [1, 2, 3])
    matched(cache, [1, 2, 9, 9])
    matched(cache, [7])
    put(cache, [5, 6])
    put(cache, range(9))
    s = cache.stats
    assert (s.requests, s.hits, s.prompt_tokens, s.hit_tokens) == (2, 1, 5, 2)
    assert (s.inserted_tokens, s.evicted_tokens, s.evictions, s.refused) == (5, 1, 1, 1)
    assert (s.num_tokens, s.bytes_used, s.bytes_pinned, s.hit_rate) == (4, 4 * ROW, 0, 0.4)
    assert cq.PrefixCache().stats.hit_rate == 0.0


def test_long_runs_are_cut_into_nodes_and_found_whole():
    cache, ids = cache_of(20_000), list(range(10_000))
    put(cache, ids)
    assert sum(1 for _ in cache._roots[""].walk()) == -(-10_000 // radix.MAX_RUN)
    assert matched(cache, [*ids[:5000], 0]) == 5000
    with cache.match(ids) as match:
        assert (match.block().rows == rows_of(ids[:-1])).all()


# ---- Namespaces ------------------------------------------------------------------------------------------------------


def test_one_tenant_never_meets_the_other_and_still_hits_itself():
    cache = cache_of(100)
    put(cache, [1, 2, 3], "a")
    assert matched(cache, [1, 2, 3], "b") == 0
    assert matched(cache, [1, 2, 3], "a") == 2
    put(cache, [1, 2, 9], "b")
    assert [matched(cache, [1, 2, 3, 4], name) for name in "ab"] == [3, 2]
    assert matched(cache, [1, 2, 3], ("a",)) == 0  # a tuple is another name than a string
    assert matched(cache, [1, 2, 3]) == 0


def test_each_namespace_has_its_shape_and_all_share_the_cap():
    cache = cache_of(10)
    put(cache, [1, 2, 3, 4], "a")
    assert cache.insert([1, 2, 3], np.ones((3, 2, 2), np.float32), "b") == 3  # 16 bytes a row
    cache.check_invariants()
    assert cache.bytes_used == 4 * ROW + 3 * 16
    with pytest.raises(cq.CacheError, match=r"namespace 'a' holds float64 rows of shape \(1,\), got float32 rows"):
        cache.insert([5], np.ones((1, 2, 2), np.float32), "a")
    cache.insert([9, 8, 7, 6, 5], np.ones((5, 2, 2), np.float32), "b")  # memory moves from one shape to the other
    cache.check_invariants()
    assert (matched(cache, [1, 2, 3, 4, 5], "a"), cache.stats.bytes_used) == (0, 5 * 16)


def test_names_of_empty_namespaces_are_forgotten(monkeypatch):
    monkeypatch.setattr(store, "GONE_LIMIT", 10)
    cache = cache_of(1)
    for tenant in range(100):
        put(cache, [1], f"tenant {tenant}")
    assert len(cache._roots) <= 12
    assert cache.explain_miss([1, 2], "tenant 98").reason == "evicted"


# ---- Pins ------------------------------------------------------------------------------------------------------------


def test_what_is_held_does_not_change_while_five_times_the_capacity_passes():
    cache = cache_of(50)
    put(cache, range(20))
    with cache.match(range(20)) as match:
        before = match.block().rows
        for i in range(50):
            put(cache, [100 + i] * 5)
            assert cache.bytes_used <= cache.capacity_bytes
        assert (match.block().rows == before).all()
        assert cache.stats.bytes_pinned == 20 * ROW
    assert cache.stats.bytes_pinned == 0
    for i in range(10):
        put(cache, [200 + i] * 5)
    assert matched(cache, range(20)) == 0


def test_a_match_that_was_parted_meanwhile_is_still_held_whole():
    cache = cache_of(8)
    put(cache, [1, 2, 3, 4, 5, 6])
    match = cache.match([1, 2, 3, 4, 5, 6, 7])
    put(cache, [1, 2, 9])
    for i in range(20):
        put(cache, [100 + i] * 2)
    assert (match.block().rows == rows_of([1, 2, 3, 4, 5, 6])).all()
    match.release()
    assert cache.evict(10**9) == 8 * ROW
    cache.check_invariants()


def test_release_twice_raises():
    cache = cache_of(10)
    put(cache, [1, 2, 3])
    first, second = cache.match([1, 2, 3]), cache.match([1, 2, 3])
    first.release()
    with pytest.raises(cq.CacheError, match="released already"):
        first.release()
    with pytest.raises(cq.CacheError, match="has been released"):
        first.block()
    with pytest.raises(cq.CacheError, match="has been released"):
        first.copy_into(cq.DenseKV(1, 1, 1, 5))
    assert cache.evict(10**9) == 0  # the second still holds
    second.release()
    assert cache.evict(10**9) == 3 * ROW
    nothing = cache.match([1, 2, 3])
    with pytest.raises(cq.CacheError, match="nothing was found"):
        nothing.block()
    assert nothing.copy_into(cq.DenseKV(1, 1, 1, 5)) == 0
    nothing.release()
    with pytest.raises(cq.CacheError, match="released"):
        nothing.release()
    with pytest.raises(cq.CacheError, match="released"):
        nothing.copy_into(cq.DenseKV(1, 1, 1, 5))


def test_an_exception_inside_with_releases():
    cache = cache_of(10)
    put(cache, [1, 2, 3])
    with pytest.raises(RuntimeError, match="boom"), cache.match([1, 2, 3]):
        raise RuntimeError("boom")
    assert cache.stats.bytes_pinned == 0
    with cache.match([1, 2, 3]) as match:
        match.release()  # leaving the block is no second release
    assert cache.stats.bytes_pinned == 0


def test_storing_a_prompt_again_while_it_is_held():
    cache = cache_of(10)
    put(cache, [1, 2, 3])
    with cache.match([1, 2, 3, 4]) as match:
        assert put(cache, [1, 2, 3]) == 0
        assert put(cache, [1, 2, 3, 4]) == 1
        assert (match.block().rows == rows_of([1, 2, 3])).all()
    assert cache.evict(10**9) == 4 * ROW


# ---- The cap, and who goes first -------------------------------------------------------------------------------------


def test_what_cannot_fit_is_refused_counted_and_harms_nobody():
    cache = cache_of(5)
    put(cache, [1, 2, 3])
    assert put(cache, range(10, 16)) == 0
    assert put(cache, [1, 2, 3, 4, 5, 6]) == 0
    assert (cache.stats.refused, cache.stats.evictions, matched(cache, [1, 2, 3, 4])) == (2, 0, 3)
    with cache.match([1, 2, 3, 4]):
        assert put(cache, [7, 8, 9]) == 0
        assert put(cache, [7, 8]) == 2
    assert cache.stats.refused == 3
    assert cq.PrefixCache(ROW - 1).insert([1], np.zeros((1, 1))) == 0


@pytest.mark.parametrize("policy", ["lru", "lfu", "size"])
def test_the_cap_holds_at_every_step(policy, monkeypatch):
    seen = []
    fill = arena.RowPool.fill

    def watch(pool, rows, read, first):
        seen.append((cache.bytes_used, cache._arena.bytes_reserved))
        fill(pool, rows, read, first)

    monkeypatch.setattr(arena.RowPool, "fill", watch)
    cache, rng = cache_of(30, policy), np.random.default_rng(0)
    for _ in range(500):
        put(cache, rng.integers(0, 3, rng.integers(1, 12)).tolist())
        assert cache.bytes_used <= cache.capacity_bytes
    assert max(max(pair) for pair in seen) == 30 * ROW
    assert cache.stats.evictions > 100


def test_only_leaves_go_and_the_chain_stays_reachable():
    cache = cache_of(10)
    put(cache, [A, B, C])
    put(cache, [A, D])
    matched(cache, [A, B, C, 0])  # C is the one used last
    order = []
    while cache.bytes_used:
        assert cache.evict(1) == ROW
        cache.check_invariants()
        order.append((known(cache, [A, B, C]), known(cache, [A, D])))
    assert order == [(3, 1), (2, 1), (1, 1), (0, 0)]


def test_a_parent_used_by_itself_is_younger_than_its_children_were():
    cache = cache_of(4)
    put(cache, [A])
    put(cache, [A, B])
    put(cache, [C, D])
    matched(cache, [A, 9])
    put(cache, [7])  # B is the oldest leaf
    put(cache, [8, 9])  # then C and D; A was used after them
    assert (known(cache, [A, B]), known(cache, [C, D])) == (1, 0)


def test_eviction_takes_from_the_end_only_what_is_needed():
    cache = cache_of(10)
    put(cache, range(10))
    put(cache, [50, 51, 52])
    assert known(cache, range(10)) == 7
    assert (cache.evict(0), cache.evict(ROW + 1), known(cache, range(10))) == (0, 2 * ROW, 5)


def test_lru_forgets_the_oldest_lfu_the_rarest():
    for policy, kept in (("lru", 2), ("lfu", 1)):
        cache = cache_of(4, policy)
        put(cache, [1, 1])
        for _ in range(5):
            matched(cache, [1, 1, 0])
        put(cache, [2, 2])
        put(cache, [3, 3])
        assert [ids for ids in (1, 2) if known(cache, [ids, ids])] == [kept]


def test_size_forgets_the_long_one_first_but_not_for_ever():
    cache = cache_of(20, "size")
    put(cache, range(100, 114))
    put(cache, [1, 2])
    put(cache, [3, 4])
    put(cache, [5, 6, 7])
    assert (known(cache, [1, 2]), known(cache, range(100, 114))) == (2, 13)
    for i in range(200):  # what was used once, long ago, does go in the end
        put(cache, [1000 + i] * 3)
    assert known(cache, [1, 2]) == 0


def test_a_policy_of_ones_own():
    class MostRecent(policies.LRU):
        def victim(self):
            node = self._ends.previous
            while node.children:
                node = node.previous
            return None if node is self._ends else node

    cache = cache_of(4, MostRecent())
    for ids in ([1, 1], [2, 2], [3, 3]):
        put(cache, ids)
    assert [known(cache, [i, i]) for i in (1, 2, 3)] == [2, 0, 2]


def test_slabs_of_memory_come_as_needed_and_are_used_again(monkeypatch):
    monkeypatch.setattr(arena, "SLAB_BYTES", 4 * ROW)
    monkeypatch.setattr(arena, "SLABS", 1)
    cache = cache_of(10)
    for ids, reserved in (([1], 4), ([2, 3, 4, 5], 8), ([6, 7, 8, 9], 10), ([10] * 10, 10)):
        put(cache, ids)
        assert cache._arena.bytes_reserved == reserved * ROW
    with cache.match([10] * 11) as match:
        assert (match.block().rows == rows_of([10] * 10)).all()


def test_rows_that_lie_side_by_side_are_copied_together():
    cache = cache_of(100)
    for i in range(4):
        put(cache, [i] * 3)
    cache.evict(3 * ROW)
    put(cache, [9] * 50)  # three rows that were free again, the others new
    (node,) = [node for node in cache._roots[""].walk() if node.num_tokens == 50]
    assert len(list(node.pool.pieces(node.rows))) <= 2 + 50 // node.pool.slab_rows


# ---- Rows from and to KV caches --------------------------------------------------------------------------------------


def filled(num_tokens, shape=(3, 2, 4), seed=0):
    num_layers, num_kv_heads, head_dim = shape
    kv = cq.DenseKV(*shape, capacity=num_tokens + 5)
    rng = np.random.default_rng(seed)
    kv.write_block(cq.KVBlock(rng.normal(size=(num_tokens, num_layers, 2, num_kv_heads, head_dim)).astype(np.float32)))
    return kv


def test_from_one_kv_cache_to_another(monkeypatch):
    monkeypatch.setattr(arena, "SLAB_BYTES", 1000)  # five rows
    kv, cache = filled(40), cq.PrefixCache(60 * 192)
    cache.insert(range(23), kv)  # the first 23 of its positions
    cache.insert(range(37), kv)
    fresh = filled(2, seed=1)
    with cache.match(range(40)) as match:
        assert match.length == 37
        with pytest.raises(cq.CapacityError):
            match.copy_into(fresh)
        assert fresh.length == 2
        with pytest.raises(cq.FormatError):
            match.copy_into(cq.DenseKV(3, 2, 5, 50))
        empty = cq.DenseKV(3, 2, 4, 37)
        assert match.copy_into(empty) == 37
    assert (empty.read_block(0, 37).rows == kv.read_block(0, 37).rows).all()
    assert cache.insert(range(37), empty) == 0


def test_a_block_is_as_good_as_rows():
    cache, block = cq.PrefixCache(), filled(3).read_block(0, 3)
    assert cache.insert([1, 2, 3], block) == 3
    with cache.match([1, 2, 3, 4]) as match:
        assert (match.block().rows == block.rows).all()
        assert match.block().keys.shape == (3, 3, 2, 4)


@pytest.mark.parametrize("policy", ["lru", "lfu", "size"])
def test_what_went_wrong_on_the_way_in_leaves_the_cache_as_it_was(policy):
    class Failing(cq.DenseKV):
        def read_into(self, start, stop, rows):
            raise KeyboardInterrupt

    kv = Failing(3, 2, 4, 10)
    kv.write_block(filled(6).read_block(0, 6))
    cache = cq.PrefixCache(10 * 192, policy)
    cache.insert([1, 2, 3, 4], filled(6))
    before = cache.stats
    for ids in ([1, 2, 7, 8], [1, 2, 3, 4, 5], [9, 8]):
        with pytest.raises(KeyboardInterrupt):
            cache.insert(ids, kv)
        cache.check_invariants()
    assert replace(cache.stats, insert_s=before.insert_s) == before  # the time was spent all the same
    assert cache.insert(range(10, 16), filled(6)) == 6  # no row was lost


def test_rows_that_do_not_belong_are_refused():
    cache = cache_of(10)
    put(cache, [1, 2])
    with pytest.raises(cq.CacheError, match="rows begin at token 3, but only the first 2 tokens are stored"):
        cache.insert([1, 2, 3, 4], rows_of([1]), start=3)
    with pytest.raises(cq.CacheError, match=r"expected 2 rows for tokens 2\.\.4"):
        cache.insert([1, 2, 3, 4], rows_of([1, 2, 3]), start=2)
    with pytest.raises(cq.CacheError, match=r"start must lie in 0\.\.2, got 3"):
        cache.insert([1, 2], rows_of([]), start=3)
    with pytest.raises(cq.CacheError, match="the prompt has 7 tokens, but the KV cache holds 6 positions"):
        cache.insert(range(7), filled(6))
    with pytest.raises(cq.CacheError, match="cannot be stored"):
        cache.insert([1], np.zeros((1, 0)))
    with pytest.raises(cq.CacheError, match="cannot be stored"):
        cache.insert([1], np.array([None]))
    assert cache.stats.num_tokens == 2
    cache.check_invariants()


def test_settings_that_make_no_sense():
    with pytest.raises(cq.CacheError, match="must be at least 1, got 0, 1"):
        cq.PrefixCache(0)
    with pytest.raises(cq.CacheError, match="must be at least 1, got 8, 0"):
        cq.PrefixCache(8, min_tokens=0)
    with pytest.raises(cq.CacheError, match="no policy 'fifo'; the policies are 'lru', 'lfu', 'size'"):
        cq.PrefixCache(8, "fifo")


# ---- Why not ---------------------------------------------------------------------------------------------------------


def test_every_reason_for_a_miss():
    cache = cache_of(9, min_tokens=2)
    put(cache, [1, 2, 3, 4])
    put(cache, [1, 2, 5])
    put(cache, [7, 8], "other")

    def why(ids, namespace=""):
        found = cache.explain_miss(ids, namespace)
        return found.reason, found.position

    before = cache.stats
    assert why([1, 2, 3, 4]) == ("nothing", 3)
    assert why([1, 2, 9, 4]) == ("different token", 2)
    assert why([1, 2, 3, 9, 4]) == ("different token", 3)
    assert cache.explain_miss([1, 2, 9, 4]).message == ("at position 2 the prompt has token 9; stored here: 3, 5")
    assert why([1, 2, 3, 4, 5, 6]) == ("not stored", 4)
    assert why([7, 8, 9]) == ("other namespace", 0)
    assert why([1, 2, 3], "nobody") == ("other namespace", 0)
    assert why([6, 6, 6], "nobody") == ("not stored", 0)
    assert why([1, 9, 9]) == ("too short", 0)
    assert why([1, 2]) == ("too short", 0)
    assert why([1]) == why([]) == ("nothing", 0)
    assert cache.stats == before  # to ask is no use
    put(cache, [8, 8, 8, 8], "third")
    assert why([1, 2, 3, 4, 5]) == ("evicted", 2)
    assert why([1, 2, 3, 9, 5]) == ("evicted", 2)
    put(cache, [1, 2, 3, 4])
    assert why([1, 2, 3, 4]) == ("nothing", 3)


def test_only_what_stood_at_this_place_was_evicted_from_it():
    cache = cache_of(10)
    put(cache, [1, 2, 3, 4])
    cache.evict(ROW)
    assert cache.explain_miss([1, 2, 3, 4, 0]).reason == "evicted"
    cache.evict(ROW)
    assert cache.explain_miss([1, 2, 3, 4, 0]).reason == "evicted"
    assert cache.explain_miss([1, 2, 4, 0]).reason == "not stored"


# ---- Threads ---------------------------------------------------------------------------------------------------------


def test_eight_threads_on_one_cache(tmp_path):
    cache = cq.PrefixCache(40 * ROW)
    errors = []
    ready = threading.Barrier(8)

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            ready.wait(timeout=60)
            for _ in range(300):
                ids = rng.integers(0, 3, rng.integers(1, 15)).tolist()
                tenant = str(rng.integers(2))
                with cache.match(ids, tenant) as match:
                    if match.length:
                        assert (match.block().rows == rows_of(ids)[: match.length]).all()
                cache.insert(ids, rows_of(ids), tenant)
                assert cache.bytes_used <= cache.capacity_bytes
                if rng.random() < 0.05:
                    cache.evict(3 * ROW)
                    cache.explain_miss(ids, tenant)
                    cache.check_invariants()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    with trace.record(cache, tmp_path / "trace"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert trace.replay(tmp_path / "trace").stats == cache.stats  # all of it happened in one order, that of the lines
    cache.check_invariants()
    stats = cache.stats
    assert (stats.requests, stats.bytes_pinned) == (8 * 300, 0)
    assert stats.evictions > 0
    assert stats.hits > 0


@pytest.mark.parametrize("namespace", [3, None, ["a"], ("a", ("b", "c"))])
def test_a_namespace_is_text(namespace):
    cache = cq.PrefixCache()
    for use in (cache.match, cache.explain_miss, lambda ids, name: cache.insert(ids, np.zeros((2, 1)), name)):
        with pytest.raises(cq.CacheError, match="a string or a tuple of strings"):
            use([1, 2], namespace)
    assert cache.bytes_used == 0
