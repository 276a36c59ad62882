"""Checkers for chapter 1, Two phases, one clock. Each prints one sentence about the answer it is given."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from cachequant_lib.bench import CostModel, percentile
from cachequant_lib.exercises.answers import checker, number, outcome, tell

__all__ = ["EX1_SAMPLES_MS", "EX2_RUN", "check_ex1", "check_ex2", "check_ex3", "check_ex4", "check_ex5"]

#: Ten decode steps, in the order they were taken, milliseconds.
EX1_SAMPLES_MS = (19, 17, 18, 90, 17, 18, 20, 17, 19, 18)
#: One request: seconds of prefill, number of decode steps, seconds of each.
EX2_RUN = {"prefill_s": 0.5, "decode_steps": 9, "step_s": 0.02}
_CLOCKS = ("perf_counter", "perf_counter_ns", "time", "time_ns", "monotonic", "monotonic_ns")


@checker
def check_ex1(answer: object) -> None:
    """Check the nearest-rank 90th percentile of `EX1_SAMPLES_MS`, in milliseconds."""
    given = number(answer)
    samples, ordered = EX1_SAMPLES_MS, sorted(EX1_SAMPLES_MS)
    tell(
        given,
        percentile(samples, 90),
        "Right. Index round(0.9 * 9) = 8 of the sorted samples: 20 ms. The one hiccup of 90 ms is above it.",
        {
            max(samples): "That is the maximum, index 9. The index is round(0.9 * (10 - 1)) = 8.",
            samples[8]: "The index is right, but sort the samples first.",
            ordered[4]: "That is the middle of the sorted samples, the median.",
            0.9 * ordered[8] + 0.1 * ordered[9]: "That is a value between two samples. Nearest rank takes one of them.",
            sum(samples)
            / len(samples): "That is the mean: one hiccup of 90 ms has moved it above nine of ten samples.",
        },
        f"Sort the ten samples and take the one at index round(0.9 * 9), counted from 0; {given:g} is not it.",
    )


@checker
def check_ex2(answer: object) -> None:
    """Check the cost of a thousand generated tokens for `EX2_RUN`, in dollars."""
    given = number(answer)
    steps, price = int(EX2_RUN["decode_steps"]), CostModel()
    decode_s = steps * EX2_RUN["step_s"]
    wall_s = EX2_RUN["prefill_s"] + decode_s
    right = price.per_1k_tokens(wall_s, steps + 1)
    tell(
        given,
        right,
        "Right. Ten tokens for 0.68 s. Most of that is prefill, and the ten share it.",
        {
            price.per_1k_tokens(wall_s, steps): "Nine steps give ten tokens: the first one comes out of the prefill.",
            price.per_1k_tokens(decode_s, steps + 1): "The prefill is missing. It is paid for, too.",
            price.per_1k_tokens(decode_s, steps): "The prefill is missing, and so is the token that it gives.",
            right / 1000: "That is one token. The unit is a thousand.",
            right * 3600: "The price is per hour, the times are seconds.",
            wall_s * price.dollars_per_hour / 3600: "That is the whole request. Divide by its tokens, times 1000.",
        },
        f"{given:g} is not it: dollars a second, times seconds in all, divided by the tokens, times 1000.",
    )


@checker
def check_ex3(answer: object) -> None:
    """Check a function of (fn, repeats) that returns the median seconds of a call, the cold call left out."""
    costs = (50.0, 2.0, 3.0, 2.5, 9.0, 2.2)  # a cold call, then five samples, one of them a hiccup
    got, calls = _on_a_stopped_clock(answer, costs)
    if calls <= 5:
        print(f"Asked for 5 samples it made {calls} calls. One more is needed: the cold call, which is no sample.")
    elif math.isclose(got, 2.5):
        print("Right: the cold call is left out, and the hiccup does not matter.")
    elif math.isclose(got, sum(costs[1:]) / 5):
        print("That is the mean. One hiccup pulled it up to more than four of the five samples. Take the median.")
    elif math.isclose(got, 2.75) or math.isclose(got, sum(costs) / 6):
        print("The cold call is still among the samples. Call fn once before the first sample.")
    elif math.isclose(got, 2.0):
        print("That is the fastest sample: a limit worth knowing, but not what usually happens. Take the median.")
    elif got == 0:
        print("It saw no time pass. Read the clock before and after each call, not around nothing.")
    else:
        print(f"After a cold call of 50 s came 2, 3, 2.5, 9 and 2.2 s. Their median is 2.5, and it says {got:g}.")


def _on_a_stopped_clock(timer: object, costs: tuple[float, ...]) -> tuple[float, int]:
    """Run a timer where only ``fn`` makes time pass; what it returned, and how often it called ``fn``."""
    now, calls = 0.0, 0
    cost = itertools.chain(costs, itertools.repeat(2.5))

    def fn() -> None:
        nonlocal now, calls
        now, calls = now + next(cost), calls + 1

    def reading(name: str) -> Callable[[], float]:
        return lambda: int(now * 1e9) if name.endswith("_ns") else now

    clocks: dict[str, Any] = {name: reading(name) for name in _CLOCKS}
    with mock.patch.multiple(time, **clocks):
        return number(outcome(timer, fn, 5)), calls


@checker
def check_ex4(answer: object) -> None:
    """Check the most tokens a second that 24 GB/s allow a model of 1.1 billion 16-bit weights."""
    given = number(answer)
    right = 24e9 / (1.1e9 * 2)
    tell(
        given,
        right,
        "Right: 2.2 GB a token, so no more than 10.9 tokens a second, whatever the processor can multiply.",
        {
            1 / right: "Those are the seconds a token takes. The question asks for tokens a second.",
            24e9 / 1.1e9: "That is one byte a weight. 16 bits are two.",
            24e9 / (1.1e9 * 4): "That is four bytes a weight. 16 bits are two.",
            24e9 / (1.1e9 * 16): "16 is the number of bits. Bandwidth is counted in bytes.",
        },
        f"{given:g} is not it: how many bytes must be read for one token, and how often does that fit into 24 GB?",
    )


@checker
def check_ex5(answer: object) -> None:
    """Check the prompt length whose prefill takes as long as 49 decode steps (1,200 and 40 tokens a second)."""
    given = number(answer)
    tell(
        given,
        49 / 40 * 1200,
        "Right: 49 steps take 1.225 s, and in that time 1,470 tokens are prefilled. GPT-2 has room for 1,024.",
        {
            50 / 40 * 1200: "Fifty new tokens take 49 steps: the first one comes out of the prefill.",
            1200 / 40: "That many prompt tokens take as long as one decode step.",
            49 / 40: "Those are the seconds of the decode. How many prompt tokens fit into them?",
        },
        f"{given:g} is not it: first the seconds of 49 steps, then the prompt tokens that fit into them.",
    )
