"""A gguf file written here, with its rows in gguf's order, becomes a folder that `transformers` and we read alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from cachequant_lib.errors import CheckpointError
from cachequant_lib.model.convert import NAMES, gguf_to_folder
from cachequant_lib.model.registry import embedded_folder, load
from cachequant_lib.model.tokenizer import gpt2_tokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "h e", "Ġt he", "1 2"]
GGUF_NAMES = {hub: short for short, hub in NAMES.items()}


def tokens() -> list[str]:
    symbols = sorted(
        gpt2_tokenizer(embedded_folder("gpt2-bpe") / "vocab.bpe")._backend.get_vocab().items(), key=lambda item: item[1]
    )
    return SPECIAL + [symbol for symbol, _ in symbols[:256]] + [merge.replace(" ", "") for merge in MERGES]


def interleave(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Reorder q or k rows as gguf writers do: (first half, second half) of each head become neighbours."""
    head_dim = len(weight) // num_heads
    order = [
        head * head_dim + half * head_dim // 2 + pair
        for head in range(num_heads)
        for pair in range(head_dim // 2)
        for half in range(2)
    ]
    return weight[order]


def write_gguf(path: Path, model: Any, kind: gguf.GGMLQuantizationType, **changes: Any) -> None:
    """Write a Llama of `transformers` as gguf; where `kind` rounds weights, round the model's own too."""
    config = model.config
    writer = gguf.GGUFWriter(path, changes.get("architecture", "llama"))
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if not changes.get("without_epsilon"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if "scaling" in changes:
        writer.add_rope_scaling_type(changes["scaling"])
    writer.add_tokenizer_model(changes.get("tokenizer", "gpt2"))
    writer.add_tokenizer_pre(changes.get("rules", "smollm"))
    writer.add_token_list(tokens())
    writer.add_token_types([3] * 3 + [1] * (len(tokens()) - 3))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = weight.numpy()
        stem = name.removesuffix(".weight")
        if stem.startswith("model.layers."):
            _, _, layer, stem = stem.split(".", 3)
            short = f"blk.{layer}.{GGUF_NAMES[stem]}.weight"
        else:
            short = f"{GGUF_NAMES[stem]}.weight"
        stored_as = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else kind
        packed = gguf.quants.quantize(interleave(values, heads[stem]) if stem in heads else values, stored_as)
        if stored_as == kind:
            rounded = gguf.quants.dequantize(gguf.quants.quantize(values, stored_as), stored_as)
            weight.copy_(torch.from_numpy(np.array(rounded)))
        writer.add_tensor(short, packed, raw_dtype=stored_as)
    if "extra" in changes:
        writer.add_tensor(changes["extra"], np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def llama(make_llama: Any) -> LlamaForCausalLM:
    model, _ = make_llama(
        vocab_size=len(tokens()),
        hidden_size=96,
        intermediate_size=128,
        num_attention_heads=6,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
    )
    assert isinstance(model.config, LlamaConfig)
    return model


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_1"])
def test_a_converted_model_agrees_with_transformers(tmp_path: Path, llama: LlamaForCausalLM, kind: str) -> None:
    write_gguf(tmp_path / "model.gguf", llama, gguf.GGMLQuantizationType[kind])
    gguf_to_folder(tmp_path / "model.gguf", tmp_path / "out")
    ours = load(tmp_path / "out")
    ids = np.random.default_rng(0).integers(0, ours.config.vocab_size, 40)
    with torch.no_grad():
        expected = llama(torch.from_numpy(ids)[None]).logits[0].numpy()
    atol = 1e-5 * max(1, np.abs(expected).max())
    assert_allclose(ours.forward(ids, ours.new_kv()), expected, rtol=0, atol=atol)
    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    with torch.no_grad():
        again = theirs(torch.from_numpy(ids)[None]).logits[0].numpy()
    assert_allclose(again, expected, rtol=0, atol=atol)


def test_an_untied_head_is_carried_over(tmp_path: Path, make_llama: Any) -> None:
    model, _ = make_llama(vocab_size=len(tokens()), tie_word_embeddings=False)
    write_gguf(tmp_path / "model.gguf", model, gguf.GGMLQuantizationType.F32)
    gguf_to_folder(tmp_path / "model.gguf", tmp_path / "out")
    assert not load(tmp_path / "out").config.tied_head
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert_array_equal(stored["lm_head.weight"], model.lm_head.weight.detach().numpy())
    assert_array_equal(
        stored["model.layers.1.self_attn.k_proj.weight"], model.model.layers[1].self_attn.k_proj.weight.detach()
    )


def test_the_tokenizer_comes_along(tmp_path: Path, llama: LlamaForCausalLM) -> None:
    write_gguf(tmp_path / "model.gguf", llama, gguf.GGMLQuantizationType.F32)
    gguf_to_folder(tmp_path / "model.gguf", tmp_path / "out")
    tokenizer = load(tmp_path / "out").tokenizer
    the = tokens().index("Ġthe")
    digits = [tokens().index(digit) for digit in "12"]
    assert tokenizer.encode(" the12<|im_end|>") == [
        the,
        *digits,
        2,
    ]  # digits are never merged, the written tag is one token
    assert tokenizer.eos_token_id == 2
    assert tokenizer.decode(tokenizer.encode("naïve 🙂 \n 2026")) == "naïve 🙂 \n 2026"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "gpt2"}, "holds a 'gpt2' model"),
        ({"tokenizer": "llama"}, "tokenizer is 'llama'"),
        ({"rules": "qwen2"}, "rules 'qwen2'"),
        ({"scaling": gguf.RopeScalingType.LINEAR}, "scales its rotary positions"),
        ({"extra": "blk.0.attn_q.bias"}, r"tensor 'blk\.0\.attn_q\.bias'"),
        ({"without_epsilon": True}, "no field .*layer_norm_rms_epsilon"),
    ],
)
def test_what_is_not_supported_is_refused_before_writing(
    tmp_path: Path, llama: LlamaForCausalLM, changes: dict[str, Any], message: str
) -> None:
    write_gguf(tmp_path / "model.gguf", llama, gguf.GGMLQuantizationType.F32, **changes)
    with pytest.raises(CheckpointError, match=message):
        gguf_to_folder(tmp_path / "model.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kept", [0, 3, 20, 2000, -50])
def test_a_damaged_file_is_refused_before_writing(tmp_path: Path, llama: LlamaForCausalLM, kept: int) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, llama, gguf.GGMLQuantizationType.F32)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match="cannot be read as gguf"):
        gguf_to_folder(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
