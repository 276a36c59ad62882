"""Checkers for chapter 13, A cache under pressure. Each prints one sentence or two about the answer it is given."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from cachequant_lib.exercises.answers import AnswerError, checker, choice, number, outcome, words
from cachequant_lib.kv.policies import Ranked
from cachequant_lib.kv.prefix import PrefixCache

__all__ = ["EX4_CHOICES", "EX5_WORDS", "Shared", "check_ex1", "check_ex2", "check_ex3", "check_ex4", "check_ex5"]

EX4_CHOICES = ["model", "weight format", "KV format", "tenant", "temperature", "new tokens wanted"]
EX5_WORDS = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen"]
_SECRETS = (("dog", "ant", "hen"), ("ant", "ant", "bee"), ("hen", "fox", "hen"))


@checker
def check_ex1(answer: object) -> None:
    """Check the order in which A, B, C, D and E go after the requests A B C, then A D, then A B E."""
    order = words(answer)
    if sorted(order) != list("ABCDE"):
        print("Give the five letters in a list, each once, in the order in which they go.")
    elif order == list("CDEBA"):
        print("Right. After C, its parent B still holds E, so D goes; B and A go once they are bare.")
    elif order[0] in "AB":
        print(f"{order[0]} has something behind it: what follows could never be found again. Only a leaf may go.")
    elif order[0] != "C":
        print("Three leaves: C, D and E. Which request came first?")
    elif order[1] == "B":
        print("B was used by the last request, and E still hangs on it. It is no leaf.")
    elif order[1] == "E":
        print("E came with the last request. D is older.")
    else:
        print("The first two are right. What is left is the chain A, B, E, and a chain goes from its end.")


def _circle(policy: str | Ranked) -> float:
    """Hit rate in percent of ten prompts of 32 tokens in a circle, with room for eight."""
    cache = PrefixCache(8 * 32, policy)
    for turn in range(100):
        ids = range(100 * (turn % 10), 100 * (turn % 10) + 32)
        cache.match(list(ids)).release()
        cache.insert(list(ids), np.zeros((32, 1), np.int8))
    return 100 * cache.stats.hit_rate


@checker
def check_ex2(answer: object) -> None:
    """Check a rank for `Ranked` that survives a circle a little larger than the cache."""
    rate = _circle(Ranked(lambda node: number(outcome(answer, node))))
    if rate < 1:
        print("0 % hits, as with LRU. The lowest rank goes first: which prompt comes back last of all?")
    elif rate < 50:
        print(f"{rate:.0f} % hits, better than LRU. In a circle, what was used just now comes back last of all.")
    else:
        print(f"Right: {rate:.0f} % hits where LRU has 0. It keeps old prompts and sacrifices the newest.")


@checker
def check_ex3(answer: object) -> None:
    """Check a function of (capacity_bytes, num_layers, num_kv_heads, head_dim): whole tokens that fit, in float32."""
    for case in ((150 << 20, 12, 12, 64), (150 << 20, 30, 3, 64), (1_000_000, 6, 4, 64), (12_287, 6, 4, 64)):
        capacity, layers, heads, dim = case
        row = layers * 2 * heads * dim * 4
        got = number(outcome(answer, *case))
        if got == capacity // row:
            continue
        if got == capacity / row:
            print("Nearly: a row is stored whole or not at all, so round down.")
        elif got == capacity // (row // 2):
            print("That counts keys alone. Each token has a value beside each key.")
        elif got == capacity // (row // 4):
            print("That counts numbers. Each takes 4 bytes in float32.")
        else:
            print(f"For {case} it gives {got:g}, and {capacity // row} fit. Work out the bytes of a row first.")
        return
    print("Right. The default of 150 MiB holds 2,133 tokens of GPT-2 small, and 3,413 of SmolLM2-135M.")


@checker
def check_ex4(answer: object) -> None:
    """Check which of `EX4_CHOICES` must be equal for two requests to share keys and values."""
    chosen = choice(answer, EX4_CHOICES)
    if "model" not in chosen:
        print("Another model makes other keys and values from the same tokens, and nothing would complain.")
    elif "weight format" not in chosen:
        print("Rounded weights make other rows: chapter 12 measured about 1 % in the keys.")
    elif "KV format" not in chosen:
        print("Rows that were rounded on their way into the KV cache are not those of a request that wants them exact.")
    elif "tenant" not in chosen:
        print("The rows would be right, and that is the trouble: a hit tells one tenant what the other asked.")
    elif "temperature" in chosen or "new tokens wanted" in chosen:
        print("Too careful: how tokens are chosen afterwards changes no key and no value. You would lose good hits.")
    else:
        print("Right. Three of them make the rows right, and the tenant keeps them private.")


class Shared:
    """A cache that a victim has used, as somebody else meets it: words in, tokens computed out.

    Parameters
    ----------
    secret : sequence of str
        What the victim sent before.
    salted : bool, default False
        Whether each of the two has a namespace.
    """

    def __init__(self, secret: Sequence[str], salted: bool = False) -> None:
        self.asked = 0
        self._ids: dict[str, int] = {}
        self._cache = PrefixCache(100_000)
        self._mine = "somebody else" if salted else "victim"
        self._ask([*secret, "."], "victim")

    def cost(self, words: Sequence[str]) -> int:
        """Send a prompt, and count the tokens that had to be computed for it."""
        self.asked += 1
        return self._ask(words, self._mine)

    def _ask(self, words: Sequence[str], namespace: str) -> int:
        ids = [self._ids.setdefault(str(word), len(self._ids)) for word in words]
        with self._cache.match(ids, namespace) as match:
            found = match.length
        self._cache.insert(ids, np.zeros((len(ids), 1), np.int8), namespace)
        return len(ids) - found


@checker
def check_ex5(answer: object) -> None:
    """Check a function of (cost, words) that finds a secret of three words from tokens computed."""
    for secret in _SECRETS:
        shared = Shared(secret)
        got = outcome(answer, shared.cost, list(EX5_WORDS))
        found = words(got)
        if len(found) != 3:
            print(f"The function should return three words in a list, got {got!r:.60}.")
        elif tuple(found) == secret and shared.asked <= 60:
            continue
        elif tuple(found) == secret:
            print(f"Found, but with {shared.asked} prompts. Find one word after the other: 8 prompts each will do.")
        elif shared.asked == 0:
            print("Nothing was asked. Call cost(list_of_words) and compare what it returns.")
        elif found[0] != secret[0]:
            print("The first word is wrong. A prompt's last word is never looked up: put one more behind your guess.")
        else:
            print("The beginning is right. Your own prompts are stored as well: end them with a word of no use.")
        return
    salted = Shared(_SECRETS[0], salted=True)
    found = []
    with suppress(AnswerError):  # where there is nothing to be found, a function may stop
        found = words(outcome(answer, salted.cost, list(EX5_WORDS)))
    blind = "finds nothing" if tuple(found) != _SECRETS[0] else "was lucky"
    print(f"Right: {shared.asked} prompts instead of 512. With one namespace for each, the same function {blind}.")
