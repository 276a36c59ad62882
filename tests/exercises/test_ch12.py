"""Chapter 12's checkers: right answers are told so, typical slips are named, and nothing raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from cachequant_lib.exercises import ch12

Say = Callable[[Callable[[object], None], object], str]
Prompts = Sequence[Sequence[int]]


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def best(prompts: Prompts, last: int = 1) -> int:
    return sum(
        max((common(one[: len(one) - last], q) for q in prompts[:i]), default=0) for i, one in enumerate(prompts)
    )


def neighbours(prompts: Prompts) -> int:
    return sum(common(b[:-1], a) for a, b in pairwise(prompts))


def all_earlier(prompts: Prompts) -> int:
    return sum(common(one, q) for i, one in enumerate(prompts) for q in prompts[:i])


def bytes_of(layers: int, heads: int, dim: int) -> int:
    return layers * 2 * heads * dim * 4


RIGHT = [
    (ch12.check_ex1, [[4, 2, 2], [5, 1, 0]]),
    (ch12.check_ex1, ((4, 2, 2), (5, 1, 0))),
    (ch12.check_ex2, best),
    (ch12.check_ex2, lambda prompts: float(best(prompts))),
    (ch12.check_ex3, bytes_of),
    (ch12.check_ex4, ["lake", "a", "near"]),
    (ch12.check_ex4, ("lake", "a", "near")),
    (ch12.check_ex5, ["instructions", "date", "question"]),
]

WRONG = [
    (ch12.check_ex1, 4, "two rows of three"),
    (ch12.check_ex1, [4, 2, 2], "two rows of three"),
    (ch12.check_ex1, [[4, 2, 2]], "two rows of three"),
    (ch12.check_ex1, "abcdef", "two rows of three"),
    (ch12.check_ex1, [[4, 3, 2], [5, 1, 0]], "has 6 tokens"),
    (ch12.check_ex1, [[5, 1, 1], [5, 1, 0]], "follows 'near'"),
    (ch12.check_ex1, [[3, 3, 3], [5, 1, 0]], "one step further"),
    (ch12.check_ex1, [[2, 4, 4], [5, 1, 0]], "walk down from the root"),
    (ch12.check_ex1, [[4, 2, 2], [6, 0, 0]], "never looked up"),
    (ch12.check_ex1, [[4, 2, 2], [5, 1, 1]], "its node is there already"),
    (ch12.check_ex1, [[4, 2, 2], [3, 3, 3]], "Which token"),
    (ch12.check_ex2, lambda prompts: best(prompts, 0), "N - 1"),
    (ch12.check_ex2, neighbours, "previous prompt only"),
    (ch12.check_ex2, all_earlier, "shares the most"),
    (ch12.check_ex2, lambda prompts: sum(map(len, prompts)), "empty cache"),
    (ch12.check_ex2, lambda prompts: 0, "the cache 2"),
    (ch12.check_ex3, lambda a, b, c: a * b * c * 4, "keys alone"),
    (ch12.check_ex3, lambda a, b, c: a * b * c, "keys alone, counted in numbers"),
    (ch12.check_ex3, lambda a, b, c: 2 * a * b * c, "4 bytes"),
    (ch12.check_ex3, lambda a, b, c: 16 * a * b * c, "8 bytes"),
    (ch12.check_ex3, lambda a, b, c: 8 * b * c, "one layer"),
    (ch12.check_ex3, lambda a, b, c: a, "Count the numbers"),
    (ch12.check_ex4, "lake", "three words"),
    (ch12.check_ex4, ["lake"], "three words"),
    (ch12.check_ex4, ["near", "a", "lake"], "Leaves go first"),
    (ch12.check_ex4, ["mat", "the", "on"], "just used"),
    (ch12.check_ex4, ["The", "cat", "sat"], "oldest"),
    (ch12.check_ex4, ["lake", "mat", "a"], "two leaves"),
    (ch12.check_ex5, "question", "three names"),
    (ch12.check_ex5, ["date", "question"], "three names"),
    (ch12.check_ex5, ["date", 1, None], "three names"),
    (ch12.check_ex5, ["question", "date", "instructions"], "always new"),
    (ch12.check_ex5, ["date", "instructions", "question"], "new day"),
    (ch12.check_ex5, ["instructions", "question", "date"], "other two"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_right(say: Say, check: Callable[[object], None], answer: object) -> None:
    assert say(check, answer).startswith("Right")


@pytest.mark.parametrize(("check", "answer", "named"), WRONG)
def test_slips_are_named(say: Say, check: Callable[[object], None], answer: object, named: str) -> None:
    said = say(check, answer)
    assert named in said
    assert not said.startswith("Right")
