"""Chapter 15's checkers: right answers are told so, typical slips are named, and nothing raises."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import cachequant_lib as cq
from cachequant_lib.exercises import ch15

Say = Callable[[Callable[[object], None], object], str]
SAME, REFUSED = ch15.EX2_THINGS[:5], [ch15.EX5_CASES[i] for i in (0, 2, 4)]


def in_order(parts: Sequence[Any]) -> np.float32:
    total = np.float32(0)
    for value in np.concatenate(parts):
        total += value
    return total


def part_by_part(parts: Sequence[Any]) -> float:
    return float(np.float32(sum(part.sum() for part in parts)))


RIGHT = [
    (ch15.check_ex1, [260 / 70, 6.5, 17.33]),
    (ch15.check_ex2, SAME),
    (ch15.check_ex2, tuple(reversed(SAME))),
    (ch15.check_ex3, in_order),
    (ch15.check_ex3, lambda parts: math.fsum(np.concatenate(parts).tolist())),
    (ch15.check_ex3, lambda parts: np.concatenate(parts).sum()),
    (ch15.check_ex4, [62, 63]),
    (ch15.check_ex5, REFUSED),
]
WRONG = [
    (ch15.check_ex1, [4, 6.5, 17.3], "int8 alone"),
    (ch15.check_ex1, [3.714, 10.4, 17.3], "cache alone"),
    (ch15.check_ex1, [3.714, 6.5, 24.14], "product"),
    (ch15.check_ex1, [3.714, 6.5, 52], "How often"),
    (ch15.check_ex1, 3.7, "3 finite numbers"),
    (ch15.check_ex2, "the weights", "list with some"),
    (ch15.check_ex2, ["the weather"], "list with some"),
    (ch15.check_ex2, [*SAME, "the temperature"], "Not 'the temperature'"),
    (ch15.check_ex2, SAME[:4], "'the tenant'"),
    (ch15.check_ex2, [SAME[0], *SAME[2:]], "'the weight format'"),
    (ch15.check_ex3, part_by_part, "where a part ends"),
    (ch15.check_ex3, lambda parts: 0.0, "their sum is"),
    (ch15.check_ex3, lambda parts: None, "number"),
    (ch15.check_ex3, 3.0, "function itself"),
    (ch15.check_ex4, [63, 63], "even code"),
    (ch15.check_ex4, [80, 63], "over 127"),
    (ch15.check_ex4, [62, 62], "a little smaller"),
    (ch15.check_ex4, [62, 79], "nearest"),
    (ch15.check_ex4, [62.5, 63], "whole numbers"),
    (ch15.check_ex5, "an empty prompt", "list with some"),
    (ch15.check_ex5, ["a long face"], "list with some"),
    (ch15.check_ex5, [*REFUSED, "no new tokens"], "warms a cache"),
    (ch15.check_ex5, REFUSED[:2], "ten new tokens"),
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
    assert say(getattr(ch15, f"check_ex{number}"), None) == "Not answered yet."


@pytest.mark.parametrize("extra", [thing for thing in ch15.EX5_CASES if thing not in REFUSED])
def test_each_case_that_works_has_its_reason(extra: str, say: Say) -> None:
    assert len(say(ch15.check_ex5, [*REFUSED, extra])) > len(f"Not '{extra}'. ")


def test_the_codes_are_those_of_exact_scales() -> None:
    row = np.array([[127, 62.5]], np.float32)  # a hundred times 1.27 and 0.625: exact in float32
    less = row * np.array([[1 - 1e-6, 1]], np.float32)
    assert cq.quantize_int8(row).codes.tolist() == [[127, 62]]
    assert cq.quantize_int8(less).codes.tolist() == [[127, 63]]
