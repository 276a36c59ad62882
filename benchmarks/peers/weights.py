"""A model written down for the peers, and read again in their environment: config.json, model.safetensors.

The layout is that of GPT-2 on the Hugging Face hub, so every matrix of a block lies (in, out).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LINEARS = {"attn.c_attn": "attn_qkv", "attn.c_proj": "attn_out", "mlp.c_fc": "mlp_up", "mlp.c_proj": "mlp_down"}


@dataclass(frozen=True)
class Weights:
    """The tensors of a GPT-2 by their names on the hub, float32, and the numbers of its config.json."""

    config: dict[str, Any]
    tensors: dict[str, Any]

    @property
    def width(self) -> int:
        """Numbers in a hidden state."""
        return int(self.config["n_embd"])

    @property
    def num_heads(self) -> int:
        """Attention heads of a layer."""
        return int(self.config["n_head"])

    @property
    def num_layers(self) -> int:
        """Decoder blocks."""
        return int(self.config["n_layer"])

    @property
    def context_length(self) -> int:
        """Positions that the model knows."""
        return int(self.config["n_positions"])

    @property
    def vocab_size(self) -> int:
        """Tokens that the model knows."""
        return int(self.config["vocab_size"])

    @property
    def eps(self) -> float:
        """What LayerNorm adds to a variance."""
        return float(self.config["layer_norm_epsilon"])

    def pair(self, name: str) -> tuple[Any, Any]:
        """Weight and bias of a layer or norm."""
        return self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]

    def linear(self, name: str) -> tuple[Any, Any]:
        """Weight (out, in) and bias (out,) of a linear layer."""
        weight, bias = self.pair(name)
        return np.ascontiguousarray(weight.T), bias  # (in, out) -> (out, in)


def gpt2_tensors(model: Any) -> Iterator[tuple[str, Any]]:
    """The tensors of one of our fp32 GPT-2 models, by their names on the hub."""
    yield "wte.weight", model.embedding
    yield "wpe.weight", model.positions
    norms = {"ln_f": model.final_norm}
    for layer, block in enumerate(model.blocks):
        norms |= {f"h.{layer}.ln_1": block.norm_1, f"h.{layer}.ln_2": block.norm_2}
        for theirs, ours in LINEARS.items():
            linear = getattr(block, ours)
            yield f"h.{layer}.{theirs}.weight", np.ascontiguousarray(linear.weight.T)  # (out, in) -> (in, out)
            yield f"h.{layer}.{theirs}.bias", linear.bias
    for name, norm in norms.items():
        yield f"{name}.weight", norm.weight
        yield f"{name}.bias", norm.bias


def write(model: Any, folder: Path) -> None:
    """Write a GPT-2 of ours to a folder, unless it is there."""
    from safetensors.numpy import save_file

    def fill(place: Path) -> None:
        c = model.config
        config = {
            "n_layer": c.num_layers,
            "n_head": c.num_heads,
            "n_embd": c.width,
            "n_inner": c.hidden_width,
            "n_positions": c.context_length,
            "vocab_size": c.vocab_size,
            "layer_norm_epsilon": c.norm_eps,
        }
        (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
        save_file(dict(gpt2_tensors(model)), place / "model.safetensors")

    once(folder, fill)


def read(folder: Path) -> Weights:
    """Read what :func:`write` wrote."""
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text("utf-8"))
    return Weights(config, load_file(folder / "model.safetensors"))


def once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Make a folder by ``fill(folder)``, unless it is there; it appears under its name when it is complete."""
    if not folder.exists():
        unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
        unfinished.mkdir(parents=True)
        try:
            fill(unfinished)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder
