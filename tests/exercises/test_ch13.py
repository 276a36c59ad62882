"""Chapter 13's checkers: right answers are told so, typical slips are named, and nothing raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest

from cachequant_lib.exercises import ch13
from cachequant_lib.kv.prefix import PrefixCache

FOUR = ["model", "weight format", "KV format", "tenant"]
Say = Callable[[Callable[[object], None], object], str]
Cost = Callable[[Sequence[str]], int]


def rows_that_fit(capacity: int, layers: int, heads: int, dim: int) -> int:
    return capacity // (layers * 2 * heads * dim * 4)


def spy(cost: Cost, words: list[str], last: Sequence[str] = ("?",)) -> list[str]:
    known: list[str] = []
    for _ in range(3):
        known.append(min(words, key=lambda word: cost([*known, word, *last])))
    return known


def spy_or_stop(cost: Cost, words: list[str]) -> list[str]:
    known: list[str] = []
    for _ in range(3):
        costs = {word: cost([*known, word, "?"]) for word in words}
        if len(set(costs.values())) == 1:
            raise LookupError("all cost the same")
        known.append(min(costs, key=costs.__getitem__))
    return known


def all_at_once(cost: Cost, words: list[str]) -> list[str]:
    return list(min(product(words, repeat=3), key=lambda guess: cost([*guess, "?"])))


RIGHT = [
    (ch13.check_ex1, ["C", "D", "E", "B", "A"]),
    (ch13.check_ex1, ("C", "D", "E", "B", "A")),
    (ch13.check_ex2, lambda node: -node.used),
    (ch13.check_ex2, lambda node: np.float32(1 / node.used)),
    (ch13.check_ex3, rows_that_fit),
    (ch13.check_ex3, lambda *case: float(rows_that_fit(*case))),
    (ch13.check_ex4, FOUR),
    (ch13.check_ex4, tuple(reversed(FOUR))),
    (ch13.check_ex5, spy),
    (ch13.check_ex5, spy_or_stop),
]

WRONG = [
    (ch13.check_ex1, "C", "five letters"),
    (ch13.check_ex1, ["C", "D", "E"], "five letters"),
    (ch13.check_ex1, list("ABCDE"), "Only a leaf"),
    (ch13.check_ex1, list("DCEBA"), "came first"),
    (ch13.check_ex1, list("CBDEA"), "no leaf"),
    (ch13.check_ex1, list("CEDBA"), "D is older"),
    (ch13.check_ex1, list("CDBEA"), "from its end"),
    (ch13.check_ex2, 3, "function itself"),
    (ch13.check_ex2, lambda node: None, "number"),
    (ch13.check_ex2, lambda node: "old", "number"),
    (ch13.check_ex2, lambda node: 1 / 0, "ZeroDivisionError"),
    (ch13.check_ex2, lambda: 0, "TypeError"),
    (ch13.check_ex2, lambda node: node.used, "as with LRU"),
    (ch13.check_ex2, lambda node: node.hits, "as with LRU"),
    (ch13.check_ex3, 2133, "function itself"),
    (ch13.check_ex3, lambda *case: None, "number"),
    (ch13.check_ex3, lambda c, a, b, d: c / (a * b * d * 8), "round down"),
    (ch13.check_ex3, lambda c, a, b, d: c // (a * b * d * 4), "keys alone"),
    (ch13.check_ex3, lambda c, a, b, d: c // (a * b * d * 2), "4 bytes"),
    (ch13.check_ex3, lambda *case: 7, "bytes of a row"),
    (ch13.check_ex3, lambda c: c, "TypeError"),
    (ch13.check_ex4, "model", "some of these"),
    (ch13.check_ex4, ["colour"], "some of these"),
    (ch13.check_ex4, ["tenant"], "Another model"),
    (ch13.check_ex4, ["model", "tenant"], "Rounded weights"),
    (ch13.check_ex4, ["model", "weight format", "tenant"], "on their way"),
    (ch13.check_ex4, FOUR[:3], "tells one tenant"),
    (ch13.check_ex4, [*FOUR, "temperature"], "Too careful"),
    (ch13.check_ex5, ["dog"], "function itself"),
    (ch13.check_ex5, lambda cost, words: 1 / 0, "ZeroDivisionError"),
    (ch13.check_ex5, lambda cost, words: "dog ant hen", "three words"),
    (ch13.check_ex5, lambda cost, words: ["dog", "ant", "hen"], "Nothing was asked"),
    (ch13.check_ex5, all_at_once, "one word after the other"),
    (ch13.check_ex5, lambda cost, words: spy(cost, words, ()), "put one more"),
    (ch13.check_ex5, lambda cost, words: spy(cost, words, ("bee",)), "stored as well"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_right(say: Say, check: Callable[[object], None], answer: object) -> None:
    assert say(check, answer).startswith("Right")


@pytest.mark.parametrize(("check", "answer", "named"), WRONG)
def test_slips_are_named(say: Say, check: Callable[[object], None], answer: object, named: str) -> None:
    said = say(check, answer)
    assert named in said
    assert not said.startswith("Right")


def test_the_order_of_exercise_1_is_the_library_s() -> None:
    cache, gone = PrefixCache(5), []
    for prompt in ("ABC", "AD", "ABE"):
        cache.insert([ord(letter) for letter in prompt], np.zeros((len(prompt), 1), np.int8))
    for _ in range(5):
        before = {p for p in ("A", "AB", "ABC", "AD", "ABE") if known(cache, p) == len(p)}
        cache.evict(1)
        gone += [p[-1] for p in before if known(cache, p) < len(p)]
    assert gone == list("CDEBA")


def known(cache: PrefixCache, prompt: str) -> int:
    return cache.explain_miss([*map(ord, prompt), 0]).position


def test_a_salt_blinds_the_spy_and_not_the_owner() -> None:
    secret = ["dog", "ant", "hen"]
    salted, shared = ch13.Shared(secret, salted=True), ch13.Shared(secret)
    assert spy(shared.cost, ch13.EX5_WORDS) == secret
    assert spy(salted.cost, ch13.EX5_WORDS) == ["ant"] * 3
    assert salted._ask([*secret, "."], "victim") == 1
