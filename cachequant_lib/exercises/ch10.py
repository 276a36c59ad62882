"""Checkers for chapter 10, numbers with error bars. Each prints one sentence about the answer it is given."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachequant_lib.exercises.answers import array, checker, numbers, outcome

__all__ = ["check_ex1", "check_ex2", "check_ex3", "check_ex4", "check_ex5"]


@checker
def check_ex1(answer: object) -> None:
    """Check [value, worst case, in quadrature] of 5 * (3.2 +- 0.1) - 2 * (1.5 +- 0.3)."""
    given = numbers(answer, 3)
    value, worst, typical = given
    if not np.isclose(value, 13, atol=0.01):
        print(f"The value is not {value:g}. Leave the uncertainties out: 5 * 3.2 - 2 * 1.5.")
    elif np.isclose(worst, -0.1, atol=0.01):
        print("Uncertainties do not cancel: a factor of -2 makes 0.3 into 0.6, and both are added.")
    elif np.isclose(worst, 0.4, atol=0.01):
        print("The factors are missing: 5 * (3.2 ± 0.1) is uncertain by 0.5.")
    elif not np.isclose(worst, 1.1, atol=0.01):
        print(f"The worst case is not {worst:g}. Scale both uncertainties, then add them.")
    elif not np.isclose(typical, np.sqrt(0.61), atol=0.01):
        print(f"In quadrature it is not {typical:g}. Scale, square, add, and take the root.")
    else:
        print("Right. The second number is known three times as badly, but the factors bring the two nearly level.")


@checker
def check_ex2(answer: object) -> None:
    """Check how 30 bits are shared among addends below 1, 8 and 64."""
    given = numbers(answer, 3)
    small, middle, large = given
    if given == [7, 10, 13]:
        print("Right. Each has the uncertainty 2**-8, so all three end in the same column.")
    elif given == [13, 10, 7]:
        print("The other way round. The largest addend reaches further to the left, so it needs the most bits.")
    elif given == [10, 10, 10]:
        print("Equal bits are not equal uncertainties: the largest would end 6 columns before the smallest.")
    elif sum(given) != 30:
        print(f"These are {sum(given):g} bits; there are 30 to share.")
    else:
        ends = ", ".join(f"2**{e:g}" for e in (-small - 1, 3 - middle - 1, 6 - large - 1))
        print(f"The uncertainties would be {ends}. They must be equal.")


@checker
def check_ex3(answer: object) -> None:
    """Check a function of a uint16 array of fp16 patterns that returns the last place of each number."""
    patterns = np.array([0x3C00, 0x3BFF, 0xC000, 0x7BFF, 0x0400, 0x03FF, 0x0001], dtype=np.uint16)
    got = array(outcome(answer, patterns.copy()), patterns.shape)
    fields = (patterns.astype(int) >> 10) & 0x1F
    right = 2.0 ** (np.maximum(fields, 1) - 25)
    if np.array_equal(got, right):
        print("Right. Below 2**-14 the last place stops shrinking: those are the subnormal numbers.")
    elif np.allclose(got, 2.0 ** (fields - 25.0)):
        print("Right for normal numbers. With the exponent field 0 the last place is 2**-24, as for the field 1.")
    elif np.allclose(got, 2.0 ** ((patterns >> 10) - 25.0)):
        print("The sign bit got into the exponent: keep five bits, with & 0x1F.")
    elif np.allclose(got[:5], right[:5] * 1024):
        print("That is the leading digit's place. The last of ten further digits is 2**-10 of it.")
    else:
        i = int(np.flatnonzero(~np.isclose(got, right))[0])
        print(f"For the pattern {int(patterns[i]):#06x} the last place is {right[i]:.4g}; yours is {got[i]:.4g}.")


@checker
def check_ex4(answer: object) -> None:
    """Check a function (patterns uint16, bits) that keeps the first bits and fills the rest with 100..."""
    patterns = np.array([0x3C01, 0xBC7F, 0x1234, 0x7BFF, 0x0000], dtype=np.uint16)
    for bits in (12, 8, 16):
        got = array(outcome(answer, patterns.copy(), bits), patterns.shape)
        lost = 16 - bits
        head = (patterns.astype(int) >> lost) << lost
        half = (1 << lost) >> 1
        if np.array_equal(got, head + half):
            continue
        slips = (
            ("That fills with zeros. The first bit that is not read becomes 1.", head),
            ("That fills with ones. Only the first bit that is not read becomes 1.", head + (1 << lost) - 1),
            ("The rest was changed, but the old bits are still there. Clear them before filling.", patterns | half),
        )
        said = [words for words, values in slips if lost and np.array_equal(got, values)]
        if not lost:
            said = ["With 16 bits nothing is missing, so nothing may change."]
        print(said[0] if said else f"With {bits} bits {0x3C01:#06x} should become {int(head[0] + half):#06x}.")
        return
    print("Right. One shift there, one back, and half of the lost interval on top.")


def _widths(sizes: NDArray[Any]) -> NDArray[Any]:
    """Bits by the rule of the paper, for the exponents of the products."""
    spare = sizes.max() - sizes
    return np.where(spare < 4, 16, np.where(spare < 8, 12, 8)).astype(float)


@checker
def check_ex5(answer: object) -> None:
    """Check a function (q (D,), k (T, D)) that returns 16, 12 or 8 bits for each column of k."""
    rng = np.random.default_rng(10)
    q = rng.choice([-1, 1], 64) * 2.0 ** rng.integers(-3, 4, 64) * 1.25
    k = -np.abs(rng.standard_normal((32, 64))) * 2.0 ** rng.integers(-4, 5, 64)
    k[0] = np.abs(k[0]) / 16
    got = array(outcome(answer, q.copy(), k.copy()), (64,))
    e_q, e_k = np.frexp(np.abs(q))[1], np.frexp(np.abs(k).max(axis=0))[1]
    signed, shares = np.frexp(k.max(axis=0))[1], np.log2(np.abs(q) * np.abs(k).max(axis=0))
    right = _widths(e_q + e_k)
    slips = (
        ("Take the magnitude before the maximum: a column of large negative values is large.", _widths(e_q + signed)),
        ("That looks at k alone. The addend is q times k, so the exponent of q counts as well.", _widths(e_k)),
        ("That looks at q alone. The addend is q times k.", _widths(e_q)),
        ("Compare whole exponents, as the rule does: your products keep fractions of a bit.", _widths(shares)),
        ("The other way round: the largest products need all bits.", 24 - right),
    )
    if np.array_equal(got, right):
        print(f"Right. {right.mean():.1f} bits on average; only the largest products are read in full.")
        return
    said = [words for words, values in slips if np.array_equal(got, values)]
    i = int(np.flatnonzero(got != right)[0])
    spare = int((e_q + e_k).max() - (e_q + e_k)[i])
    print(said[0] if said else f"Column {i} lies {spare} binades below the top: {right[i]:g} bits, not {got[i]:g}.")
