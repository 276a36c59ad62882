"""Each checker of chapter 1 knows the right answer, the usual wrong ones, and what is no answer at all."""

import statistics
import time

import pytest

from cachequant_lib.exercises import ch01


def said(check, answer, capsys: pytest.CaptureFixture[str]) -> str:
    assert check(answer) is None
    text = capsys.readouterr().out
    assert text.count("\n") == 1
    return text.strip()


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
        silent: "returns nothing",
        (lambda fn, repeats: [fn() for _ in range(6)]): "not a list",
        (lambda fn, repeats: [fn() for _ in range(6)] and 7.0): "it says 7",
        3.0: "without calling it",
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
def test_each_answer_gets_its_own_sentence(check, answer, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in said(check, answer, capsys)


@pytest.mark.parametrize("check", list(CASES))
def test_no_answer_is_not_a_wrong_answer(check, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(check, None, capsys) == "Not answered yet."


@pytest.mark.parametrize("check", [c for c in CASES if c is not ch01.check_ex3])
@pytest.mark.parametrize("answer", ["20", [20], float("nan"), True])
def test_what_is_no_number_is_named(check, answer, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(check, answer, capsys).startswith("Give one number")


def test_the_clock_runs_again_after_the_third_exercise(capsys: pytest.CaptureFixture[str]) -> None:
    before = time.perf_counter
    said(ch01.check_ex3, fair, capsys)
    with pytest.raises(ZeroDivisionError):
        ch01.check_ex3(lambda fn, repeats: 1 / 0)
    assert time.perf_counter is before
