"""Chapter 9's checkers: right answers are told so, typical slips are named, and nothing raises."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from cachequant_lib.exercises import ch09
from cachequant_lib.kv.base import softmax_causal
from cachequant_lib.kv.dense import DenseKV

Say = Callable[[Callable[[object], None], object], str]


def visible(new: int, stored: int) -> np.ndarray:
    return np.arange(stored) <= np.arange(new)[:, None] + stored - new


def moved(num_tokens: int) -> int:
    room, copied = 1, 0
    for stored in range(num_tokens):
        if stored == room:
            room, copied = 2 * room, copied + stored
    return copied


def crossing(weights: float, token: float, context: int) -> int | None:
    first = -int(-weights // token)
    return first if first <= context else None


RIGHT = [
    (ch09.check_ex1, [8, 1024, 3328]),
    (ch09.check_ex1, np.array([8, 1024, 3328])),
    (ch09.check_ex1, (8.0, 1024.0, 3328.0)),
    (ch09.check_ex2, visible),
    (ch09.check_ex2, lambda new, stored: visible(new, stored).tolist()),
    (ch09.check_ex2, lambda new, stored: np.tril(np.ones((new, stored), bool), stored - new)),
    (ch09.check_ex3, lambda head, num_heads, num_kv: head // (num_heads // num_kv)),
    (ch09.check_ex3, lambda head, num_heads, num_kv: head * num_kv // num_heads),
    (ch09.check_ex4, moved),
    (ch09.check_ex4, lambda n: 2 ** (n - 1).bit_length() - 1),
    (ch09.check_ex5, crossing),
]

WRONG = [
    (ch09.check_ex1, [9, 1024, 3328], "never fed back"),
    (ch09.check_ex1, [4, 1024, 3328], "prompt's tokens"),
    (ch09.check_ex1, [8, 128, 3328], "row of one token"),
    (ch09.check_ex1, [8, 512, 3328], "is missing"),
    (ch09.check_ex1, [8, 1152, 3328], "sees 8 positions"),
    (ch09.check_ex1, [8, 1024, 2688], "prefill reads too"),
    (ch09.check_ex1, [8, 1024, 4480], "One forward too many"),
    (ch09.check_ex1, [8, 1024, 4096], "grows by one row"),
    (ch09.check_ex1, [8, 1024, 1], "bytes in all are not 1"),
    (ch09.check_ex2, lambda new, stored: np.tril(np.ones((new, stored), bool)), "left corner"),
    (ch09.check_ex2, lambda new, stored: np.ones((new, stored), bool), "hides nothing"),
    (ch09.check_ex2, lambda new, stored: np.tril(np.ones((new, stored), bool), stored - new - 1), "itself, too"),
    (ch09.check_ex2, lambda new, stored: ~visible(new, stored), "other way round"),
    (ch09.check_ex2, lambda new, stored: visible(new, stored).astype(int), "True and False"),
    (ch09.check_ex2, lambda new, stored: visible(new, stored).T, "Here T = 3 and L = 5"),
    (ch09.check_ex2, lambda new, stored: np.zeros((new, stored), bool), "Draw the grid"),
    (ch09.check_ex3, lambda head, num_heads, num_kv: head % num_kv, "like cards"),
    (ch09.check_ex3, lambda head, num_heads, num_kv: head // num_kv, "share one"),
    (ch09.check_ex3, lambda head, num_heads, num_kv: head / (num_heads / num_kv), "Use //"),
    (ch09.check_ex3, lambda head, num_heads, num_kv: 0, "query head 3 reads 1"),
    (ch09.check_ex4, lambda n: n * (n - 1) // 2, "concatenating"),
    (ch09.check_ex4, lambda n: moved(n) + n, "new rows are in it"),
    (ch09.check_ex4, lambda n: moved(n + 1), "last place"),
    (ch09.check_ex4, lambda n: int(np.log2(n)), "how often it moves"),
    (ch09.check_ex4, lambda n: int(np.ceil(np.log2(n))), "how often it moves"),
    (ch09.check_ex4, lambda n: n, "1 rows 0 are moved, not 1. Room: 1, 2, 4, 8"),
    (ch09.check_ex5, lambda w, t, c: w // t if w // t <= c else None, "Rounded down"),
    (ch09.check_ex5, lambda w, t, c: -(-w // t), "return None"),
    (ch09.check_ex5, lambda w, t, c: w // t + 1, "not 101"),
    (ch09.check_ex5, lambda w, t, c: crossing(w, t, c - 1), "within the context"),
    (ch09.check_ex5, lambda w, t, c: None, "Does it end with return"),
    (ch09.check_ex5, lambda w, t, c: [100], "one number"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_right_answers(check: Callable[[object], None], answer: object, say: Say) -> None:
    assert say(check, answer).startswith("Right.")


@pytest.mark.parametrize(("check", "answer", "hint"), WRONG)
def test_slips_are_named(check: Callable[[object], None], answer: object, hint: str, say: Say) -> None:
    told = say(check, answer)
    assert hint in told
    assert not told.startswith("Right.")


def test_the_library_agrees_with_the_right_answers() -> None:
    one = ch09.EX1
    kv = DenseKV(one.num_layers, one.num_kv_heads, one.head_dim, one.prompt_tokens + one.new_tokens)
    for count in [one.prompt_tokens] + [1] * (one.new_tokens - 1):
        before = kv.bytes_read
        for layer in range(one.num_layers):
            rows = np.ones((count, one.num_kv_heads, one.head_dim), np.float32)
            kv.append(layer, rows, rows)
            kv.attend(layer, rows)
    assert [kv.length, kv.bytes_read - before, kv.bytes_read] == [8, 1024, 3328]
    scores = np.zeros((4, 9), np.float32)
    softmax_causal(scores, 4)
    assert np.array_equal(scores > 0, visible(4, 9))
