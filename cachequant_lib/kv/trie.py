"""The teaching trie: prompts share a trunk, one node is one token, and each node keeps that token's K and V.

The design is the source system's, eviction included: the least recently used leaf is found by walking the whole
tree, so one eviction costs as much as the cache is large. Easy to read, and right for a few thousand tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachequant_lib.errors import CacheError, TokenError

Row = NDArray[Any]


@dataclass(eq=False)
class TrieNode:
    """One token of one or more prompts, with the row of keys and values computed for it."""

    token_id: int
    parent: "TrieNode | None" = None
    row: Row | None = None
    last_access: int = 0
    children: dict[int, "TrieNode"] = field(default_factory=dict)


class TokenTrie:
    """Keys and values of prompts seen before, found again by their common beginnings.

    Parameters
    ----------
    max_tokens : int, default 2048
        Nodes to keep. The cap is soft, as in the source: one prompt longer than the cap is still stored whole.

    Attributes
    ----------
    num_tokens : int
        Nodes stored now.
    num_evicted : int
        Nodes dropped so far.
    owner : tuple of str, or None
        Fingerprint of the model and namespace whose rows these are: :func:`cachequant_lib.generate` sets it on first
        use and refuses any other, because another model's keys and values would be silently wrong.
    """

    def __init__(self, max_tokens: int = 2048) -> None:
        if max_tokens < 1:
            raise CacheError(f"max_tokens must be at least 1, got {max_tokens}")
        self.max_tokens = max_tokens
        self.num_tokens = 0
        self.num_evicted = 0
        self.owner: tuple[str, str] | None = None
        self._root = TrieNode(-1)
        self._clock = 0

    def lookup(self, token_ids: Sequence[int]) -> tuple[int, Row | None]:
        """Find the longest stored beginning of `token_ids`, and mark it as just used.

        Parameters
        ----------
        token_ids : sequence of int

        Returns
        -------
        matched : int
            How many leading tokens are stored.
        rows : ndarray or None
            A fresh copy of their rows, shape (matched, ...); None if nothing matched or no rows were stored.
            Costs one step a token and one copy of the bytes.
        """
        path = self._walk(_whole_numbers(token_ids))
        self._touch(path)
        rows = [node.row for node in path if node.row is not None]
        if not path or len(rows) < len(path):
            return len(path), None
        return len(path), np.stack(rows)  # matched of (...) -> (matched, ...)

    def match_length(self, token_ids: Sequence[int]) -> int:
        """Count the leading tokens that are stored, without marking them as used."""
        return len(self._walk(_whole_numbers(token_ids)))

    def insert(self, token_ids: Sequence[int], kv_rows: Row | None = None, start: int = 0) -> int:
        """Store a prompt; tokens already there keep their rows. Changes the trie.

        Parameters
        ----------
        token_ids : sequence of int
            The whole prompt, from its first token.
        kv_rows : ndarray, shape (len(token_ids) - start, ...), optional
            The row of each token from `start` on, copied. None builds the bare tree, to look at.
        start : int, default 0
            Tokens before `start` must be stored already: a lookup returned them.

        Returns
        -------
        int
            Nodes added. Costs one step a token, and one walk of the whole tree for every eviction.

        Raises
        ------
        CacheError
            If tokens before `start` are not stored (they were evicted since), or the rows do not fit the tokens or each
            other. Nothing has changed then.
        TokenError
            If `token_ids` are not whole numbers.
        """
        ids = _whole_numbers(token_ids)
        if not 0 <= start <= len(ids):
            raise CacheError(f"start must lie in 0..{len(ids)}, got {start}")
        if kv_rows is not None and len(kv_rows) != len(ids) - start:
            raise CacheError(f"expected {len(ids) - start} rows for tokens {start}..{len(ids)}, got {len(kv_rows)}")
        path = self._walk(ids)
        if len(path) < start:
            raise CacheError(f"rows begin at token {start}, but only the first {len(path)} tokens are stored")
        rows = [None] * (len(ids) - start) if kv_rows is None else [np.array(row) for row in kv_rows]
        shapes = {row.shape for row in [*rows, *(node.row for node in path[-1:])] if row is not None}
        if len(shapes) > 1:
            raise CacheError(f"rows of a trie have one shape, got {sorted(shapes)}")
        stored = len(path)
        self._evict_to_fit(len(ids) - stored, protected=path)
        for position in range(start, stored):  # a tree that was built without rows is filled in
            if path[position].row is None:
                path[position].row = rows[position - start]
        for position in range(stored, len(ids)):
            parent = path[-1] if path else self._root
            node = TrieNode(ids[position], parent, rows[position - start])
            parent.children[node.token_id] = node
            path.append(node)
            self.num_tokens += 1
        self._touch(path)
        return len(ids) - stored

    @property
    def nbytes(self) -> int:
        """Bytes of the stored rows, Python's own bookkeeping left out."""
        return sum(node.row.nbytes for node in self._nodes() if node.row is not None)

    def render(self, decode: Callable[[list[int]], str] | None = None) -> str:
        """Draw the tree as text, one token a line.

        Parameters
        ----------
        decode : callable, optional
            Turns ``[token_id]`` into text, such as ``model.tokenizer.decode``; ids are shown without it.
        """
        lines = ["root"]
        waiting = [(child, "") for child in reversed(self._root.children.values())]
        while waiting:
            node, indent = waiting.pop()
            assert node.parent is not None
            last = node is list(node.parent.children.values())[-1]
            label = str(node.token_id) if decode is None else repr(decode([node.token_id]))
            lines.append(f"{indent}{'└─' if last else '├─'} {label}")
            deeper = indent + ("   " if last else "│  ")
            waiting.extend((child, deeper) for child in reversed(node.children.values()))
        return "\n".join(lines)

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if the counts or the links of the tree contradict each other."""
        nodes = list(self._nodes())
        assert len(nodes) == self.num_tokens, (len(nodes), self.num_tokens)
        for node in nodes:
            assert node.parent is not None
            assert node.parent.children[node.token_id] is node
            assert node.parent is self._root or node.parent.last_access >= node.last_access

    def _walk(self, token_ids: Sequence[int]) -> list[TrieNode]:
        """Nodes of the longest stored beginning of `token_ids`."""
        node, path = self._root, []
        for token in token_ids:
            child = node.children.get(token)
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def _touch(self, path: list[TrieNode]) -> None:
        """Mark nodes as used now."""
        self._clock += 1
        for node in path:
            node.last_access = self._clock

    def _nodes(self) -> Iterator[TrieNode]:
        """Every node but the root, parents before children."""
        waiting = list(self._root.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())

    def _evict_to_fit(self, extra: int, protected: list[TrieNode]) -> None:
        """Drop least recently used leaves until `extra` more tokens fit, never one of `protected`.

        Only leaves go, so no node ever loses its parent. The path being extended is protected: were one of its nodes
        dropped, the new rows would hang on a branch whose beginning is gone.
        """
        keep = {id(node) for node in protected}
        while self.num_tokens + extra > self.max_tokens:
            leaves = [node for node in self._nodes() if not node.children and id(node) not in keep]
            if not leaves:
                return
            victim = min(leaves, key=lambda node: node.last_access)
            assert victim.parent is not None
            del victim.parent.children[victim.token_id]
            self.num_tokens -= 1
            self.num_evicted += 1


def _whole_numbers(token_ids: Sequence[int]) -> list[int]:
    """Return ids as plain integers, whatever holds them: list, tuple, NumPy array or tensor."""
    try:
        return [index(token) for token in token_ids]
    except TypeError as error:
        raise TokenError(f"token ids must be whole numbers ({error})") from error
