"""CTranslate2: int8 weights with one scale a row, input rows quantised as they come, products of integers.

The converter for GPT-2 that comes with it wants PyTorch and transformers; this fills in the same specification from the
same arrays without them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np

from benchmarks.peers.weights import Weights, once, read
from benchmarks.whole_model import WholeModel


def convert(weights: Weights, folder: Path, exact: bool) -> None:
    """Write a GPT-2 in CTranslate2's format, its linear layers and embedding in int8, or all of it in fp32."""
    specs = ctranslate2.specs
    spec = specs.TransformerDecoderModelSpec.from_config(
        weights.num_layers, weights.num_heads, pre_norm=True, activation=specs.common_spec.Activation.GELUTanh
    )
    decoder, tensors = spec.decoder, weights.tensors
    decoder.scale_embeddings = False
    decoder.embeddings.weight = decoder.projection.weight = tensors["wte.weight"]
    decoder.position_encodings.encodings = tensors["wpe.weight"]
    norms, linears = {"ln_f": decoder.layer_norm}, {}
    for n, layer in enumerate(decoder.layer):
        norms |= {f"h.{n}.ln_1": layer.self_attention.layer_norm, f"h.{n}.ln_2": layer.ffn.layer_norm}
        linears |= {
            f"h.{n}.attn.c_attn": layer.self_attention.linear[0],
            f"h.{n}.attn.c_proj": layer.self_attention.linear[1],
            f"h.{n}.mlp.c_fc": layer.ffn.linear_0,
            f"h.{n}.mlp.c_proj": layer.ffn.linear_1,
        }
    for name, norm in norms.items():
        norm.gamma, norm.beta = weights.pair(name)
    for name, linear in linears.items():
        linear.weight, linear.bias = weights.linear(name)
    words = [str(n) for n in range(weights.vocab_size)]
    spec.register_vocabulary(words)
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = words[-1]
    spec.validate()
    spec.optimize(quantization="float32" if exact else "int8")
    spec.save(str(folder))


class CTranslate2Model(WholeModel):
    """``Generator``, called as its users call it; a callback tells when each token is there."""

    def __init__(self, folder: str, num_threads: int, exact: bool = False) -> None:
        self.note_empty()
        source = Path(folder)
        weights = read(source)
        self.vocab_size = weights.vocab_size
        made = source.with_name(f"{source.name}-ctranslate2{'-fp32' * exact}")
        once(made, lambda place: convert(weights, place, exact))
        self._words = [str(n) for n in range(self.vocab_size)]
        self._generator = ctranslate2.Generator(
            str(made),
            device="cpu",
            compute_type="float32" if exact else "int8_float32",
            inter_threads=1,
            intra_threads=num_threads,
        )

    def generate(self, prompt: Sequence[int], new_tokens: int) -> dict[str, Any]:
        """As :class:`WholeModel` says."""
        times: list[float] = []
        words, tokens = [self._words[n] for n in prompt], []

        def arrived(result: Any) -> bool:
            times.append(time.perf_counter())
            tokens.append(result.token_id)
            return False

        start = time.perf_counter()
        self._generator.generate_batch(
            [words],
            max_length=new_tokens,
            min_length=new_tokens,
            sampling_topk=1,
            include_prompt_in_result=False,
            callback=arrived,
        )
        if len(tokens) != new_tokens:
            raise RuntimeError(f"asked for {new_tokens} tokens, got {len(tokens)}")
        return {"token_ids": tokens, "first_s": times[0] - start, "rest_s": times[-1] - times[0]}

    def logits(self, token_ids: Sequence[int], first: int) -> Any:
        """All positions in one pass, the only way that CTranslate2 gives scores."""
        scores = self._generator.forward_batch([[self._words[n] for n in token_ids]])
        return np.asarray(scores)[0, first - 1 :]  # (1, T, V) -> (rows, V)

    def versions(self) -> dict[str, str]:
        """Packages that do the work, by name."""
        return {"ctranslate2": ctranslate2.__version__}
