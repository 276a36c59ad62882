"""Checkers for chapter 6, How fast can Python multiply 8-bit numbers?. Each prints one sentence about its answer."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from cachequant_lib.exercises.answers import AnswerError, checker, first_wrong, integers, number, outcome, tell

__all__ = ["EX3_CODES", "EX3_WEIGHTS", "check_ex1", "check_ex2", "check_ex3", "check_ex4", "check_ex5"]

#: One column of a weight, and the input that meets it.
EX3_WEIGHTS = (3, -7, 20, 5)
EX3_CODES = (10, -4, 0, 7)
EX2_CASES = (
    ((255, 255, 1, 2), (127, 127, 3, 4)),
    ((255, 255, 0, 9), (-128, -128, 5, -1)),
    ((9, 7, 200, 100), (1, 1, 100, 90)),
)
EX4_CASES = ((1, 3), (8, 3), (4, 2), (5, 5))


@checker
def check_ex1(answer: object) -> None:
    """Check the longest sum of 15-bit inputs times 8-bit codes that fits in an int32."""
    given = number(answer)
    most, largest = 2**31 - 1, 16383 * 127
    tell(
        given,
        most // largest,
        "Right: 1,032. A layer of 3,072 inputs overflows. So the certified head of this library splits such an input "
        "into two bytes, and multiplies twice.",
        {
            most // 127**2: "That is for inputs of 8 bits. The largest input is 16,383 now.",
            2**32 // largest: "One bit of the 32 is the sign.",
            most // (32767 * 127): "32,767 needs 16 bits. With 15 bits the largest is 2**14 - 1.",
            most // 16383**2: "Only the input has 15 bits; a weight is at most 127.",
            most // 16383: "The products must fit, not the inputs: each is up to 16,383 times 127.",
        },
        f"{given:g} is not it: (2**31 - 1) // (16383 * 127).",
    )


@checker
def check_ex2(answer: object) -> None:
    """Check a function of four unsigned and four signed bytes: two sums of two products, clipped to 16 bits."""
    for a, b in EX2_CASES:
        got = integers(outcome(answer, list(a), list(b)), 2)
        exact = [a[0] * b[0] + a[1] * b[1], a[2] * b[2] + a[3] * b[3]]
        clipped = [min(max(pair, -32768), 32767) for pair in exact]
        if got == clipped:
            continue
        if got == exact:
            print(f"{exact[0]} does not fit into 16 bits, and the instruction cannot store it. What does it store?")
        elif got == np.array(exact).astype(np.int16).tolist():
            print("That wraps around, as integers in NumPy do. The instruction saturates: it stops at the end.")
        else:
            place = first_wrong(got, clipped)
            print(f"For {a} and {b} it says {got}. Number {(place or 0) + 1} should be {clipped[place or 0]}.")
        return
    print("Right. Two products, one sum, and no room for it: 255 * 127 * 2 is nearly twice the largest int16.")


@checker
def check_ex3(answer: object) -> None:
    """Check the start value that takes back the 128 added to each input code."""
    given, total = number(answer), sum(EX3_WEIGHTS)
    tell(
        given,
        -128 * total,
        "Right: −128 times the sum of the column, whatever the input is. It is computed once, when packing.",
        {
            128 * total: "The sign is wrong: every product is 128 times its weight too large, so start below zero.",
            -128 * sum(EX3_CODES): "The codes are what was moved. Each moved product is off by 128 times its *weight*.",
            -128 * 4: "Each product is off by 128 times its weight, not by 128.",
            -128 * sum(map(abs, EX3_WEIGHTS)): "Weights keep their signs: a negative one moves the sum down.",
            float(
                np.dot(EX3_CODES, EX3_WEIGHTS)
            ): "That is the sum we want. From where must the shifted sum start to reach it?",
        },
        f"{given:g} is not it: (code + 128) * weight is code * weight + 128 * weight. Sum the last over the column.",
    )


@checker
def check_ex4(answer: object) -> None:
    """Check a function of rows and registers a row of a tile: loads for one multiplication."""
    got = [number(outcome(answer, *case)) for case in EX4_CASES]
    models: dict[str, Callable[[int, int], float]] = {
        "Right. A tile of one row loads more than it multiplies, and a tall one half as much.": (
            lambda r, v: (r + v) / (r * v)
        ),
        "Upside down: that is multiplications for one load.": lambda r, v: (r * v) / (r + v),
        "Only the weights are counted. Every row also loads four bytes of its input.": lambda r, v: 1 / r,
        "Only the inputs are counted. The weights must be loaded, too.": lambda r, v: 1 / v,
        "Those are all loads of a step. Divide by its multiplications.": lambda r, v: r + v,
        "Two loads for each multiplication is what it would be without a tile.": lambda r, v: 2,
    }
    for said, model in models.items():
        if all(math.isclose(a, model(*case)) for a, case in zip(got, EX4_CASES, strict=True)):
            print(said)
            return
    rows, vectors = EX4_CASES[1]
    right = (rows + vectors) / (rows * vectors)
    print(
        f"For {rows} rows of {vectors} registers it says {got[1]:g}. It should be {right:g}: 8 + 3 loads, 24 products."
    )


@checker
def check_ex5(answer: object) -> None:
    """Check from how many rows on 400 G multiply-adds/s, not 40 GB/s, are the limit of an int8 layer."""
    given = number(answer)
    if given < 0:
        raise AnswerError("Rows cannot be fewer than none.")
    tell(
        given,
        10,
        "Right: each byte of weight is used once a row, so 40 G bytes make 40 G products a row. The shape drops out.",
        {
            0.1: "Upside down: multiply-adds for each byte read.",
            40: "With float32 it would be 40: four bytes a weight. An int8 weight is one byte.",
            2.5: "That would be four weights in a byte. One int8 weight is one byte.",
            5: "A multiply-add is counted once here, as in the rates of this chapter.",
            20: "A multiply-add is counted once here, as in the rates of this chapter.",
        },
        f"{given:g} is not it: M * K * N / 400e9 seconds of products against K * N / 40e9 seconds of reading.",
    )
