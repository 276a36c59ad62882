"""Checkers for chapter 8, is it still the same model? Each prints one sentence or two about the answer it is given."""

from __future__ import annotations

import math

import numpy as np

from cachequant_lib.exercises.answers import array, checker, number, numbers, outcome

__all__ = [
    "EX1_BYTES",
    "EX1_PROBABILITIES",
    "EX4_AFTER",
    "EX4_BEFORE",
    "check_ex1",
    "check_ex2",
    "check_ex3",
    "check_ex4",
    "check_ex5",
]

EX1_PROBABILITIES, EX1_BYTES = (1 / 2, 1 / 8, 1 / 8, 1 / 32), 8
EX4_BEFORE, EX4_AFTER = (1 / 2, 1 / 4, 1 / 4), (1 / 4, 1 / 4, 1 / 2)


@checker
def check_ex1(answer: object) -> None:
    """Check the perplexity of `EX1_PROBABILITIES`, and the bits per byte over `EX1_BYTES` bytes."""
    perplexity, per_byte = numbers(answer, 2)
    bits = [-math.log2(p) for p in EX1_PROBABILITIES]
    mean = sum(bits) / len(bits)
    slips = {
        "The mean surprise is 3 bits. Perplexity is the number of equally likely tokens: 2 to that power.": mean,
        "That is e to the power of 3. The surprise was counted in bits, so the base is 2.": math.exp(mean),
        "That is the mean of 2, 8, 8 and 32. The surprises are averaged, not the numbers of choices.": sum(
            1 / p for p in EX1_PROBABILITIES
        )
        / len(bits),
        "That comes from the mean of the probabilities. Average their logarithms.": len(bits) / sum(EX1_PROBABILITIES),
    }
    if not math.isclose(perplexity, 2**mean, rel_tol=1e-6):
        right = f"The surprises are {', '.join(f'{b:g}' for b in bits)} bits; what is their mean, and 2 to that power?"
        print(next((words for words, value in slips.items() if math.isclose(perplexity, value, rel_tol=1e-2)), right))
    elif math.isclose(per_byte, mean / EX1_BYTES):
        print(f"The perplexity is right. It takes all {sum(bits):g} bits over {EX1_BYTES} bytes, not their mean.")
    elif not math.isclose(per_byte, sum(bits) / EX1_BYTES):
        print(f"The perplexity is right. The text surprised by {sum(bits):g} bits in all, and has {EX1_BYTES} bytes.")
    else:
        print("Right. 12 bits of surprise: 3 a token, 1.5 a byte.")


@checker
def check_ex2(answer: object) -> None:
    """Check a function of (spread in nats, change in percent): tokens that tell the change from nothing at 95 %."""
    for spread, percent in ((0.015, 0.04), (0.05, 0.04), (2.6, 1.0)):
        got = number(outcome(answer, spread, percent))
        right = (1.96 * spread / (percent / 100)) ** 2
        slips = {
            "The change is in per cent: 0.04 % is 0.0004 nats.": (1.96 * spread / percent) ** 2,
            "That is the root. Half the width needs four times the tokens: the quotient is squared.": math.sqrt(right),
            "That is one standard error, not 95 %. Put 1.96 of them into the change.": (100 * spread / percent) ** 2,
            "1.96 is squared with the rest.": 1.96 * (100 * spread / percent) ** 2,
            "The quotient is upside down: more spread needs more tokens.": (percent / 100 / spread / 1.96) ** 2,
        }
        if math.isclose(got, right, rel_tol=0.05) or abs(got - right) <= 1:
            continue
        for words, value in slips.items():
            if math.isclose(got, value, rel_tol=0.02):
                print(words)
                return
        print(f"With a spread of {spread} nats, {percent} % takes about {right:,.0f} tokens; yours gives {got:g}.")
        return
    print("Right. Half the change, four times the tokens: that is what makes small effects expensive.")


