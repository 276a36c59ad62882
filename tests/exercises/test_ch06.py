"""Chapter 6's checkers: right answers are told so, typical slips are named, and nothing raises."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from cachequant_lib.exercises import ch06

Say = Callable[[Callable[[object], None], object], str]


def pairs(a: list[int], b: list[int]) -> list[int]:
    return [a[0] * b[0] + a[1] * b[1], a[2] * b[2] + a[3] * b[3]]


def clipped(a: list[int], b: list[int]) -> list[int]:
    return [min(max(pair, -32768), 32767) for pair in pairs(a, b)]


RIGHT = [
    (ch06.check_ex1, 1032),
    (ch06.check_ex2, clipped),
    (ch06.check_ex2, lambda a, b: np.clip(pairs(a, b), -32768, 32767)),
    (ch06.check_ex3, -2688),
    (ch06.check_ex4, lambda r, v: 1 / r + 1 / v),
    (ch06.check_ex5, 10.0),
]

WRONG = [
    (ch06.check_ex1, 133144, "inputs of 8 bits"),
    (ch06.check_ex1, 2064, "the sign"),
    (ch06.check_ex1, 516, "16 bits"),
    (ch06.check_ex1, 8, "weight is at most 127"),
    (ch06.check_ex1, 131080, "products must fit"),
    (ch06.check_ex1, 1, "(2**31 - 1)"),
    (ch06.check_ex2, pairs, "does not fit"),
    (ch06.check_ex2, lambda a, b: np.array(pairs(a, b)).astype(np.int16), "wraps around"),
    (ch06.check_ex2, lambda a, b: [0, 0], "should be 32767"),
    (ch06.check_ex3, 2688, "sign"),
    (ch06.check_ex3, -1664, "its *weight*"),
    (ch06.check_ex3, -512, "not by 128"),
    (ch06.check_ex3, -4480, "keep their signs"),
    (ch06.check_ex3, 93, "From where"),
    (ch06.check_ex3, 1, "over the column"),
    (ch06.check_ex4, lambda r, v: r * v / (r + v), "Upside down"),
    (ch06.check_ex4, lambda r, v: 1 / r, "Only the weights"),
    (ch06.check_ex4, lambda r, v: 1 / v, "Only the inputs"),
    (ch06.check_ex4, lambda r, v: r + v, "all loads"),
    (ch06.check_ex4, lambda r, v: 2, "without a tile"),
    (ch06.check_ex4, lambda r, v: 7, "24 products"),
    (ch06.check_ex5, 0.1, "Upside down"),
    (ch06.check_ex5, 40, "float32"),
    (ch06.check_ex5, 2.5, "one byte"),
    (ch06.check_ex5, 20, "counted once"),
    (ch06.check_ex5, -1, "fewer than none"),
    (ch06.check_ex5, 7, "seconds of reading"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_right_answers(check: Callable[[object], None], answer: object, say: Say) -> None:
    assert say(check, answer).startswith("Right")


@pytest.mark.parametrize(("check", "answer", "hint"), WRONG)
def test_slips_are_named(check: Callable[[object], None], answer: object, hint: str, say: Say) -> None:
    told = say(check, answer)
    assert hint in told
    assert not told.startswith("Right")
