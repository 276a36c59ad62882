"""The moving parts of a prefix cache: tree, arena, policy and pins. Whoever calls these holds the cache's lock."""

import time
from collections import deque

import numpy as np

from cachequant_lib.errors import CacheError
from cachequant_lib.kv.arena import Reader, RowArena, RowPool
from cachequant_lib.kv.ledger import Ledger, Namespace
from cachequant_lib.kv.policies import Policy
from cachequant_lib.kv.radix import TOKEN_BYTES, Node, cut_tail, extend, find, split

GONE_LIMIT = 4096
"""Evictions that a cache remembers, to explain misses by them."""


class PrefixStore:
    """What :class:`cachequant_lib.kv.prefix.PrefixCache` does under its lock.

    Parameters
    ----------
    capacity_bytes : int
    policy : Policy
    """

    def __init__(self, capacity_bytes: int, policy: Policy) -> None:
        self.capacity_bytes = capacity_bytes
        self._policy = policy
        self._arena = RowArena(capacity_bytes)
        self._roots: dict[Namespace, Node] = {}
        self._gone: deque[tuple[Node, bytes]] = deque()
        self._ledger = Ledger()
        self._pinned: set[Node] = set()
        self._clock = 0

    def _insert(self, key: bytes, namespace: Namespace, start: int, pool: RowPool, read: Reader, started: float) -> int:
        """Store a packed prompt; see :meth:`insert`."""
        root = self._roots.get(namespace)
        if root is None:
            root = Node(None, b"", np.empty(0, np.int64), pool)
        if root.pool is not pool:
            expected = f"{root.pool.dtype} rows of shape {root.pool.shape}"
            raise CacheError(f"namespace {namespace!r} holds {expected}, got {pool.dtype} rows of shape {pool.shape}")
        node, inside, stored = find(root, key)
        if stored < start:
            raise CacheError(f"rows begin at token {start}, but only the first {stored} tokens are stored")
        new = key[stored * TOKEN_BYTES :]
        if new and inside < node.num_tokens:
            node = split(node, inside)
        self._pin(node)
        count, failed = 0, True
        try:
            if new and self._make_room(pool, len(new) // TOKEN_BYTES):
                self._store(node, new, read, stored)
                self._roots[namespace] = root
                count = len(new) // TOKEN_BYTES
            failed = False
            return count
        finally:
            self._unpin(node)
            rows = {"shape": pool.shape, "dtype": pool.dtype.str, "start": start}
            told = {"inserted_tokens": count, "failed": failed, "insert_s": time.perf_counter() - started}
            self._ledger.note("insert", key=key, namespace=namespace, **rows, **told)

    def _pin(self, node: Node) -> None:
        """Keep a node from being evicted, and so all before it."""
        if node.parent is not None:
            if not node.pins:
                self._policy.remove(node)
                self._pinned.add(node)
            node.pins += 1

    def _touch(self, key: bytes, namespace: Namespace) -> None:
        """Count the prompt with this beginning as used just now."""
        node = find(self._roots[namespace], key)[0]
        self._pin(node)
        self._unpin(node)
        self._ledger.note("use", key=key, namespace=namespace)

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
        if missing:
            self._ledger.note("refuse", refused=1, num_tokens=num_rows, num_bytes=num_rows * pool.row_bytes)
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
        self._ledger.note("drop", evictions=1, evicted_tokens=len(rows), num_bytes=len(rows) * node.pool.row_bytes)
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
        self._use(extend(node, tokens, rows))
