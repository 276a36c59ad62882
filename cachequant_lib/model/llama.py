"""Llama, whole: configuration, weights and forward pass (Touvron et al. 2023). Read `run_blocks` first."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cachequant_lib.errors import CheckpointError
from cachequant_lib.kv.base import KVCache
from cachequant_lib.model.base import Model, ModelConfig
from cachequant_lib.model.entries import choice, positive, shown, size, table, token_id
from cachequant_lib.model.linear import Float32Linear, Linear
from cachequant_lib.model.ops import FloatArray, RMSNorm, apply_rope, rope_tables, silu
from cachequant_lib.model.tokenizer import IdArray, Tokenizer
from cachequant_lib.model.whole import Stage

PREFIX = "model."
UNUSED = (".rotary_emb.inv_freq",)  # a table that older files carry along


@dataclass(frozen=True, eq=False)
class LlamaBlock:
    """One decoder block: seven linears, none with a bias."""

    norm_1: RMSNorm
    q: Linear  # C -> H D
    k: Linear  # C -> Hkv D
    v: Linear  # C -> Hkv D
    o: Linear  # H D -> C
    norm_2: RMSNorm
    gate: Linear  # C -> hidden
    up: Linear  # C -> hidden
    down: Linear  # hidden -> C


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Llama(Model):
    """Llama: rotary positions, RMSNorm, grouped-query attention, a gated MLP (SwiGLU), no biases."""

    blocks: tuple[LlamaBlock, ...]

    @cached_property
    def rope(self) -> tuple[FloatArray, FloatArray]:
        """Cosines and sines, each (context_length, D/2), computed on first use."""
        config = self.config
        assert config.rope_theta is not None
        return rope_tables(config.context_length, config.head_dim, config.rope_theta)

    def embed(self, ids: IdArray, start: int) -> FloatArray:
        """Look up the vectors of the tokens; positions are turned in later: (T,) -> (T, C)."""
        return self.embedding[ids]

    def run_blocks(self, x: FloatArray, kv: KVCache) -> FloatArray:
        """Run the blocks over x (T, C); appends to `kv`; returns (T, C). See :meth:`Model.forward`."""
        start, stop = kv.length, kv.length + len(x)
        cos, sin = self.rope[0][start:stop], self.rope[1][start:stop]  # twice (T, D/2)
        for layer, block in enumerate(self.blocks):
            x += self._attention(block, layer, block.norm_1(x), kv, cos, sin)
            h = block.norm_2(x)
            x += block.down(silu(block.gate(h)) * block.up(h))  # (T, C) -> (T, hidden) -> (T, C)
        return x

    def stages(self) -> list[Stage]:
        """Return the parts of each block in the order of the pass."""
        return [Stage(b.norm_1, (b.q, b.k, b.v), (b.o,), b.norm_2, (b.gate, b.up), (b.down,)) for b in self.blocks]

    def _attention(
        self, block: LlamaBlock, layer: int, x: FloatArray, kv: KVCache, cos: FloatArray, sin: FloatArray
    ) -> FloatArray:
        num_new, head_dim = len(x), self.config.head_dim
        q = block.q(x).reshape(num_new, -1, head_dim)  # (T, C) -> (T, H D) -> (T, H, D)
        k = block.k(x).reshape(num_new, -1, head_dim)  # (T, C) -> (T, Hkv D) -> (T, Hkv, D)
        v = block.v(x).reshape(num_new, -1, head_dim)  # (T, C) -> (T, Hkv D) -> (T, Hkv, D)
        kv.append(layer, apply_rope(k, cos, sin), v)
        y = kv.attend(layer, apply_rope(q, cos, sin))  # (T, H, D)
        return block.o(y.reshape(num_new, -1))  # (T, H, D) -> (T, H D) -> (T, C)


def read_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Turn the contents of ``config.json`` into a configuration.

    Raises
    ------
    CheckpointError
        If an entry is missing or not of its kind, or the file asks for something this forward pass does not do.
    """
    rope = {**table(raw, "rope_scaling"), **table(raw, "rope_parameters")}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    for key, value, supported in (
        ("hidden_act", raw.get("hidden_act", "silu"), "silu"),
        ("rope type", rope_type, "default"),
        ("partial_rotary_factor", rope.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)), 1.0),
        ("attention_bias", raw.get("attention_bias", False), False),
        ("mlp_bias", raw.get("mlp_bias", False), False),
    ):
        if value != supported:
            raise CheckpointError(f"config.json has {key} = {shown(value)}; this Llama supports {supported!r} only")
    width, num_heads, vocab_size = size(raw, "hidden_size"), size(raw, "num_attention_heads"), size(raw, "vocab_size")
    num_kv_heads = size(raw, "num_key_value_heads", num_heads)
    head_dim = size(raw, "head_dim", width // num_heads)
    if num_heads % num_kv_heads or head_dim % 2:
        raise CheckpointError(
            f"config.json has {num_heads} heads, {num_kv_heads} key-value heads and head size {head_dim}: "
            "the first must be a multiple of the second, and the head size even"
        )
    return ModelConfig(
        architecture="llama",
        vocab_size=vocab_size,
        context_length=size(raw, "max_position_embeddings"),
        num_layers=size(raw, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        width=width,
        hidden_width=size(raw, "intermediate_size"),
        norm_eps=positive(raw, "rms_norm_eps", 1e-6),
        rope_theta=positive({**raw, **rope}, "rope_theta", 10000.0, low=1),
        tied_head=choice(raw, "tie_word_embeddings", False),
        bos_token_id=token_id(raw, "bos_token_id", vocab_size),
        eos_token_id=token_id(raw, "eos_token_id", vocab_size),
    )


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors a checkpoint must hold. Its matrices lie (out, in)."""
    c, hidden = config.width, config.hidden_width
    q_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (config.vocab_size, c), "norm.weight": (c,)}
    for layer in range(config.num_layers):
        h = f"layers.{layer}."
        shapes |= {
            h + "input_layernorm.weight": (c,),
            h + "self_attn.q_proj.weight": (q_width, c),
            h + "self_attn.k_proj.weight": (kv_width, c),
            h + "self_attn.v_proj.weight": (kv_width, c),
            h + "self_attn.o_proj.weight": (c, q_width),
            h + "post_attention_layernorm.weight": (c,),
            h + "mlp.gate_proj.weight": (hidden, c),
            h + "mlp.up_proj.weight": (hidden, c),
            h + "mlp.down_proj.weight": (c, hidden),
        }
    if not config.tied_head:
        shapes["lm_head.weight"] = (config.vocab_size, c)
    return shapes


def build(config: ModelConfig, tokenizer: Tokenizer, name: str, read: Callable[[str], FloatArray]) -> Llama:
    """Assemble the model from tensors that `read` returns by name, matrices (out, in)."""

    def norm(key: str) -> RMSNorm:
        return RMSNorm(read(key + ".weight"), config.norm_eps)

    def linear(key: str) -> Float32Linear:
        return Float32Linear(read(key + ".weight"), None)  # already (out, in) = (N, K)

    def block(layer: int) -> LlamaBlock:
        h = f"layers.{layer}."
        return LlamaBlock(
            norm_1=norm(h + "input_layernorm"),
            q=linear(h + "self_attn.q_proj"),
            k=linear(h + "self_attn.k_proj"),
            v=linear(h + "self_attn.v_proj"),
            o=linear(h + "self_attn.o_proj"),
            norm_2=norm(h + "post_attention_layernorm"),
            gate=linear(h + "mlp.gate_proj"),
            up=linear(h + "mlp.up_proj"),
            down=linear(h + "mlp.down_proj"),
        )

    embedding = read("embed_tokens.weight")
    return Llama(
        config=config,
        tokenizer=tokenizer,
        name=name,
        embedding=embedding,
        blocks=tuple(block(layer) for layer in range(config.num_layers)),
        final_norm=norm("norm"),
        head=Float32Linear(embedding if config.tied_head else read("lm_head.weight"), None),
    )
