"""Three ways to run the same fp32 GPT-2 weights, behind one face.

``transformers``  the model class the source project timed, called the way its users call it
``lean``          the strongest fp32 loop we can write by hand in PyTorch: the same matrix kernels, a cache
                  allocated once, no framework between two layers, logits of the last position only
``library``       this project's NumPy forward pass, written to be read

An engine keeps a position. ``forward(ids)`` appends tokens and returns something that :func:`best` can read;
``truncate(length)`` goes back. They are built inside their own processes (see :mod:`benchmarks.workers`).
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.weights import gpt2_tensors

LABELS = {
    "transformers": "transformers, fp32",
    "lean": "hand-written PyTorch, fp32",
    "library": "this library, fp32",
}


class Engine(ABC):
    """One model in one process, with the timers around its forward passes."""

    context_length: int
    vocab_size: int
    _filled = 0  # how much filler the cache holds, if nothing else

    @abstractmethod
    def forward(self, token_ids: Sequence[int]) -> Any:
        """Append tokens and return the logits; this call is what the clock sees."""

    @abstractmethod
    def best(self, logits: Any) -> int:
        """The id with the highest logit in the last row."""

    @abstractmethod
    def truncate(self, length: int) -> None:
        """Forget everything after the first ``length`` tokens."""

    def generate(self, prompt: Sequence[int], new_tokens: int) -> dict[str, Any]:
        """Greedy decoding by the source's clock.

        The prefill is the one forward pass over the prompt, and it yields the first new token; each later
        token is one decode step. Choosing the token is outside both timers. End-of-text does not stop it,
        so that every engine does the same amount of work.
        """
        self.truncate(0)
        self._filled = 0
        start = time.perf_counter()
        logits = self.forward(prompt)
        prefill_s = time.perf_counter() - start
        tokens, steps = [self.best(logits)], []
        for _ in range(new_tokens - 1):
            start = time.perf_counter()
            logits = self.forward(tokens[-1:])
            steps.append(time.perf_counter() - start)
            tokens.append(self.best(logits))
        return {"prefill_s": prefill_s, "step_s": steps, "token_ids": tokens}

    def time_prefill(self, num_tokens: int, min_sample_s: float) -> float:
        """Seconds for one forward pass over ``num_tokens`` tokens from an empty cache."""
        ids = self.filler(num_tokens)
        self._filled, spent, calls = 0, 0.0, 0
        while spent < min_sample_s or calls == 0:
            self.truncate(0)
            start = time.perf_counter()
            self.forward(ids)
            spent += time.perf_counter() - start
            calls += 1
        return spent / calls

    def time_decode(self, context: int, steps: int) -> float:
        """Seconds for one decode step with ``context`` tokens behind it, mean of ``steps`` from there."""
        if self._filled != context:
            self.truncate(0)
            self.forward(self.filler(context))
        self._filled, spent = context, 0.0
        for _ in range(steps):
            self.truncate(context)
            start = time.perf_counter()
            self.forward([17])
            spent += time.perf_counter() - start
        return spent / steps

    def filler(self, num_tokens: int) -> list[int]:
        """Token ids without meaning: dense arithmetic takes the same time whatever they are."""
        return np.random.default_rng(num_tokens).integers(0, self.vocab_size, num_tokens).tolist()

    def limits(self) -> dict[str, Any]:
        """What the hardware gave this process: the fastest fp32 matrix product seen, operations a second."""
        return {"matmul_rate": None}


class LibraryEngine(Engine):
    """The NumPy forward pass of :mod:`cachequant_lib`."""

    def __init__(self, model_name: str, num_threads: int) -> None:
        import cachequant_lib as cq

        self._threads = num_threads
        self._pin = cq.pin_threads(num_threads)
        self._pin.__enter__()
        self.model = cq.load(model_name)
        self.context_length, self.vocab_size = self.model.config.context_length, self.model.config.vocab_size
        self._kv = self.model.new_kv("dense")

    def forward(self, token_ids: Sequence[int]) -> Any:
        """Append tokens; logits of the last one, or of all where the engine gives them."""
        return self.model.forward(token_ids, self._kv, last_only=True)  # (T,) -> (1, V)

    def best(self, logits: Any) -> int:
        """The id with the highest logit in the last row."""
        return int(logits[-1].argmax())

    def truncate(self, length: int) -> None:
        """Forget everything after the first ``length`` tokens."""
        self._kv.truncate(length)

    def limits(self) -> dict[str, Any]:
        """The fastest fp32 matrix product this process has seen, operations a second."""
        from cachequant_lib.checkup import matmul_rate, read_bandwidth

        return {
            "matmul_rate": matmul_rate(self._threads, size=2048, budget_s=1.0),
            "read_bandwidth": read_bandwidth(self._threads, budget_s=1.5),
        }

    def describe(self) -> dict[str, Any]:
        """The record's ``model`` part, and how the texts split into tokens."""
        from cachequant_lib.workloads import LONG_PROMPT, SHORT_PROMPT

        config = self.model.config
        return {
            "name": self.model.name,
            "fingerprint": self.model.fingerprint,
            "num_layers": config.num_layers,
            "width": config.width,
            "vocab_size": config.vocab_size,
            "context_length": config.context_length,
            "weight_bytes": self.model.nbytes,
            "short_ids": self.model.tokenizer.encode(SHORT_PROMPT),
            "long_ids": self.model.tokenizer.encode(LONG_PROMPT),
        }


