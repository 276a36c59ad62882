"""Token ids equal those of `transformers`, on texts chosen to be awkward; what cannot be encoded is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2TokenizerFast, PreTrainedTokenizerFast

from cachequant_lib.errors import CheckpointError, ModelNotFoundError, TokenError
from cachequant_lib.model.registry import embedded_folder, load
from cachequant_lib.model.tokenizer import Tokenizer, gpt2_tokenizer, load_tokenizer, read_merges

VOCAB_BPE = embedded_folder("gpt2-bpe") / "vocab.bpe"

TORTURE = {
    "empty": "",
    "plain": "Hello world",
    "leading space": " The cat sat",
    "trailing spaces": "a   ",
    "only spaces": "     ",
    "lone newline": "\n",
    "newlines": "a\n\n\nb\r\nc\rd",
    "tabs": "\tif x:\n\t\treturn\n",
    "contractions": "I'm you're he'll they'd we've it's don't I'M IT'S O'Brien's ’tis",
    "numbers": "3.14159 1,000,000 2026-11-30 0x7f 1e-5 ١٢٣ Ⅷ ½",
    "joined emoji": "👩‍👩‍👧‍👦 👨🏽‍🚀 🏳️‍🌈 🇬🇧 🙂🙂",
    "Chinese, Japanese, Korean": "我能吞下玻璃而不伤身体。私はガラスを食べられます。나는 유리를 먹을 수 있어요.",
    "right to left": "مرحبا بالعالم שלום עולם \u202eabc\u202c",
    "combining marks": "e\u0301 é Z\u0351\u036b\u0343\u036a\u0302a\u0334l\u0335g\u0336o नमस्ते ก็",
    "composed and decomposed": "Å\u212bA\u030a ﬁ ﬃ",
    "control characters": "a\x00b\x01\x07\x08\x0b\x0c\x1b[0m\x7f\x80\x85\xa0",
    "odd spaces": "a\u00a0b\u2003c\u200bd\u2028e\u2029f\u3000g\ufeffh",
    "special token, written out": "one<|endoftext|>two <|endoftext|> <|endoftext|",
    "beyond the basic plane": "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 \U0010ffff \ufffd \ufffe",
    "code": "def f(x):\n    return {k: v**2 for k, v in x.items()}  # noqa",
    "address": "https://example.org/a?b=c&d=%20#e",
    "long run of one letter": "a" * 5000,
    "long run of spaces": "x" + " " * 3000 + "y",
    "long run of emoji": "🙂" * 500,
}


@pytest.fixture(scope="module")
def pairs() -> dict[str, tuple[Tokenizer, Any]]:
    merges = read_merges(VOCAB_BPE)
    ours = gpt2_tokenizer(VOCAB_BPE)
    tiny = embedded_folder("tiny-austen")
    return {
        "gpt2": (ours, GPT2TokenizerFast(vocab=ours._backend.get_vocab(), merges=merges)),
        "tiny": (load_tokenizer(tiny), PreTrainedTokenizerFast(tokenizer_file=str(tiny / "tokenizer.json"))),
    }


@pytest.mark.parametrize("name", ["gpt2", "tiny"])
@pytest.mark.parametrize("text", TORTURE.values(), ids=TORTURE.keys())
def test_ids_equal_those_of_transformers_and_come_back_as_the_text(pairs: Any, name: str, text: str) -> None:
    ours, theirs = pairs[name]
    ids = ours.encode(text)
    assert ids == theirs(text, add_special_tokens=False)["input_ids"]
    assert all(type(token) is int for token in ids)
    assert ours.decode(ids) == text


@pytest.mark.parametrize("name", ["gpt2", "tiny"])
@given(text=st.text(max_size=60))
def test_any_text_comes_back_unchanged(pairs: Any, name: str, text: str) -> None:
    ours, theirs = pairs[name]
    ids = ours.encode(text)
    assert ids == theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.decode(ids) == text


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello world", [15496, 995]),
        (" The cat sat", [383, 3797, 3332]),
        ("<|endoftext|>", [50256]),
        ("\n", [198]),
        (" ", [220]),
    ],
)
def test_gpt2_ids_that_everyone_knows(pairs: Any, text: str, ids: list[int]) -> None:
    assert pairs["gpt2"][0].encode(text) == ids


def test_gpt2_vocabulary(pairs: Any) -> None:
    ours = pairs["gpt2"][0]
    assert (ours.vocab_size, ours.eos_token_id) == (50257, 50256)
    assert len(ours.encode("".join(map(chr, range(0x250))))) > 0


@pytest.mark.parametrize("text", ["\ud83d", "ok \udc80 ok", "\udc00\ud800"])
def test_half_a_surrogate_pair_is_refused(pairs: Any, text: str) -> None:
    with pytest.raises(TokenError, match="half of a surrogate pair"):
        pairs["gpt2"][0].encode(text)


@pytest.mark.parametrize("text", [None, 5, b"bytes", ["a", "list"]])
def test_what_is_not_text_is_refused(pairs: Any, text: Any) -> None:
    with pytest.raises(TokenError, match="expected text"):
        pairs["gpt2"][0].encode(text)


@pytest.mark.parametrize("ids", [[50257], [-1], [1.5], [[1, 2]], "text", "", b"", 5, None, {}, np.int64(5), object()])
def test_ids_outside_the_vocabulary_are_refused_not_dropped(pairs: Any, ids: Any) -> None:
    with pytest.raises(TokenError):
        pairs["gpt2"][0].decode(ids)


@pytest.mark.parametrize("model_vocab_size", [50304, 51200])
def test_ids_that_pad_the_models_vocabulary_are_marked_not_refused(model_vocab_size: int) -> None:
    padded = gpt2_tokenizer(VOCAB_BPE, model_vocab_size)
    assert padded.vocab_size == 50257
    assert padded.decode([15496, 50257, 995]) == "Hello\ufffd world"
    assert padded.decode([50257, model_vocab_size - 1]) == "\ufffd\ufffd"
    for bad in (model_vocab_size, -1):
        with pytest.raises(TokenError, match=f"token id {bad} at position 1 is not in 0..{model_vocab_size - 1}"):
            padded.decode([50257, bad])


def test_a_folder_with_padded_embeddings_decodes_what_its_model_may_choose(make_gpt2: Any) -> None:
    _, folder = make_gpt2(vocab_size=4160)
    shutil.copy(embedded_folder("tiny-austen") / "tokenizer.json", folder)
    model = load(folder)
    assert model.tokenizer.vocab_size < model.config.vocab_size
    assert model.tokenizer.decode([model.config.vocab_size - 1]) == "\ufffd"
    assert model.tokenizer.decode(model.tokenizer.encode("It is")) == "It is"


def test_decode_takes_any_container_and_marks_half_a_character(pairs: Any) -> None:
    ours = pairs["gpt2"][0]
    assert ours.decode(np.array([15496, 995])) == ours.decode((15496, 995)) == "Hello world"
    assert ours.decode(np.array([], np.int64)) == ""
    assert "\ufffd" in ours.decode(ours.encode("🙂")[:1])


def test_truncation_and_padding_settings_in_a_file_are_switched_off(tmp_path: Path) -> None:
    settings = json.loads((embedded_folder("tiny-austen") / "tokenizer.json").read_text("utf-8"))
    settings["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    settings["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings), "utf-8")
    text = "It is a truth universally acknowledged"
    assert load_tokenizer(tmp_path).encode(text) == load_tokenizer(embedded_folder("tiny-austen")).encode(text)


def test_vocab_and_merges_do_as_well_as_one_file(tmp_path: Path, pairs: Any) -> None:
    ours = pairs["gpt2"][0]
    (tmp_path / "vocab.json").write_text(json.dumps(ours._backend.get_vocab()), "utf-8")
    (tmp_path / "merges.txt").write_bytes(VOCAB_BPE.read_bytes())
    assert load_tokenizer(tmp_path).encode(TORTURE["contractions"]) == ours.encode(TORTURE["contractions"])


def test_half_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{}", "utf-8")
    with pytest.raises(ModelNotFoundError, match=r"has vocab\.json but neither"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("contents", ["", "{}", "not json", '{"model": {"type": "BPE"}}'])
def test_a_damaged_tokenizer_is_an_error(tmp_path: Path, contents: str) -> None:
    (tmp_path / "tokenizer.json").write_text(contents, "utf-8")
    with pytest.raises(CheckpointError, match="tokenizer files"):
        load_tokenizer(tmp_path)


def test_no_tokenizer_at_all_takes_ids_and_refuses_text(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tmp_path, 7)
    assert tokenizer.eos_token_id == 7
    assert not tokenizer.has_text
    assert load_tokenizer(embedded_folder("tiny-austen")).has_text
    assert tokenizer.decode([]) == ""
    for use in (
        lambda: tokenizer.encode("a"),
        lambda: tokenizer.decode([1]),
        lambda: tokenizer.save(tmp_path / "tokenizer.json"),
        lambda: tokenizer.vocab_size,
    ):
        with pytest.raises(ModelNotFoundError, match="holds no tokenizer"):
            use()
