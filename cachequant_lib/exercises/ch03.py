"""Checkers for chapter 3, BFP8 by hand. Each prints one sentence about the answer it is given."""

from __future__ import annotations

import math

import numpy as np

from cachequant_lib.exercises.answers import array, checker, first_wrong, integers, number, numbers, outcome
from cachequant_lib.formats.bfp8 import quantize_bfp8

__all__ = ["EX1_BLOCK", "EX2_MAXIMA", "check_ex1", "check_ex2", "check_ex3", "check_ex4", "check_ex5"]

EX1_BLOCK = (0.7, -0.05, 0.33, -0.6)
EX2_MAXIMA = (3.9, 1.0, 1.01, 0.3, 0.5)


@checker
def check_ex1(answer: object) -> None:
    """Check the four codes of `EX1_BLOCK` under BFP8 with blocks of four."""
    given = integers(answer, len(EX1_BLOCK))
    scaled = [v * 127 for v in EX1_BLOCK]  # the scale is 2**0 = 1
    slips = {
        tuple(math.trunc(v) for v in scaled): "The fractions were cut off. Round to the nearest whole number.",
        tuple(
            round(v / 0.7) for v in scaled
        ): "That is the scale 0.7, the exact maximum. BFP8 rounds it up to a power of two.",
        tuple(
            round(2 * v) for v in scaled
        ): "That is the scale 1/2: log2(0.7) was rounded down, and 178 does not fit into 8 bits.",
        tuple(max(-127, min(127, round(2 * v))) for v in scaled): (
            "That is the scale 1/2: log2(0.7) was rounded down, so 0.7 and -0.6 were both clipped to 0.5."
        ),
        tuple(round(v / 2) for v in scaled): "That is the scale 2. The smallest power of two that holds 0.7 is 1.",
        tuple(round(v * 128) for v in EX1_BLOCK): "That is the divisor 128. The format multiplies by 127.",
        tuple(abs(round(v)) for v in scaled): "The sizes are right. A code keeps the sign of its value.",
    }
    right = quantize_bfp8(EX1_BLOCK, block_size=4).mantissas.tolist()
    if (wrong := first_wrong(given, right)) is None:
        print("Right. The maximum 0.7 lands on 89: between 64 and 127, as every block's maximum does.")
        return
    general = (
        f"The code of {EX1_BLOCK[wrong]} is not {given[wrong]}. The scale is the smallest power of two that holds 0.7."
    )
    print(slips.get(tuple(given), general))


@checker
def check_ex2(answer: object) -> None:
    """Check the exponents of five blocks whose largest magnitudes are `EX2_MAXIMA`."""
    given = integers(answer, len(EX2_MAXIMA))
    logs = [math.log2(v) for v in EX2_MAXIMA]
    slips = {
        tuple(
            math.floor(v) for v in logs
        ): "Those are rounded down, so the maxima 3.9, 1.01 and 0.3 do not fit their scales.",
        tuple(round(v) for v in logs): "Those are rounded to the nearest: 1.01 does not fit the scale 1.",
        tuple(math.floor(v) + 1 for v in logs): (
            "Nearly. 1.0 and 0.5 are powers of two already: they need no next larger one."
        ),
    }
    right = [math.ceil(v) for v in logs]
    if (wrong := first_wrong(given, right)) is None:
        print("Right. 1.0 keeps the scale 1 and lands on 127; 1.01 needs the scale 2 and lands on 64.")
        return
    most, exponent = EX2_MAXIMA[wrong], given[wrong]
    size = "too small to hold it" if 2.0**exponent < most else "larger than needed"
    print(slips.get(tuple(given), f"For the maximum {most} the scale 2**{exponent} = {2.0**exponent:g} is {size}."))


@checker
def check_ex3(answer: object) -> None:
    """Check a function of (block_size, scale_bits) that returns the bits a value costs."""
    for size, bits in ((32, 8), (32, 16), (64, 16), (256, 32)):
        got, want = number(outcome(answer, size, bits)), 8 + bits / size
        if math.isclose(got, 8 + bits):
            print("That charges the whole scale to one value. It is shared by all values of the block.")
        elif math.isclose(got, bits / size):
            print("That is the share of the scale alone. Each value also has its own 8-bit code.")
        elif got == 8 + bits // size:
            print("// drops the fraction, and the fraction is the whole point. Use /.")
        elif math.isclose(got, want * size):
            print("Those are the bits of the whole block. Divide by the number of values in it.")
        elif not math.isclose(got, want):
            print(f"For blocks of {size} with a {bits}-bit scale it gives {got:g}; count the bits of one block first.")
        else:
            continue
        return
    print("Right. An 8-bit exponent for 32 values costs as much as an fp16 scale for 64.")


@checker
def check_ex4(answer: object) -> None:
    """Check a function of one row x (K,) that returns the largest possible error of each block of 32."""
    x = np.random.default_rng(3).standard_normal(96).astype(np.float32) * np.repeat([1.0, 0.01, 30.0], 32).astype(
        np.float32
    )
    bounds = array(outcome(answer, x.copy()), (3,), "A row of 96 values has 3 blocks.")
    most = np.abs(x.reshape(3, 32)).max(axis=1).astype(float)  # (96,) -> (3, 32) -> (3,)
    scale = 2.0 ** np.ceil(np.log2(most))
    slips = {
        "That is half a step of the exact scale. The stored scale is the power of two above the maximum.": most / 254,
        "That is a whole step. Rounding to the nearest code is off by half a step at most.": scale / 127,
        "Nearly: the step is scale / 127, so half of it is scale / 254.": scale / 256,
        "That scale is rounded down, so the maximum itself would not fit.": scale / 2 / 254,
    }
    for words, values in slips.items():
        if np.allclose(bounds, values, rtol=1e-4, atol=0):
            print(words)
            return
    if np.allclose(bounds, scale / 254, rtol=1e-4, atol=0):
        print("Right. Half a step: the same for all 32 values of a block, however small they are themselves.")
    else:
        print(
            f"For a block with the maximum {most[0]:.3g} the bound should be {scale[0] / 254:.3g}; "
            f"yours is {bounds[0]:.3g}."
        )


@checker
def check_ex5(answer: object) -> None:
    """Check a block of four that a second pass changes when codes run to 128 and are clipped at 127."""
    block = np.array(numbers(answer, 4))
    if not block.any():
        print("Give four numbers, not all of them zero.")
        return
    once = _pass_128(block)
    twice = _pass_128(once)
    if (once != twice).any():
        i = int(np.flatnonzero(once != twice)[0])
        print(f"Right. {block[i]:g} comes back as {once[i]:g}, and that comes back as {twice[i]:g}: the scale shrank.")
        return
    most = float(np.abs(block).max())
    code = np.rint(most / 2.0 ** np.ceil(np.log2(most)) * 128)
    print(f"This block is stable: its maximum {most:g} has the code {min(code, 127):.0f}. Make that code exactly 64.")


def _pass_128(block: np.ndarray) -> np.ndarray:
    scale = 2.0 ** np.ceil(np.log2(np.abs(block).max()))
    return np.asarray(np.clip(np.rint(block / scale * 128), -127, 127) * scale / 128)
