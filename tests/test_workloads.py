"""The prompts have the lengths that the protocol names, in GPT-2's own tokens."""

import re
from pathlib import Path

import cachequant_lib
from cachequant_lib.model.tokenizer import gpt2_tokenizer
from cachequant_lib.workloads import LONG_PROMPT, SHORT_PROMPT

VOCAB = Path(cachequant_lib.__file__).parent / "data" / "gpt2-bpe" / "vocab.bpe"


def test_the_prompts_have_8_and_270_tokens() -> None:
    tokenizer = gpt2_tokenizer(VOCAB)
    assert tokenizer.encode("Hello world") == [15496, 995]  # it is GPT-2's tokenizer
    assert [len(tokenizer.encode(text)) for text in (SHORT_PROMPT, LONG_PROMPT)] == [8, 270]


def test_the_prompts_are_one_clean_paragraph_that_asks_to_be_continued() -> None:
    for text in (SHORT_PROMPT, LONG_PROMPT):
        assert re.fullmatch(r"[ -~]+", text)
        assert "  " not in text
        assert text[-1].isalpha()
