"""The tree behind the prefix cache: one node is a run of tokens, and prompts share the runs they begin with.

Token ids are kept as the bytes of int64 numbers, so comparing two runs is one comparison of memory. The ids are the
keys themselves: nothing is hashed into less than it was, so two different prompts can never be taken for each other.
"""

from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np

from cachequant_lib.errors import TokenError
from cachequant_lib.kv.arena import RowIds, RowPool

TOKEN_BYTES = 8
MAX_RUN = 4096
"""Longest run of one node: what is done to a node costs no more than this, however long the prompts are."""


class Node:
    """A run of tokens, the rows that hold its keys and values, and what may follow it.

    Attributes
    ----------
    tokens : bytes
        The run.
    rows : ndarray of int64
        For each token its row in `pool`.
    parent : Node or None
        None for the root of a namespace, and for a node that has been evicted.
    children : dict
        By first token.
    gone : set of bytes
        First tokens of what was evicted right after this node, as far as that is remembered.
    pins : int
        Matches in use that end in this node. Those before it are safe, since only leaves are evicted.
    hits, used : int
        How many matches and inserts ended here or in what was evicted below; number of the latest.
    previous, next : Node
        Neighbours in the list of a policy; the node itself while it is in none.
    """

    __slots__ = ("children", "gone", "hits", "next", "parent", "pins", "pool", "previous", "rows", "tokens", "used")

    def __init__(self, parent: "Node | None", tokens: bytes, rows: RowIds, pool: RowPool) -> None:
        self.parent, self.tokens, self.rows, self.pool = parent, tokens, rows, pool
        self.children: dict[bytes, Node] = {}
        self.gone: set[bytes] = set()
        self.pins = self.hits = self.used = 0
        self.previous: Node = self
        self.next: Node = self

    @property
    def num_tokens(self) -> int:
        """Length of the run; 0 for a root."""
        return len(self.rows)

    def path(self) -> "Iterator[Node]":
        """Yield this node and those before it, deepest first, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def walk(self) -> "Iterator[Node]":
        """Yield every node below this one, parents before children."""
        waiting = list(self.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())


def pack(token_ids: Any) -> bytes:
    """Turn token ids into a key: 8 bytes a token, whatever held them.

    Parameters
    ----------
    token_ids : sequence of int
        List, tuple, NumPy array or CPU tensor.

    Raises
    ------
    TokenError
        If they are not one flat sequence of whole numbers that are not negative.
    """
    if isinstance(token_ids, str):
        raise TokenError(f"expected token ids, got the text {token_ids[:40]!r}: call tokenizer.encode first")
    try:
        # `array` reads a list three times faster than NumPy, which looks at every item twice
        ids = np.asarray(array("q", token_ids) if isinstance(token_ids, list | tuple) else token_ids)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise TokenError(f"token ids must be one flat sequence of whole numbers ({error})") from error
    if ids.ndim != 1 or (ids.dtype.kind not in "iu" and ids.size):
        raise TokenError(f"token ids must be one flat sequence of whole numbers, got {ids.dtype} of shape {ids.shape}")
    ids = ids.astype(np.int64, copy=False)
    if ids.size and ids.min() < 0:
        raise TokenError(f"token ids must not be negative, got {ids.min()}")
    return ids.tobytes()


def unpack(key: bytes) -> list[int]:
    """Token ids of a key."""
    return np.frombuffer(key, np.int64).tolist()  # type: ignore[no-any-return]


def find(root: Node, key: bytes) -> tuple[Node, int, int]:
    """Walk down along a key as far as the tree goes.

    Returns
    -------
    node : Node
        The deepest node that holds a token of the key, or the root.
    inside : int
        How many tokens of that node agree.
    matched : int
        How many tokens of the key agree. Costs one step a node, and one comparison of memory.
    """
    node, at = root, 0
    while at < len(key):
        child = node.children.get(key[at : at + TOKEN_BYTES])
        if child is None:
            break
        if not key.startswith(child.tokens, at):
            inside = common(child.tokens, key[at : at + len(child.tokens)])
            return child, inside, at // TOKEN_BYTES + inside
        node, at = child, at + len(child.tokens)
    return node, node.num_tokens, at // TOKEN_BYTES


def common(a: bytes, b: bytes) -> int:
    """How many tokens two runs have in common before they differ or one ends."""
    num_tokens = min(len(a), len(b)) // TOKEN_BYTES
    differ = np.frombuffer(a, np.int64, num_tokens) != np.frombuffer(b, np.int64, num_tokens)
    return int(differ.argmax()) if differ.any() else num_tokens


def split(node: Node, inside: int) -> Node:
    """Part a node after `inside` tokens; return the new upper part.

    The lower part stays the same object, so whoever pinned it still does, and the upper part is safe above it.
    """
    assert node.parent is not None
    cut = inside * TOKEN_BYTES
    upper = Node(node.parent, node.tokens[:cut], node.rows[:inside].copy(), node.pool)
    node.parent.children[node.tokens[:TOKEN_BYTES]] = upper
    node.parent, node.tokens, node.rows = upper, node.tokens[cut:], node.rows[inside:].copy()
    upper.children[node.tokens[:TOKEN_BYTES]] = node
    return upper


def extend(node: Node, tokens: bytes, rows: RowIds) -> Node:
    """Hang a run below a node, as nodes of at most ``MAX_RUN`` tokens; return the last one."""
    for start in range(0, len(rows), MAX_RUN):
        run = tokens[start * TOKEN_BYTES : (start + MAX_RUN) * TOKEN_BYTES]
        child = Node(node, run, rows[start : start + MAX_RUN].copy(), node.pool)
        node.children[run[:TOKEN_BYTES]] = child
        node = child
    return node


def cut_tail(node: Node, num_tokens: int) -> tuple[RowIds, Node, bytes]:
    """Take the last tokens off a leaf, or the leaf off its parent: then it has no parent any more.

    Returns
    -------
    rows : ndarray of int64
        The rows set free.
    holder : Node
        The node before the cut.
    token : bytes
        The first token that was cut; `holder` remembers it.
    """
    assert node.parent is not None
    assert not node.children
    assert not node.pins
    keep = node.num_tokens - num_tokens
    rows = node.rows[keep:]
    if keep:
        holder, token = node, node.tokens[keep * TOKEN_BYTES : (keep + 1) * TOKEN_BYTES]
        node.tokens, node.rows = node.tokens[: keep * TOKEN_BYTES], node.rows[:keep].copy()
        node.gone.clear()
    else:
        holder, token = node.parent, node.tokens[:TOKEN_BYTES]
        del holder.children[token]
        node.parent = None
        holder.hits += node.hits
        holder.used = max(holder.used, node.used)
    holder.gone.add(token)
    return rows, holder, token


def check(root: Node) -> list[Node]:
    """Raise ``AssertionError`` if nodes and links contradict each other; return all nodes but the root."""
    nodes = list(root.walk())
    for node in nodes:
        assert node.parent is not None
        assert node.parent.children[node.tokens[:TOKEN_BYTES]] is node
        assert len(node.tokens) == node.num_tokens * TOKEN_BYTES > 0
        assert node.pool is root.pool
        assert node.pins >= 0
    return nodes
