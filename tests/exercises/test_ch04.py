"""Chapter 4's checkers: right answers are told so, typical slips are named, and nothing raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cachequant_lib.exercises import ch04

Say = Callable[[Callable[[object], None], object], str]


def multiply(x_codes: Any, x_scale: Any, w_codes: Any, w_scales: Any) -> Any:
    return (w_codes.astype(np.int32) @ x_codes.astype(np.int32)) * (x_scale * w_scales / 127**2)


def smooth(x: Any, w: Any) -> Any:
    share = np.sqrt(np.abs(x).max(axis=0) / np.abs(w).max(axis=0))
    return x / share, w * share


def by_factor(factor: float) -> Callable[[Any, Any], Any]:
    share = np.ones(128)
    share[17] = factor
    return lambda x, w: (x / share, w * share)


RIGHT = [
    (ch04.check_ex1, [127, -9, 60, -109]),
    (ch04.check_ex1, np.array([127, -9, 60, -109], dtype=np.int8)),
    (ch04.check_ex2, 128),
    (ch04.check_ex2, 128.0),
    (ch04.check_ex3, [133144, 2, 1]),
    (ch04.check_ex3, (133144.0, 2, 1)),
    (ch04.check_ex4, multiply),
    (ch04.check_ex4, lambda a, s, b, t: [float(v) for v in multiply(a, s, b, t)]),
    (ch04.check_ex5, smooth),
    (ch04.check_ex5, by_factor(8)),
]

WRONG = [
    (ch04.check_ex1, [89, -6, 42, -76], "BFP8"),
    (ch04.check_ex1, [127, -9, 59, -108], "cut off"),
    (ch04.check_ex1, [128, -9, 60, -110], "divisor 128"),
    (ch04.check_ex1, [127, 9, 60, 109], "keeps the sign"),
    (ch04.check_ex1, [127, -9, 61, -109], "code of 0.33 is not 61"),
    (ch04.check_ex2, 32, "9 bits"),
    (ch04.check_ex2, 768, "8.042"),
    (ch04.check_ex2, 0, "at least one"),
    (ch04.check_ex3, [266288, 2, 1], "unsigned"),
    (ch04.check_ex3, [133144, 258, 1], "not 127"),
    (ch04.check_ex3, [133145, 2, 1], "is above 2,147,483,647"),
    (ch04.check_ex3, [133144, 2, 2], "32,768 is above"),
    (ch04.check_ex3, [133144, 1, 1], "longer sum still fits"),
    (ch04.check_ex3, [133144, 4, 1], "unsigned"),
    (ch04.check_ex4, lambda a, s, b, t: b @ a, "wrapped round"),
    (ch04.check_ex4, lambda a, s, b, t: (b @ a) * (s * t / 127**2), "wrapped round"),
    (ch04.check_ex4, lambda a, s, b, t: b.astype(int) @ a.astype(int), "still missing"),
    (ch04.check_ex4, lambda a, s, b, t: multiply(a, s, b, t) * 127, "127 twice"),
    (ch04.check_ex4, lambda a, s, b, t: multiply(a, s, b, t) * 127**2, "127 twice"),
    (ch04.check_ex4, lambda a, s, b, t: multiply(a, s, b, 1), "weight are missing"),
    (ch04.check_ex4, lambda a, s, b, t: multiply(a, 1, b, t), "scale of x is missing"),
    (ch04.check_ex4, lambda a, s, b, t: -multiply(a, s, b, t), "should be"),
    (ch04.check_ex4, lambda a, s, b, t: multiply(a, s, b, t)[:, None], "shape (5,)"),
    (ch04.check_ex5, lambda x, w: None, "two arrays"),
    (ch04.check_ex5, lambda x, w: x, "return x, w"),
    (ch04.check_ex5, lambda x, w: (x, w.T), "shape (32, 128), got shape (128, 32)"),
    (ch04.check_ex5, lambda x, w: (x, w), "Shrink"),
    (ch04.check_ex5, lambda x, w: (x / 8, w * 8), "Shrink"),
    (ch04.check_ex5, lambda x, w: (x / 8, w), "product changed"),
    (ch04.check_ex5, lambda x, w: (x * np.nan, w), "product changed"),
    (ch04.check_ex5, lambda x, w: (np.clip(x, -4, 4), w), "product changed"),
    (ch04.check_ex5, by_factor(60), "Shrink"),
    (ch04.check_ex5, by_factor(2), "share the load"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_right_answers(check: Callable[[object], None], answer: object, say: Say) -> None:
    assert say(check, answer).startswith("Right.")


@pytest.mark.parametrize(("check", "answer", "hint"), WRONG)
def test_slips_are_named(check: Callable[[object], None], answer: object, hint: str, say: Say) -> None:
    told = say(check, answer)
    assert hint in told
    assert not told.startswith("Right.")


def test_the_readers_arrays_are_copies(say: Say) -> None:
    def in_place(x: Any, w: Any) -> Any:
        x *= 0
        return x, w

    assert "product changed" in say(ch04.check_ex5, in_place)
