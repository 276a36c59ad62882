"""What a prefix cache answers: a pinned match with its rows, the reason why there is none, and its counts."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import numpy as np

from cachequant_lib.errors import CacheError
from cachequant_lib.kv.arena import RowIds, RowPool
from cachequant_lib.kv.base import KVBlock, KVCache
from cachequant_lib.kv.ledger import Costs, Ledger, Namespace
from cachequant_lib.kv.radix import TOKEN_BYTES, Node, find, unpack

Release = Callable[[Node], None]


def check_namespace(namespace: object) -> Namespace:
    """Return a namespace, or raise CacheError: it must be text, or a tuple of texts, so that a file can hold it."""
    parts = namespace if isinstance(namespace, tuple) else (namespace,)
    if not all(isinstance(part, str) for part in parts):
        raise CacheError(f"a namespace is a string or a tuple of strings, got {namespace!r}")
    return namespace  # type: ignore[return-value]


class PrefixMatch:
    """The stored beginning of a prompt, pinned until it is released: use it in a ``with`` statement.

    Attributes
    ----------
    length : int
        Tokens found. At least one token of the prompt is always left to compute.
    num_tokens : int
        Tokens asked for.
    """

    def __init__(
        self,
        node: Node | None,
        length: int,
        num_tokens: int,
        namespace: Namespace,
        ledger: Ledger,
        lock: AbstractContextManager[Any],
        release: Release,
    ) -> None:
        self.length, self.num_tokens = length, num_tokens
        self._node, self._lock, self._release = node, lock, release
        self._ledger, self._namespace, self._number = ledger, namespace, ledger.counts["requests"]
        self._held = True

    def block(self) -> KVBlock:
        """Copy the rows out, shape (length, L, 2, Hkv, D).

        Raises
        ------
        CacheError
            If nothing was found, or the match has been released.
        """
        pool, rows = self._pinned()
        return KVBlock(pool.gather(rows))

    def copy_into(self, kv: KVCache) -> int:
        """Append the rows to a KV cache, copied once; return how many there were. Changes `kv`, all or nothing.

        Raises
        ------
        CacheError
            If the match has been released.
        CapacityError
            If `kv` has no room for them.
        FormatError
            If they are another model's.
        """
        if self.length == 0 and self._held:
            return 0
        clock = time.perf_counter()
        pool, rows = self._pinned()
        start = kv.length
        try:
            for _, piece in pool.pieces(rows):
                kv.write_block(KVBlock(piece))
        except BaseException:
            kv.truncate(start)
            raise
        with self._lock:
            seconds = time.perf_counter() - clock
            self._ledger.note("copy", number=self._number, copied_tokens=self.length, copy_s=seconds)
        return self.length

    def report(self, prefill_s: float) -> None:
        """Tell the cache how long the forward pass over the rest of the prompt took, so that it can estimate savings.

        May be called after :meth:`release`. Without it, ``stats.saved_s`` stays 0.
        """
        with self._lock:
            self._ledger.report(self._namespace, self.length, self.num_tokens - self.length, prefill_s)

    def release(self) -> None:
        """Let the cache evict these rows again.

        Raises
        ------
        CacheError
            If it was released before.
        """
        with self._lock:
            if not self._held:
                raise CacheError("this match has been released already")
            self._held = False
            self._ledger.note("release", number=self._number)
            if self._node is not None:
                self._release(self._node)

    def __enter__(self) -> "PrefixMatch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._held:
            self.release()

    def _pinned(self) -> tuple[RowPool, RowIds]:
        """Rows of the match and the pool they are in, or raise if they may hold another prompt by now."""
        if not self._held:
            raise CacheError("this match has been released: its rows may hold another prompt by now")
        if self._node is None:
            raise CacheError("nothing was found, so there are no rows")
        with self._lock:  # nobody else may part the path while it is read
            path = [node.rows for node in self._node.path()]
        return self._node.pool, np.concatenate(path[::-1])[: self.length]


@dataclass(frozen=True)
class PrefixStats:
    """What a prefix cache has done so far, and what it holds now.

    Attributes
    ----------
    requests, hits : int
        Calls of :meth:`PrefixCache.match`, and how many of them found something.
    prompt_tokens, hit_tokens : int
        Tokens asked for, and how many of them were found.
    inserted_tokens, evicted_tokens, evictions : int
        Tokens stored and tokens dropped so far, and how many times a leaf was cut or dropped.
    refused : int
        Inserts that could not fit, being too long or because too much is pinned.
    copied_tokens : int
        Tokens whose rows were copied into KV caches.
    match_s, copy_s, insert_s : float
        Seconds spent in matches, in these copies and in inserts, waiting for other threads included.
    saved_s : float
        An estimate: what computing the found tokens would have added to the forward passes, by the pace learnt from
        :meth:`PrefixMatch.report`; see :mod:`cachequant_lib.kv.ledger`. 0 while no pace is known.
    break_even_tokens : float or None
        How many tokens of a prompt of average length must be found for the cache to pay; None while no pace is known,
        or if no number pays. :meth:`PrefixCache.costs` has the rule.
    num_tokens, bytes_used, bytes_pinned : int
        Tokens stored now, the bytes of their rows, and how many of these are pinned.
    """

    requests: int = 0
    hits: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    inserted_tokens: int = 0
    evicted_tokens: int = 0
    evictions: int = 0
    refused: int = 0
    copied_tokens: int = 0
    match_s: float = 0.0
    copy_s: float = 0.0
    insert_s: float = 0.0
    saved_s: float = 0.0
    break_even_tokens: float | None = None
    num_tokens: int = 0
    bytes_used: int = 0
    bytes_pinned: int = 0

    @property
    def spent_s(self) -> float:
        """Seconds spent on the cache, as measured."""
        return self.match_s + self.copy_s + self.insert_s

    @property
    def net_s(self) -> float:
        """Seconds saved less seconds spent: an estimate, as ``saved_s`` is."""
        return self.saved_s - self.spent_s

    @property
    def hit_rate(self) -> float:
        """Cached tokens over prompt tokens."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True)
