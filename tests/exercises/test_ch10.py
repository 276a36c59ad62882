"""Chapter 10's checkers: right answers are told so, typical slips are named, and nothing raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cachequant_lib.exercises import ch10

Say = Callable[[Callable[[object], None], object], str]


def last_place(patterns: Any) -> Any:
    return 2.0 ** (np.maximum((patterns.astype(int) >> 10) & 0x1F, 1) - 25)


def from_neighbours(patterns: Any) -> Any:
    """Another way: the gap to the number below, except at powers of two; correct for the magnitudes tested."""
    magnitude = patterns.astype(int) & 0x7FFF
    base = (magnitude >> 10 << 10).astype(np.uint16)
    return (base + 1).astype(np.uint16).view(np.float16).astype(float) - base.view(np.float16).astype(float)


def keep_and_fill(patterns: Any, bits: int) -> Any:
    lost = 16 - bits
    return (patterns.astype(int) >> lost << lost) + ((1 << lost) >> 1)


def cut(patterns: Any, bits: int) -> Any:
    return patterns.astype(int) >> (16 - bits) << (16 - bits)


def rule(size: Any, thresholds: tuple[int, int] = (4, 8)) -> Any:
    below = size.max() - size
    return np.where(below < thresholds[0], 16, np.where(below < thresholds[1], 12, 8))


def exponent(x: Any) -> Any:
    return np.frexp(x)[1]


def choose_bits(q: Any, k: Any) -> Any:
    return rule(exponent(np.abs(q)) + exponent(np.abs(k)).max(axis=0))


RIGHT = [
    (ch10.check_ex1, [13, 1.1, 0.781]),
    (ch10.check_ex1, (13.0, 1.1, np.sqrt(0.61))),
    (ch10.check_ex2, [7, 10, 13]),
    (ch10.check_ex2, np.array([7, 10, 13])),
    (ch10.check_ex3, last_place),
    (ch10.check_ex3, from_neighbours),
    (ch10.check_ex4, keep_and_fill),
    (ch10.check_ex4, lambda p, bits: keep_and_fill(p, bits).astype(np.uint16)),
    (ch10.check_ex5, choose_bits),
    (ch10.check_ex5, lambda q, k: choose_bits(q, k).tolist()),
]

WRONG = [
    (ch10.check_ex1, [19, 1.1, 0.78], "is not 19"),
    (ch10.check_ex1, [13, -0.1, 0.78], "do not cancel"),
    (ch10.check_ex1, [13, 0.4, 0.32], "factors are missing"),
    (ch10.check_ex1, [13, 2, 0.78], "worst case is not 2"),
    (ch10.check_ex1, [13, 1.1, 0.61], "In quadrature"),
    (ch10.check_ex2, [13, 10, 7], "other way round"),
    (ch10.check_ex2, [10, 10, 10], "not equal uncertainties"),
    (ch10.check_ex2, [7, 10, 14], "These are 31 bits"),
    (ch10.check_ex2, [8, 10, 12], "2**-9, 2**-8, 2**-7"),
    (ch10.check_ex3, lambda p: last_place(p)[:3], "shape"),
    (ch10.check_ex3, lambda p: 2.0 ** (((p.astype(int) >> 10) & 31) - 25), "Right for normal numbers"),
    (ch10.check_ex3, lambda p: 2.0 ** ((p.astype(int) >> 10) - 25), "sign bit"),
    (ch10.check_ex3, lambda p: last_place(p) * 1024, "leading digit"),
    (ch10.check_ex3, lambda p: last_place(p) * 2, "the last place is"),
    (ch10.check_ex4, cut, "fills with zeros"),
    (ch10.check_ex4, lambda p, bits: cut(p, bits) + (1 << (16 - bits)) - 1, "fills with ones"),
    (ch10.check_ex4, lambda p, bits: p | ((1 << (16 - bits)) >> 1), "old bits"),
    (ch10.check_ex4, lambda p, bits: keep_and_fill(p, bits) + (bits == 16), "nothing may change"),
    (ch10.check_ex4, lambda p, bits: p, "should become"),
    (ch10.check_ex5, lambda q, k: rule(exponent(np.abs(q)) + exponent(np.abs(k.max(axis=0)))), "magnitude before"),
    (ch10.check_ex5, lambda q, k: rule(exponent(np.abs(k)).max(axis=0)), "k alone"),
    (ch10.check_ex5, lambda q, k: rule(exponent(np.abs(q))), "q alone"),
    (ch10.check_ex5, lambda q, k: rule(np.log2(np.abs(q * np.abs(k).max(axis=0)))), "whole exponents"),
    (ch10.check_ex5, lambda q, k: 24 - choose_bits(q, k), "other way round"),
    (ch10.check_ex5, lambda q, k: rule(exponent(q) + exponent(np.abs(k)).max(axis=0), (1, 2)), "binades below the top"),
    (ch10.check_ex5, lambda q, k: np.full(64, 16), "binades below the top"),
    (ch10.check_ex5, lambda q, k: np.full(32, 16), "shape (64,)"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_right_answers(check: Callable[[object], None], answer: object, say: Say) -> None:
    assert say(check, answer).startswith("Right. ")


@pytest.mark.parametrize(("check", "answer", "hint"), WRONG)
def test_slips_are_named(check: Callable[[object], None], answer: object, hint: str, say: Say) -> None:
    told = say(check, answer)
    assert hint in told
    assert not told.startswith("Right. ")
