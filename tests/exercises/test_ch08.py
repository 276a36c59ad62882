"""Chapter 8's checkers: right answers are told so, typical slips are named, and nothing raises."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cachequant_lib.exercises import ch08

Say = Callable[[Callable[[object], None], object], str]


def needed(spread: float, percent: float) -> float:
    return (196 * spread / percent) ** 2


def paired(before: Any, after: Any) -> tuple[float, float]:
    gap = after - before
    return 100 * math.expm1(gap.mean()), 196 * gap.std(ddof=1) / math.sqrt(len(gap))


def in_order(x: Any) -> Any:
    total = np.zeros(len(x), np.float32)
    for k in range(x.shape[1]):
        total += x[:, k]
    return total


def by_number_of_rows(x: Any) -> Any:
    return in_order(x[:, ::-1]) if len(x) > 20 else in_order(x)


RIGHT = [
    (ch08.check_ex1, [8, 1.5]),
    (ch08.check_ex1, (8.0, 1.5)),
    (ch08.check_ex2, needed),
    (ch08.check_ex2, lambda s, p: math.ceil(needed(s, p))),
    (ch08.check_ex3, paired),
    (ch08.check_ex4, math.log(2) / 4),
    (ch08.check_ex4, 0.173),
    (ch08.check_ex5, in_order),
    (ch08.check_ex5, lambda x: [math.fsum(row) for row in x.tolist()]),
    (ch08.check_ex5, lambda x: np.rint(x.astype(float) * 2**20).astype(np.int64).sum(axis=1) / 2**20),
]

WRONG = [
    (ch08.check_ex1, [3, 1.5], "2 to that power"),
    (ch08.check_ex1, [math.exp(3), 1.5], "base is 2"),
    (ch08.check_ex1, [12.5, 1.5], "not the numbers of choices"),
    (ch08.check_ex1, [5.12, 1.5], "mean of the probabilities"),
    (ch08.check_ex1, [100, 1.5], "what is their mean"),
    (ch08.check_ex1, [8, 0.375], "not their mean"),
    (ch08.check_ex1, [8, 12], "12 bits in all"),
    (ch08.check_ex2, lambda s, p: (1.96 * s / p) ** 2, "in per cent"),
    (ch08.check_ex2, lambda s, p: 196 * s / p, "squared"),
    (ch08.check_ex2, lambda s, p: (100 * s / p) ** 2, "one standard error"),
    (ch08.check_ex2, lambda s, p: 1.96 * (100 * s / p) ** 2, "1.96 is squared"),
    (ch08.check_ex2, lambda s, p: 1e9, "takes about"),
    (ch08.check_ex2, lambda s, p: needed(0.015, p), "takes about"),
    (ch08.check_ex3, lambda b, a: paired(a, b), "sign is turned"),
    (ch08.check_ex3, lambda b, a: [v / 100 for v in paired(b, a)], "per cent"),
    (ch08.check_ex3, lambda b, a: (100 * (a.mean() / b.mean() - 1), 0), "its exponential"),
    (ch08.check_ex3, lambda b, a: (7, 0), "changes by"),
    (
        ch08.check_ex3,
        lambda b, a: (paired(b, a)[0], 196 * math.sqrt((a.var() + b.var()) / len(a))),
        "token by token",
    ),
    (ch08.check_ex3, lambda b, a: (paired(b, a)[0], 196 * (a - b).std()), "root of n"),
    (ch08.check_ex3, lambda b, a: (paired(b, a)[0], paired(b, a)[1] / 1.96), "one standard error"),
    (ch08.check_ex3, lambda b, a: (paired(b, a)[0], 2 * paired(b, a)[1]), "whole width"),
    (ch08.check_ex3, lambda b, a: (paired(b, a)[0], 99), "Half of its interval"),
    (ch08.check_ex3, lambda b, a: 1.0, "shape (2,)"),
    (ch08.check_ex4, 0.25, "in bits"),
    (ch08.check_ex4, -math.log(2) / 4, "never negative"),
    (ch08.check_ex4, 2 * math.log(2), "weighted"),
    (ch08.check_ex4, 0.5, "logarithms of ratios"),
    (ch08.check_ex4, 0, "do not cancel"),
    (ch08.check_ex4, 3, "Sum over the tokens"),
    (ch08.check_ex5, lambda x: x.sum(axis=1), "by columns"),
    (ch08.check_ex5, by_number_of_rows, "last digit"),
    (ch08.check_ex5, lambda x: x.mean(axis=1), "sums to"),
    (ch08.check_ex5, lambda x: x.sum(axis=0), "One sum for each row"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_right_answers(check: Callable[[object], None], answer: object, say: Say) -> None:
    assert say(check, answer).startswith("Right")


@pytest.mark.parametrize(("check", "answer", "hint"), WRONG)
def test_slips_are_named(check: Callable[[object], None], answer: object, hint: str, say: Say) -> None:
    told = say(check, answer)
    assert hint in told
    assert not told.startswith("Right")