class Miss:
    """Why a prompt was not served any further.

    Attributes
    ----------
    reason : str
        "nothing" was missed; or what comes next was "evicted" since, or is stored in an "other namespace"; or what is
        stored is "too short" to pay, by ``min_tokens`` or by the costs so far; or there is a "different token" at this
        place, or it was "not stored" so far.
    position : int
        The first token that has to be computed.
    message : str
        The same in a sentence, with the tokens concerned.
    """

    reason: Literal["nothing", "evicted", "other namespace", "too short", "different token", "not stored"]
    position: int
    message: str


def explain(roots: dict[Namespace, Node], key: bytes, namespace: Namespace, min_tokens: int, costs: Costs) -> Miss:
    """Say why a packed prompt, its last token left out, is not found any further.

    Returns
    -------
    Miss
        The first reason that holds, in the order in which :class:`Miss` lists them. Costs one search a namespace.
    """
    root = roots.get(namespace)
    node, inside, at = find(root, key) if root is not None else (None, 0, 0)
    served, following = at if at >= min_tokens else 0, key[at * TOKEN_BYTES : (at + 1) * TOKEN_BYTES]
    if not following and served == at:
        return Miss("nothing", at, f"all {at} tokens before the last are stored, and the last is always computed")
    wanted = unpack(following)[0] if following else None
    if node is not None and inside == node.num_tokens and following in node.gone:
        return Miss("evicted", served, f"token {wanted} at position {at} was stored here, and has been evicted since")
    longest = max((find(other, key)[2] for name, other in roots.items() if name != namespace), default=0)
    if longest > at:
        message = f"{longest} tokens are stored in another namespace, {at} in {namespace!r}"
        return Miss("other namespace", served, message)
    if served < at:
        return Miss("too short", served, f"{at} tokens are stored, and copying fewer than {min_tokens} does not pay")
    worth = costs.break_even(len(key) // TOKEN_BYTES + 1)
    if costs.compute_s > 0 and 0 < at < worth:
        return Miss("too short", at, f"{at} tokens are stored; by the costs so far, finding {worth:.1f} would pay")
    stored = [] if node is None else [node.tokens[inside * TOKEN_BYTES :], *node.children]
    firsts = sorted({unpack(run[:TOKEN_BYTES])[0] for run in stored if run})
    if firsts:
        listed = ", ".join(map(str, firsts[:5])) + (", ..." if len(firsts) > 5 else "")
        return Miss("different token", at, f"at position {at} the prompt has token {wanted}; stored here: {listed}")
    return Miss("not stored", at, f"nothing is stored beyond the first {at} tokens")
