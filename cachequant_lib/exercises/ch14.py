"""Checkers for chapter 14, Multi-turn chat. Each prints one sentence or two about the answer it is given."""

from __future__ import annotations

import math

from cachequant_lib.exercises.answers import checker, choice, integers, number, numbers, outcome, tell

__all__ = ["EX4_CHANGES", "EX5_PASSES", "check_ex1", "check_ex2", "check_ex3", "check_ex4", "check_ex5"]

EX4_CHANGES = [
    "a longer last line",
    "the time of day in the system prompt",
    "the oldest turn dropped",
    "a higher temperature",
    "the same line twice",
    "a new system prompt",
]
_SPOILING = {"the time of day in the system prompt", "the oldest turn dropped", "a new system prompt"}
EX5_PASSES = [(10, 28.0), (20, 36.0), (40, 52.0), (80, 84.0), (160, 148.0), (25, 900.0)]
"""Tokens and milliseconds of six forward passes: 20 ms and 0.8 ms a token; the compiler ran in the last one."""


@checker
def check_ex1(answer: object) -> None:
    """Check tokens computed in ten turns, without and with a cache: 30 tokens at first, 25 more a turn."""
    plain, cached = integers(answer, 2)
    right = sum(30 + 25 * turn for turn in range(10)), 30 + 9 * 25
    if (plain, cached) == right:
        print(f"Right: {right[0]} against {right[1]}. One grows with the square of the turns, the other in a line.")
    elif (plain, cached) == right[::-1]:
        print("The numbers are right and the wrong way round: the first is without a cache.")
    elif plain != right[0]:
        print("Without a cache each turn computes its whole prompt: 30, then 55, then 80. Add up ten of them.")
    elif cached == right[1] + 25:
        print("One turn too many: the first computes 30, and only nine more follow.")
    elif cached == right[1] + 10 * 1:
        print("Only a prompt that is found whole needs its last token again. Here something new follows each time.")
    else:
        print("The first is right. With a cache each turn computes only what the turn before did not send.")


@checker
def check_ex2(answer: object) -> None:
    """Check a function of (lookup, copy, insert, compute, num_tokens) that returns the break-even, or infinity."""
    for case in (
        (2.0, 1.0, 1.0, 10.0, 18),
        (5.0, 0.5, 0.0, 1.0, 100),
        (0.0, 0.1, 0.2, 0.9, 50),
        (1.0, 9.0, 2.0, 3.0, 40),
    ):
        lookup, copy, insert, compute, num_tokens = case
        worth = compute - copy + insert
        right = (lookup + num_tokens * insert) / worth if worth > 0 else math.inf
        got = outcome(answer, *case)
        if math.isinf(right):
            if got != math.inf:
                print("If copying a token costs more than computing it, nothing pays: return math.inf.")
                return
        elif not math.isclose(given := number(got), right, rel_tol=1e-6):
            if math.isclose(given, (lookup + num_tokens * insert) / (compute - copy)):
                print("Nearly: a token that is found is not stored again, so it saves its insert as well.")
            elif math.isclose(given, lookup / (compute - copy)):
                print("That leaves the inserts out: what is not found must be stored.")
            else:
                print(
                    f"For {case} it gives {given:g}; the gain is 0 at {right:g}. Write the gain down, and set it to 0."
                )
            return
    print("Right. The cache knows the same rule: cache.costs(namespace).break_even(num_tokens).")


@checker
def check_ex3(answer: object) -> None:
    """Check three speed-ups: uncached 100 ms and 2 ms overhead, cached 20 ms and 5 ms."""
    given, right = numbers(answer, 3), (100 / 20, 100 / 25, 102 / 25)
    wrong = [i for i, (a, b) in enumerate(zip(given, right, strict=True)) if not math.isclose(a, b, rel_tol=5e-3)]
    if not wrong:
        print("Right: 5.0, 4.0 and 4.08. The middle one is hard on the cache, the first one far too kind.")
    elif wrong[0] == 0:
        print("Forward only: one forward pass over the other, 100 over 20.")
    elif wrong[0] == 1:
        print("The source's: the cache pays for its overhead, the uncached side pays for its forward pass alone.")
    else:
        print("Honest: both sides pay for all they do, 102 over what?")


@checker
def check_ex4(answer: object) -> None:
    """Check which of `EX4_CHANGES` spoil the hits of the next turn."""
    chosen = choice(answer, EX4_CHANGES)
    if extra := sorted(chosen - _SPOILING):
        reasons = {
            "a longer last line": "What is new stands at the end, and all before it is still found.",
            "a higher temperature": "How a token is chosen changes no key and no value of the prompt.",
            "the same line twice": "It stands behind a longer beginning than before, and that beginning is found.",
        }
        print(f"'{extra[0]}' does no harm. {reasons[extra[0]]}")
    elif missing := sorted(_SPOILING - chosen):
        print(f"Something is missing: think about {missing[0]!r}. From which token on does the prompt differ?")
    else:
        print("Right. All three change the beginning, and everything behind a change is lost.")


@checker
def check_ex5(answer: object) -> None:
    """Check the price of a token more, in ms, from `EX5_PASSES`, one of which was slow for another reason."""
    slow = [(n, ms) for n, ms in EX5_PASSES]
    slips = {
        148.0 / 160: "That is a share of a whole pass, the fixed price included. Two passes tell the two apart.",
        _slope(
            slow
        ): "That line goes through all six, and the compiler's 900 ms bend it. Leave it out, or use medians.",
        20.0: "That is the fixed price, which a hit does not save. What does one token more add?",
    }
    tell(number(answer), 0.8, "Right: 0.8 ms a token, beside 20 ms that every pass costs.", slips, "Take two passes: "
         "how many tokens lie between them, and how many milliseconds?")  # fmt: skip


def _slope(points: list[tuple[int, float]]) -> float:
    """Slope of the straight line of least squares."""
    mean_n, mean_ms = (sum(column) / len(points) for column in zip(*points, strict=True))
    above = sum((n - mean_n) * (ms - mean_ms) for n, ms in points)
    return float(above / sum((n - mean_n) ** 2 for n, _ in points))
