"""The same model in PyTorch, its weights in float32, float16 or bfloat16: GPT-2 and Llama.

One short function a model over PyTorch's own kernels, as in :class:`benchmarks.engines.LeanEngine`. The layout of a
weight is the one that PyTorch reads faster with one row on the left: (in, out) in float32, (out, in) in 16 bits, where
the other takes up to forty times as long on a CPU without float16 arithmetic.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.engines import LeanEngine

#: Size of the product that says how fast this format multiplies at best, and the seconds to spend on it.
PEAK_SIZE, PEAK_S = 1024, 1.5


class FloatEngine(LeanEngine):
    """A GPT-2 or a Llama with weights, activations, and keys and values in one floating-point type."""

    def __init__(self, model_name: str, num_threads: int, dtype: str) -> None:
        self._dtype_name = dtype
        super().__init__(model_name, num_threads)

    def _build(self, model: Any) -> None:
        torch, c = self.torch, model.config
        self._config, self._dtype = c, getattr(torch, self._dtype_name)
        self._transposed = self._dtype == torch.float32
        self._embedding = self._tensor(model.embedding)
        self._head = self._matrix(model.head)[0]
        self._norm = self._norm_of(model.final_norm)
        if c.architecture == "gpt2":
            self._positions = self._tensor(model.positions)
            names, self._forward = ("attn_qkv", "attn_out", "mlp_up", "mlp_down"), self._gpt2
        else:
            self._rope = [self._tensor(np.concatenate([table, table], axis=1)) for table in model.rope]  # twice (S, D)
            names, self._forward = ("q", "k", "v", "o", "gate", "up", "down"), self._llama
        self._blocks = [
            (self._norm_of(b.norm_1), self._norm_of(b.norm_2), *(self._matrix(getattr(b, n)) for n in names))
            for b in model.blocks
        ]
        shape = (c.num_layers, 2, 1, c.num_kv_heads, min(c.context_length, 1024), c.head_dim)
        self._kv = torch.zeros(shape, dtype=self._dtype)  # (L, 2, 1, Hkv, S, D)
        self._length = 0

    def _tensor(self, values: Any) -> Any:
        return self.torch.from_numpy(np.ascontiguousarray(values)).to(self._dtype)

    def _norm_of(self, norm: Any) -> Any:
        return self._tensor(norm.weight), self._tensor(norm.bias) if hasattr(norm, "bias") else None

    def _matrix(self, layer: Any) -> tuple[Any, Any]:
        weight = layer.weight.T if self._transposed else layer.weight  # (N, K) -> (K, N) for float32
        return self._tensor(weight), self._tensor(layer.bias)

    def _product(self, x: Any, layer: tuple[Any, Any]) -> Any:
        weight, bias = layer
        return self.torch.addmm(bias, x, weight) if self._transposed else self._linear(x, weight, bias)

    def _linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return self.torch.nn.functional.linear(x, weight, bias)

    def forward(self, token_ids: Sequence[int]) -> Any:
        """Append tokens; logits of the last one, shape (1, V)."""
        x = self._forward(self.torch.tensor(token_ids), self._length)
        self._length += len(token_ids)
        return x[-1:] @ self._head if self._transposed else self._linear(x[-1:], self._head)  # (1, C) -> (1, V)

    def _attend(self, layer: int, start: int, q: Any, k: Any, v: Any) -> Any:
        """Keep k and v (Hkv, T, D), and return the attention of q (H, T, D) as (T, H D)."""
        stop, (keys, values) = start + q.shape[1], self._kv[layer]
        keys[0, :, start:stop], values[0, :, start:stop] = k, v
        y = self.torch.nn.functional.scaled_dot_product_attention(
            *(q[None], keys[:, :, :stop], values[:, :, :stop]),
            is_causal=q.shape[1] > 1,
            enable_gqa=q.shape[0] != k.shape[0],
        )  # (1, H, T, D); several tokens come only with an empty cache here
        return y[0].transpose(0, 1).reshape(q.shape[1], -1)  # (H, T, D) -> (T, H D)

    def _gpt2(self, ids: Any, start: int) -> Any:
        f, c, count = self.torch.nn.functional, self._config, len(ids)
        x = self._embedding[ids] + self._positions[start : start + count]  # (T,) -> (T, C)
        for layer, (norm_1, norm_2, qkv, out, up, down) in enumerate(self._blocks):
            h = self._product(f.layer_norm(x, (c.width,), *norm_1, c.norm_eps), qkv)  # (T, C) -> (T, 3C)
            q, k, v = h.view(count, 3, c.num_heads, c.head_dim).permute(1, 2, 0, 3)  # (3, H, T, D)
            x = x + self._product(self._attend(layer, start, q, k, v), out)
            h = self._product(f.layer_norm(x, (c.width,), *norm_2, c.norm_eps), up)  # (T, C) -> (T, 4C)
            x = x + self._product(f.gelu(h, approximate="tanh"), down)  # (T, 4C) -> (T, C)
        return f.layer_norm(x, (c.width,), *self._norm, c.norm_eps)

    def _llama(self, ids: Any, start: int) -> Any:
        f, c, count = self.torch.nn.functional, self._config, len(ids)
        cos, sin = (table[start : start + count] for table in self._rope)  # twice (T, D)
        x = self._embedding[ids]  # (T,) -> (T, C)
        for layer, (norm_1, norm_2, *linears) in enumerate(self._blocks):
            wq, wk, wv, wo, gate, up, down = linears
            h = f.rms_norm(x, (c.width,), norm_1[0], c.norm_eps)
            q, k, v = (self._product(h, w).view(count, -1, c.head_dim).transpose(0, 1) for w in (wq, wk, wv))
            q, k = (t * cos + self.torch.roll(t, c.head_dim // 2, -1) * self._sign(sin) for t in (q, k))  # (H, T, D)
            x = x + self._product(self._attend(layer, start, q, k, v), wo)
            h = f.rms_norm(x, (c.width,), norm_2[0], c.norm_eps)
            x = x + self._product(f.silu(self._product(h, gate)) * self._product(h, up), down)
        return f.rms_norm(x, (c.width,), self._norm[0], c.norm_eps)

    def _sign(self, sin: Any) -> Any:
        """Sines for a pair rolled by half a head: minus the sine for its first half."""
        half = sin.shape[-1] // 2
        return self.torch.cat([-sin[:, :half], sin[:, half:]], dim=-1)  # (T, D)

    def peak(self) -> float:
        """The fastest square product seen in this format, multiply-adds a second."""
        a = self.torch.randn(PEAK_SIZE, PEAK_SIZE).to(self._dtype)
        best, deadline, calls = float("inf"), time.perf_counter() + PEAK_S, 0
        while calls < 2 or time.perf_counter() < deadline:
            start = time.perf_counter()
            self._linear(a, a)
            best = min(best, time.perf_counter() - start)
            calls += 1
        return float(PEAK_SIZE**3 / best)
