"""Checkers for chapter 5, two axes. Each prints one sentence or two about the answer it is given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from cachequant_lib.errors import FormatError
from cachequant_lib.exercises.answers import array, checker, first_wrong, number, numbers, outcome
from cachequant_lib.formats.scheme import SCALE_BITS, Scheme

__all__ = [
    "EX1_FORMATS",
    "EX2_MAXIMA",
    "EX5_BITS",
    "check_ex1",
    "check_ex2",
    "check_ex3",
    "check_ex4",
    "check_ex5",
]

#: Bits of a code, bits that a group stores beside its codes, values in a group.
EX1_FORMATS = ((8, 16, 128), (8, 8, 16), (8, 32, 3072), (2, 32, 32))
EX2_MAXIMA = (1.9, 0.7, 5.1, 1.0)
EX5_BITS = 8.1
GRANULARITIES = (32, 64, 128, 256, "row", "tensor")


@checker
def check_ex1(answer: object) -> None:
    """Check the bits a value costs in each of `EX1_FORMATS`."""
    given = numbers(answer, len(EX1_FORMATS))
    for i, (got, (code, shared, size)) in enumerate(zip(given, EX1_FORMATS, strict=True), 1):
        want = code + shared / size
        if math.isclose(got, want, abs_tol=6e-4):
            continue
        if math.isclose(got, code + shared):
            print(f"Format {i}: the {shared} bits are shared by {size} values, not paid by each.")
        elif code == 2 and math.isclose(got, code + shared / 2 / size):
            print(f"Format {i}: KIVI stores two numbers for a group, a scale and a minimum, 16 bits each.")
        elif code == 2 and math.isclose(got, 8 + shared / size):
            print(f"Format {i}: a code has 2 bits here, not 8.")
        elif math.isclose(got, shared / size, abs_tol=6e-4):
            print(f"Format {i}: that is the share of the scale alone. Add the {code} bits of the code.")
        else:
            print(f"Format {i}: {code} bits for the code, and {shared} shared by {size} values; not {got:g}.")
        return
    print("Right. What a scale costs is a matter of how many share it: the widest one here is the cheapest.")


@checker
def check_ex2(answer: object) -> None:
    """Check the snapped scales of `EX2_MAXIMA`: eight even steps from one power of two to the next."""
    given = numbers(answer, len(EX2_MAXIMA))
    right = [_snapped(value, 8) for value in EX2_MAXIMA]
    if (wrong := first_wrong(given, right)) is None:
        print("Right. 1.9 lands on the next power of two, and 1.0 is one already: it stays.")
        return
    value, got = EX2_MAXIMA[wrong], given[wrong]
    low = 2.0 ** math.floor(math.log2(value))
    if math.isclose(got, 2.0 ** math.ceil(math.log2(value))):
        said = f"{got:g} is the next power of two. Between {low:g} and {2 * low:g} there are eight steps."
    elif got < value:
        said = f"{got:g} is below the maximum {value:g}, which would be clipped. Round up."
    elif math.isclose(got, low + (math.floor((value - low) / (low / 8)) + 1) * low / 8):
        said = f"{value:g} lies on a step already and keeps it."
    elif math.isclose(got, math.ceil(value * 8) / 8):
        said = f"Steps of 1/8 belong to maxima from 1 to 2. From {low:g} to {2 * low:g} a step is {low / 8:g}."
    elif math.isclose(got, _snapped(value, 16)):
        said = f"That would be sixteen steps. With eight, one is {low / 8:g}."
    else:
        said = (
            f"From {low:g} to {2 * low:g} a step is {low / 8:g}; {got:g} is not the first step at or above {value:g}."
        )
    print(said)


@checker
def check_ex3(answer: object) -> None:
    """Check a function of (bits_a, error_a, bits_b, error_b): how many bits format b is worth more than a."""
    for case in ((8.25, 0.8, 9.0, 0.5), (8.0, 1.0, 8.5, 0.25), (9.0, 0.3, 8.0, 0.3)):
        got = number(outcome(answer, *case))
        bits_a, error_a, bits_b, error_b = case
        cheaper, finer = bits_a - bits_b, math.log2(error_a / error_b)
        slips = {
            "Those are the bits of rounding alone. What is stored counts as well.": finer,
            "Those are the stored bits alone. A finer rounding counts as well.": cheaper,
            "The sign is turned: b should win when it stores less and rounds finer.": -(cheaper + finer),
            "Storing more is a loss: subtract b's bits from a's.": finer - cheaper,
            "Rounding finer is a gain: the error of a goes on top.": cheaper - finer,
            "A bit is a factor of two in the error, so the logarithm is to the base 2.": cheaper
            + math.log(error_a / error_b),
            "Add the logarithm of the ratio, not the ratio itself.": cheaper + error_a / error_b,
        }
        if math.isclose(got, cheaper + finer, abs_tol=1e-6):
            continue
        for words, value in slips.items():
            if math.isclose(got, value, abs_tol=1e-6):
                print(words)
                return
        print(f"For {case} it gives {got:g}, and should give {cheaper + finer:g}.")
        return
    print("Right. One bit stored is as good as one halving of the error.")


@checker
def check_ex4(answer: object) -> None:
    """Check a function of (maxima (n,), steps) that snaps each maximum up to one of `steps` even steps an octave."""
    maxima = np.array([1.0, 1.01, 1.9, 0.7, 5.1, 1e-3, 40.0, 0.25, 96.0, 1.5])
    for steps in (8, 4, 16, 1):
        got = array(outcome(answer, maxima.copy(), steps), maxima.shape, "One scale for each maximum.")
        want = np.array([_snapped(value, steps) for value in maxima])
        if np.allclose(got, want, rtol=1e-6, atol=0):
            continue
        even = 2.0 ** (np.ceil(np.log2(maxima) * steps) / steps)
        if np.allclose(got, even, rtol=1e-6, atol=0):
            print("Those steps grow by equal factors. The format has equal differences between two powers of two.")
        elif (got < maxima * (1 - 1e-9)).any():
            i = int(np.argmax(got < maxima * (1 - 1e-9)))
            print(f"The maximum {maxima[i]:g} gets the scale {got[i]:g}, below it. Round up.")
        else:
            i = int(np.argmax(~np.isclose(got, want, rtol=1e-6, atol=0)))
            print(f"With {steps} steps the maximum {maxima[i]:g} should get {want[i]:g}; yours is {got[i]:g}.")
        return
    print("Right. With one step an octave it is the power of two of BFP8, and the more steps, the nearer to exact.")


@checker
def check_ex5(answer: object) -> None:
    """Check a cell (granularity, rule) of at most `EX5_BITS` bits with the least error on rows of 1,024 values."""
    if not isinstance(answer, Sequence) or isinstance(answer, str) or len(answer) != 2:
        print('Give a granularity and a scale rule, such as (32, "pow2").')
        return
    try:
        scheme = Scheme(answer[0], answer[1])
        bits = scheme.bits_per_value(1024, 64)
    except (FormatError, TypeError) as error:
        print(f"There is no such format: {' '.join(str(error).split())}.")
        return
    if bits > EX5_BITS:
        print(f"That is {bits:.3f} bits a value, more than {EX5_BITS}.")
        return
    x = np.random.default_rng(5).standard_normal((64, 1024)).astype(np.float32)
    cells = [Scheme(g, r) for g, r in product(GRANULARITIES, SCALE_BITS)]  # type: ignore[arg-type]
    best = min(_error(cell, x) for cell in cells if cell.bits_per_value(1024, 64) <= EX5_BITS)
    got = _error(scheme, x)
    if got <= best * 1.0001:
        print(f"Right. {bits:.3f} bits, and no other cell under {EX5_BITS} loses less than its {got:.3f} %.")
    else:
        print(f"It fits, with {bits:.3f} bits, and loses {got:.3f} %. Another cell that fits loses {best:.3f} %.")


def _snapped(value: float, steps: int) -> float:
    low = 2.0 ** math.floor(math.log2(value))
    return low + math.ceil((value - low) / (low / steps) - 1e-9) * low / steps


def _error(scheme: Scheme, x: np.ndarray) -> float:
    back = scheme.quantize(x).dequantize().astype(float)
    return float(100 * np.linalg.norm(back - x) / np.linalg.norm(x))
