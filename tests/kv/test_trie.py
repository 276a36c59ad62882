"""TokenTrie: the source's requests A, B and C, and a brute-force list of prompts to check it against."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import cachequant_lib as cq

THE, CAT, SAT, ON, THE2, MAT, NEAR, A, LAKE = range(9)
REQUEST_A = [THE, CAT, SAT]
REQUEST_B = [THE, CAT, SAT, ON, THE2, MAT]
REQUEST_C = [THE, CAT, SAT, NEAR, A, LAKE]


def rows_of(ids):
    """A row that tells which prefix it was computed for, as real keys and values do."""
    return np.array([[hash(tuple(ids[: i + 1])) % 2**31] for i in range(len(ids))], np.float64)


def put(trie, ids, start=0):
    return trie.insert(ids, rows_of(ids)[start:], start)


def test_the_cat_sat():
    trie = cq.TokenTrie()
    assert trie.lookup(REQUEST_A[:-1]) == (0, None)
    assert put(trie, REQUEST_A) == 3
    matched, rows = trie.lookup(REQUEST_B[:-1])
    assert matched == 3
    assert (rows == rows_of(REQUEST_A)).all()
    assert put(trie, REQUEST_B, start=3) == 3
    assert trie.lookup(REQUEST_C[:-1])[0] == 3
    assert put(trie, REQUEST_C, start=3) == 3
    assert trie.num_tokens == 9
    words = ["The", "cat", "sat", "on", "the", "mat", "near", "a", "lake"]
    assert trie.render(lambda ids: words[ids[0]]).splitlines() == [
        "root",
        "└─ 'The'",
        "   └─ 'cat'",
        "      └─ 'sat'",
        "         ├─ 'on'",
        "         │  └─ 'the'",
        "         │     └─ 'mat'",
        "         └─ 'near'",
        "            └─ 'a'",
        "               └─ 'lake'",
    ]


@pytest.mark.parametrize("container", [list, tuple, np.array, lambda ids: np.array(ids, np.int32)])
def test_containers_are_equal(container):
    trie = cq.TokenTrie()
    put(trie, REQUEST_B)
    assert trie.lookup(container(REQUEST_C))[0] == 3


def test_inserting_again_adds_nothing_and_keeps_the_rows():
    trie = cq.TokenTrie()
    put(trie, REQUEST_B)
    assert trie.insert(REQUEST_B, np.zeros((6, 1))) == 0
    assert (trie.lookup(REQUEST_B)[1] == rows_of(REQUEST_B)).all()


def test_rows_are_copied_in_and_out():
    trie = cq.TokenTrie()
    mine = rows_of(REQUEST_A)
    trie.insert(REQUEST_A, mine)
    mine[:] = 0
    got = trie.lookup(REQUEST_A)[1]
    assert (got == rows_of(REQUEST_A)).all()
    got[:] = 0
    assert (trie.lookup(REQUEST_A)[1] == rows_of(REQUEST_A)).all()


def test_the_least_recently_used_leaf_goes_first():
    trie = cq.TokenTrie(max_tokens=9)
    for request in (REQUEST_A, REQUEST_B, REQUEST_C):
        put(trie, request)
    trie.lookup(REQUEST_B)  # the branch "near a lake" is now the older one
    put(trie, [99])
    assert trie.lookup(REQUEST_C)[0] == 5
    assert trie.lookup(REQUEST_B)[0] == 6
    assert trie.num_evicted == 1
    trie.check_invariants()


def test_a_parent_never_goes_before_its_child():
    trie = cq.TokenTrie(max_tokens=4)
    put(trie, [1, 2, 3])
    put(trie, [1, 4])
    trie.lookup([1, 2, 3])
    for fresh in (50, 51, 52):
        put(trie, [fresh])
        trie.check_invariants()
    assert trie.num_tokens == 4


def test_the_path_being_extended_is_protected():
    # without protection [1, 2] would be evicted while [1, 2, 3, 4] hangs its new rows on it
    trie = cq.TokenTrie(max_tokens=3)
    put(trie, [1, 2])
    put(trie, [7])
    trie.lookup([7])
    assert put(trie, [1, 2, 3, 4], start=2) == 2
    trie.check_invariants()
    matched, rows = trie.lookup([1, 2, 3, 4])
    assert matched == 4
    assert (rows == rows_of([1, 2, 3, 4])).all()


def test_a_prompt_longer_than_the_cap_is_stored_whole():
    trie = cq.TokenTrie(max_tokens=2)
    put(trie, REQUEST_B)
    assert trie.num_tokens == 6
    put(trie, [99])
    assert trie.num_tokens == 2


def test_bytes_are_those_of_the_rows():
    trie = cq.TokenTrie()
    trie.insert([1, 2], np.zeros((2, 12, 2, 12, 64), np.float32))
    assert trie.nbytes == 2 * 73_728


def test_a_tree_without_rows_can_be_looked_at():
    trie = cq.TokenTrie()
    trie.insert(REQUEST_A)
    assert trie.lookup(REQUEST_A) == (3, None)
    assert trie.render() == "root\n└─ 0\n   └─ 1\n      └─ 2"
    assert cq.TokenTrie().render() == "root"


def test_a_very_long_prompt_is_no_deep_recursion():
    trie = cq.TokenTrie(max_tokens=5000)
    trie.insert(range(5000))
    assert len(trie.render().splitlines()) == 5001


def test_rows_that_hang_in_the_air_are_refused():
    trie = cq.TokenTrie()
    put(trie, [1, 2])
    with pytest.raises(cq.CacheError, match="rows begin at token 3, but only the first 2 tokens are stored"):
        put(trie, [1, 2, 3, 4], start=3)
    with pytest.raises(cq.CacheError, match="expected 2 rows"):
        trie.insert([1, 2, 3, 4], np.zeros((3, 1)), start=2)
    with pytest.raises(cq.CacheError, match=r"start must lie in 0\.\.2"):
        trie.insert([1, 2], np.zeros((0, 1)), start=3)
    assert trie.num_tokens == 2
    with pytest.raises(cq.CacheError, match="max_tokens must be at least 1"):
        cq.TokenTrie(0)


class BrokenRows:
    """Two good rows, then an error."""

    def __len__(self):
        return 3

    def __iter__(self):
        yield from np.zeros((2, 1))
        raise MemoryError


def test_rows_that_cannot_be_copied_change_nothing():
    trie = cq.TokenTrie(max_tokens=3)
    put(trie, [7, 8, 9])
    with pytest.raises(MemoryError):
        trie.insert([1, 2, 3], BrokenRows())
    assert trie.lookup([7, 8, 9])[0] == trie.num_tokens == 3
    with pytest.raises(cq.CacheError, match="rows of a trie have one shape"):
        trie.insert([1, 2], [np.zeros(1), np.zeros(2)])
    trie.check_invariants()


@pytest.mark.parametrize("ids", ["12", [1.0, 2.0], [None]])
def test_what_is_no_id_is_refused(ids):
    trie = cq.TokenTrie()
    put(trie, [1, 2])
    with pytest.raises(cq.TokenError, match="whole numbers"):
        trie.lookup(ids)
    with pytest.raises(cq.TokenError, match="whole numbers"):
        trie.insert(ids)


class TrieMachine(RuleBasedStateMachine):
    """Random requests against a trie and against what its promises allow."""

    def __init__(self):
        super().__init__()
        self.trie = cq.TokenTrie(max_tokens=12)
        self.seen = set()

    @rule(ids=st.lists(st.integers(0, 2), min_size=1, max_size=7))
    def request(self, ids):
        """Look up, then insert only the rows that were missing, as a generation does."""
        matched, rows = self.trie.lookup(ids[:-1])
        assert matched <= len(ids) - 1
        assert matched == 0 or tuple(ids[:matched]) in self.seen
        assert rows is None or (rows == rows_of(ids)[:matched]).all()
        put(self.trie, ids, start=matched)
        self.seen |= {tuple(ids[: i + 1]) for i in range(len(ids))}
        assert self.trie.lookup(ids)[0] == len(ids)

    @invariant()
    def holds(self):
        self.trie.check_invariants()
        assert self.trie.num_tokens <= 12


TestTrieMachine = TrieMachine.TestCase
TestTrieMachine.settings = settings(stateful_step_count=40)


@pytest.mark.parametrize("seed", range(5))
def test_without_eviction_it_is_the_longest_common_prefix(seed):
    rng = np.random.default_rng(seed)
    trie, prompts = cq.TokenTrie(max_tokens=10**6), []
    for _ in range(100):
        ids = rng.integers(0, 3, rng.integers(1, 10)).tolist()
        longest = max((sum(1 for _ in iter_common(ids, other)) for other in prompts), default=0)
        assert trie.lookup(ids)[0] == longest
        put(trie, ids)
        prompts.append(ids)
    assert trie.num_tokens == len({tuple(p[: i + 1]) for p in prompts for i in range(len(p))})


def iter_common(a, b):
    for x, y in zip(a, b, strict=False):
        if x != y:
            return
        yield x
