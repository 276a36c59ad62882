"""Checkers for chapter 9, the KV cache. Each prints one sentence about the answer it is given."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cachequant_lib.exercises.answers import array, checker, first_wrong, integers, number, outcome

__all__ = ["EX1", "Request", "check_ex1", "check_ex2", "check_ex3", "check_ex4", "check_ex5"]


@dataclass(frozen=True)
class Request:
    """A model's shape and one request to it."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    prompt_tokens: int
    new_tokens: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in float32."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * 4


EX1 = Request(num_layers=2, num_kv_heads=1, head_dim=8, prompt_tokens=5, new_tokens=4)


@checker
def check_ex1(answer: object) -> None:
    """Check positions at the end, bytes read in the last step, and bytes read in all, of the request `EX1`."""
    given = integers(answer, 3)
    row, prompt = EX1.token_bytes, EX1.prompt_tokens
    stored = prompt + EX1.new_tokens - 1
    total = sum(range(prompt, stored + 1)) * row
    right = [stored, stored * row, total]
    slips = [
        (0, stored + 1, "The last new token is chosen and never fed back: it gets no row, so one position less."),
        (0, EX1.new_tokens, "The prompt's tokens have rows as well."),
        (1, row, "That is the row of one token. Attention reads the rows of all positions stored."),
        (1, stored * row // 2, "Half of it is missing: a key and a value are read."),
        (1, stored * row // EX1.num_layers, "That is one layer. Each of the two layers reads its own rows."),
        (1, (stored + 1) * row, "The last forward sees 8 positions: the last new token is chosen after it."),
        (2, total - prompt * row, "The prefill reads too: its one forward reads the rows of the prompt."),
        (2, total + (stored + 1) * row, "One forward too many: the prefill gives the first new token."),
        (2, stored * row * EX1.new_tokens, "Each forward reads what is stored by then, and that grows by one row."),
    ]
    if (place := first_wrong(given, right)) is not None:
        named = [words for at, slip, words in slips if at == place and slip == given[place]]
        name = ("positions", "bytes in the last step", "bytes in all")[place]
        print(named[0] if named else f"The {name} are not {given[place]}. One token's row has {row} bytes.")
        return
    print("Right. N + n − 1 positions, and a read that grows by one row with every token.")


@checker
def check_ex2(answer: object) -> None:
    """Check a function of (T, L) that returns which of L positions each of the T newest tokens may see."""
    for num_new, stored in ((3, 5), (1, 5), (3, 3), (4, 9)):
        size = (num_new, stored)
        got = outcome(answer, *size)
        mask, dtype = array(got, size, f"Here T = {num_new} and L = {stored}."), np.asarray(got).dtype
        column, row = np.arange(stored), np.arange(num_new)[:, None]
        right = column <= row + stored - num_new
        slips = [
            (
                column <= row,
                "That is counted from the left corner: the cached positions are hidden from the new tokens.",
            ),
            (np.ones_like(right), "That hides nothing: the first new token sees those that come after it."),
            (column < row + stored - num_new, "A token sees itself, too."),
            (~right, "That is the other way round: True should mean that a token may see a position."),
        ]
        if dtype.kind != "b":
            print(f"Return True and False, got {dtype}.")
        elif np.array_equal(mask, right):
            continue
        else:
            named = [words for slip, words in slips if np.array_equal(mask, slip)]
            print(named[0] if named else f"For T = {num_new} and L = {stored} some positions are wrong. Draw the grid.")
        return
    print("Right. Position j is seen by new token i if j <= i + L - T: the diagonal ends in the lower right corner.")


@checker
def check_ex3(answer: object) -> None:
    """Check a function of (head, num_heads, num_kv_heads) that returns the key-value head of a query head."""
    for num_heads, num_kv in ((9, 3), (12, 12), (8, 2), (4, 1)):
        got = [number(outcome(answer, head, num_heads, num_kv)) for head in range(num_heads)]
        right = [head // (num_heads // num_kv) for head in range(num_heads)]
        if (wrong := first_wrong(got, right)) is None:
            continue
        slips = {
            "That deals the heads out like cards. Neighbours share: heads 0, 1 and 2 of 9 read key-value head 0.": [
                head % num_kv for head in range(num_heads)
            ],
            "That divides by the number of key-value heads. Divide by how many share one.": [
                head // num_kv for head in range(num_heads)
            ],
            "/ gives fractions, and a head is counted in whole numbers. Use //.": [
                head / (num_heads / num_kv) for head in range(num_heads)
            ],
        }
        general = f"With {num_heads} heads on {num_kv}, query head {wrong} reads {right[wrong]}, not {got[wrong]:g}."
        print(next((words for words, slip in slips.items() if got == slip), general))
        return
    print("Right. The order is part of the model: another one runs without an error and gives another text.")


def _doubling(num_tokens: int) -> int:
    """Rows moved by an array that starts with room for one row and doubles when a row finds no room."""
    return sum(2**power for power in range(num_tokens.bit_length()) if 2**power < num_tokens)


@checker
def check_ex4(answer: object) -> None:
    """Check a function of T that returns the rows moved when an array doubles its room whenever it is full."""
    slips: list[tuple[Callable[[int], int], str]] = [
        (lambda n: n * (n - 1) // 2, "That is concatenating: it moves everything for every row."),
        (lambda n: n * (n + 1) // 2, "That is concatenating: it moves everything for every row."),
        (lambda n: _doubling(n) + n, "The new rows are in it. Count only old rows that are moved to a larger array."),
        (lambda n: _doubling(n + 1), "It moves when a row finds no room, not already when the last place is taken."),
        (lambda n: int(math.log2(n)), "That is how often it moves. Count the rows that each move copies."),
        (lambda n: (n - 1).bit_length(), "That is how often it moves. Count the rows that each move copies."),
    ]
    probes = (1, 2, 3, 8, 9, 1000)
    given = [number(outcome(answer, num_tokens)) for num_tokens in probes]
    right = [_doubling(num_tokens) for num_tokens in probes]
    if (wrong := first_wrong(given, right)) is not None:
        named = [words for slip, words in slips if given[2:] == [slip(num_tokens) for num_tokens in probes[2:]]]
        general = f"For {probes[wrong]} rows {right[wrong]} are moved, not {given[wrong]:g}. Room: 1, 2, 4, 8."
        print(named[0] if named else general)
        return
    print("Right. Fewer than two moves a row, however long it gets, and at most half of the room is idle.")


@checker
def check_ex5(answer: object) -> None:
    """Check a function of (weight_bytes, token_bytes, context_length): the first context as heavy as the weights."""
    for weights, token, context in ((1000, 10, 200), (1001, 10, 200), (1000, 10, 100), (1000, 10, 99), (10, 10, 4)):
        got = outcome(answer, weights, token, context)
        first = math.ceil(weights / token)
        right = first if first <= context else None
        case = f"{weights} bytes of weights, {token} a token, context {context}"
        if right is None and got is not None:
            print(f"{case}: the model ends before that, so return None.")
        elif right is not None and got is None:
            print(f"{case}: it happens at {right}, within the context, and None came back. Does it end with return?")
        elif right is not None and (value := number(got)) != right:
            rounded = value == weights // token
            less = "Rounded down, K and V are still lighter. " if rounded else ""
            print(f"{less}{case}: the first context at which K and V are as heavy is {right}, not {value:g}.")
        else:
            continue
        return
    print("Right. Whether it ever happens is a matter of the model's context, not of its size.")
