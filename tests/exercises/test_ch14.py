"""Chapter 14's checkers: right answers are told so, typical slips are named, and nothing raises."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from cachequant_lib.exercises import ch14
from cachequant_lib.kv.ledger import Costs

Say = Callable[[Callable[[object], None], object], str]
SPOILING = ["the time of day in the system prompt", "the oldest turn dropped", "a new system prompt"]


def rule(lookup: float, copy: float, insert: float, compute: float, num_tokens: int) -> float:
    return Costs(lookup, copy, insert, compute).break_even(num_tokens)


RIGHT = [
    (ch14.check_ex1, [1425, 255]),
    (ch14.check_ex1, np.array([1425, 255])),
    (ch14.check_ex2, rule),
    (ch14.check_ex2, lambda *case: np.float64(rule(*case))),
    (ch14.check_ex3, [5, 4, 4.08]),
    (ch14.check_ex4, SPOILING),
    (ch14.check_ex4, tuple(reversed(SPOILING))),
    (ch14.check_ex5, 0.8),
    (ch14.check_ex5, np.float32(0.8)),
]

WRONG = [
    (ch14.check_ex1, [255, 1425], "wrong way round"),
    (ch14.check_ex1, [550, 255], "whole prompt"),
    (ch14.check_ex1, [1425, 280], "One turn too many"),
    (ch14.check_ex1, [1425, 265], "last token again"),
    (ch14.check_ex1, [1425, 1], "did not send"),
    (ch14.check_ex1, 1425, "2 whole numbers"),
    (ch14.check_ex2, 3.0, "function itself"),
    (ch14.check_ex2, lambda *case: None, "number"),
    (ch14.check_ex2, lambda *case: 1 / 0, "ZeroDivisionError"),
    (ch14.check_ex2, lambda a, c, i, p, n: (a + n * i) / (p - c), "saves its insert"),
    (ch14.check_ex2, lambda a, c, i, p, n: a / (p - c), "leaves the inserts out"),
    (ch14.check_ex2, lambda a, c, i, p, n: (a + n * i) / (p - c + i), "math.inf"),
    (ch14.check_ex2, lambda *case: 7.0, "set it to 0"),
    (ch14.check_ex3, [4, 4, 4.08], "Forward only"),
    (ch14.check_ex3, [5, 5, 4.08], "The source's"),
    (ch14.check_ex3, [5, 4, 4], "102 over what"),
    (ch14.check_ex3, [5, 4], "3 finite numbers"),
    (ch14.check_ex4, "the time of day in the system prompt", "list with some"),
    (ch14.check_ex4, ["the weather"], "list with some"),
    (ch14.check_ex4, ["a higher temperature"], "no harm"),
    (ch14.check_ex4, [*SPOILING, "the same line twice"], "longer beginning"),
    (ch14.check_ex4, SPOILING[:2], "a new system prompt"),
    (ch14.check_ex5, 0.925, "share of a whole pass"),
    (ch14.check_ex5, 20, "fixed price"),
    (ch14.check_ex5, 3.3, "Take two passes"),
    (ch14.check_ex5, "0.8", "one number"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_right(check: Callable[[object], None], answer: object, say: Say) -> None:
    assert say(check, answer).startswith("Right")


@pytest.mark.parametrize(("check", "answer", "hint"), WRONG)
def test_wrong(check: Callable[[object], None], answer: object, hint: str, say: Say) -> None:
    told = say(check, answer)
    assert hint in told
    assert not told.startswith("Right")


@pytest.mark.parametrize("number", range(1, 6))
def test_no_answer_yet(number: int, say: Say) -> None:
    assert say(getattr(ch14, f"check_ex{number}"), None) == "Not answered yet."


def test_a_line_through_all_passes_is_told_about_the_compiler(say: Say) -> None:
    slope = np.polyfit(*np.array(ch14.EX5_PASSES).T, 1)[0]
    assert abs(slope - 0.8) > 0.1
    assert "compiler" in say(ch14.check_ex5, slope)


def test_the_passes_hold_what_the_chapter_says() -> None:
    assert all(math.isclose(ms, 20 + 0.8 * n) for n, ms in ch14.EX5_PASSES[:-1])
