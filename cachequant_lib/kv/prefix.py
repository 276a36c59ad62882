"""The prefix cache people would use: what many prompts have in common is computed once, within a hard limit of bytes.

A radix tree finds the longest beginning that is stored, an arena holds one row of keys and values a token, a policy
says what goes when room is needed. Whoever reads rows has pinned them: they cannot go while they are read.
"""

import threading
from collections import deque
from dataclasses import fields
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from cachequant_lib.errors import CacheError
from cachequant_lib.kv.arena import Reader, RowArena, RowPool, Source, row_source
from cachequant_lib.kv.match import Miss, Namespace, PrefixMatch, PrefixStats, check_namespace, explain
from cachequant_lib.kv.policies import POLICIES, Policy
from cachequant_lib.kv.radix import TOKEN_BYTES, Node, check, cut_tail, extend, find, pack, split

GONE_LIMIT = 4096
"""Evictions that :meth:`PrefixCache.explain_miss` remembers."""


class PrefixCache:
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
        self.capacity_bytes, self.min_tokens = capacity_bytes, min_tokens
        self._policy = POLICIES[policy]() if isinstance(policy, str) else policy
        self._arena = RowArena(capacity_bytes)
        self._roots: dict[Namespace, Node] = {}
        self._gone: deque[tuple[Node, bytes]] = deque()
        self._counts = {field.name: 0 for field in fields(PrefixStats)[:8]}
        self._pinned: set[Node] = set()
        self._clock = 0
        self._lock = threading.RLock()

    @property
    def bytes_used(self) -> int:
        """Bytes of all stored rows; never more than ``capacity_bytes``."""
        return self._arena.bytes_used

    @property
    def stats(self) -> PrefixStats:
        """What was done so far and what is stored now."""
        with self._lock:
            num_tokens = self._counts["inserted_tokens"] - self._counts["evicted_tokens"]
            now = {"num_tokens": num_tokens, "bytes_used": self.bytes_used, "bytes_pinned": self._bytes_pinned()}
            return PrefixStats(**self._counts, **now)

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
        key, counts = pack(token_ids), self._counts
        with self._lock:
            root = self._roots.get(check_namespace(namespace))
            node, _, length = (None, 0, 0) if root is None else find(root, key[:-TOKEN_BYTES])
            if length < self.min_tokens:
                node, length = None, 0
            counts["requests"] += 1
            counts["hits"] += length > 0
            counts["prompt_tokens"] += len(key) // TOKEN_BYTES
            counts["hit_tokens"] += length
            if node is not None:
                self._pin(node)
            return PrefixMatch(node, length, self._lock, self._unpin)

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
        key = pack(token_ids)
        shape, dtype, read = row_source(kv, len(key) // TOKEN_BYTES, start)
        with self._lock:
            pool = self._arena.pool(shape, dtype)
            root = self._roots.get(check_namespace(namespace))
            if root is None:
                root = Node(None, b"", np.empty(0, np.int64), pool)
            if root.pool is not pool:
                expected = f"{root.pool.dtype} rows of shape {root.pool.shape}"
                raise CacheError(f"namespace {namespace!r} holds {expected}, got {dtype} rows of shape {shape}")
            node, inside, stored = find(root, key)
            if stored < start:
                raise CacheError(f"rows begin at token {start}, but only the first {stored} tokens are stored")
            new = key[stored * TOKEN_BYTES :]
            if new and inside < node.num_tokens:
                node = split(node, inside)
            self._pin(node)
            try:
                if not new or not self._make_room(pool, len(new) // TOKEN_BYTES):
                    return 0
                self._store(node, new, read, stored)
                self._roots[namespace] = root
                return len(new) // TOKEN_BYTES
            finally:
                self._unpin(node)

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
        return freed

    def explain_miss(self, token_ids: ArrayLike, namespace: Namespace = "") -> Miss:
        """Say why a prompt would not be served any further. For the operator: it looks into all namespaces."""
        with self._lock:
            return explain(self._roots, pack(token_ids)[:-TOKEN_BYTES], check_namespace(namespace), self.min_tokens)

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
            stats, victim = self.stats, self._policy.victim()
            assert self._pinned == {node for node in nodes if node.pins}
            assert stats.num_tokens == sum(node.num_tokens for node in nodes), stats
            assert (victim is None) == (stats.bytes_pinned == stats.bytes_used), "all that is not pinned can go"
            assert victim is None or not (victim.children or victim.pins), "and nothing else"

    def _pin(self, node: Node) -> None:
        """Keep a node from being evicted, and so all before it."""
        if node.parent is not None:
            if not node.pins:
                self._policy.remove(node)
                self._pinned.add(node)
            node.pins += 1

    def _unpin(self, node: Node) -> None:
        """Undo one :meth:`_pin`; a node that nobody else holds is the one used last."""
        if node.parent is not None:
            node.pins -= 1
            if not node.pins:
                self._pinned.remove(node)
                self._use(node)

    def _use(self, node: Node) -> None:
        """Make a node the one used last."""
        self._clock += 1
        node.used = self._clock
        node.hits += 1
        self._policy.add(node)

    def _bytes_pinned(self) -> int:
        """Bytes of all rows that cannot be evicted now."""
        held = {part for node in self._pinned for part in node.path()}
        return sum(part.num_tokens * part.pool.row_bytes for part in held)

    def _make_room(self, pool: RowPool, num_rows: int) -> bool:
        """Evict until rows can be handed out; if that cannot succeed, evict nothing and count a refusal."""
        missing = self._arena.missing(pool, num_rows)
        if missing and num_rows * pool.row_bytes <= self.capacity_bytes - self._bytes_pinned():
            while missing and self._evict_some(missing * pool.row_bytes):
                missing = self._arena.missing(pool, num_rows)
        self._counts["refused"] += missing > 0
        return not missing

    def _evict_some(self, num_bytes: int) -> int:
        """Take what is asked for off the end of one leaf, or all of it; return the bytes, 0 if there is no leaf."""
        node = self._policy.victim()
        if node is None:
            return 0
        rows, holder, token = cut_tail(node, min(node.num_tokens, -(-num_bytes // node.pool.row_bytes)))
        if holder is not node:
            self._policy.remove(node)
            if holder.parent is not None and not (holder.children or holder.pins):
                self._policy.bared(holder)
        self._arena.give_back(node.pool, rows)
        self._counts["evictions"] += 1
        self._counts["evicted_tokens"] += len(rows)
        self._gone.append((holder, token))
        if len(self._gone) > GONE_LIMIT:
            self._forget(*self._gone.popleft())
        return len(rows) * node.pool.row_bytes

    def _forget(self, holder: Node, token: bytes) -> None:
        """Drop the memory of one eviction, and with the last one of an empty namespace the namespace."""
        holder.gone.discard(token)
        if holder.parent is None and not (holder.children or holder.gone):
            self._roots = {name: root for name, root in self._roots.items() if root is not holder}

    def _store(self, node: Node, tokens: bytes, read: Reader, stored: int) -> None:
        """Copy the rows of new tokens in, then hang them below a node that is pinned."""
        rows = self._arena.take(node.pool, len(tokens) // TOKEN_BYTES)
        try:
            node.pool.fill(rows, read, stored)
        except BaseException:
            self._arena.give_back(node.pool, rows)
            raise
        self._counts["inserted_tokens"] += len(rows)
        self._use(extend(node, tokens, rows))
