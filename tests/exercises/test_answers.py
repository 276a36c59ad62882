"""The shared part of all checkers: what they can go on with comes through, and what does not fit is named."""

import importlib
import pkgutil
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cachequant_lib import exercises
from cachequant_lib.exercises.answers import (
    AnswerError,
    array,
    checker,
    first_wrong,
    integers,
    number,
    numbers,
    outcome,
    words,
)

Say = Callable[[Callable[[object], None], object], str]
CHAPTERS = [m.name for m in pkgutil.iter_modules(exercises.__path__, f"{exercises.__name__}.") if ".ch" in m.name]
CHECKS = {
    f"{chapter[-4:]}-{name}": getattr(importlib.import_module(chapter), name)
    for chapter in CHAPTERS
    for name in importlib.import_module(chapter).__all__
    if name.startswith("check_")
}


def stops(*arguments: object) -> None:
    raise ValueError("first line\nsecond line")


ODD: dict[str, Any] = {
    "an object": object(),
    "a dictionary": {},
    "nothing in a list": [],
    "a list in a list": [[]],
    "no number": float("nan"),
    "infinity": float("inf"),
    "too large a number": 10**400,
    "an empty text": "",
    "a truth value": True,
    "three Nones": [None] * 3,
    "an array of no dimension": np.array(3.0),
    "a function of nothing": lambda: 0,
    "a function that stops": stops,
    "a function without return": lambda *args: None,
    "a function that returns a text": lambda *args: "text",
    "a function that returns an object": lambda *args: object(),
    "a function that returns rows of two lengths": lambda *args: [[1.0], [1.0, 2.0]],
    "a function that returns a truth value": lambda *args: True,
    "a function that returns too large a number": lambda *args: 10**400,
}


def test_every_chapter_with_exercises_is_checked_here() -> None:
    assert {"ch01", "ch02", "ch03", "ch04", "ch07", "ch09", "ch10", "ch12", "ch13"} <= {name[:4] for name in CHECKS}


@pytest.mark.parametrize("name", CHECKS)
def test_no_answer_is_not_a_wrong_answer(name: str, say: Say) -> None:
    assert say(CHECKS[name], None) == "Not answered yet."


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", CHECKS)
def test_an_odd_answer_gets_a_sentence_and_no_praise(name: str, odd: str, say: Say) -> None:
    assert not say(CHECKS[name], ODD[odd]).startswith("Right")


GOOD = [
    (number, (3,), 3.0),
    (number, (np.float32(0.5),), 0.5),
    (number, (np.int8(-4),), -4.0),
    (numbers, ([1, 2.5], 2), [1.0, 2.5]),
    (numbers, (np.array([1, 2], np.uint8), 2), [1.0, 2.0]),
    (integers, ((2.0, np.int8(-1), 3), 3), [2, -1, 3]),
    (integers, (np.array([89, -6], np.int8), 2), [89, -6]),
    (words, (["a", 1],), ["a", "1"]),
    (words, (("a", "b"),), ["a", "b"]),
    (words, ("ab",), []),
    (words, (5,), []),
    (outcome, (divmod, 7, 2), (3, 1)),
    (outcome, (print,), None),
    (first_wrong, ([1, 2, 3], [1, 0, 0]), 1),
    (first_wrong, ([1, 2], [1, 3]), 1),
    (first_wrong, ([1, 2], (1.0, 2.0)), None),
]


@pytest.mark.parametrize(("read", "arguments", "result"), GOOD)
def test_what_fits_comes_through(read: Callable[..., object], arguments: tuple[Any, ...], result: object) -> None:
    got = read(*arguments)
    assert got == result
    assert type(got) is type(result)


BAD = [
    (number, ("20",), "Expected one number, got '20'."),
    (number, ([20],), "Expected one number, got [20]."),
    (number, (float("nan"),), "Expected one number, got nan."),
    (number, (True,), "Expected one number, got True."),
    (number, (1j,), "Expected one number, got 1j."),
    (number, (np.zeros((2, 1)),), "Expected one number, got an array of shape (2, 1)."),
    (number, (None,), "Expected one number, got None. Does the function end with return?"),
    (numbers, (13, 3), "Expected 3 finite numbers in a list, got 13."),
    (numbers, ("1, 2, 3", 3), "Expected 3 finite numbers in a list, got '1, 2, 3'."),
    (numbers, ({1, 2, 3}, 3), "Expected 3 finite numbers in a list, got {1, 2, 3}."),
    (numbers, ([13, 1.1], 3), "Expected 3 finite numbers in a list, got [13, 1.1]."),
    (numbers, (np.zeros(2), 3), "Expected 3 finite numbers in a list, got an array of shape (2,)."),
    (numbers, (np.array(3.0), 1), "Expected 1 finite numbers in a list, got an array of shape ()."),
    (numbers, ([13, "1.1", 0.78], 3), "These must be finite numbers, got [13, '1.1', 0.78]."),
    (numbers, ([13, float("inf")], 2), "These must be finite numbers, got [13, inf]."),
    (integers, ("12", 2), "Expected 2 whole numbers in a list, got '12'."),
    (integers, ([88.9, -6], 2), "These must be whole numbers, got [88.9, -6]."),
    (integers, ([float("nan"), 1], 2), "These must be whole numbers, got [nan, 1]."),
    (integers, ([True, 1], 2), "These must be whole numbers, got [True, 1]."),
    (outcome, (8.25,), "Give the function itself, without calling it; got 8.25."),
    (outcome, (lambda: 1 / 0,), "The function stopped with ZeroDivisionError: division by zero"),
    (array, (None, (3,)), "Expected an array of numbers, got None. Does the function end with return?"),
    (array, (["a", "b"], (2,)), "Expected an array of numbers, got ['a', 'b']."),
    (array, ([[1], [1, 2]], (2,)), "Expected an array of numbers, got [[1], [1, 2]]."),
    (array, ([1, 2], (3,)), "Expected an array of shape (3,), got shape (2,). "),
    (array, (0.5, (3,), "A row has 3 blocks."), "Expected an array of shape (3,), got shape (). A row has 3 blocks."),
]


@pytest.mark.parametrize(("read", "arguments", "message"), BAD)
def test_what_does_not_fit_is_named(read: Callable[..., object], arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(AnswerError, match=f"^{re.escape(message)}$"):
        read(*arguments)


@pytest.mark.parametrize("given", [[1, 2], np.array([1, 2], np.uint8), [True, 2.0]])
def test_arrays_are_float64(given: object) -> None:
    got = array(given, (2,))
    assert got.dtype == np.float64
    assert got.tolist() == [1.0, 2.0]


def test_long_things_are_shown_in_part() -> None:
    with pytest.raises(AnswerError) as told:
        number(list(range(1000)))
    assert len(str(told.value)) < 100
    with pytest.raises(AnswerError) as told:
        outcome(int, "x" * 1000)
    assert len(str(told.value)) < 200


def test_a_function_that_divides_by_zero_prints_no_warning() -> None:
    assert outcome(np.divide, np.float64(1), np.float64(0)) == np.inf  # a warning would be an error here


def test_a_checker_keeps_its_name_and_its_own_mistakes(say: Say) -> None:
    @checker
    def check(answer: object) -> None:
        """Say something."""
        if answer == "stops":
            outcome(stops)
        if answer == "large":
            number(10**400)
        if answer == "mistake":
            raise RuntimeError("in the checker itself")
        print("Fine.")

    assert (check.__name__, check.__doc__) == ("check", "Say something.")
    assert say(check, 0) == "Fine."
    assert say(check, "stops") == "The function stopped with ValueError: first line second line"
    assert say(check, "large") == "That number is too large to work with."
    with pytest.raises(RuntimeError, match="itself"):
        check("mistake")
