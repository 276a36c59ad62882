"""Each checker of chapter 2 knows the right answer, the usual wrong ones, and what is no answer at all."""

from collections.abc import Callable

import pytest

from cachequant_lib.exercises import ch02

Say = Callable[[Callable[[object], None], object], str]

CASES = {
    ch02.check_ex1: {
        0.1456: "Right",
        14.56: "Right",
        0.1704: "head to blocks",
        0.8544: "share of the blocks",
        0.8035: "model has 24",
        0.3383: "12 C²",
        0.5: "0.5 is not it",
    },
    ch02.check_ex2: {
        16.667: "Right",
        11.667: "float32 here",
        46.667: "one byte a weight",
        60: "tokens a second",
        0.016667: "seconds",
        1: "1 is not it",
    },
    ch02.check_ex3: {
        min: "At 0.25 a byte",
        (lambda per_byte, bandwidth, peak: min(per_byte * bandwidth, peak)): "Right",
        (lambda per_byte, bandwidth, peak: per_byte * bandwidth): "never ends",
        (lambda per_byte, bandwidth, peak: max(per_byte * bandwidth, peak)): "higher",
        (lambda per_byte, bandwidth, peak: peak): "the same",
        (lambda per_byte, bandwidth, peak: None): "return",
    },
    ch02.check_ex4: {
        32: "Right",
        16: "A weight has two",
        8: "not less",
        64: "counted as one",
        0.03125: "Upside down",
        5: "5 is not it",
    },
    ch02.check_ex5: {
        1695: "Right",
        3391: "both are kept",
        6782: "four bytes",
        20345: "12 layers",
        40690: "keys and values",
        73728: "one token",
        7: "7 is not it",
    },
}


@pytest.mark.parametrize(
    ("check", "answer", "words"), [(c, a, w) for c, answers in CASES.items() for a, w in answers.items()]
)
def test_each_answer_gets_its_own_sentence(check, answer, words: str, say: Say) -> None:
    assert words in say(check, answer)