@checker
def check_ex3(answer: object) -> None:
    """Check a function of two models' surprises (T,): change of perplexity in percent, and half of its interval."""
    rng = np.random.default_rng(8)
    before = rng.gamma(1.5, 2.0, 3000)
    after = before + rng.normal(0.004, 0.05, 3000)
    got = array(outcome(answer, before.copy(), after.copy()), (2,), "The change and half of its interval.")
    gap = after - before
    change, half = 100 * math.expm1(gap.mean()), 196 * gap.std(ddof=1) / math.sqrt(gap.size)
    apart = 196 * math.sqrt((before.var() + after.var()) / gap.size)
    plain = 100 * (after.mean() / before.mean() - 1)
    if math.isclose(got[0], -change, rel_tol=0.02):
        print("The sign is turned: a larger surprise is a larger perplexity. Subtract before from after.")
    elif math.isclose(got[0], change / 100, rel_tol=0.02):
        print("Give both in per cent.")
    elif math.isclose(got[0], plain, rel_tol=0.02):
        print("That is the change of the mean surprise. The perplexity is its exponential.")
    elif not math.isclose(got[0], change, rel_tol=0.02):
        print(f"The perplexity changes by {change:.3f} %; yours says {got[0]:.3g}.")
    elif math.isclose(got[1], apart, rel_tol=0.05):
        print("That is the interval of two unpaired means. Subtract token by token first.")
    elif math.isclose(got[1], 196 * gap.std(), rel_tol=0.05):
        print("That is the spread of single tokens. A mean of n is known better, by the root of n.")
    elif math.isclose(got[1] * 1.96, half, rel_tol=0.02):
        print("That is one standard error. The 95 % interval has 1.96 on each side.")
    elif math.isclose(got[1], 2 * half, rel_tol=0.02):
        print("That is the whole width. Half of it was asked for.")
    elif not math.isclose(got[1], half, rel_tol=0.03):
        print(f"The change is right. Half of its interval is {half:.3f} points; yours is {got[1]:.3g}.")
    else:
        print(f"Right. Unpaired it would have been {apart:.0f} points instead of {half:.2f}.")


@checker
def check_ex4(answer: object) -> None:
    """Check the KL divergence of `EX4_AFTER` from `EX4_BEFORE`, in nats."""
    given = number(answer)
    p, q = np.array(EX4_BEFORE), np.array(EX4_AFTER)
    right = float(np.sum(p * np.log(p / q)))
    slips = {
        "The right size in bits. In nats the logarithm is the natural one.": right / math.log(2),
        "The sign is turned: KL is never negative. The original's probability is on top in the logarithm.": -right,
        "Each term is weighted by the original's probability.": float(np.sum(np.abs(np.log(p / q)))),
        "That is the sum of the differences. KL takes logarithms of ratios.": float(np.sum(np.abs(p - q))),
    }
    if math.isclose(given, right, abs_tol=6e-4):
        print("Right: log(2) / 4. What one token lost another gained, and still it does not cancel.")
        return
    for words, value in slips.items():
        if math.isclose(given, value, abs_tol=2e-3):
            print(words)
            return
    if given == 0:
        print("The terms do not cancel: the first is 1/2 log 2, the third 1/4 log 1/2.")
    else:
        print("Sum over the tokens: p times the logarithm of p over q, where p is the original.")


@checker
def check_ex5(answer: object) -> None:
    """Check a function of x (T, K) float32: row sums that no cut and no layout changes in any bit."""
    x = (np.random.default_rng(5).standard_normal((24, 700)) * 100).astype(np.float32)
    whole = array(outcome(answer, x.copy()), (24,), "One sum for each row.")
    true = x.astype(float).sum(axis=1)
    if not np.allclose(whole, true, atol=0.5):
        i = int(np.argmax(np.abs(whole - true)))
        print(f"Row {i} sums to {true[i]:.2f}; yours gives {whole[i]:.6g}.")
        return
    for cut in (1, 7, 23):
        pieces = [array(outcome(answer, part.copy()), (len(part),)) for part in (x[:cut], x[cut:])]
        if (np.concatenate(pieces) != whole).any():
            print(f"Cut after {cut} rows, some sums change in their last digit.")
            return
    if (array(outcome(answer, np.asfortranarray(x)), (24,)) != whole).any():
        print("When the array lies in memory by columns, some sums change: NumPy's sum adds in another order then.")
        return
    print("Right. The order depends on nothing but the row, so every bit is the same.")
