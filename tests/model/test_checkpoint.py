"""Damaged, mislabelled, incomplete or unsupported folders: one clear error each, before anything is computed."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cachequant_lib.errors import CheckpointError, ModelNotFoundError
from cachequant_lib.model.registry import load

Edit = Callable[[dict[str, torch.Tensor]], None]


@pytest.fixture
def gpt2_folder(make_gpt2: Any) -> Path:
    return make_gpt2()[1]


@pytest.fixture
def llama_folder(make_llama: Any) -> Path:
    return make_llama()[1]


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text("utf-8")), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}), "utf-8")


def edit_tensors(folder: Path, edit: Edit) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def edit_header(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    data = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    edit(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


# ---- Values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["transformer.wte.weight", "transformer.h.1.mlp.c_fc.bias", "transformer.ln_f.weight"])
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_are_not_finite(gpt2_folder: Path, name: str, value: float, stored: torch.dtype) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({key: tensor.to(stored) for key, tensor in tensors.items()})
        tensors[name].view(-1)[-1] = value

    edit_tensors(gpt2_folder, edit)
    with pytest.raises(CheckpointError, match=rf"1 of \d+ values of {name} are NaN or infinite"):
        load(gpt2_folder)


@pytest.mark.parametrize(("stored", "label"), [(torch.float16, "BF16"), (torch.bfloat16, "F16")])
def test_one_sixteen_bit_type_labelled_as_the_other(make_gpt2: Any, stored: torch.dtype, label: str) -> None:
    _, folder = make_gpt2(vocab_size=2000)
    edit_tensors(folder, lambda tensors: tensors.update({key: value.to(stored) for key, value in tensors.items()}))
    load(folder)
    edit_header(folder, lambda header: [entry.update(dtype=label) for entry in header.values() if "dtype" in entry])
    with pytest.raises(CheckpointError, match=f"labelled {label}"):
        load(folder)


# ---- Files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 4, 8, 300, -1, -100])
def test_a_truncated_file(gpt2_folder: Path, kept: int) -> None:
    path = gpt2_folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        load(gpt2_folder)


def test_a_file_with_bytes_too_many(gpt2_folder: Path) -> None:
    with (gpt2_folder / "model.safetensors").open("ab") as file:
        file.write(b"\0" * 16)
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        load(gpt2_folder)


def test_a_header_that_claims_to_be_enormous(gpt2_folder: Path) -> None:
    path = gpt2_folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 2**62) + path.read_bytes()[8:])
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        load(gpt2_folder)


def test_a_git_lfs_pointer_is_named_as_one(gpt2_folder: Path) -> None:
    (gpt2_folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\nsize 548105171\n")
    with pytest.raises(CheckpointError, match="Git LFS pointer"):
        load(gpt2_folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": [96, 48]}, "not a whole"),  # fewer values than its bytes
        ({"dtype": "F16"}, "not a whole"),
        ({"dtype": "F128"}, "not a whole"),
        ({"dtype": "I32"}, "stored as I32; supported are F32, F16, BF16"),
        ({"shape": [48, 97]}, r"shape \(48, 97\), but config.json makes it \(97, 48\)"),
        ({"shape": [4656]}, r"shape \(4656,\)"),
    ],
)
def test_a_header_that_lies_about_the_embedding(gpt2_folder: Path, change: dict[str, Any], message: str) -> None:
    edit_header(gpt2_folder, lambda header: header["transformer.wte.weight"].update(change))
    with pytest.raises(CheckpointError, match=message):
        load(gpt2_folder)


def test_a_header_whose_tensors_overlap(gpt2_folder: Path) -> None:
    def edit(header: dict[str, Any]) -> None:
        a, b = header["transformer.h.0.ln_1.bias"], header["transformer.h.0.ln_1.weight"]
        a["data_offsets"] = b["data_offsets"]

    edit_header(gpt2_folder, edit)
    with pytest.raises(CheckpointError, match="not a whole"):
        load(gpt2_folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file(gpt2_folder: Path, name: str) -> None:
    (gpt2_folder / name).unlink()
    with pytest.raises(ModelNotFoundError, match=name):
        load(gpt2_folder)


def test_a_pickle_file_is_never_opened(gpt2_folder: Path) -> None:
    (gpt2_folder / "model.safetensors").rename(gpt2_folder / "pytorch_model.bin")
    with pytest.raises(ModelNotFoundError, match=r"pytorch_model\.bin is a pickle file"):
        load(gpt2_folder)


@pytest.mark.parametrize("contents", ["", "{", "[]", "\x00", "[" * 100_000])
def test_a_config_that_is_not_json(gpt2_folder: Path, contents: str) -> None:
    (gpt2_folder / "config.json").write_text(contents, "utf-8")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load(gpt2_folder)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({}, "no weight_map"),
        ({"weight_map": {"a": 1}}, "no weight_map"),
        ({"weight_map": {"a": "gone.safetensors"}}, "gone.safetensors, which is not there"),
        ({"weight_map": {"a": "../part.safetensors"}}, "not a plain file name"),
        ({"weight_map": {"transformer.nothing.weight": "part.safetensors"}}, "which no shard holds"),
    ],
)
def test_an_index_that_does_not_add_up(gpt2_folder: Path, index: dict[str, Any], message: str) -> None:
    (gpt2_folder / "model.safetensors").rename(gpt2_folder / "part.safetensors")
    (gpt2_folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    with pytest.raises((CheckpointError, ModelNotFoundError), match=message):
        load(gpt2_folder)


def test_the_same_tensor_in_two_shards(gpt2_folder: Path) -> None:
    whole = gpt2_folder / "model.safetensors"
    tensors = load_file(whole)
    weight_map = dict.fromkeys(tensors, "a.safetensors") | {"transformer.wte.weight": "b.safetensors"}
    (gpt2_folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), "utf-8")
    save_file({"transformer.wte.weight": torch.zeros(97, 48)}, gpt2_folder / "b.safetensors")
    whole.rename(gpt2_folder / "a.safetensors")
    with pytest.raises(CheckpointError, match=r"b\.safetensors holds transformer\.wte\.weight, which a\.safetensors"):
        load(gpt2_folder)
    tensors.pop("transformer.wte.weight")
    save_file(tensors, gpt2_folder / "a.safetensors")
    assert not load(gpt2_folder).embedding.any()


# ---- Tensors against config ------------------------------------------------------------------------------------------


def test_missing_and_unknown_tensors(gpt2_folder: Path) -> None:
    edit_tensors(gpt2_folder, lambda tensors: tensors.pop("transformer.h.1.attn.c_proj.bias"))
    with pytest.raises(CheckpointError, match=r"lacks tensors h\.1\.attn\.c_proj\.bias"):
        load(gpt2_folder)
    edit_tensors(gpt2_folder, lambda tensors: tensors.update({"transformer.h.1.attn.c_proj.bias": torch.zeros(48)}))
    load(gpt2_folder)
    edit_tensors(gpt2_folder, lambda tensors: tensors.update(score=torch.zeros(2)))
    with pytest.raises(CheckpointError, match="has unknown tensors score"):
        load(gpt2_folder)


def test_a_tensor_under_two_names(gpt2_folder: Path) -> None:
    edit_tensors(gpt2_folder, lambda tensors: tensors.update({"wte.weight": torch.zeros(97, 48)}))
    with pytest.raises(CheckpointError, match=r"a tensor twice, with and without the prefix 'transformer\.'"):
        load(gpt2_folder)


@pytest.mark.parametrize(
    "change",
    [{"n_layer": 1}, {"n_layer": 3}, {"vocab_size": 98}, {"n_positions": 64}, {"n_embd": 51}, {"n_inner": 100}],
)
def test_a_gpt2_config_for_another_model(gpt2_folder: Path, change: dict[str, int]) -> None:
    edit_config(gpt2_folder, **change)
    with pytest.raises(CheckpointError):
        load(gpt2_folder)


@pytest.mark.parametrize(
    "change",
    [{"num_hidden_layers": 3}, {"num_key_value_heads": 3}, {"head_dim": 4}, {"intermediate_size": 81}],
)
def test_a_llama_config_for_another_model(llama_folder: Path, change: dict[str, int]) -> None:
    edit_config(llama_folder, **change)
    with pytest.raises(CheckpointError):
        load(llama_folder)


def test_a_head_that_should_be_there_or_should_be_the_embedding(llama_folder: Path) -> None:
    edit_config(llama_folder, tie_word_embeddings=True)
    with pytest.raises(CheckpointError, match=r"ties the head .* but lm_head\.weight is different"):
        load(llama_folder)
    edit_config(llama_folder, tie_word_embeddings=False)
    edit_tensors(llama_folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"lacks tensors lm_head\.weight"):
        load(llama_folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation_function": "relu"}, "activation_function = 'relu'"),
        ({"activation_function": "gelu"}, "activation_function = 'gelu'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({"scale_attn_weights": False}, "scale_attn_weights"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"model_type": "opt"}, "model_type is 'opt'; supported are gpt2, llama"),
        ({"model_type": ...}, "model_type is None"),
        ({"quantization_config": {"quant_method": "gptq"}}, "stored quantised"),
        ({"n_embd": ...}, "no 'n_embd'"),
        ({"n_head": 5}, "do not divide"),
        ({"n_head": 0}, "n_head = 0, which is not a whole number"),
        ({"n_layer": 0}, "n_layer = 0, which is not a whole number"),
        ({"vocab_size": None}, "no 'vocab_size'"),
        ({"vocab_size": "many"}, "vocab_size = 'many', which is not a whole number"),
    ],
)
def test_a_gpt2_this_forward_pass_is_not(gpt2_folder: Path, change: dict[str, Any], message: str) -> None:
    edit_config(gpt2_folder, **change)
    with pytest.raises(CheckpointError, match=message):
        load(gpt2_folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}}, "rope type = 'llama3'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": ...}, "rope type = 'linear'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"num_key_value_heads": 4}, "must be a multiple"),
        ({"head_dim": 7}, "even"),
        ({"num_hidden_layers": ...}, "no 'num_hidden_layers'"),
    ],
)
def test_a_llama_this_forward_pass_is_not(llama_folder: Path, change: dict[str, Any], message: str) -> None:
    edit_config(llama_folder, **change)
    with pytest.raises(CheckpointError, match=message):
        load(llama_folder)


def test_several_end_tokens_keep_the_first(llama_folder: Path) -> None:
    edit_config(llama_folder, eos_token_id=[5, 6])
    model = load(llama_folder)
    assert model.config.eos_token_id == model.tokenizer.eos_token_id == 5
