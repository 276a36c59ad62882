"""The engines of this project's environment in the speed experiment: two of PyTorch's, and ours in every format."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.engines import Engine, LastOnlyTransformersEngine, LeanEngine
from benchmarks.whole_model import Stepwise, WholeModel

#: Engine of ours to (weight format, head).
OURS: dict[str, tuple[str, str]] = {
    "fp32": ("fp32", "fp32"),
    "int8": ("int8", "fp32"),
    "int8_int8": ("int8", "int8"),
    "int8_certified": ("int8", "certified"),
    "bfp8": ("bfp8", "fp32"),
    "bfp8_int8": ("bfp8", "int8"),
    "bfp8_certified": ("bfp8", "certified"),
}
LABELS = {
    "transformers": "transformers, fp32",
    "lean": "hand-written PyTorch, fp32",
    "fp32": "this library, fp32",
    "int8": "this library, int8",
    "int8_int8": "this library, int8, int8 head",
    "int8_certified": "this library, int8, certified head",
    "bfp8": "this library, BFP8",
    "bfp8_int8": "this library, BFP8, int8 head",
    "bfp8_certified": "this library, BFP8, certified head",
}


class TorchModel(Stepwise):
    """One of the two PyTorch engines of the baseline."""

    def __init__(self, make: type[Engine], model_name: str, num_threads: int) -> None:
        import torch  # noqa: F401  (its memory is not the model's)

        import cachequant_lib as cq  # noqa: F401

        self.note_empty()
        self._engine = make(model_name, num_threads)
        self.vocab_size = self._engine.vocab_size

    def forward(self, token_ids: Sequence[int]) -> Any:
        """Append tokens; logits of the last one, shape (1, V)."""
        return self._engine.forward(token_ids)

    def truncate(self, length: int) -> None:
        """Forget everything after the first ``length`` tokens."""
        self._engine.truncate(length)


class LibraryModel(WholeModel):
    """``cachequant_lib.generate``, as a reader would call it, with one cache kept from request to request."""

    def __init__(self, model_name: str, scheme: str, head: str, num_threads: int) -> None:
        import cachequant_lib as cq

        self._pin = cq.pin_threads(num_threads)
        self._pin.__enter__()
        self._threads, self._generate = num_threads, cq.generate
        self.note_empty()
        model = cq.load(model_name)
        self.model = model if scheme == "fp32" else cq.quantize_model(model, scheme, head=head)
        self.vocab_size = self.model.config.vocab_size
        self._kv = self.model.new_kv("dense")

    def generate(self, prompt: Sequence[int], new_tokens: int) -> dict[str, Any]:
        """As :class:`WholeModel` says."""
        self._kv.truncate(0)
        start = time.perf_counter()
        found = self._generate(self.model, prompt, new_tokens, kv=self._kv, stop_at_eos=False)
        wall_s = time.perf_counter() - start
        first_s = wall_s if new_tokens == 1 else found.prefill_s
        return {"token_ids": list(found.token_ids), "first_s": first_s, "rest_s": wall_s - first_s}

    def logits(self, token_ids: Sequence[int], first: int) -> Any:
        """One pass over the first tokens, then one token a pass: both ways of computing are seen."""
        import numpy as np

        self._kv.truncate(0)
        passes = [token_ids[:first], *([token] for token in token_ids[first:])]
        return np.stack([self.model.forward(ids, self._kv, last_only=True)[-1] for ids in passes])  # (rows, V)

    def read_bandwidth(self) -> float:
        """Bytes a second that this process reads from memory with its threads."""
        from cachequant_lib.checkup import read_bandwidth

        return read_bandwidth(self._threads, budget_s=1.5)

    def weight_bytes(self) -> dict[str, int]:
        """Bytes of the weights as kept, and those of the decoder blocks, all of which every token reads."""
        from cachequant_lib.model.linear import Linear

        layers = [layer for block in self.model.blocks for layer in vars(block).values() if isinstance(layer, Linear)]
        return {"all": self.model.nbytes, "blocks": sum(layer.nbytes for layer in layers)}


def makers(
    model_name: str, num_threads: int, heads: Sequence[str]
) -> dict[str, tuple[Callable[..., WholeModel], tuple[Any, ...]]]:
    """How to make each engine of this environment, ours with these heads."""
    torch_engines: dict[str, type[Engine]] = {"transformers": LastOnlyTransformersEngine, "lean": LeanEngine}
    made: dict[str, tuple[Callable[..., WholeModel], tuple[Any, ...]]] = {
        name: (TorchModel, (engine, model_name, num_threads)) for name, engine in torch_engines.items()
    }
    return made | {
        name: (LibraryModel, (model_name, *pair, num_threads)) for name, pair in OURS.items() if pair[1] in heads
    }
