"""Two small tasks that a cache can fail: to find a passage's words again, and to add. Answers are matched exactly.

They stand in for CoQA and GSM8K, which the paper uses, and are much smaller and easier: a model of 135 million
parameters cannot do those. *Recall* gives a real passage, then begins one of its sentences again; the answer is how it
goes on. *Sums* gives six worked examples, then a sum in words with numbers drawn at random; the answer is a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cachequant_lib.model.base import Model

PASSAGE, REPEATED, ANSWER = 384, 12, 8  # tokens: of the passage, of it said again, and to be found
EXAMPLES = 6
NUM_ITEMS = {"recall": 20, "sums": 30}
STORIES = (
    "{who} has {a} {what} and gets {b} more. {a} + {b} is how many?",
    "There are {a} {what} on the table and {b} in the box. {a} + {b} is how many?",
    "{who} buys {a} {what} on Monday and {b} on Friday. {a} + {b} is how many?",
)
PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Frank")
THINGS = ("apples", "books", "pencils", "stamps", "coins", "shells")


@dataclass(frozen=True)
class Item:
    """One question.

    Attributes
    ----------
    ids : tuple of int
        What the model reads.
    answer : str
    num_tokens : int
        To be written at most.
    """

    ids: tuple[int, ...]
    answer: str
    num_tokens: int


def item(task: str, number: int, model: Model, window: Sequence[int]) -> Item:
    """One question of a task; `window` are tokens of a real text, for `recall`."""
    return recall(model, window) if task == "recall" else sums(model, number)


def recall(model: Model, window: Sequence[int]) -> Item:
    """A passage, and the first words of a stretch in its first half again."""
    rng = np.random.default_rng(window[0])
    start = int(rng.integers(PASSAGE // 8, PASSAGE // 2))
    passage, split = list(window[:PASSAGE]), start + REPEATED
    again = model.tokenizer.encode("\n\nThe same text again:\n")
    ids = (*passage, *again, *passage[start:split])
    return Item(ids, model.tokenizer.decode(passage[split : split + ANSWER]), ANSWER)


def sums(model: Model, number: int) -> Item:
    """Worked examples and a sum in words, all drawn from one seed."""
    rng = np.random.default_rng(number)
    lines = []
    for _ in range(EXAMPLES + 1):
        a, b = (int(v) for v in rng.integers(2, 10, 2))
        story = STORIES[rng.integers(len(STORIES))].format(
            a=a, b=b, who=PEOPLE[rng.integers(len(PEOPLE))], what=THINGS[rng.integers(len(THINGS))]
        )
        lines += [f"Q: {story}\nA: {a + b}\n"]
    question, _, answer = lines[-1].rstrip().rpartition(" ")
    return Item(tuple(model.tokenizer.encode("\n".join([*lines[:-1], question]))), f" {answer}", 3)


def right(item: Item, written: str) -> bool:
    """Whether the answer is what was written first."""
    found = written.split("\n")[0] if item.answer.strip().isdigit() else written
    return found.strip() == item.answer.strip()
