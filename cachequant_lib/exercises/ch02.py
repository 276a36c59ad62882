"""Checkers for chapter 2, Where do the bytes go?. Each prints one sentence about the answer it is given."""

from __future__ import annotations

import math

from cachequant_lib.exercises.answers import checker, number, outcome, tell

__all__ = ["EX1_MODEL", "EX2_MACHINE", "check_ex1", "check_ex2", "check_ex3", "check_ex4", "check_ex5"]

#: GPT-2 medium.
EX1_MODEL = {"layers": 24, "width": 1024, "vocabulary": 50257}
#: Weights in the blocks and in the head, and bytes the memory delivers in a second.
EX2_MACHINE = {"blocks": 300e6, "head": 50e6, "bytes_per_s": 30e9}
EX3_CASES = ((0.25, 40e9, 400e9), (4.0, 40e9, 400e9), (10.0, 40e9, 400e9), (64.0, 40e9, 400e9))


@checker
def check_ex1(answer: object) -> None:
    """Check the head's share of the weights of `EX1_MODEL`, as a number below 1 or in percent."""
    given = number(answer)
    layers, width, vocabulary = EX1_MODEL.values()
    blocks, head = 12 * layers * width**2, vocabulary * width
    right = head / (blocks + head)
    tell(
        given / 100 if given > 1 else given,
        right,
        "Right: 51 of 353 million. In GPT-2 small it is nearly a third: the larger a model, the less its head matters.",
        {
            head / blocks: "That is head to blocks. The share is of both together.",
            blocks / (blocks + head): "That is the share of the blocks.",
            head / (blocks / 24 + head): "That is one block. The model has 24.",
            head
            / (4 * layers * width**2 + head): "A block has 12 C² weights: 3 C² and C² in attention, 8 C² in its MLP.",
        },
        f"{given:g} is not it: V C weights in the head, 12 C² in each of 24 blocks.",
    )


@checker
def check_ex2(answer: object) -> None:
    """Check the least milliseconds of a token with int8 blocks and a float32 head on `EX2_MACHINE`."""
    given = number(answer)
    blocks, head, rate = EX2_MACHINE.values()
    tell(
        given,
        (blocks + 4 * head) / rate * 1e3,
        "Right: 300 MB and 200 MB. The head, a seventh of the weights, takes two fifths of the time.",
        {
            (blocks + head) / rate * 1e3: "The head stays float32 here: four bytes a weight.",
            4 * (blocks + head) / rate * 1e3: "The blocks are int8: one byte a weight.",
            rate / (blocks + 4 * head): "Those are tokens a second. The question asks for milliseconds.",
            (blocks + 4 * head) / rate: "Those are seconds.",
        },
        f"{given:g} is not it: one byte for each weight of the blocks, four for each of the head, over bytes a second.",
    )


@checker
def check_ex3(answer: object) -> None:
    """Check a roofline: a function of (multiply-adds a byte, bytes a second, peak multiply-adds a second)."""
    got = [number(outcome(answer, *case)) for case in EX3_CASES]
    right = [min(peak, per_byte * bandwidth) for per_byte, bandwidth, peak in EX3_CASES]
    if all(math.isclose(a, b) for a, b in zip(got, right, strict=True)):
        print("Right: the lower of two limits. They meet at 10 multiply-adds a byte here.")
    elif all(math.isclose(a, b * c) for a, (b, c, _) in zip(got, EX3_CASES, strict=True)):
        print("That slope never ends. However many products a byte allows, the processor makes no more than its peak.")
    elif all(math.isclose(a, max(p, b * c)) for a, (b, c, p) in zip(got, EX3_CASES, strict=True)):
        print("That is the higher of the two limits. Both must be kept, so the lower one holds.")
    elif len({f"{a:g}" for a in got}) == 1:
        print("That says the same for 0.25 and for 64 multiply-adds a byte. At 0.25 the memory is the limit.")
    else:
        place = next(i for i, (a, b) in enumerate(zip(got, right, strict=True)) if not math.isclose(a, b))
        print(f"At {EX3_CASES[place][0]:g} a byte, 40 GB/s and a peak of 400e9 it says {got[place]:g}. Compare both.")


@checker
def check_ex4(answer: object) -> None:
    """Check the rows from which products take longer than reading: 50 GB/s, 800e9 multiply-adds/s, 2-byte weights."""
    given = number(answer)
    tell(
        given,
        32,
        "Right: each weight of 2 bytes takes 40 ps to read, and in that time 32 products are made.",
        {
            16: "That is products for each byte. A weight has two.",
            8: "Two bytes a weight means more time to multiply while it is read, not less.",
            64: "Multiply-adds are counted as one each here, not as two operations.",
            1 / 32: "Upside down: how many products fit into the time that one weight takes to arrive?",
        },
        f"{given:g} is not it: the time to read a weight, over the time of one multiply-add.",
    )


@checker
def check_ex5(answer: object) -> None:
    """Check the context at which GPT-2 small's float32 keys and values are as many bytes as 125 MB of weights."""
    given = number(answer)
    per_token = 12 * 2 * 768 * 4
    tell(
        given,
        125e6 / per_token,
        "Right: 73,728 bytes a token, so 1,695 tokens. GPT-2 stops at 1,024, newer models at a hundred times that.",
        {
            125e6 / (per_token / 2): "Keys and values: both are kept.",
            125e6 / (per_token / 4): "In float32 a number has four bytes.",
            125e6 / (per_token / 12): "Every one of the 12 layers keeps its own.",
            125e6 / (per_token / 24): "Every one of the 12 layers keeps keys and values.",
            per_token: "That is the bytes of one token. How many tokens make 125 MB?",
        },
        f"{given:g} is not it: a token leaves 12 layers x 2 x 768 numbers of 4 bytes.",
    )