class _TorchEngine(Engine):
    """What the two PyTorch engines share: threads, weights, flushing of denormals."""

    def __init__(self, model_name: str, num_threads: int) -> None:
        import torch

        import cachequant_lib as cq

        torch.set_grad_enabled(False)
        torch.set_num_threads(num_threads)
        torch.set_flush_denormal(True)
        self.torch = torch
        model = cq.load(model_name)
        self.context_length, self.vocab_size = model.config.context_length, model.config.vocab_size
        self._build(model)

    @abstractmethod
    def _build(self, model: Any) -> None: ...

    def best(self, logits: Any) -> int:
        """The id with the highest logit in the last row."""
        return int(logits[-1].argmax())

    def limits(self) -> dict[str, Any]:
        """The fastest fp32 matrix product this process has seen, operations a second."""
        a = self.torch.randn(2048, 2048)
        best = math.inf
        for _ in range(8):
            start = time.perf_counter()
            a @ a
            best = min(best, time.perf_counter() - start)
        return {"matmul_rate": 2 * 2048**3 / best}


class TransformersEngine(_TorchEngine):
    """``GPT2LMHeadModel`` with its growing cache; logits of every prompt position, as by default."""

    _options: ClassVar[dict[str, int]] = {}

    def _build(self, model: Any) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel

        c = model.config
        config = GPT2Config(
            vocab_size=c.vocab_size,
            n_positions=c.context_length,
            n_embd=c.width,
            n_layer=c.num_layers,
            n_head=c.num_heads,
            n_inner=c.hidden_width,
            layer_norm_epsilon=c.norm_eps,
            bos_token_id=None,  # 50256 by default, which a smaller vocabulary does not have
            eos_token_id=None,
        )
        with self.torch.device("meta"):
            self._model = GPT2LMHeadModel(config)
        self._model.load_state_dict(self._state(model), assign=True, strict=False)
        self._model.tie_weights()
        self._model.eval()
        self._cache: Any = None

    def _state(self, model: Any) -> dict[str, Any]:
        """The checkpoint that the class expects; its matrices lie (in, out)."""
        state = {f"transformer.{name}": self.torch.from_numpy(value) for name, value in gpt2_tensors(model)}
        return state | {"lm_head.weight": state["transformer.wte.weight"]}

    def forward(self, token_ids: Sequence[int]) -> Any:
        """Append tokens; logits of the last one, or of all where the engine gives them."""
        ids = self.torch.tensor([list(token_ids)])  # (1, T)
        out = self._model(ids, past_key_values=self._cache, use_cache=True, **self._options)
        self._cache = out.past_key_values
        return out.logits[0]  # (1, T, V) -> (T, V)

    def truncate(self, length: int) -> None:
        """Forget everything after the first ``length`` tokens."""
        if length == 0:
            self._cache = None
        elif self._cache.get_seq_length() > length:
            self._cache.crop(length)


