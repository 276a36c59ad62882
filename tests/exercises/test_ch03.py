"""Chapter 3's checkers: right answers are told so, typical slips are named, and nothing raises."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from cachequant_lib.exercises import ch03

Say = Callable[[Callable[[object], None], object], str]


def largest(x: np.ndarray) -> np.ndarray:
    return np.abs(x.reshape(-1, 32)).max(axis=1)


def pow2(x: np.ndarray) -> np.ndarray:
    return 2.0 ** np.ceil(np.log2(largest(x)))


RIGHT = [
    (ch03.check_ex1, [89, -6, 42, -76]),
    (ch03.check_ex1, np.array([89, -6, 42, -76], dtype=np.int8)),
    (ch03.check_ex2, (2, 0, 1, -1, -1)),
    (ch03.check_ex2, [2.0, 0.0, 1.0, -1.0, -1.0]),
    (ch03.check_ex3, lambda size, bits: 8 + bits / size),
    (ch03.check_ex4, lambda x: pow2(x) / 254),
    (ch03.check_ex4, lambda x: (pow2(x) / 254).tolist()),
    (ch03.check_ex4, lambda x: (pow2(x) / 254, x.fill(0))[0]),  # what it does to x is its own business
    (ch03.check_ex5, [1.005, 0.3, -0.2, 0.1]),
    (ch03.check_ex5, (-2.005, 1, 0, 0)),
]

WRONG = [
    (ch03.check_ex1, [88, -6, 41, -76], "cut off"),
    (ch03.check_ex1, [127, -9, 60, -109], "exact maximum"),
    (ch03.check_ex1, [178, -13, 84, -152], "does not fit into 8 bits"),
    (ch03.check_ex1, [127, -13, 84, -127], "clipped"),
    (ch03.check_ex1, [44, -3, 21, -38], "scale 2"),
    (ch03.check_ex1, [90, -6, 42, -77], "divisor 128"),
    (ch03.check_ex1, [89, 6, 42, 76], "keeps the sign"),
    (ch03.check_ex1, [89, -6, 43, -76], "code of 0.33 is not 43"),
    (ch03.check_ex2, [1, 0, 0, -2, -1], "rounded down"),
    (ch03.check_ex2, [2, 0, 0, -2, -1], "rounded to the nearest"),
    (ch03.check_ex2, [2, 1, 1, -1, 0], "powers of two already"),
    (ch03.check_ex2, [3, 0, 1, -1, -1], "larger than needed"),
    (ch03.check_ex2, [1, 0, 1, -1, -1], "too small"),
    (ch03.check_ex2, [4, 1, 2, 1, 1], "scale"),
    (ch03.check_ex3, lambda size, bits: 8 + bits, "whole scale to one value"),
    (ch03.check_ex3, lambda size, bits: bits / size, "its own 8-bit code"),
    (ch03.check_ex3, lambda size, bits: 8 + bits // size, "//"),
    (ch03.check_ex3, lambda size, bits: 8 * size + bits, "whole block"),
    (ch03.check_ex3, lambda size, bits: 8.25, "16-bit scale"),
    (ch03.check_ex4, lambda x: largest(x) / 254, "exact scale"),
    (ch03.check_ex4, lambda x: pow2(x) / 127, "whole step"),
    (ch03.check_ex4, lambda x: pow2(x) / 256, "scale / 254"),
    (ch03.check_ex4, lambda x: pow2(x) / 508, "rounded down"),
    (ch03.check_ex4, lambda x: pow2(x), "should be"),
    (ch03.check_ex4, lambda x: np.repeat(pow2(x), 32) / 254, "has 3 blocks"),
    (ch03.check_ex4, lambda x: pow2(x).max() / 254, "has 3 blocks"),
    (ch03.check_ex5, [1.5, -0.7, 0.2, -1.9], "exactly 64"),
    (ch03.check_ex5, [1.0, 0.5, 0.25, 0.1], "code 127"),
    (ch03.check_ex5, [0, 0, 0, 0], "not all of them zero"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_right_answers(check: Callable[[object], None], answer: object, say: Say) -> None:
    assert say(check, answer).startswith("Right.")


@pytest.mark.parametrize(("check", "answer", "hint"), WRONG)
def test_slips_are_named(check: Callable[[object], None], answer: object, hint: str, say: Say) -> None:
    told = say(check, answer)
    assert hint in told
    assert not told.startswith("Right.")
