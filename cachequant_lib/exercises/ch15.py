"""Checkers for chapter 15, Stack them, and trust them. Each prints one sentence or two about the answer it is given."""

from __future__ import annotations

import math

import numpy as np

from cachequant_lib.exercises.answers import checker, choice, integers, number, numbers, outcome

__all__ = ["EX2_THINGS", "EX5_CASES", "check_ex1", "check_ex2", "check_ex3", "check_ex4", "check_ex5"]

EX2_THINGS = [
    "the weights",
    "the weight format",
    "the KV format",
    "the tolerance of the KV format",
    "the tenant",
    "the temperature",
    "the number of new tokens",
    "the random seed",
]
_SAME = set(EX2_THINGS[:5])
EX5_CASES = [
    "an empty prompt",
    "a prompt of spaces",
    "a prompt longer than the context",
    "a prompt as long as the context, one new token",
    "a prompt as long as the context, ten new tokens",
    "no new tokens",
    "a prompt longer than the cache's cap",
]
_REFUSED = {EX5_CASES[0], EX5_CASES[2], EX5_CASES[4]}


@checker
def check_ex1(answer: object) -> None:
    """Check three speed-ups: 300 tokens, 275 found; fp32 20 ms and 0.8 ms a token, int8 10 ms and 0.2 ms."""
    given, right = numbers(answer, 3), (260 / 70, 260 / 40, 260 / 15)
    wrong = [i for i, (a, b) in enumerate(zip(given, right, strict=True)) if not math.isclose(a, b, rel_tol=1e-2)]
    if not wrong:
        print("Right: 3.7, 6.5 and 17.3. The product would be 24: the price of the pass shrinks less than a token's.")
    elif wrong[0] == 0:
        print("int8 alone: a pass over 300 tokens takes 20 + 300 × 0.8 ms in fp32. And in int8?")
    elif wrong[0] == 1:
        print("The cache alone: 25 tokens are left to compute in fp32, and the 20 ms of the pass stay.")
    elif math.isclose(given[2], right[0] * right[1], rel_tol=1e-2):
        print("That is the product of the two. Work the time out: 25 tokens in int8, and the 10 ms of its pass.")
    else:
        print("Both: 25 tokens at int8's price, and its pass of 10 ms. How often does that go into 260 ms?")


@checker
def check_ex2(answer: object) -> None:
    """Check which of `EX2_THINGS` must be the same for stored rows to be reused."""
    chosen = choice(answer, EX2_THINGS)
    if extra := sorted(chosen - _SAME):
        print(f"Not {extra[0]!r}: it decides what becomes of the logits, and the prompt's keys and values come before.")
    elif missing := sorted(_SAME - chosen):
        reasons = {
            "the weights": "another model has other keys and values.",
            "the weight format": "rounded weights give slightly other keys and values.",
            "the KV format": "what is stored was rounded in its way.",
            "the tolerance of the KV format": "it decides how much of a number is kept.",
            "the tenant": "the rows would be right, but how fast they come tells what others have asked.",
        }
        print(f"Something is missing. Think about {missing[0]!r}: {reasons[missing[0]]}")
    else:
        print("Right. The first four make the rows what they are, and the fifth says who may know that they exist.")


@checker
def check_ex3(answer: object) -> None:
    """Check a function that sums the float32 numbers of several parts so that no cut changes a bit."""
    rng = np.random.default_rng(0)
    for size in (7, 64, 1000):
        x = (rng.standard_normal(size) * 10.0 ** rng.integers(-3, 4, size)).astype(np.float32)
        whole = number(outcome(answer, [x]))
        if not math.isclose(whole, math.fsum(x.tolist()), rel_tol=1e-3, abs_tol=0.1):
            print(f"For one part of {size} numbers it gives {whole:g}; their sum is {math.fsum(x.tolist()):g}.")
            return
        for cuts in ([1], [size // 2], [2, 5], list(range(1, size))):
            got = number(outcome(answer, np.split(x, cuts)))
            if got != whole:
                print(
                    f"{size} numbers in {len(cuts) + 1} parts: {got!r}, in one part: {whole!r}. The order of the "
                    "additions must not depend on where a part ends."
                )
                return
    print("Right: the same bits, whatever the cuts. One order for all, or sums without rounding.")


@checker
def check_ex4(answer: object) -> None:
    """Check two codes of 0.625 in a row: largest value 1.27, and a millionth less."""
    before, after = integers(answer, 2)
    if (before, after) == (62, 63):
        print("Right: 62.5 is rounded to the even 62, and 62.50006 to 63. A millionth has become one part in sixty.")
    elif before == 63:
        print("The first is half-way, 62.5 exactly, and ties go to the even code.")
    elif before != 62:
        print("A step is the largest value over 127: 0.01. How many of them are 0.625?")
    elif after == 62:
        print("The first is right. The step is now a little smaller than 0.01, so 0.625 is a little more than 62.5.")
    else:
        print("The first is right. The second is 0.625 over 0.00999999: which whole number is nearest?")


@checker
def check_ex5(answer: object) -> None:
    """Check which of `EX5_CASES` are refused with an error."""
    chosen = choice(answer, EX5_CASES)
    if extra := sorted(chosen - _REFUSED):
        reasons = {
            "a prompt of spaces": "Spaces are tokens like any others.",
            "a prompt as long as the context, one new token": "A token that is chosen and never fed needs no room.",
            "no new tokens": "It prefills the prompt, which warms a cache.",
            "a prompt longer than the cache's cap": "It is answered, and not stored.",
        }
        print(f"Not '{extra[0]}'. {reasons[extra[0]]}")
    elif missing := sorted(_REFUSED - chosen):
        print(f"Something is missing: think about {missing[0]!r}. Where should the model look it up?")
    else:
        print("Right. And each is refused before anything is computed, so that nothing has to be undone.")
