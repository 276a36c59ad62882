"""Chapter 5's checkers: right answers are told so, typical slips are named, and nothing raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cachequant_lib.exercises import ch05
from cachequant_lib.formats.scheme import scales_of

Say = Callable[[Callable[[object], None], object], str]


def worth(bits_a: float, error_a: float, bits_b: float, error_b: float) -> float:
    return float(bits_a - bits_b + np.log2(error_a / error_b))


def snap(maxima: Any, steps: int) -> Any:
    low = 2.0 ** np.floor(np.log2(maxima))
    return np.ceil(maxima / low * steps) / steps * low


RIGHT = [
    (ch05.check_ex1, [8.125, 8.5, 8.0104, 3]),
    (ch05.check_ex1, np.array([8 + 16 / 128, 8 + 8 / 16, 8 + 32 / 3072, 2 + 32 / 32])),
    (ch05.check_ex2, [2, 0.75, 5.5, 1]),
    (ch05.check_ex2, snap(np.array(ch05.EX2_MAXIMA), 8)),
    (ch05.check_ex3, worth),
    (ch05.check_ex4, snap),
    (ch05.check_ex5, (128, "snapped")),
    (ch05.check_ex5, [128, "snapped"]),
]

WRONG = [
    (ch05.check_ex1, [24, 8.5, 8.0104, 3], "shared by 128 values"),
    (ch05.check_ex1, [8.125, 8.5, 8.0104, 2.5], "a scale and a minimum"),
    (ch05.check_ex1, [8.125, 8.5, 8.0104, 9], "2 bits here"),
    (ch05.check_ex1, [0.125, 8.5, 8.0104, 3], "share of the scale alone"),
    (ch05.check_ex1, [8.125, 8.25, 8.0104, 3], "Format 2"),
    (ch05.check_ex2, [2, 1, 8, 1], "next power of two"),
    (ch05.check_ex2, [1.875, 0.75, 5.5, 1], "below the maximum"),
    (ch05.check_ex2, [2, 0.75, 5.5, 1.125], "keeps it"),
    (ch05.check_ex2, [2, 0.75, 5.125, 1], "a step is 0.5"),
    (ch05.check_ex2, [2, 0.75, 5.25, 1], "sixteen"),
    (ch05.check_ex2, [2, 0.75, 6, 1], "not the first step"),
    (ch05.check_ex3, lambda a, e, b, f: np.log2(e / f), "rounding alone"),
    (ch05.check_ex3, lambda a, e, b, f: a - b, "stored bits alone"),
    (ch05.check_ex3, lambda *case: -worth(*case), "sign is turned"),
    (ch05.check_ex3, lambda a, e, b, f: b - a + np.log2(e / f), "subtract b's bits"),
    (ch05.check_ex3, lambda a, e, b, f: a - b + np.log2(f / e), "error of a goes on top"),
    (ch05.check_ex3, lambda a, e, b, f: a - b + np.log(e / f), "base 2"),
    (ch05.check_ex3, lambda a, e, b, f: a - b + e / f, "not the ratio"),
    (ch05.check_ex3, lambda *case: 12.0, "should give"),
    (ch05.check_ex4, lambda m, n: 2.0 ** (np.ceil(np.log2(m) * n) / n), "equal factors"),
    (ch05.check_ex4, lambda m, n: m / 2, "below it"),
    (ch05.check_ex4, lambda m, n: m, "should get"),
    (ch05.check_ex4, lambda m, n: snap(m, 8), "With 4 steps"),
    (ch05.check_ex4, lambda m, n: snap(m, n)[:3], "One scale for each"),
    (ch05.check_ex5, (32, "pow2"), "8.250 bits"),
    (ch05.check_ex5, ("row", "exact"), "Another cell"),
    (ch05.check_ex5, ("row", "nearest"), "no such format"),
    (ch05.check_ex5, (100, "pow2"), "does not divide"),
    (ch05.check_ex5, ([], {}), "no such format"),
    (ch05.check_ex5, "row", "Give a granularity"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_right_answers(check: Callable[[object], None], answer: object, say: Say) -> None:
    assert say(check, answer).startswith("Right.")


@pytest.mark.parametrize(("check", "answer", "hint"), WRONG)
def test_slips_are_named(check: Callable[[object], None], answer: object, hint: str, say: Say) -> None:
    told = say(check, answer)
    assert hint in told
    assert not told.startswith("Right.")


def test_the_exercise_snaps_as_the_library_does() -> None:
    maxima = np.exp(np.random.default_rng(0).uniform(-20, 20, 500)).astype(np.float32)
    assert np.array_equal(scales_of(maxima, "snapped"), snap(maxima.astype(float), 8).astype(np.float32))
