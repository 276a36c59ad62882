"""Checkers for chapter 11, AlignedKV on a CPU. Each prints one sentence about the answer it is given."""

from __future__ import annotations

import numpy as np

from cachequant_lib.exercises.answers import array, checker, numbers, outcome

__all__ = ["check_ex1", "check_ex2", "check_ex3", "check_ex4"]


@checker
def check_ex1(answer: object) -> None:
    """Check [average of the sealed tokens, average of all] for 16, 12 and 8 bits in 8, 24 and 32 of 64 channels."""
    sealed, whole = numbers(answer, 2)
    right = (8 * 16 + 24 * 12 + 32 * 8) / 64, (448 * 10.5 + 52 * 16) / 500
    if not np.isclose(sealed, right[0], atol=0.01):
        if np.isclose(sealed, 12, atol=0.01):
            print("That is the mean of 16, 12 and 8. Weigh each with its number of channels.")
        else:
            print(f"It is not {sealed:g} bits for the sealed tokens: add up 8 x 16, 24 x 12 and 32 x 8, divide by 64.")
    elif np.isclose(whole, (right[0] + 16) / 2, atol=0.01):
        print("Few tokens are in the open block: weigh both averages with their numbers of tokens.")
    elif not np.isclose(whole, right[1], atol=0.01):
        print(f"Over all 500 tokens it is not {whole:g}. 448 tokens fill seven blocks, 52 wait at 16 bits.")
    else:
        print("Right. At short contexts the open block is a good part of all tokens, and the saving is small.")


@checker
def check_ex2(answer: object) -> None:
    """Check a function of an array of integers that returns their balanced digits, high and low."""
    integers = np.array([0, 127, 128, 255, 256, 300, -1, -128, -129, -300, 32639, -32639])
    got = outcome(answer, integers.copy())
    if not isinstance(got, tuple | list) or len(got) != 2:
        print("Return two arrays: the high digits and the low ones.")
        return
    high, low = (array(part, integers.shape) for part in got)
    right = (integers + 128) >> 8
    if not np.array_equal(256 * high + low, integers):
        i = int(np.flatnonzero(256 * high + low != integers)[0])
        print(f"256 * high + low must give the number back: for {integers[i]} it gives {256 * high[i] + low[i]:g}.")
    elif np.array_equal(high, integers >> 8):
        print("The low digit runs from 0 to 255 there. Balanced, it runs from -128 to 127: round instead of cutting.")
    elif not np.array_equal(high, right):
        i = int(np.flatnonzero(high != right)[0])
        print(f"The digits of {integers[i]} should be {right[i]} and {integers[i] - 256 * right[i]}.")
    else:
        print("Right. The high digit alone is now the number rounded to nearest, so it needs no fill.")


@checker
def check_ex3(answer: object) -> None:
    """Check a function (shares, budget) that says which tokens to skip: the smallest while they sum to the budget."""
    shares = np.array([0.30, 0.02, 0.25, 0.01, 0.05, 0.20, 0.03, 0.14])
    for budget, right in ((0.07, [1, 3, 6]), (0.0, []), (0.005, []), (1.0, list(range(8)))):
        got = array(outcome(answer, shares.copy(), budget), shares.shape).astype(bool)
        wanted = np.isin(np.arange(8), right)
        if np.array_equal(got, wanted):
            continue
        if np.array_equal(got, shares <= budget) and budget == 0.07:
            print(
                "Each skipped share is below the budget, but their sum is not. The budget is for all of them together."
            )
        elif np.array_equal(got, ~wanted):
            print("That marks the tokens to read. Mark those to skip.")
        else:
            print(f"With a budget of {budget:g} the tokens {right} can be skipped, not {np.flatnonzero(got).tolist()}.")
        return
    print("Right. Skipping always errs to the same side, so the sum of what is lost must be bounded, not its squares.")


@checker
def check_ex4(answer: object) -> None:
    """Check [megabytes in fp16, megabytes at 7 bits, times as fast at most] for 32 x 128 heads at 8,192 tokens."""
    whole, some, times = numbers(answer, 3)
    right = 2 * 32 * 128 * 8192 * 2 / 1e6
    if np.isclose(whole, right / 2, rtol=0.02):
        print("Keys and values: twice as many numbers.")
    elif np.isclose(whole, 8 * right, rtol=0.02):
        print("Those are megabits.")
    elif not np.isclose(whole, right, rtol=0.05):
        print(f"In fp16 it is not {whole:g} MB: 2 for K and V, 32 heads, 128 channels, 8,192 tokens, 2 bytes each.")
    elif not np.isclose(some, right * 7 / 16, rtol=0.05):
        print(f"At 7 bits it is not {some:g} MB, but seven sixteenths of {right:.1f}.")
    elif not np.isclose(times, 16 / 7, rtol=0.05):
        print(f"If bytes were everything, it would be 16 / 7 times as fast, not {times:g}.")
    else:
        print("Right. What comes out on a clock is less: choosing what to read takes time as well.")
