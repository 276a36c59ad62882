"""PrefixCache against a plain set of prefixes: random requests, pins, evictions, two tenants, under a tiny cap.

The oracle knows every stored prefix by itself and finds what to evict by looking at all of them. For "lru" it predicts
the contents after each step exactly; for the other policies it checks that no more went than was said, that nothing
was left without its beginning, and that nothing pinned went.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import cachequant_lib as cq
from cachequant_lib.kv import arena, base, radix, trace

CAPACITY, MAX_RUN, SLAB_ROWS, STEPS = 12, 3, 5, 50
ROW_BYTES = 8


def rows_of(name, ids):
    """A row that tells whose it is and which prefix it was computed for, as real keys and values do."""
    told = [hash((name, *ids[: i + 1])) % 2**48 for i in range(len(ids))]
    halves = np.array([divmod(value, 2**24) for value in told], np.float32)
    return halves.reshape(-1, 1, 2, 1, 1)  # (T, 2) -> (T, L, 2, Hkv, D)


class BrokenKV(cq.DenseKV):
    """A KV cache that fails once it has been read for two tokens; unpacked in pieces, as a compressed one."""

    num_read = 0
    read_into = cq.KVCache.read_into

    def read_block(self, start, stop):
        self.num_read += stop - start
        if self.num_read > 2:
            raise OSError("gone")
        rows = np.stack([self.keys[:, start:stop], self.values[:, start:stop]], axis=1)  # (L, 2, T, Hkv, D)
        return cq.KVBlock(np.moveaxis(rows, 2, 0))


class Oracle:
    """Every stored prefix, as ``(tenant, token, token, ...)``, and where the runs of the real tree end."""

    def __init__(self):
        self.live, self.ends, self.used, self.pinned = set(), set(), {}, []
        self.clock = 0

    def longest(self, name, ids):
        return max(n for n in range(len(ids) + 1) if n == 0 or (name, *ids[:n]) in self.live)

    def end_of(self, prefix):
        """The last prefix of the run that this one is in: a use counts for the whole run."""
        while prefix not in self.ends:
            (prefix,) = [p for p in self.live if p[:-1] == prefix]
        return prefix

    def use(self, prefix):
        if len(prefix) > 1:
            self.clock += 1
            self.used[prefix] = self.clock

    def held(self, *also):
        return {p[: n + 1] for p in [*self.pinned, *also] for n in range(1, len(p))}

    def leaves(self):
        inner = {p[:-1] for p in self.live}
        return [p for p in self.live if p not in inner]

    def evict_one(self, *also):
        """Drop the last token of the least recently used leaf that is not held; say whether there was one."""
        free = [p for p in self.leaves() if p not in self.held(*also)]
        if not free:
            return False
        victim = min(free, key=lambda p: self.used.get(p, 0))
        self.live.remove(victim)
        self.ends.remove(victim)
        before, used = victim[:-1], self.used.pop(victim, 0)
        if len(before) > 1:
            self.ends.add(before)
            self.used[before] = max(self.used.get(before, 0), used)
        return True

    def insert(self, name, ids, fails=False):
        """Return how many tokens the real cache should store."""
        stored = self.longest(name, ids)
        trunk, new = (name, *ids[:stored]), len(ids) - stored
        if new:
            if stored:
                self.ends.add(trunk)
            if new > CAPACITY - len(self.live) and new > CAPACITY - len(self.held(trunk)):
                new = 0
            while len(self.live) + new > CAPACITY:
                assert self.evict_one(trunk)
        else:
            trunk = self.end_of(trunk) if stored else trunk
        if fails:
            new = 0
        for n in range(stored, stored + new):
            self.live.add((name, *ids[: n + 1]))
            if (n - stored) % MAX_RUN == MAX_RUN - 1 or n == len(ids) - 1:
                self.ends.add((name, *ids[: n + 1]))
        if new:
            self.use((name, *ids))
        if trunk not in self.pinned:
            self.use(trunk)
        return new


class PrefixMachine(RuleBasedStateMachine):
    policy = "lru"

    @initialize()
    def start(self):
        self.cache = cq.PrefixCache(CAPACITY * ROW_BYTES, self.policy)
        self.folder = Path(tempfile.mkdtemp())
        self.diary = trace.record(self.cache, self.folder / "trace")
        self.diary.__enter__()
        self.oracle = Oracle()
        self.matches = []
        self.requests = 0

    prompts = st.lists(st.integers(0, 2), max_size=9)
    names = st.sampled_from(["ann", ("model", "bob")])

    @rule(name=names, ids=prompts, data=st.data())
    def insert(self, name, ids, data):
        start = data.draw(st.integers(0, self.oracle.longest(name, ids)))
        before = self.cache.stats
        expected = self.oracle.insert(name, ids) if self.policy == "lru" else None
        stored = self.cache.insert(ids, rows_of(name, ids)[start:], name, start)
        assert expected in (None, stored)
        if self.policy != "lru":
            self.settle(before, name, ids, stored)

    @rule(name=names, ids=prompts)
    def match(self, name, ids):
        match = self.cache.match(ids, name)
        self.requests += 1
        assert match.length == self.oracle.longest(name, ids[:-1])
        prefix = (name, *ids[: match.length])
        if match.length:
            assert (match.block().rows == rows_of(name, ids)[: match.length]).all()
            prefix = self.oracle.end_of(prefix) if self.policy == "lru" else prefix
        self.matches.append((match, prefix, rows_of(name, ids)[: match.length]))
        self.oracle.pinned.append(prefix)

    @precondition(lambda self: self.matches)
    @rule(data=st.data())
    def release(self, data):
        match, prefix, rows = self.matches.pop(data.draw(st.integers(0, len(self.matches) - 1)))
        assert match.length == 0 or (match.block().rows == rows).all()
        match.release()
        self.oracle.pinned.remove(prefix)
        if prefix not in self.oracle.pinned:
            self.oracle.use(prefix)
        with pytest.raises(cq.CacheError, match="released"):
            match.release()

    @rule(num_rows=st.integers(1, 6))
    def evict(self, num_rows):
        before = self.cache.stats
        freed = self.cache.evict(num_rows * ROW_BYTES - 7)
        if self.policy == "lru":
            assert freed == ROW_BYTES * sum(self.oracle.evict_one() for _ in range(num_rows))
        else:
            assert freed == ROW_BYTES * (self.cache.stats.evicted_tokens - before.evicted_tokens)
            self.settle(before)

    @rule(name=names, ids=prompts)
    def explain(self, name, ids):
        found = self.cache.explain_miss(ids, name)
        assert found.position == self.oracle.longest(name, ids[:-1])
        assert (found.reason == "nothing") == (found.position == max(len(ids) - 1, 0))

    @rule(name=names, ids=st.lists(st.integers(0, 2), min_size=3, max_size=9))
    def insert_from_a_broken_source(self, name, ids):
        """Rows that cannot be read change nothing but the order, and what had to go to make room."""
        before, num_new = self.cache.stats, len(ids) - self.oracle.longest(name, ids)
        kv = BrokenKV(1, 1, 1, len(ids))
        kv.write_block(cq.KVBlock(rows_of(name, ids)))
        fails = num_new > 2
        expected = self.oracle.insert(name, ids, fails) if self.policy == "lru" else None
        try:
            stored = self.cache.insert(ids, kv, name)
            assert not fails or self.cache.stats.refused > before.refused
        except OSError:
            assert fails
            stored = 0
        assert expected in (None, stored)
        if self.policy != "lru":
            self.settle(before, name, ids, stored)

    def settle(self, before, name=None, ids=(), stored=0):
        """Take over what the real cache dropped, after checking that it was allowed to."""
        kept, oracle = self.stored(), self.oracle
        oracle.live |= {(name, *ids[: n + 1]) for n in range(len(ids) - stored, len(ids))}
        lost = oracle.live - kept
        assert len(lost) == self.cache.stats.evicted_tokens - before.evicted_tokens
        assert not lost & oracle.held()
        assert kept <= oracle.live
        oracle.live = kept

    def stored(self, cache=None):
        """Every prefix in the real tree."""
        found = set()
        for name, root in (cache or self.cache)._roots.items():
            for node in root.walk():
                path = radix.unpack(b"".join(part.tokens for part in list(node.path())[::-1]))
                found |= {(name, *path[: n + 1]) for n in range(len(path))}
        return found

    @invariant()
    def holds(self):
        cache = self.cache
        cache.check_invariants()
        assert self.stored() == self.oracle.live
        assert cache.bytes_used == len(self.oracle.live) * ROW_BYTES <= CAPACITY * ROW_BYTES
        assert cache.stats.requests == self.requests
        assert cache._arena.bytes_reserved <= CAPACITY * ROW_BYTES

    def teardown(self):
        for match, _, _ in self.matches:
            match.release()
        if hasattr(self, "cache"):
            self.diary.__exit__(None, None, None)
            again = trace.replay(self.folder / "trace")
            shutil.rmtree(self.folder)
            assert again.stats == self.cache.stats
            assert self.stored(again) == self.oracle.live
            self.cache.check_invariants()
            assert self.cache.stats.bytes_pinned == 0
            assert self.cache.evict(CAPACITY * ROW_BYTES) == len(self.oracle.live) * ROW_BYTES
            assert self.cache.bytes_used == 0


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Short runs and small slabs, so that a dozen tokens reach every seam."""
    monkeypatch.setattr(radix, "MAX_RUN", MAX_RUN)
    monkeypatch.setattr(arena, "SLAB_BYTES", SLAB_ROWS * ROW_BYTES)
    monkeypatch.setattr(arena, "SLABS", 1)
    monkeypatch.setattr(base, "PIECE", 2)


class LFUMachine(PrefixMachine):
    policy = "lfu"


class SizeMachine(PrefixMachine):
    policy = "size"


@pytest.mark.parametrize("machine", [PrefixMachine, LFUMachine, SizeMachine], ids=lambda m: m.policy)
def test_random_operations(machine):
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(machine, settings=settings(stateful_step_count=STEPS))


def test_enough_of_them():
    assert settings.get_profile("ci").max_examples * STEPS >= 2_000
    assert settings.get_profile("nightly").max_examples * STEPS >= 100_000
