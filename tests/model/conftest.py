"""Models of `transformers` with random weights that exercise every term, saved to disk as a reader would have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

MakeModel = Callable[..., tuple[Any, Path]]

GPT2_DEFAULTS = {"vocab_size": 97, "n_positions": 40, "n_embd": 48, "n_layer": 2, "n_head": 3}
LLAMA_DEFAULTS = {
    "vocab_size": 97,
    "max_position_embeddings": 40,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def randomise(model: Any, seed: int) -> None:
    """Give every weight a size at which a forgotten bias, norm or scale changes the logits plainly."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() == 1:
                weight.copy_(noise * 0.3 + ("norm" in name or "ln_" in name) * (1.0 if name.endswith("weight") else 0))
            else:
                weight.copy_(noise * 0.15)


@pytest.fixture
def make_gpt2(tmp_path: Path) -> MakeModel:
    def make(seed: int = 0, **sizes: Any) -> tuple[GPT2LMHeadModel, Path]:
        model = GPT2LMHeadModel(GPT2Config(**{**GPT2_DEFAULTS, "bos_token_id": 0, "eos_token_id": 0, **sizes})).eval()
        randomise(model, seed)
        model.save_pretrained(tmp_path / "gpt2-model")
        return model, tmp_path / "gpt2-model"

    return make


@pytest.fixture
def make_llama(tmp_path: Path) -> MakeModel:
    def make(seed: int = 0, **sizes: Any) -> tuple[LlamaForCausalLM, Path]:
        model = LlamaForCausalLM(LlamaConfig(**{**LLAMA_DEFAULTS, **sizes})).eval()
        randomise(model, seed)
        model.save_pretrained(tmp_path / "llama-model")
        return model, tmp_path / "llama-model"

    return make
