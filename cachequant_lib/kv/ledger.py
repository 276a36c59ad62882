"""The books of a prefix cache: what it did, what that took, and what it saved as far as can be told.

What a hit costs is measured. What it saves is not, since nobody computes what was found: it is estimated from the
requests whose forward pass was timed, as a price for every token more. The fixed price of a pass, above all that of
reading all weights once, is paid with a hit as well, so it does not count as saved.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import linear_regression, median
from typing import Any

Namespace = str | tuple[str, ...]
Listener = Callable[[str, dict[str, Any]], dict[str, Any]]

FOUND = ("requests", "hits", "prompt_tokens", "hit_tokens", "copied_tokens")
STORED = ("inserted_tokens", "evicted_tokens", "evictions", "refused")
TIMES = ("match_s", "copy_s", "insert_s")
REMEMBERED = 9
"""Requests of about one length that a pace is learnt from: the latest ones."""
MAX_PACES = 1024
"""Namespaces whose pace is known at once."""


@dataclass(frozen=True)
class Costs:
    """What reuse is weighed by, in seconds.

    Attributes
    ----------
    lookup_s : float
        One match.
    copy_s, insert_s : float
        Copying one found token out, and storing one new token.
    compute_s : float
        Computing one token more in a forward pass that is needed anyway.
    """

    lookup_s: float
    copy_s: float
    insert_s: float
    compute_s: float

    def gain_s(self, found: float, num_tokens: float) -> float:
        """Seconds that a prompt of `num_tokens` gains if so many of them are found; below 0 it was not worth it."""
        return found * (self.compute_s - self.copy_s) - self.lookup_s - (num_tokens - found) * self.insert_s

    def break_even(self, num_tokens: float) -> float:
        """Tokens of a prompt that must be found for the cache to pay for itself.

        Infinite if that cannot be, or while `compute_s` is not known and 0.
        """
        worth = self.compute_s - self.copy_s + self.insert_s
        known = self.compute_s > 0 and worth > 0
        return (self.lookup_s + num_tokens * self.insert_s) / worth if known else math.inf


class Pace:
    """Seconds a token more takes, learnt from forward passes of different lengths.

    Lengths from one power of two to the next are taken together, and stand for their median: one slow request does not
    count, and many short ones do not push out what a long one told. The pace is the slope of a line through these.
    """

    def __init__(self) -> None:
        self.found = 0
        self._seen: dict[int, deque[tuple[int, float]]] = {}

    def add(self, found: int, computed: int, seconds: float) -> None:
        """Take in one request: tokens found, tokens computed, and the seconds of computing."""
        self.found += found
        self._seen.setdefault(computed.bit_length(), deque(maxlen=REMEMBERED)).append((computed, seconds))

    @property
    def per_token_s(self) -> float:
        """Seconds of one token more; 0 until two lengths were seen that lie apart."""
        points = [tuple(map(median, zip(*seen, strict=True))) for seen in self._seen.values()]
        return max(0.0, linear_regression(*zip(*points, strict=True)).slope) if len(points) > 1 else 0.0


class Ledger:
    """Counts of all events, and a place to listen to them.

    Attributes
    ----------
    counts : dict
        Sums of what events told under the names in ``FOUND``, ``STORED`` and ``TIMES``.
    listener : callable or None
        Is given each event's name and what it tells, before that counts; what it returns counts instead.
    """

    def __init__(self) -> None:
        self.counts: dict[str, Any] = dict.fromkeys(FOUND + STORED, 0) | dict.fromkeys(TIMES, 0.0)
        self.listener: Listener | None = None
        self._paces: dict[Namespace, Pace] = {}
        self._banked_s, self._banked_tokens = 0.0, 0

    def note(self, event: str, **told: Any) -> dict[str, Any]:
        """Count an event; return what it told."""
        if self.listener is not None:
            told = self.listener(event, told)
        for name, value in told.items():
            if name in self.counts:
                self.counts[name] += value
        return told

    def report(self, namespace: Namespace, found: int, computed: int, seconds: float) -> None:
        """Take in how long it took to compute what a match did not find."""
        told = self.note("report", namespace=namespace, found=found, computed=computed, prefill_s=seconds)
        if namespace not in self._paces and len(self._paces) == MAX_PACES:
            oldest = self._paces.pop(next(iter(self._paces)))
            self._banked_s += oldest.found * oldest.per_token_s
            self._banked_tokens += oldest.found
        self._paces.setdefault(namespace, Pace()).add(found, computed, told["prefill_s"])

    def saved(self) -> tuple[float, int]:
        """Estimate the seconds that all reported hits saved, and count their tokens."""
        seconds = [pace.found * pace.per_token_s for pace in self._paces.values()]
        return self._banked_s + sum(seconds), self._banked_tokens + sum(p.found for p in self._paces.values())

    def costs(self, compute_s: float) -> Costs:
        """Costs as measured so far; until something was copied out, that costs as much as storing it."""
        c = self.counts
        lookup_s, insert_s = c["match_s"] / max(1, c["requests"]), c["insert_s"] / max(1, c["inserted_tokens"])
        copy_s = c["copy_s"] / c["copied_tokens"] if c["copied_tokens"] else insert_s
        return Costs(lookup_s, copy_s, insert_s, compute_s)

    def pace_s(self, namespace: Namespace) -> float:
        """Seconds that one token more takes in this namespace; 0 while that is not known."""
        return self._paces[namespace].per_token_s if namespace in self._paces else 0.0
