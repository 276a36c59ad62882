"""Chapter 11's checkers: right answers are told so, typical slips are named, and nothing raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cachequant_lib.exercises import ch11

Say = Callable[[Callable[[object], None], object], str]


def digits(i: Any) -> Any:
    high = (i + 128) >> 8
    return high, i - 256 * high


def skip(shares: Any, budget: float) -> Any:
    order = np.argsort(shares)
    skipped = np.zeros(len(shares), bool)
    skipped[order] = np.cumsum(shares[order]) <= budget + 1e-12
    return skipped


RIGHT = [
    (ch11.check_ex1, [10.5, 11.072]),
    (ch11.check_ex2, digits),
    (ch11.check_ex2, lambda i: [part.tolist() for part in digits(i)]),
    (ch11.check_ex3, skip),
    (ch11.check_ex3, lambda shares, budget: skip(shares, budget).tolist()),
    (ch11.check_ex4, [134.2, 58.7, 2.286]),
    (ch11.check_ex4, (134, 59, 2.3)),
]

WRONG = [
    (ch11.check_ex1, [12, 12], "mean of 16, 12 and 8"),
    (ch11.check_ex1, [11, 12], "It is not 11 bits"),
    (ch11.check_ex1, [10.5, 13.25], "Few tokens are in the open block"),
    (ch11.check_ex1, [10.5, 12], "Over all 500 tokens it is not 12"),
    (ch11.check_ex1, [10.5], "Expected 2"),
    (ch11.check_ex2, lambda i: (i >> 8, i & 255), "from -128 to 127"),
    (ch11.check_ex2, lambda i: (i >> 8, i & 127), "must give the number back"),
    (ch11.check_ex2, lambda i: (i * 0, i), "The digits of 128 should be 1 and -128"),
    (ch11.check_ex2, lambda i: i, "Return two arrays"),
    (ch11.check_ex3, lambda shares, budget: shares <= budget, "budget is for all of them together"),
    (ch11.check_ex3, lambda shares, budget: ~skip(shares, budget), "Mark those to skip"),
    (ch11.check_ex3, lambda shares, budget: np.zeros(8, bool), "can be skipped, not []"),
    (ch11.check_ex3, lambda shares, budget: skip(shares, budget)[:3], "shape (8,)"),
    (ch11.check_ex4, [67, 29, 2.3], "twice as many numbers"),
    (ch11.check_ex4, [1073, 59, 2.3], "megabits"),
    (ch11.check_ex4, [100, 59, 2.3], "not 100 MB"),
    (ch11.check_ex4, [134, 100, 2.3], "seven sixteenths"),
    (ch11.check_ex4, [134, 58.7, 4], "not 4"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_right_answers(check: Callable[[object], None], answer: object, say: Say) -> None:
    assert say(check, answer).startswith("Right. ")


@pytest.mark.parametrize(("check", "answer", "hint"), WRONG)
def test_slips_are_named(check: Callable[[object], None], answer: object, hint: str, say: Say) -> None:
    told = say(check, answer)
    assert hint in told
    assert not told.startswith("Right. ")
