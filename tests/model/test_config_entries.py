"""Entries of a config.json that are not of their kind: refused by name when the folder is loaded, not met later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cachequant_lib.errors import CheckpointError
from cachequant_lib.model.registry import load

NAN, INFINITY = float("nan"), float("inf")
NOT_SIZES = [0, -1, 8.9, 48.0, True, "48", [], {}, NAN, INFINITY, 2**31, 10**400]
NOT_POSITIVE = [0, -1, -9.0, NAN, INFINITY, -INFINITY, 1e-60, 10**400, True, "1e-5", []]
NOT_TOKENS = ["x", "", {}, [], -1, 97, 5.0, True, [5, "x"], [None], [5, 97], [[5]]]
NOT_CHOICES = ["false", "true", 0, 1, [], {}]


@pytest.fixture
def gpt2_folder(make_gpt2: Any) -> Path:
    return make_gpt2()[1]


@pytest.fixture
def llama_folder(make_llama: Any) -> Path:
    return make_llama()[1]


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **changes}), "utf-8")


def refuses_each(folder: Path, key: str, values: list[Any]) -> None:
    original = json.loads((folder / "config.json").read_text("utf-8")).get(key)
    for value in values:
        edit_config(folder, **{key: value})
        with pytest.raises(CheckpointError, match=f"config.json has {key} = ") as caught:
            load(folder)
        assert len(str(caught.value)) < 400, value
    edit_config(folder, **{key: original})
    load(folder)


@pytest.mark.parametrize("key", ["n_embd", "n_layer", "n_head", "n_positions", "n_inner", "vocab_size"])
def test_a_gpt2_size_is_a_whole_number(gpt2_folder: Path, key: str) -> None:
    refuses_each(gpt2_folder, key, NOT_SIZES)


@pytest.mark.parametrize(
    "key",
    [
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        *("head_dim", "max_position_embeddings", "vocab_size"),
    ],
)
def test_a_llama_size_is_a_whole_number(llama_folder: Path, key: str) -> None:
    refuses_each(llama_folder, key, NOT_SIZES)


def test_a_number_written_beyond_float64_is_no_size(gpt2_folder: Path) -> None:
    path = gpt2_folder / "config.json"
    path.write_text(path.read_text("utf-8").replace('"n_embd": 48', '"n_embd": 1e999'), "utf-8")
    with pytest.raises(CheckpointError, match="n_embd = inf"):
        load(gpt2_folder)


def test_more_heads_than_the_model_is_wide(llama_folder: Path) -> None:
    edit_config(llama_folder, num_attention_heads=96, num_key_value_heads=96, head_dim=None)
    with pytest.raises(CheckpointError, match="head_dim = 0"):
        load(llama_folder)


@pytest.mark.parametrize("layers", [1000, 2**31 - 1])
def test_layers_beyond_counting_are_refused_before_they_are_listed(gpt2_folder: Path, layers: int) -> None:
    edit_config(gpt2_folder, n_layer=layers)
    with pytest.raises(CheckpointError, match=f"has {layers} layers, the weights 28 tensors"):
        load(gpt2_folder)


def test_constants_that_would_make_every_logit_nan(gpt2_folder: Path, llama_folder: Path) -> None:
    refuses_each(gpt2_folder, "layer_norm_epsilon", NOT_POSITIVE)
    refuses_each(llama_folder, "rms_norm_eps", NOT_POSITIVE)


@pytest.mark.parametrize("value", [*NOT_POSITIVE, 1e-30])
def test_a_rotary_base_below_one_or_not_a_number(llama_folder: Path, value: Any) -> None:
    edit_config(llama_folder, rope_parameters={"rope_type": "default", "rope_theta": value})
    with pytest.raises(CheckpointError, match="rope_theta = "):
        load(llama_folder)
    edit_config(llama_folder, rope_parameters=None, rope_theta=value)
    with pytest.raises(CheckpointError, match="rope_theta = "):
        load(llama_folder)


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("value", ["default", [1], 5])
def test_rotary_settings_are_an_object(llama_folder: Path, key: str, value: Any) -> None:
    edit_config(llama_folder, **{key: value})
    with pytest.raises(CheckpointError, match=f"{key} = .* not a JSON object"):
        load(llama_folder)


@pytest.mark.parametrize("key", ["bos_token_id", "eos_token_id"])
def test_an_end_token_is_one_of_the_vocabulary(gpt2_folder: Path, llama_folder: Path, key: str) -> None:
    refuses_each(gpt2_folder, key, NOT_TOKENS)
    refuses_each(llama_folder, key, NOT_TOKENS)


def test_a_tied_head_is_true_or_false(gpt2_folder: Path, llama_folder: Path) -> None:
    refuses_each(gpt2_folder, "tie_word_embeddings", NOT_CHOICES)
    refuses_each(llama_folder, "tie_word_embeddings", NOT_CHOICES)


def test_null_is_the_same_as_absent(llama_folder: Path) -> None:
    edit_config(llama_folder, eos_token_id=None, tie_word_embeddings=None, rms_norm_eps=None, head_dim=None)
    config = load(llama_folder).config
    assert (config.eos_token_id, config.tied_head, config.norm_eps, config.head_dim) == (None, False, 1e-6, 8)


@pytest.mark.parametrize("value", [["gpt2"], {}, {"gpt2": 1}, 5, True])
def test_a_model_type_that_is_no_name(gpt2_folder: Path, value: Any) -> None:
    edit_config(gpt2_folder, model_type=value)
    with pytest.raises(CheckpointError, match=r"model_type is .* supported are gpt2, llama"):
        load(gpt2_folder)
