"""Checkers for chapter 4, int8 with one scale per row. Each prints one sentence about the answer it is given."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachequant_lib.exercises.answers import array, checker, first_wrong, integers, number, outcome
from cachequant_lib.formats.int8 import quantize_int8

__all__ = ["EX1_ROW", "check_ex1", "check_ex2", "check_ex3", "check_ex4", "check_ex5"]

EX1_ROW = (0.7, -0.05, 0.33, -0.6)
_LONGEST = ((2**31 - 1) // 127**2, (2**15 - 1) // 127**2, (2**15 - 1) // 128**2)


@checker
def check_ex1(answer: object) -> None:
    """Check the four codes of `EX1_ROW` under int8 with one exact scale."""
    given = integers(answer, len(EX1_ROW))
    exact = [v / 0.7 * 127 for v in EX1_ROW]
    slips = {
        (89, -6, 42, -76): "That is BFP8: the scale was rounded up to 1. int8 keeps the maximum, 0.7, as it is.",
        tuple(math.trunc(v) for v in exact): "The fractions were cut off. Round to the nearest whole number.",
        tuple(round(v / 127 * 128) for v in exact): "That is the divisor 128. The maximum lands on 127.",
        tuple(abs(round(v)) for v in exact): "The sizes are right. A code keeps the sign of its value.",
    }
    right = quantize_int8(EX1_ROW).codes.tolist()
    if (wrong := first_wrong(given, right)) is None:
        print("Right. The maximum lands on 127 exactly, so the whole ruler is used.")
        return
    general = f"The code of {EX1_ROW[wrong]} is not {given[wrong]}. Divide by the scale 0.7, then multiply by 127."
    print(slips.get(tuple(given), general))


@checker
def check_ex2(answer: object) -> None:
    """Check the row length at which one 32-bit scale costs as much a value as BFP8's exponent."""
    length = number(answer)
    if length == 128:
        print("Right. 32 / 128 is a quarter of a bit. All rows of this book's models are longer, so int8 is smaller.")
    elif length == 32:
        print("At 32 values a 32-bit scale costs a whole bit each: 9 bits. BFP8's exponent has only 8 bits.")
    elif length > 0:
        print(f"A row of {length:g} costs 8 + 32 / {length:g} = {8 + 32 / length:.4g} bits a value; BFP8 costs 8.25.")
    else:
        print("A row has at least one value.")


@checker
def check_ex3(answer: object) -> None:
    """Check the longest safe sums: int32, int16, and int16 with the code -128."""
    given = integers(answer, 3)
    if (i := first_wrong(given, _LONGEST)) is None:
        print("Right. That is why products are summed in 32 bits, and why -128 is left out: two of them do not fit.")
        return
    top, code = (2**31 - 1, 2**15 - 1, 2**15 - 1)[i], (127, 127, 128)[i]
    if given[i] == (2 * top + 1) // code**2:
        print(f"Number {i + 1}: that is an unsigned sum. One bit is the sign, so the largest value is {top:,}.")
    elif given[i] == top // code:
        print(f"Number {i + 1}: each product is as large as {code} * {code}, not {code}.")
    elif given[i] > _LONGEST[i]:
        print(f"Number {i + 1}: {given[i]:,} * {code} * {code} = {given[i] * code**2:,} is above {top:,}.")
    else:
        print(f"Number {i + 1}: a longer sum still fits. Divide {top:,} by {code} * {code}.")


@checker
def check_ex4(answer: object) -> None:
    """Check a function (x_codes (K,), x_scale, w_codes (N, K), w_scales (N,)) that returns y (N,)."""
    rng = np.random.default_rng(4)
    x, w = quantize_int8(rng.standard_normal(96)), quantize_int8(rng.standard_normal((5, 96)))
    y = array(outcome(answer, x.codes, x.scales, w.codes, w.scales), (5,))
    scales = x.scales.astype(float) * w.scales
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


@checker
def check_ex5(answer: object) -> None:
    """Check a function (x (M, K), w (N, K)) that returns both with the same product and a smaller int8 error."""
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((64, 128)), rng.standard_normal((32, 128)) / 20
    x[:, 17] *= 60
    pair = outcome(answer, x.copy(), w.copy())
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        print("The function should return two arrays, both x and w: return x, w.")
        return
    got = [array(given, one.shape) for given, one in zip(pair, (x, w), strict=True)]
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
