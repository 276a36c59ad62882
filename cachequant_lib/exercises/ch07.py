"""Checkers for chapter 7, Where does it win, where does it lose?. Each prints one sentence about its answer."""

from __future__ import annotations

import math
import statistics

from cachequant_lib.exercises.answers import checker, number, outcome, tell

__all__ = ["EX1_STEP_MS", "EX5_ROUNDS_MS", "check_ex1", "check_ex2", "check_ex3", "check_ex4", "check_ex5"]

#: Milliseconds of one fp32 decode step.
EX1_STEP_MS = {"linears": 14, "head": 4, "everything else": 2}
#: Five rounds of two rivals that took turns, milliseconds.
EX5_ROUNDS_MS = {"fp32": (20.0, 22.0, 40.0, 21.0, 20.0), "int8": (10.0, 11.0, 21.0, 10.0, 10.0)}
EX4_CASES = ((8, 50, 200.0, 50.0), (270, 10, 1000.0, 40.0), (100, 1, 400.0, 40.0))


@checker
def check_ex1(answer: object) -> None:
    """Check the speed-up of `EX1_STEP_MS` if its linears become seven times as fast."""
    given = number(answer)
    tell(
        given,
        20 / 8,
        "Right: 14 ms shrink to 2, and the other 6 stay. They set the limit: 20 / 6, however small the weights are.",
        {
            7: "That is the linears alone. The head and the rest take as long as before.",
            20 / 6: "That is the limit, with linears that take no time at all.",
            8: "Those are the milliseconds of the new step. How many times as fast is it?",
            8 / 20: "Upside down: old time over new time.",
            20 / 4: "The head is float32 still. Its 4 ms stay.",
        },
        f"{given:g} is not it: 14 / 7 + 4 + 2 milliseconds are left of 20.",
    )


@checker
def check_ex2(answer: object) -> None:
    """Check the speed-up of `EX1_STEP_MS` if also the head becomes four times as fast."""
    given = number(answer)
    tell(
        given,
        20 / 5,
        "Right: 2 + 1 + 2 ms. The head was a fifth of the old step and half of the new one.",
        {
            20 / 8: "That is without the head's gain. Its 4 ms become 1.",
            5: "Those are the milliseconds of the new step.",
            11: "Speed-ups of parts do not add up.",
            28: "Speed-ups of parts do not multiply: each part takes its own share of the time.",
        },
        f"{given:g} is not it: 14 / 7 + 4 / 4 + 2 milliseconds are left of 20.",
    )


@checker
def check_ex3(answer: object) -> None:
    """Check the prompt length at which two formats need the same time for 41 new tokens.

    A prefills 1,000 and decodes 100 tokens a second, B prefills 400 and decodes 160.
    """
    given = number(answer)
    gain, loss = 1 / 100 - 1 / 160, 1 / 400 - 1 / 1000
    tell(
        given,
        40 * gain / loss,
        "Right: B saves 150 ms of decode, and loses 1.5 ms with every prompt token. Beyond 100 tokens A wins.",
        {
            41 * gain / loss: "41 new tokens are 40 decode steps: the first comes out of the prefill.",
            40
            * (160 - 100)
            / (1000 - 400): "Rates cannot be subtracted like that. Turn them into seconds a token first.",
            40 * gain: "Those are the seconds that B saves at decode. How many prompt tokens eat them up?",
            40 * gain * 1000: "Those are the milliseconds that B saves at decode. How many prompt tokens eat them up?",
        },
        f"{given:g} is not it: 40 steps at 10 or 6.25 ms, and N prompt tokens at 1 or 2.5 ms.",
    )


@checker
def check_ex4(answer: object) -> None:
    """Check a function of (prompt tokens, new tokens, prefill rate, decode rate) that returns seconds of a request."""
    got = [number(outcome(answer, *case)) for case in EX4_CASES]
    models = {
        "Right. The first new token comes out of the prefill, so a request for one token has no decode step.": 1,
        "Nearly. The first new token comes out of the prefill: one decode step fewer.": 0,
    }
    for said, free in models.items():
        if all(math.isclose(a, p / f + (n - free) / d) for a, (p, n, f, d) in zip(got, EX4_CASES, strict=True)):
            print(said)
            return
    if all(math.isclose(a, p * f + (n - 1) * d) for a, (p, n, f, d) in zip(got, EX4_CASES, strict=True)):
        print("Tokens divided by tokens a second are seconds. That multiplies them.")
        return
    prompt, new, prefill, decode = EX4_CASES[0]
    right = prompt / prefill + (new - 1) / decode
    print(f"For 8 prompt tokens, 50 new ones, 200 and 50 tokens a second it says {got[0]:g}. It should be {right:g} s.")


@checker
def check_ex5(answer: object) -> None:
    """Check the median of the ratios, round by round, of `EX5_ROUNDS_MS`."""
    given = number(answer)
    fp32, int8 = EX5_ROUNDS_MS.values()
    paired = [a / b for a, b in zip(fp32, int8, strict=True)]
    tell(
        given,
        statistics.median(paired),
        "Right: 2, 2, 1.9, 2.1, 2. The third round was slow for both, and their ratio hardly noticed.",
        {
            statistics.median(fp32) / statistics.median(int8): (
                "That is the ratio of the medians: two numbers of different rounds. Divide round by round first."
            ),
            sum(fp32) / sum(int8): "That is the ratio of the means, and the slow round counts double in it.",
            1 / statistics.median(paired): "Upside down: how many times as fast is int8?",
        },
        f"{given:g} is not it: five ratios, then the one in the middle.",
    )
