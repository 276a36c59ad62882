"""Each checker of chapter 7 knows the right answer, the usual wrong ones, and what is no answer at all."""

from collections.abc import Callable

import pytest

from cachequant_lib.exercises import ch07

Say = Callable[[Callable[[object], None], object], str]

CASES = {
    ch07.check_ex1: {
        2.5: "Right",
        7: "linears alone",
        3.333: "limit",
        8: "new step",
        0.4: "Upside down",
        5: "head is float32 still",
        1: "1 is not it",
    },
    ch07.check_ex2: {
        4: "Right",
        2.5: "without the head",
        5: "new step",
        11: "add up",
        28: "multiply",
        1: "1 is not it",
    },
    ch07.check_ex3: {
        100: "Right",
        102.5: "40 decode steps",
        4: "Turn them into seconds",
        0.15: "seconds that B saves",
        150: "milliseconds that B saves",
        7: "7 is not it",
    },
    ch07.check_ex4: {
        (lambda prompt, new, prefill, decode: prompt / prefill + (new - 1) / decode): "Right",
        (lambda prompt, new, prefill, decode: prompt / prefill + new / decode): "one decode step fewer",
        (lambda prompt, new, prefill, decode: prompt * prefill + (new - 1) * decode): "multiplies",
        (lambda prompt, new, prefill, decode: 3.0): "it says 3",
        (lambda prompt, new, prefill, decode: None): "return",
    },
    ch07.check_ex5: {2: "Right", 2.1: "ratio of the medians", 1.984: "means", 0.5: "Upside down", 9: "9 is not it"},
}


@pytest.mark.parametrize(
    ("check", "answer", "words"), [(c, a, w) for c, answers in CASES.items() for a, w in answers.items()]
)
def test_each_answer_gets_its_own_sentence(check, answer, words: str, say: Say) -> None:
    assert words in say(check, answer)
