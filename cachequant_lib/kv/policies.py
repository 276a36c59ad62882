"""Which prompt a full prefix cache forgets first: three answers behind one small interface.

Only leaves that nobody has pinned may go. A node in use is not in its policy: it comes back when its last pin is
released, as the one used last. Using a prompt touches its last node only, and what lies before it is as recent as what
follows, so the time a use takes does not depend on how often the prompt was parted.
"""

import heapq
from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np

from cachequant_lib.kv.arena import RowPool
from cachequant_lib.kv.radix import Node


class Policy(Protocol):
    """What a prefix cache tells its policy, and the one thing it asks."""

    def add(self, node: Node) -> None:
        """Note that a node is free to go, and was used just now."""

    def remove(self, node: Node) -> None:
        """Note that a node has been pinned or evicted."""

    def bared(self, node: Node) -> None:
        """Note that a node without pins has lost its last child: it is a leaf now."""

    def victim(self) -> Node | None:
        """Return the leaf to take tokens from next; None if there is none."""


class LRU:
    """The least recently used leaf goes first. Each call costs the same on average, however much is stored.

    A doubly linked list holds nodes by their last use, oldest first. A parent that surfaces at the head drops out. When
    its last child has gone, which was the oldest of all, the parent is as old as that one was and is the new head.
    """

    def __init__(self) -> None:
        self._ends = Node(None, b"", np.empty(0, np.int64), RowPool((), np.int8, 0))

    def add(self, node: Node) -> None:
        """Put a node last."""
        self._link(self._ends.previous, node)

    def remove(self, node: Node) -> None:
        """Take a node out of the list, if it is there."""
        node.previous.next, node.next.previous = node.next, node.previous
        node.previous = node.next = node

    def bared(self, node: Node) -> None:
        """Put a node first, unless its own last use has given it a later place."""
        if node.next is node:
            self._link(self._ends, node)

    def victim(self) -> Node | None:
        """Return the first leaf of the list."""
        while self._ends.next.children:
            self.remove(self._ends.next)
        return None if self._ends.next is self._ends else self._ends.next

    @staticmethod
    def _link(before: Node, node: Node) -> None:
        node.previous, node.next = before, before.next
        before.next.previous = node
        before.next = node


class Ranked:
    """The leaf of the lowest rank goes first, the oldest among equals.

    A heap holds the leaves; entries that hold no longer are dropped when they surface. A call costs the logarithm of
    the number of leaves: from a thousand to a million, a factor of two.

    Parameters
    ----------
    rank : callable
        What a leaf is worth.
    ageing : bool, default False
        Count ranks from that of the latest victim on, so that old fame fades as others are evicted.
    """

    def __init__(self, rank: Callable[[Node], float], ageing: bool = False) -> None:
        self._rank, self._ageing = rank, ageing
        self._level = 0.0
        self._heap: list[tuple[float, int, Node]] = []
        self._valid: dict[Node, int] = {}
        self._count = 0

    def add(self, node: Node) -> None:
        """Enter a node if it is a leaf."""
        if node.children:
            return
        self._count += 1
        self._valid[node] = self._count
        heapq.heappush(self._heap, (self._level + self._rank(node), self._count, node))
        if len(self._heap) > 2 * len(self._valid) + 64:
            self._heap = [entry for entry in self._heap if self._valid.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def remove(self, node: Node) -> None:
        """Forget a node."""
        self._valid.pop(node, None)

    def bared(self, node: Node) -> None:
        """Enter the new leaf."""
        self.add(node)

    def victim(self) -> Node | None:
        """Return the leaf of the lowest rank."""
        while self._heap and self._valid.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)
        if not self._heap:
            return None
        if self._ageing:
            self._level = self._heap[0][0]
        return self._heap[0][2]


POLICIES: dict[str, Callable[[], Policy]] = {
    "lru": LRU,
    "lfu": partial(Ranked, lambda node: node.hits),
    # Uses a token: one long stale prompt goes before many short ones. GreedyDual-Size-Frequency at equal cost a token.
    "size": partial(Ranked, lambda node: node.hits / node.num_tokens, ageing=True),
}
"""What ``PrefixCache(policy=...)`` accepts. "lfu" does not age: a burst of uses long ago still protects."""
