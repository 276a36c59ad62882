"""From a gguf file to a folder in the hub's layout: how SmolLM2 gets here. Needs the `gguf` package."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from cachequant_lib.errors import CheckpointError, ModelNotFoundError
from cachequant_lib.model.checkpoint import CONFIG, WEIGHTS
from cachequant_lib.model.checksums import CHECKSUMS
from cachequant_lib.model.ops import FloatArray
from cachequant_lib.model.tokenizer import Tokenizer, byte_level_bpe

TOKENIZER = "tokenizer.json"
CONTROL_TOKEN = 3  # how gguf marks special tokens

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def gguf_to_folder(path: Path, folder: Path) -> None:
    """Write a Llama gguf file as ``config.json``, ``model.safetensors``, ``tokenizer.json`` and ``SHA256SUMS``.

    Weights are dequantised to float32. float16 would halve the file, but a 4-bit code times its scale plus its offset
    does not always fit in float16, and the folder should hold exactly the weights the file means.

    Parameters
    ----------
    path : Path
        A gguf file whose tokenizer is byte-level BPE.
    folder : Path
        Made by this call; the checksums are written last, so an unfinished folder is recognisable.

    Raises
    ------
    ModelNotFoundError
        If the `gguf` package is not installed.
    CheckpointError
        If the file is damaged, or of another architecture or tokenizer.
    """
    from safetensors.numpy import save_file

    try:
        import gguf
    except ImportError as error:
        raise ModelNotFoundError("reading a gguf file needs the gguf package: pip install gguf") from error
    try:
        reader = gguf.GGUFReader(path)
    except Exception as error:  # a damaged file fails wherever its numbers first make no sense
        raise CheckpointError(f"{path} cannot be read as gguf: {error}") from error
    fields = {key: field.contents() for key, field in reader.fields.items()}
    try:
        config = _config(fields, tied_head=all(tensor.name != "output.weight" for tensor in reader.tensors))
        tokenizer = _tokenizer(fields)
    except KeyError as error:
        raise CheckpointError(f"{path} has no field {error}") from error
    weights = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        name, weight = _convert(tensor.name, values, config)
        weights[name] = weight

    folder.mkdir(parents=True)
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    tokenizer.save(folder / TOKENIZER)
    write_checksums(folder, (WEIGHTS, CONFIG, TOKENIZER))


def write_checksums(folder: Path, names: tuple[str, ...]) -> None:
    """Write ``SHA256SUMS`` over some files of a folder, in the format of the command ``sha256sum``."""
    lines = []
    for name in names:
        with (folder / name).open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n")
    (folder / CHECKSUMS).write_text("".join(lines), "utf-8")


def _config(fields: dict[str, Any], *, tied_head: bool) -> dict[str, Any]:
    """Return the contents of ``config.json``."""
    if fields.get("general.architecture") != "llama":
        raise CheckpointError(
            f"the gguf file holds a {fields.get('general.architecture')!r} model; supported is 'llama'"
        )
    if "llama.rope.scaling.type" in fields:
        raise CheckpointError("the gguf file scales its rotary positions, which is not supported")
    num_heads = fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": fields.get("llama.attention.head_count_kv", num_heads),
        "head_dim": fields["llama.rope.dimension_count"],
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),  # stored in float32
        "rope_parameters": {"rope_type": "default", "rope_theta": fields.get("llama.rope.freq_base", 10000.0)},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied_head,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "dtype": "float32",
    }


def _convert(name: str, values: FloatArray, config: dict[str, Any]) -> tuple[str, FloatArray]:
    """Return a tensor's name and values in the hub's layout."""
    *layer, kind, suffix = name.removeprefix("blk.").split(".")
    if kind not in NAMES or suffix != "weight":
        raise CheckpointError(f"the gguf file holds a tensor {name!r}, which is not part of a Llama model")
    if kind in ("attn_q", "attn_k"):
        values = _split_pairs(values, config["head_dim"])
    prefix = f"model.layers.{layer[0]}." if layer else ""
    return f"{prefix}{NAMES[kind]}.weight", np.ascontiguousarray(values)


def _split_pairs(weight: FloatArray, head_dim: int) -> FloatArray:
    """Reorder the rows of q or k: gguf keeps the two halves of a rotary pair side by side, the hub D/2 rows apart.

    Rows 0, 1, 2, 3, ... of a head become 0, 2, 4, ..., then 1, 3, 5, ...
    """
    out_features, in_features = weight.shape
    pairs = weight.reshape(-1, head_dim // 2, 2, in_features)  # (H D, C) -> (H, D/2, 2, C)
    return pairs.swapaxes(1, 2).reshape(out_features, in_features)  # (H, 2, D/2, C) -> (H D, C)


def _tokenizer(fields: dict[str, Any]) -> Tokenizer:
    """Build the tokenizer from the file's token list and merges."""
    kind, rules = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or rules not in ("smollm", "gpt-2"):
        raise CheckpointError(
            f"the gguf file's tokenizer is {kind!r} with rules {rules!r}; supported is 'gpt2' with 'smollm'"
        )
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    left_right = [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]]
    return byte_level_bpe(
        {token: index for index, token in enumerate(tokens)},
        [(left, right) for left, right in left_right],
        fields.get("tokenizer.ggml.eos_token_id"),
        split_digits=rules == "smollm",
        special=[token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN],
    )
