"""Checkers for chapter 4, int8 with one scale per row. Each prints one sentence about the answer it is given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachequant_lib.formats.int8 import quantize_int8

__all__ = ["EX1_ROW", "check_ex1", "check_ex2", "check_ex3", "check_ex4", "check_ex5"]

EX1_ROW = (0.7, -0.05, 0.33, -0.6)
_OPEN = "Not answered yet."
_LONGEST = ((2**31 - 1) // 127**2, (2**15 - 1) // 127**2, (2**15 - 1) // 128**2)


def _integers(answer: object, count: int) -> list[int] | str:
    """Return the answer as whole numbers, or what keeps it from being that."""
    if not isinstance(answer, Sequence | np.ndarray) or isinstance(answer, str):
        return f"Give {count} whole numbers in a list; this is a {type(answer).__name__}."
    values = list(answer)
    if len(values) != count:
        return f"Give {count} whole numbers; this has {len(values)}."
    if not all(isinstance(v, int | float | np.number) and float(v).is_integer() for v in values):
        return f"These must be whole numbers, got {values}."
    return [int(v) for v in values]


def _arrays(function: object, arguments: Sequence[object], shapes: Sequence[tuple[int, ...]]) -> list[Any] | str:
    """Return the arrays of these shapes that the reader's function gives, or a sentence about what it did instead."""
    if not callable(function):
        return f"Give the function itself, without calling it; this is a {type(function).__name__}."
    try:
        value = function(*arguments)
        given = [value] if len(shapes) == 1 else list(value)
        arrays = [np.asarray(v, dtype=float) for v in given]
    except Exception as error:  # whatever the reader's code may raise
        return f"The function stopped, or gave something else than numbers: {type(error).__name__}: {error}"
    if [a.shape for a in arrays] != list(shapes):
        got = ", ".join(str(a.shape) for a in arrays) if value is not None else "None: does it end with return?"
        return f"Expected shape {', '.join(map(str, shapes))}, got {got}"
    return arrays


def check_ex1(answer: object) -> None:
    """Check the four codes of `EX1_ROW` under int8 with one exact scale."""
    given = _OPEN if answer is None else _integers(answer, len(EX1_ROW))
    if isinstance(given, str):
        print(given)
        return
    exact = [v / 0.7 * 127 for v in EX1_ROW]
    slips = {
        (89, -6, 42, -76): "That is BFP8: the scale was rounded up to 1. int8 keeps the maximum, 0.7, as it is.",
        tuple(math.trunc(v) for v in exact): "The fractions were cut off. Round to the nearest whole number.",
        tuple(round(v / 127 * 128) for v in exact): "That is the divisor 128. The maximum lands on 127.",
        tuple(abs(round(v)) for v in exact): "The sizes are right. A code keeps the sign of its value.",
    }
    right = quantize_int8(EX1_ROW).codes.tolist()
    if given == right:
        print("Right. The maximum lands on 127 exactly, so the whole ruler is used.")
        return
    wrong = next(i for i, (a, b) in enumerate(zip(given, right, strict=True)) if a != b)
    general = f"The code of {EX1_ROW[wrong]} is not {given[wrong]}. Divide by the scale 0.7, then multiply by 127."
    print(slips.get(tuple(given), general))


def check_ex2(answer: object) -> None:
    """Check the row length at which one 32-bit scale costs as much a value as BFP8's exponent."""
    if answer is None:
        print(_OPEN)
    elif isinstance(answer, bool) or not isinstance(answer, int | float | np.number):
        print(f"Give one number, a row length; this is {answer!r}.")
    elif answer == 128:
        print("Right. 32 / 128 is a quarter of a bit. All rows of this book's models are longer, so int8 is smaller.")
    elif answer == 32:
        print("At 32 values a 32-bit scale costs a whole bit each: 9 bits. BFP8's exponent has only 8 bits.")
    elif answer > 0:
        print(f"A row of {answer:g} costs 8 + 32 / {answer:g} = {8 + 32 / answer:.4g} bits a value; BFP8 costs 8.25.")
    else:
        print("A row has at least one value.")


