"""GPT-2, whole: configuration, weights and forward pass (Radford et al. 2019). Read `run_blocks` first."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cachequant_lib.errors import CheckpointError
from cachequant_lib.kv.base import KVCache
from cachequant_lib.model.base import Model, ModelConfig
from cachequant_lib.model.entries import choice, positive, shown, size, token_id
from cachequant_lib.model.linear import Float32Linear, Linear
from cachequant_lib.model.ops import FloatArray, LayerNorm, gelu
from cachequant_lib.model.tokenizer import IdArray, Tokenizer
from cachequant_lib.model.whole import Stage

PREFIX = "transformer."
UNUSED = (".attn.bias", ".attn.masked_bias")  # the causal mask, which older files carry along


@dataclass(frozen=True, eq=False)
class GPT2Block:
    """One decoder block. Its four linears hold 70 % of GPT-2 small's weights."""

    norm_1: LayerNorm
    attn_qkv: Linear  # C -> 3C: queries, keys and values in one product
    attn_out: Linear  # C -> C
    norm_2: LayerNorm
    mlp_up: Linear  # C -> hidden
    mlp_down: Linear  # hidden -> C


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class GPT2(Model):
    """GPT-2: learned positions, LayerNorm before each half of a block, GELU, biases everywhere.

    Attributes
    ----------
    positions : ndarray of float32, shape (context_length, C)
    """

    positions: FloatArray
    blocks: tuple[GPT2Block, ...]

    def embed(self, ids: IdArray, start: int) -> FloatArray:
        """Add the vectors of the tokens and of their positions: (T,) -> (T, C)."""
        x: FloatArray = self.embedding[ids] + self.positions[start : start + len(ids)]  # (T,) -> (T, C)
        return x

    def run_blocks(self, x: FloatArray, kv: KVCache) -> FloatArray:
        """Run the blocks over x (T, C); appends to `kv`; returns (T, C). See :meth:`Model.forward`."""
        for layer, block in enumerate(self.blocks):
            x += self._attention(block, layer, block.norm_1(x), kv)
            x += block.mlp_down(gelu(block.mlp_up(block.norm_2(x))))  # (T, C) -> (T, hidden) -> (T, C)
        return x

    def stages(self) -> list[Stage]:
        """Return the parts of each block in the order of the pass."""
        return [
            Stage(b.norm_1, (b.attn_qkv,), (b.attn_out,), b.norm_2, (b.mlp_up,), (b.mlp_down,)) for b in self.blocks
        ]

    def _attention(self, block: GPT2Block, layer: int, x: FloatArray, kv: KVCache) -> FloatArray:
        num_heads, head_dim = self.config.num_heads, self.config.head_dim
        qkv = block.attn_qkv(x).reshape(len(x), 3, num_heads, head_dim)  # (T, C) -> (T, 3C) -> (T, 3, H, D)
        kv.append(layer, qkv[:, 1], qkv[:, 2])  # twice (T, H, D)
        y = kv.attend(layer, qkv[:, 0])  # (T, H, D)
        return block.attn_out(y.reshape(len(x), -1))  # (T, H, D) -> (T, C)


def read_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Turn the contents of ``config.json`` into a configuration.

    Raises
    ------
    CheckpointError
        If an entry is missing or not of its kind, or the file asks for something this forward pass does not do.
    """
    required = {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    }
    for key, supported in required.items():
        value = raw.get(key, supported[0])
        if value not in supported:
            raise CheckpointError(f"config.json has {key} = {shown(value)}; this GPT-2 supports {supported[0]!r} only")
    width, num_heads, vocab_size = size(raw, "n_embd"), size(raw, "n_head"), size(raw, "vocab_size")
    if width % num_heads:
        raise CheckpointError(f"config.json has n_embd = {width}, which {num_heads} heads (n_head) do not divide")
    return ModelConfig(
        architecture="gpt2",
        vocab_size=vocab_size,
        context_length=size(raw, "n_positions"),
        num_layers=size(raw, "n_layer"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=width // num_heads,
        width=width,
        hidden_width=size(raw, "n_inner", 4 * width),
        norm_eps=positive(raw, "layer_norm_epsilon", 1e-5),
        rope_theta=None,
        tied_head=choice(raw, "tie_word_embeddings", True),
        bos_token_id=token_id(raw, "bos_token_id", vocab_size),
        eos_token_id=token_id(raw, "eos_token_id", vocab_size),
    )


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors a checkpoint must hold. Its matrices lie (in, out): GPT-2 was saved that way."""
    c, hidden = config.width, config.hidden_width
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (config.vocab_size, c),
        "wpe.weight": (config.context_length, c),
    }
    norms = ["ln_f"]
    for layer in range(config.num_layers):
        h = f"h.{layer}."
        norms += [h + "ln_1", h + "ln_2"]
        for name, rows, columns in (
            ("attn.c_attn", c, 3 * c),
            ("attn.c_proj", c, c),
            ("mlp.c_fc", c, hidden),
            ("mlp.c_proj", hidden, c),
        ):
            shapes |= {f"{h}{name}.weight": (rows, columns), f"{h}{name}.bias": (columns,)}
    for norm in norms:
        shapes |= {norm + ".weight": (c,), norm + ".bias": (c,)}
    if not config.tied_head:
        shapes["lm_head.weight"] = (config.vocab_size, c)
    return shapes


def build(config: ModelConfig, tokenizer: Tokenizer, name: str, read: Callable[[str], FloatArray]) -> GPT2:
    """Assemble the model from tensors that `read` returns by name, matrices (in, out)."""

    def norm(key: str) -> LayerNorm:
        return LayerNorm(read(key + ".weight"), read(key + ".bias"), config.norm_eps)

    def linear(key: str) -> Float32Linear:
        weight = np.ascontiguousarray(read(key + ".weight").T)  # (in, out) -> (out, in) = (N, K)
        return Float32Linear(weight, read(key + ".bias"))

    def block(layer: int) -> GPT2Block:
        h = f"h.{layer}."
        return GPT2Block(
            norm_1=norm(h + "ln_1"),
            attn_qkv=linear(h + "attn.c_attn"),
            attn_out=linear(h + "attn.c_proj"),
            norm_2=norm(h + "ln_2"),
            mlp_up=linear(h + "mlp.c_fc"),
            mlp_down=linear(h + "mlp.c_proj"),
        )

    embedding = read("wte.weight")
    return GPT2(
        config=config,
        tokenizer=tokenizer,
        name=name,
        embedding=embedding,
        positions=read("wpe.weight"),
        blocks=tuple(block(layer) for layer in range(config.num_layers)),
        final_norm=norm("ln_f"),
        head=Float32Linear(embedding if config.tied_head else read("lm_head.weight"), None),
    )
