"""What all checkers share: they read an answer, or run a reader's function, and say in a sentence what does not fit."""

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from cachequant_lib.errors import CacheQuantError

OPEN = "Not answered yet."


class AnswerError(CacheQuantError, ValueError):
    """An answer is not of the kind that was asked for; `checker` prints the message."""


def checker(check: Callable[[object], None]) -> Callable[[object], None]:
    """Make `check` print `OPEN` about None, and print an `AnswerError`, on one line, instead of raising it."""

    @wraps(check)
    def checked(answer: object) -> None:
        try:
            print(OPEN) if answer is None else check(answer)
        except AnswerError as error:
            print(" ".join(str(error).split()))
        except OverflowError:  # such as 10**400, which no float holds
            print("That number is too large to work with.")

    return checked


def number(value: object) -> float:
    """Return one finite number, given as an answer or returned by a function."""
    if not _is_number(value):
        raise AnswerError(f"Expected one number, {_got(value)}")
    return float(value)


def numbers(answer: object, count: int, whole: bool = False) -> list[float]:
    """Return the `count` finite numbers of a list, a tuple or an array; 2.0 counts as `whole`."""
    kind = "whole numbers" if whole else "finite numbers"
    given = answer.tolist() if isinstance(answer, np.ndarray) else answer
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != count:
        raise AnswerError(f"Expected {count} {kind} in a list, {_got(answer)}")
    if not all(_is_number(value) and (not whole or float(value).is_integer()) for value in given):
        raise AnswerError(f"These must be {kind}, {_got(given)}")
    return [float(value) for value in given]


def integers(answer: object, count: int) -> list[int]:
    """Return the `count` whole numbers of a list, a tuple or an array."""
    return [int(value) for value in numbers(answer, count, whole=True)]


def words(answer: object) -> list[str]:
    """Return the items of a list as words, and no words for what is no list."""
    return [str(word) for word in answer] if isinstance(answer, Sequence) and not isinstance(answer, str) else []


def choice(answer: object, options: Sequence[str]) -> set[str]:
    """Return the options that a list picks; of anything else, and of no option, an `AnswerError` says what to give."""
    chosen = set(words(answer))
    if not chosen or chosen - set(options):
        raise AnswerError(f"Give a list with some of these: {', '.join(options)}.")
    return chosen


def outcome(function: object, *arguments: object) -> object:
    """Return what the reader's function returns. That it stopped is an `AnswerError`."""
    if not callable(function):
        raise AnswerError(f"Give the function itself, without calling it; {_got(function)}")
    try:
        with np.errstate(all="ignore"):
            return function(*arguments)
    except Exception as error:  # whatever the reader's code may raise
        raise AnswerError(f"The function stopped with {type(error).__name__}: {str(error)[:120]}") from error


def array(value: object, shape: tuple[int, ...], why: str = "") -> NDArray[Any]:
    """Return numbers, or True and False, as float64 of this shape; `why` explains the shape."""
    try:
        given = np.asarray(value)
    except (TypeError, ValueError):  # such as rows of different lengths
        given = np.empty(0, object)
    if given.dtype.kind not in "biuf":
        raise AnswerError(f"Expected an array of numbers, {_got(value)}")
    if given.shape != shape:
        raise AnswerError(f"Expected an array of shape {shape}, got shape {given.shape}. {why}")
    return given.astype(float)


def tell(given: float, right: float, praise: str, slips: dict[float, str], general: str) -> None:
    """Print the praise, the explanation of a known slip, or the general hint; half a percent off is close enough."""
    known = {right: praise} | {wrong: said for wrong, said in slips.items() if wrong != right}
    print(next((said for value, said in known.items() if math.isclose(given, value, rel_tol=5e-3)), general))


def first_wrong(given: Sequence[float], right: Sequence[float]) -> int | None:
    """Return the place of the first number that is not right, or None if all are."""
    return next((i for i, (a, b) in enumerate(zip(given, right, strict=True)) if a != b), None)


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    return math.isfinite(value)


def _got(value: object) -> str:
    shown = f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else repr(value)[:60]
    return f"got {shown}." + (" Does the function end with return?" if value is None else "")
