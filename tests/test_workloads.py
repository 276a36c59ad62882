"""The prompts have the lengths that the protocol names, in GPT-2's own tokens; the traces are what they say."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import cachequant_lib
from cachequant_lib.model.tokenizer import gpt2_tokenizer
from cachequant_lib.workloads import (
    CONVERSATIONS,
    LONG_PROMPT,
    PROMPT_SETS,
    SHORT_PROMPT,
    TRACES,
    Conversation,
)

VOCAB = Path(cachequant_lib.__file__).parent / "data" / "gpt2-bpe" / "vocab.bpe"
TWELVE = " one two three four five six seven eight nine ten eleven twelve"


@pytest.fixture(scope="module")
def tokenizer():
    return gpt2_tokenizer(VOCAB)


def shared(first: list[int], second: list[int]) -> int:
    same = [a == b for a, b in zip(first, second, strict=False)]
    return same.index(False) if False in same else len(same)


def reusable(prompts: list[list[int]]) -> list[int]:
    """Tokens of each prompt that an earlier one began with, its last token left out."""
    return [max([shared(p[:-1], q) for q in prompts[:i]], default=0) for i, p in enumerate(prompts)]


def test_the_prompts_have_8_and_270_tokens(tokenizer) -> None:
    assert tokenizer.encode("Hello world") == [15496, 995]  # it is GPT-2's tokenizer
    assert [len(tokenizer.encode(text)) for text in (SHORT_PROMPT, LONG_PROMPT)] == [8, 270]


def test_the_prompts_are_one_clean_paragraph_that_asks_to_be_continued() -> None:
    for text in (SHORT_PROMPT, LONG_PROMPT):
        assert re.fullmatch(r"[ -~]+", text)
        assert "  " not in text
        assert text[-1].isalpha()


@pytest.mark.parametrize(
    ("name", "lengths", "cached"),
    [
        ("high_reuse", [23, 26, 23, 26, 24], [0, 19, 16, 19, 16]),
        ("long_high_reuse", [282, 282, 283, 284, 286], [0, 275, 275, 276, 276]),
        ("no_reuse", [7, 10, 8, 7, 9], [0, 0, 0, 0, 1]),
    ],
)
def test_a_prompt_set_shares_what_the_protocol_says(
    tokenizer, name: str, lengths: list[int], cached: list[int]
) -> None:
    prompts = [tokenizer.encode(text) for text in PROMPT_SETS[name]]
    assert [len(p) for p in prompts] == lengths
    assert reusable(prompts) == cached


@pytest.mark.parametrize(("name", "first", "last"), [("city", 25, 207), ("language", 26, 208), ("passage", 297, 489)])
def test_a_conversation_grows_as_the_protocol_says(tokenizer, name: str, first: int, last: int) -> None:
    talk, prompts = Conversation(CONVERSATIONS[name].system), []
    for line in CONVERSATIONS[name].lines:
        prompts.append(tokenizer.encode(talk.prompt(line)))
        talk = talk.after(line, TWELVE)
    assert len(prompts) == 8
    assert (len(prompts[0]), len(prompts[-1])) == (first, last)
    assert reusable(prompts)[1:] == [len(p) for p in prompts[:-1]]  # all of the turn before


def test_a_turn_is_written_down_the_same_way_every_time() -> None:
    start = Conversation("Be brief.")
    assert start.prompt("Why?") == "Be brief.\nUser: Why?\nAssistant:"
    talk = start.after("Why?", "  So. \n")
    assert talk.transcript == "Be brief.\nUser: Why?\nAssistant: So."
    assert talk.prompt("Oh.") == "Be brief.\nUser: Why?\nAssistant: So.\nUser: Oh.\nAssistant:"
    assert start == Conversation("Be brief.")  # untouched


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_is_the_same_every_time_and_asks_for_something_again(name: str) -> None:
    prompts, again = (list(TRACES[name](200)) for _ in range(2))
    assert len(prompts) == 200
    assert all(map(np.array_equal, prompts, again))
    assert not all(map(np.array_equal, prompts, TRACES[name](200, seed=1)))
    assert any(shared(prompts[-1].tolist(), p.tolist()) >= 60 for p in prompts[:-1])
    assert all(p.min() >= 0 and p.max() < 50_257 for p in prompts)


def test_the_scan_comes_back_to_a_document_only_after_all_the_others() -> None:
    documents = [tuple(p[:300].tolist()) for p in TRACES["scan"](240)][1::2]
    assert len(set(documents[:60])) == 60
    assert documents[60:] == documents[:60]


def test_a_chat_goes_on_where_it_was_and_ends_after_eight_turns() -> None:
    lengths = [len(p) for p in TRACES["chat"](300)]
    assert set(lengths) == {90 + 80 * turn for turn in range(8)}
    assert any(a != b for a, b in pairwise(lengths))
