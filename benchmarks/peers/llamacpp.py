"""llama.cpp: Q8_0 weights, int8 in groups of 32 with an fp16 scale each, inputs quantised the same way."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np

from benchmarks.peers.weights import Weights, once, read
from benchmarks.whole_model import Stepwise

NAMES = {"attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}


def convert(weights: Weights, path: Path, exact: bool) -> None:
    """Write a GPT-2 as GGUF: all that llama.cpp's own ``Q8_0`` quantises in Q8_0, or all of it in fp32."""
    kind, file_type = gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0
    if exact:
        kind, file_type = gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32
    out = gguf.GGUFWriter(path, "gpt2")
    out.add_block_count(weights.num_layers)
    out.add_context_length(weights.context_length)
    out.add_embedding_length(weights.width)
    out.add_feed_forward_length(int(weights.config["n_inner"]))
    out.add_head_count(weights.num_heads)
    out.add_layer_norm_eps(weights.eps)
    out.add_file_type(file_type)
    out.add_tokenizer_model("no_vocab")
    out.add_vocab_size(weights.vocab_size)

    def matrix(name: str, weight: Any) -> None:
        out.add_tensor(f"{name}.weight", gguf.quants.quantize(np.ascontiguousarray(weight), kind), raw_dtype=kind)

    def norm(theirs: str, ours: str) -> None:
        for part, tensor in zip(("weight", "bias"), weights.pair(ours), strict=True):
            out.add_tensor(f"{theirs}.{part}", tensor)

    matrix("token_embd", weights.tensors["wte.weight"])
    matrix("output", weights.tensors["wte.weight"])
    out.add_tensor("position_embd.weight", weights.tensors["wpe.weight"])
    norm("output_norm", "ln_f")
    for n in range(weights.num_layers):
        norm(f"blk.{n}.attn_norm", f"h.{n}.ln_1")
        norm(f"blk.{n}.ffn_norm", f"h.{n}.ln_2")
        for ours, theirs in NAMES.items():
            weight, bias = weights.linear(f"h.{n}.{ours}")
            matrix(f"blk.{n}.{theirs}", weight)
            out.add_tensor(f"blk.{n}.{theirs}.bias", bias)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


class LlamaCppModel(Stepwise):
    """llama.cpp through the plain C functions of llama-cpp-python; scores of the last position only."""

    def __init__(self, folder: str, num_threads: int, exact: bool = False) -> None:
        self.note_empty()
        source = Path(folder)
        weights = read(source)
        made = source.with_name(f"{source.name}-gguf{'-fp32' * exact}")
        once(made, lambda place: convert(weights, place / "model.gguf", exact))
        self.vocab_size = weights.vocab_size
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        settings = llama_cpp.llama_model_default_params()
        settings.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(str(made / "model.gguf").encode(), settings)
        if not self._model:
            raise RuntimeError("llama.cpp could not load the converted model")
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = context.n_batch = context.n_ubatch = weights.context_length
        if exact:  # else keys and values are fp16, as by default
            context.type_k = context.type_v = gguf.GGMLQuantizationType.F32.value
        context.n_threads = context.n_threads_batch = num_threads
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        if not self._context:
            raise RuntimeError("llama.cpp could not make a context")

    def forward(self, token_ids: Sequence[int]) -> Any:
        """Append tokens; logits of the last one, shape (1, V)."""
        ids = (llama_cpp.llama_token * len(token_ids))(*token_ids)
        failed = llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(ids, len(token_ids)))
        if failed:
            raise RuntimeError(f"llama_decode gave {failed}")
        scores = llama_cpp.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(scores, (1, self.vocab_size))

    def truncate(self, length: int) -> None:
        """Forget everything after the first ``length`` tokens."""
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._context), 0, length, -1)

    def versions(self) -> dict[str, str]:
        """Packages that do the work, by name, and the instructions that llama.cpp was built with."""
        return {
            "llama-cpp-python": version("llama-cpp-python"),
            "features": llama_cpp.llama_print_system_info().decode().strip(" |\n"),
        }