class LastOnlyTransformersEngine(TransformersEngine):
    """The same, asked for the logits of the last position only, as its own ``generate`` does."""

    _options: ClassVar[dict[str, int]] = {"logits_to_keep": 1}


class LeanEngine(_TorchEngine):
    """GPT-2 as one short function over PyTorch's fp32 kernels.

    All matrices lie (in, out), the head's too: with one row on the left, PyTorch's matrix library reads that
    layout markedly faster than (out, in).
    """

    def _build(self, model: Any) -> None:
        def matrix(weight: Any) -> Any:
            return self.torch.from_numpy(np.ascontiguousarray(weight.T))  # (N, K) -> (K, N)

        tensor = self.torch.from_numpy
        self._config = model.config
        self._embedding, self._positions = tensor(model.embedding), tensor(model.positions)
        self._head = matrix(model.head.weight)
        self._norm = tensor(model.final_norm.weight), tensor(model.final_norm.bias)
        self._blocks = [
            (
                *(tensor(b.norm_1.weight), tensor(b.norm_1.bias), tensor(b.norm_2.weight), tensor(b.norm_2.bias)),
                *(matrix(b.attn_qkv.weight), tensor(b.attn_qkv.bias)),
                *(matrix(b.attn_out.weight), tensor(b.attn_out.bias)),
                *(matrix(b.mlp_up.weight), tensor(b.mlp_up.bias)),
                *(matrix(b.mlp_down.weight), tensor(b.mlp_down.bias)),
            )
            for b in model.blocks
        ]
        c = model.config
        shape = (c.num_layers, 2, 1, c.num_heads, c.context_length, c.head_dim)
        self._kv = self.torch.zeros(shape)  # (L, 2, 1, H, S, D)
        self._length = 0

    def forward(self, token_ids: Sequence[int]) -> Any:
        """Append tokens; logits of the last one, shape (1, V)."""
        f, c, addmm = self.torch.nn.functional, self._config, self.torch.addmm
        start, count = self._length, len(token_ids)
        stop = start + count
        x = self._embedding[self.torch.tensor(token_ids)] + self._positions[start:stop]  # (T,) -> (T, C)
        for (g1, b1, g2, b2, wq, bq, wo, bo, wu, bu, wd, bd), (keys, values) in zip(
            self._blocks, self._kv, strict=True
        ):
            qkv = addmm(bq, f.layer_norm(x, (c.width,), g1, b1, c.norm_eps), wq)  # (T, C) -> (T, 3C)
            q, k, v = qkv.view(count, 3, c.num_heads, c.head_dim).permute(1, 2, 0, 3)  # (3, H, T, D)
            keys[0, :, start:stop], values[0, :, start:stop] = k, v
            y = f.scaled_dot_product_attention(
                q[None], keys[:, :, :stop], values[:, :, :stop], is_causal=count > 1
            )  # (1, H, T, D); several tokens come only with an empty cache here
            x = x + addmm(bo, y[0].transpose(0, 1).reshape(count, c.width), wo)  # (T, C)
            h = addmm(bu, f.layer_norm(x, (c.width,), g2, b2, c.norm_eps), wu)  # (T, C) -> (T, 4C)
            x = x + addmm(bd, f.gelu(h, approximate="tanh"), wd)  # (T, 4C) -> (T, C)
        self._length = stop
        return f.layer_norm(x[-1:], (c.width,), *self._norm, c.norm_eps) @ self._head  # (1, C) -> (1, V)

    def truncate(self, length: int) -> None:
        """Forget everything after the first ``length`` tokens."""
        self._length = min(length, self._length)


ENGINES: dict[str, type[Engine]] = {
    "transformers": TransformersEngine,
    "lean": LeanEngine,
    "library": LibraryEngine,
}
