"""The prefix cache people would use: what many prompts have in common is computed once, within a hard limit of bytes.

A radix tree finds the longest beginning that is stored, an arena holds one row of keys and values a token, a policy
says what goes when room is needed. Whoever reads rows has pinned them: they cannot go while they are read.
"""

import math
import threading
import time
from copy import copy
from pathlib import Path

from numpy.typing import ArrayLike

from cachequant_lib.errors import CacheError
from cachequant_lib.kv.arena import Source, row_source
from cachequant_lib.kv.ledger import Costs, Namespace
from cachequant_lib.kv.match import Miss, PrefixMatch, PrefixStats, check_namespace, explain
from cachequant_lib.kv.policies import POLICIES, Policy
from cachequant_lib.kv.radix import TOKEN_BYTES, check, find, pack
from cachequant_lib.kv.store import PrefixStore


class PrefixCache(PrefixStore):
    """Keys and values of earlier prompts, found again by their common beginnings, under a hard limit of bytes.

    Parameters
    ----------
    capacity_bytes : int, default 150 MiB
        Neither the stored rows nor the memory set aside for them ever exceed it. GPT-2 small: 73,728 bytes a token.
    policy : {"lru", "lfu", "size"} or Policy, default "lru"
        What goes first when room is needed: see :mod:`cachequant_lib.kv.policies`.
    min_tokens : int, default 1
        Shorter matches are not worth their copy, and count as misses.

    Notes
    -----
    Nothing is ever reused across two namespaces, which are strings or tuples of strings.
    :func:`cachequant_lib.generate` joins the model's fingerprint, the weight and KV formats, and the caller's own
    namespace. Within one namespace, the time to the first token tells whoever can send prompts which prompts others
    have sent: give each tenant its own. The default is one namespace for all.

    Any thread may call any method. Matching costs one step a node and one comparison of memory; evicting under "lru"
    costs the same however much is stored.
    """

    def __init__(self, capacity_bytes: int = 150 << 20, policy: str | Policy = "lru", *, min_tokens: int = 1) -> None:
        if capacity_bytes < 1 or min_tokens < 1:
            raise CacheError(f"capacity_bytes and min_tokens must be at least 1, got {capacity_bytes}, {min_tokens}")
        if isinstance(policy, str) and policy not in POLICIES:
            raise CacheError(f"no policy {policy!r}; the policies are {', '.join(map(repr, POLICIES))}")
        super().__init__(capacity_bytes, POLICIES[policy]() if isinstance(policy, str) else policy)
        self.policy, self.min_tokens = policy, min_tokens
        self._lock = threading.RLock()

    @property
    def bytes_used(self) -> int:
        """Bytes of all stored rows; never more than ``capacity_bytes``."""
        return self._arena.bytes_used

    @property
    def stats(self) -> PrefixStats:
        """What was done so far, what that cost and saved, and what is stored now."""
        with self._lock:
            counts, (saved_s, found) = self._ledger.counts, self._ledger.saved()
            costs = self._ledger.costs(saved_s / max(1, found))
            worth = costs.break_even(counts["prompt_tokens"] / max(1, counts["requests"]))
            return PrefixStats(
                **counts,
                saved_s=saved_s,
                break_even_tokens=None if math.isinf(worth) else worth,
                num_tokens=counts["inserted_tokens"] - counts["evicted_tokens"],
                bytes_used=self.bytes_used,
                bytes_pinned=self._bytes_pinned(),
            )

    def costs(self, namespace: Namespace = "") -> Costs:
        """Say when reuse pays: what lookups, copies and inserts cost so far, and computing a token in this namespace.

        ``cache.costs(name).break_even(500)`` is the number of tokens that a prompt of 500 must find for the cache to
        have been worth its while.
        """
        with self._lock:
            return self._ledger.costs(self._ledger.pace_s(check_namespace(namespace)))

    def match(self, token_ids: ArrayLike, namespace: Namespace = "") -> PrefixMatch:
        """Find and pin the longest stored beginning of a prompt; its last token never matches.

        Parameters
        ----------
        token_ids : sequence of int
            The whole prompt: list, tuple, NumPy array or CPU tensor.
        namespace : str or tuple of str, default ""

        Returns
        -------
        PrefixMatch
            Release it, best by a ``with`` statement: until then its rows cannot be evicted.

        Raises
        ------
        TokenError
            If `token_ids` is not a flat sequence of whole numbers.
        """
        started, key = time.perf_counter(), pack(token_ids)
        num_tokens = len(key) // TOKEN_BYTES
        with self._lock:
            root = self._roots.get(check_namespace(namespace))
            node, _, length = (None, 0, 0) if root is None else find(root, key[:-TOKEN_BYTES])
            if length < self.min_tokens:
                node, length = None, 0
            if node is not None:
                self._pin(node)
            told = {"requests": 1, "hits": int(length > 0), "prompt_tokens": num_tokens, "hit_tokens": length}
            seconds = time.perf_counter() - started
            self._ledger.note("match", key=key, namespace=namespace, **told, match_s=seconds)
            return PrefixMatch(node, length, num_tokens, namespace, self._ledger, self._lock, self._unpin)

    def insert(self, token_ids: ArrayLike, kv: Source, namespace: Namespace = "", start: int = 0) -> int:
        """Store a prompt; tokens already there keep their rows. Changes the cache.

        Parameters
        ----------
        token_ids : sequence of int
            The whole prompt, from its first token.
        kv : KVCache, KVBlock or ndarray
            A KV cache that begins with this prompt, and may go on; or the rows of the tokens from `start` on, shape
            (len(token_ids) - start, ...). Only rows of new tokens are read. They are copied.
        namespace : str or tuple of str, default ""
            The first prompt in it fixes the shape and type of its rows.
        start : int, default 0
            Tokens before `start` must be stored already.

        Returns
        -------
        int
            Tokens stored that were not there before. 0 also if the prompt cannot fit; then nothing was evicted for it,
            unless rows of several shapes share the cap.

        Raises
        ------
        CacheError
            If the rows do not fit the tokens or the namespace, or tokens before `start` are not stored.
        TokenError
            If `token_ids` is not a flat sequence of whole numbers.
        """
        started, key = time.perf_counter(), pack(token_ids)
        shape, dtype, read = row_source(kv, len(key) // TOKEN_BYTES, start)
        with self._lock:
            return self._insert(key, check_namespace(namespace), start, self._arena.pool(shape, dtype), read, started)

    def evict(self, num_bytes: int) -> int:
        """Forget tokens, as the policy orders, until `num_bytes` are free or what is left is pinned. Changes the cache.

        Returns
        -------
        int
            Bytes set free: those of whole tokens, so up to a row more than asked for.
        """
        freed = 0
        with self._lock:
            while freed < num_bytes and (cut := self._evict_some(num_bytes - freed)):
                freed += cut
            self._ledger.note("evict", num_bytes=int(num_bytes), freed_bytes=freed)
        return freed

    def explain_miss(self, token_ids: ArrayLike, namespace: Namespace = "") -> Miss:
        """Say why a prompt would not be served any further. For the operator: it looks into all namespaces."""
        with self._lock:
            key, costs = pack(token_ids)[:-TOKEN_BYTES], self.costs(namespace)
            return explain(self._roots, key, namespace, self.min_tokens, costs)

    def save(self, path: str | Path, fingerprint: str = "") -> int:
        """Write everything stored to a file, and return the number of tokens.

        An older file is replaced in one step, or stays as it was. Only its owner can read the file, for it tells what
        was asked. `fingerprint` says whose rows these are, such as ``model.fingerprint``: :meth:`load` asks for the
        same. Takes up to twice the bytes in memory.
        """
        from cachequant_lib.kv import snapshot

        with self._lock:
            tensors, meta = snapshot.collect(self._roots, fingerprint)
            num_tokens = self.stats.num_tokens
        snapshot.write(Path(path), tensors, meta)
        return num_tokens

    def load(self, path: str | Path, fingerprint: str = "") -> int:
        """Add the prompts of a file, those used last first, until one does not fit; evicts nothing. Changes the cache.

        Returns
        -------
        int
            Tokens that were not there before. The prompts count as used just now, in their old order.

        Raises
        ------
        CacheError
            If the file is damaged, is no saved prefix cache, or has another fingerprint or other rows. Nothing was
            added then.
        FileNotFoundError
            If there is no such file.
        """
        from cachequant_lib.kv import snapshot

        prompts = snapshot.read(Path(path), fingerprint)
        with self._lock:
            return snapshot.restore(self, prompts)

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if links, pins, rows, bytes or counts contradict each other. Costs a walk of all."""
        with self._lock:
            nodes = [node for root in self._roots.values() for node in check(root)]
            self._arena.check([(node.pool, node.rows) for node in nodes])
            stats, victim = (
                self.stats,
                copy(self._policy).victim(),
            )  # a policy may age when it is asked: looking must not
            assert self._pinned == {node for node in nodes if node.pins}
            assert stats.num_tokens == sum(node.num_tokens for node in nodes), stats
            assert (victim is None) == (stats.bytes_pinned == stats.bytes_used), "all that is not pinned can go"
            assert victim is None or not (victim.children or victim.pins), "and nothing else"
