"""Each checker of chapter 1 knows the right answer, the usual wrong ones, and what is no answer at all."""

import statistics
import time
from collections.abc import Callable

import pytest

from cachequant_lib.exercises import ch01

Say = Callable[[Callable[[object], None], object], str]


def fair(fn, repeats):
    fn()
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        fn()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def cold(fn, repeats):
    samples = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        fn()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def too_few(fn, repeats):
    return fair(fn, repeats - 1)


def by_mean(fn, repeats):
    fn()
    start = time.time()
    for _ in range(repeats):
        fn()
    return (time.time() - start) / repeats


def by_nanoseconds(fn, repeats):
    fn()
    samples = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        fn()
        samples.append((time.perf_counter_ns() - start) / 1e9)
    return statistics.median(samples)


def fastest(fn, repeats):
    fn()
    samples = []
    for _ in range(repeats):
        start = time.monotonic()
        fn()
        samples.append(time.monotonic() - start)
    return min(samples)


def around_nothing(fn, repeats):
    for _ in range(repeats + 1):
        fn()
    start = time.perf_counter()
    return time.perf_counter() - start


def silent(fn, repeats):
    fair(fn, repeats)


CASES = {
    ch01.check_ex1: {
        20: "Right",
        90: "maximum",
        19: "sort the samples first",
        18: "median",
        27.0: "between two samples",
        25.3: "mean",
        5: "5 is not it",
    },
    ch01.check_ex2: {
        0.00674: "Right",
        0.0074926: "first one comes out of the prefill",
        0.001785: "prefill is missing",
        0.0019833: "so is the token",
        0.0000067433: "one token",
        24.276: "per hour",
        0.000067433: "whole request",
        1.0: "1 is not it",
    },
    ch01.check_ex3: {
        fair: "Right",
        by_nanoseconds: "Right",
        cold: "cold call is still among",
        too_few: "made 5 calls",
        by_mean: "mean",
        fastest: "fastest sample",
        around_nothing: "no time pass",
        silent: "return",
        (lambda fn, repeats: [fn() for _ in range(6)] and 7.0): "it says 7",
    },
    ch01.check_ex4: {
        10.9: "Right",
        0.09167: "seconds a token",
        21.8: "16 bits are two",
        5.45: "four bytes",
        1.364: "number of bits",
        3: "3 is not it",
    },
    ch01.check_ex5: {
        1470: "Right",
        1500: "49 steps",
        30: "one decode step",
        1.225: "seconds of the decode",
        7: "7 is not it",
    },
}


@pytest.mark.parametrize(
    ("check", "answer", "words"), [(c, a, w) for c, answers in CASES.items() for a, w in answers.items()]
)
def test_each_answer_gets_its_own_sentence(check, answer, words: str, say: Say) -> None:
    assert words in say(check, answer)


def test_the_clock_runs_again_after_the_third_exercise(say: Say) -> None:
    before = time.perf_counter
    say(ch01.check_ex3, fair)
    assert "ZeroDivisionError" in say(ch01.check_ex3, lambda fn, repeats: 1 / 0)
    assert time.perf_counter is before
