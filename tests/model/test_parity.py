"""The forward passes agree with `transformers`, on random weights of many shapes and on the trained tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel, LlamaForCausalLM

from cachequant_lib.model.registry import embedded_folder, heldout_text, load

GPT2_SHAPES = {
    "three heads": {},
    "five heads of 8, one layer": {"n_head": 5, "n_embd": 40, "n_layer": 1},
    "one head, MLP of its own size": {"n_head": 1, "n_embd": 24, "n_inner": 50},
    "untied head": {"tie_word_embeddings": False, "n_layer": 3},
    "another epsilon": {"layer_norm_epsilon": 1e-2, "vocab_size": 300},
    "odd head size": {"n_head": 7, "n_embd": 49},
}
LLAMA_SHAPES = {
    "6 heads share 2": {},
    "9 heads share 3": {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72},
    "5 heads share 1": {"num_attention_heads": 5, "num_key_value_heads": 1, "hidden_size": 40},
    "no sharing, tied head": {"num_key_value_heads": 6, "tie_word_embeddings": True},
    "head size apart from the width": {
        "head_dim": 20,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "hidden_size": 45,
    },
    "another theta and epsilon": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        "rms_norm_eps": 1e-2,
        "num_hidden_layers": 3,
    },
}


def reference_logits(model: Any, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(ids)[None]).logits[0].numpy()


def assert_same_logits(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape
    assert_allclose(ours, theirs, rtol=0, atol=1e-5 * max(1, np.abs(theirs).max()))


def check_parity(theirs: Any, folder: Path) -> None:
    """A short prompt, one token, and the context filled to its last position."""
    ours = load(folder)
    rng = np.random.default_rng(0)
    for length in (1, 7, ours.config.context_length):
        ids = rng.integers(0, ours.config.vocab_size, length)
        assert_same_logits(ours.forward(ids, ours.new_kv()), reference_logits(theirs, ids))


@pytest.mark.parametrize("sizes", GPT2_SHAPES.values(), ids=GPT2_SHAPES.keys())
def test_gpt2_agrees_with_transformers(make_gpt2: Any, sizes: dict[str, Any]) -> None:
    check_parity(*make_gpt2(**sizes))


@pytest.mark.parametrize("sizes", LLAMA_SHAPES.values(), ids=LLAMA_SHAPES.keys())
def test_llama_agrees_with_transformers(make_llama: Any, sizes: dict[str, Any]) -> None:
    check_parity(*make_llama(**sizes))


def test_rotary_angles_agree_far_into_the_context(make_llama: Any) -> None:
    theirs, folder = make_llama(max_position_embeddings=3000, num_hidden_layers=1)
    ours = load(folder)
    ids = np.random.default_rng(1).integers(0, 97, 2500)
    assert_same_logits(ours.forward(ids, ours.new_kv())[-50:], reference_logits(theirs, ids)[-50:])


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_sixteen_bit_files_are_widened_exactly(make_llama: Any, stored: torch.dtype) -> None:
    theirs, folder = make_llama()
    theirs.to(stored).save_pretrained(folder)
    check_parity(LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), folder)


def test_names_without_prefix_and_stored_masks_are_understood(make_gpt2: Any) -> None:
    """The hub's own gpt2 was saved from the bare model, with the causal masks among its tensors."""
    theirs, folder = make_gpt2()
    tensors = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    assert bare.keys().isdisjoint(tensors)
    bare["h.0.attn.bias"] = torch.ones(1, 1, 40, 40)
    bare["lm_head.weight"] = bare["wte.weight"].clone()
    save_file(bare, folder / "model.safetensors")
    check_parity(theirs, folder)


def test_a_model_in_several_files_is_one_model(make_llama: Any) -> None:
    theirs, folder = make_llama()
    (folder / "model.safetensors").unlink()
    theirs.save_pretrained(folder, max_shard_size="60KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    check_parity(theirs, folder)


def test_older_files_give_the_rotary_base_at_the_top_of_the_config(make_llama: Any) -> None:
    import json

    theirs, folder = make_llama(rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    check_parity(theirs, folder)


def test_the_tiny_model_scores_held_out_text_as_transformers_does() -> None:
    theirs = GPT2LMHeadModel.from_pretrained(embedded_folder("tiny-austen"), dtype=torch.float32).eval()
    ours = load("tiny")
    ids = np.array(ours.tokenizer.encode(heldout_text()[:2500]))
    expected = reference_logits(theirs, ids)
    logits = ours.forward(ids, ours.new_kv())
    assert_same_logits(logits, expected)

    def perplexity(scores: np.ndarray) -> float:
        scores = scores[:-1].astype(np.float64)  # (T, V) -> (T-1, V): the last row scores a token that is not there
        log_total = np.log(np.exp(scores).sum(axis=-1))  # (T-1, V) -> (T-1,)
        return float(np.exp((log_total - scores[np.arange(len(scores)), ids[1:]]).mean()))

    assert perplexity(logits) == pytest.approx(perplexity(expected), rel=1e-5)
    assert 60 < perplexity(logits) < 100  # 80.5 over the whole held-out text


def test_the_tiny_model_picks_the_same_tokens_as_transformers() -> None:
    theirs = GPT2LMHeadModel.from_pretrained(embedded_folder("tiny-austen"), dtype=torch.float32).eval()
    ours = load("tiny")
    ids = ours.tokenizer.encode("It is a truth universally acknowledged, that")
    with torch.no_grad():
        expected = theirs.generate(torch.tensor([ids]), max_new_tokens=30, do_sample=False, pad_token_id=0)[0].tolist()
    kv = ours.new_kv(capacity=len(ids) + 30)
    new = list(ids)
    for _ in range(30):
        new.append(int(ours.forward(new[kv.length :], kv, last_only=True)[0].argmax()))
    assert new == expected