def check_ex3(answer: object) -> None:
    """Check the longest safe sums: int32, int16, and int16 with the code -128."""
    given = _OPEN if answer is None else _integers(answer, 3)
    if isinstance(given, str):
        print(given)
        return
    if tuple(given) == _LONGEST:
        print("Right. That is why products are summed in 32 bits, and why -128 is left out: two of them do not fit.")
        return
    i = next(i for i, (a, b) in enumerate(zip(given, _LONGEST, strict=True)) if a != b)
    top, code = (2**31 - 1, 2**15 - 1, 2**15 - 1)[i], (127, 127, 128)[i]
    if given[i] == (2 * top + 1) // code**2:
        print(f"Number {i + 1}: that is an unsigned sum. One bit is the sign, so the largest value is {top:,}.")
    elif given[i] == top // code:
        print(f"Number {i + 1}: each product is as large as {code} * {code}, not {code}.")
    elif given[i] > _LONGEST[i]:
        print(f"Number {i + 1}: {given[i]:,} * {code} * {code} = {given[i] * code**2:,} is above {top:,}.")
    else:
        print(f"Number {i + 1}: a longer sum still fits. Divide {top:,} by {code} * {code}.")


def check_ex4(answer: object) -> None:
    """Check a function (x_codes (K,), x_scale, w_codes (N, K), w_scales (N,)) that returns y (N,)."""
    if answer is None:
        print(_OPEN)
        return
    rng = np.random.default_rng(4)
    x, w = quantize_int8(rng.standard_normal(96)), quantize_int8(rng.standard_normal((5, 96)))
    got = _arrays(answer, (x.codes, x.scales, w.codes, w.scales), [(5,)])
    if isinstance(got, str):
        print(got)
        return
    y, scales = got[0], x.scales.astype(float) * w.scales
    sums = w.codes.astype(int) @ x.codes.astype(int)  # (N, K) @ (K,) -> (N,)
    wrapped = (w.codes @ x.codes).astype(float)  # numpy keeps int8, and wraps round
    right = sums * scales / 127**2
    slips = (
        ("The sum wrapped round: NumPy adds int8 in int8. Widen the codes first, with astype(np.int32).", wrapped),
        ("Those are the integer sums. The scales are still missing.", sums),
        ("Divide by 127 twice: once for each of the two codes in a product.", right * 127),
        ("Divide by 127 twice: once for each of the two codes in a product.", right * 127**2),
        ("The scales of the weight are missing.", right / w.scales),
        ("The scale of x is missing.", right / x.scales),
    )
    if np.allclose(y, right, rtol=1e-4, atol=0):
        print("Right. One integer sum an output, one scaling at its end.")
        return
    for words, values in slips:
        if any(np.allclose(y, v, rtol=1e-4, atol=0) for v in (values, values * scales / 127**2)):
            print(words)
            return
    print(f"The first output should be {right[0]:.4g}; yours is {y[0]:.4g}. Sum the products first, then scale.")


def check_ex5(answer: object) -> None:
    """Check a function (x (M, K), w (N, K)) that returns both with the same product and a smaller int8 error."""
    if answer is None:
        print(_OPEN)
        return
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((64, 128)), rng.standard_normal((32, 128)) / 20
    x[:, 17] *= 60
    got = _arrays(answer, (x.copy(), w.copy()), [x.shape, w.shape])
    if isinstance(got, str):
        print(got)
        return
    with np.errstate(all="ignore"):
        product = got[0] @ got[1].T  # (M, K) @ (K, N) -> (M, N)
    if not np.allclose(product, x @ w.T, rtol=1e-6, atol=1e-6):
        print("The product changed. What a column of x is divided by, the same column of w must be multiplied by.")
        return
    before, after = _error(x, w), _error(*got)
    if after > before * 0.9:
        print(
            f"The product is kept, but the error of int8 is {after:.2%}; it was {before:.2%}. Shrink the loud column."
        )
    elif after > before / 4:
        print(
            f"Better: {after:.2%} instead of {before:.2%}. Below {before / 4:.2%} is possible: share the load evenly."
        )
    else:
        print(f"Right. The error fell from {before:.2%} to {after:.2%}, and nothing else changed.")


def _error(x: NDArray[Any], w: NDArray[Any]) -> float:
    """Error of the int8 product relative to the product itself."""
    exact = x @ w.T  # (M, K) @ (K, N) -> (M, N)
    stored = quantize_int8(x).dequantize().astype(float) @ quantize_int8(w).dequantize().T  # (M, N)
    return float(np.linalg.norm(stored - exact) / np.linalg.norm(exact))
