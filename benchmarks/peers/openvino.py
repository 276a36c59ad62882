"""OpenVINO: int8 weights with one scale a column, input quantised as it comes, one scale a row.

The graph is written operation by operation, in the form in which OpenVINO's own exporter writes a language model: keys
and values are states of the model, reordered by ``beam_idx`` before new ones are appended, so that the runtime can
fuse all of that with attention. Weights are constants of int8 behind a conversion and a multiplication, which the
runtime folds into the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as op

from benchmarks.peers.weights import Weights, read
from benchmarks.whole_model import Stepwise


class Graph:
    """The operations of a GPT-2; the methods return nodes."""

    def __init__(self, weights: Weights, exact: bool) -> None:
        self.weights, self.exact = weights, exact
        self.ids = op.parameter([1, -1], np.int64, name="ids")
        self.positions = op.parameter([-1], np.int64, name="positions")
        self.mask = op.parameter([1, 1, -1, -1], np.float32, name="mask")
        self.beam_idx = op.parameter([-1], np.int32, name="beam_idx")
        self.states: list[Any] = []

    def constant(self, values: Any) -> Any:
        """A stored array."""
        return op.constant(np.asarray(values, order="C"))

    def norm(self, x: Any, name: str) -> Any:
        """LayerNorm over the last axis."""
        gain, bias = self.weights.pair(name)
        normed = op.mvn(x, self.constant(np.array([-1])), True, self.weights.eps, "INSIDE_SQRT")
        return op.add(op.multiply(normed, self.constant(gain)), self.constant(bias))

    def matrix(self, weight: Any) -> Any:
        """A weight (out, in) in float32, or in int8 with one scale a row."""
        if self.exact:
            return self.constant(weight)
        scales = np.abs(weight).max(axis=1, keepdims=True) / np.float32(127)  # (out, in) -> (out, 1)
        codes = op.convert(self.constant(np.rint(weight / scales).astype(np.int8)), np.float32)
        return op.multiply(codes, self.constant(scales))

    def linear(self, x: Any, name: str) -> Any:
        """A product with a weight (out, in), and its bias (out,)."""
        weight, bias = self.weights.linear(name)
        return op.add(op.matmul(x, self.matrix(weight), False, True), self.constant(bias))

    def remembered(self, new: Any, name: str) -> Any:
        """Keys or values of all positions, (1, H, S, D): those of the state, then the new ones; kept for next time."""
        w = self.weights
        shape = openvino.PartialShape([-1, w.num_heads, -1, w.width // w.num_heads])
        info = openvino.op.util.VariableInfo()
        info.data_shape, info.data_type, info.variable_id = shape, openvino.Type.f32, name
        variable = openvino.op.util.Variable(info)
        empty = self.constant(np.zeros((1, w.num_heads, 0, w.width // w.num_heads), np.float32))
        past = op.gather(openvino.op.read_value(empty, variable), self.beam_idx, self.constant(np.int64(0)))
        both = op.concat([past, new], 2)  # (1, H, S, D)
        self.states.append(openvino.op.assign(both, variable))
        return both

    def block(self, x: Any, n: int) -> Any:
        """One decoder block."""
        w = self.weights
        qkv = self.linear(self.norm(x, f"h.{n}.ln_1"), f"h.{n}.attn.c_attn")  # (1, T, 3C)
        heads = self.constant(np.array([0, 0, w.num_heads, w.width // w.num_heads]))
        q, k, v = (
            op.transpose(op.reshape(part, heads, True), self.constant(np.array([0, 2, 1, 3])))  # (1, H, T, D)
            for part in op.split(qkv, self.constant(np.int64(2)), 3).outputs()
        )
        keys, values = self.remembered(k, f"{n}.key"), self.remembered(v, f"{n}.value")
        y = op.scaled_dot_product_attention(q, keys, values, self.mask, causal=False)  # (1, H, T, D)
        y = op.transpose(y, self.constant(np.array([0, 2, 1, 3])))
        y = op.reshape(y, self.constant(np.array([0, 0, w.width])), True)  # (1, T, C)
        x = op.add(x, self.linear(y, f"h.{n}.attn.c_proj"))
        hidden = op.gelu(self.linear(self.norm(x, f"h.{n}.ln_2"), f"h.{n}.mlp.c_fc"), "tanh")
        return op.add(x, self.linear(hidden, f"h.{n}.mlp.c_proj"))

    def model(self) -> Any:
        """The whole model: ids in, the scores of the last position out."""
        tensors, axis = self.weights.tensors, self.constant(np.int64(0))
        words = op.gather(self.constant(tensors["wte.weight"]), self.ids, axis)  # (1, T, C)
        x = op.add(words, op.gather(self.constant(tensors["wpe.weight"]), self.positions, axis))
        for n in range(self.weights.num_layers):
            x = self.block(x, n)
        last = op.gather(x, self.constant(np.array([-1])), self.constant(np.int64(1)))  # (1, T, C) -> (1, 1, C)
        scores = op.matmul(self.norm(last, "ln_f"), self.matrix(tensors["wte.weight"]), False, True)
        inputs = [self.ids, self.positions, self.mask, self.beam_idx]
        return openvino.Model([op.result(scores)], self.states, inputs, "gpt2")


class OpenVINOModel(Stepwise):
    """One inference request, with its states."""

    def __init__(self, folder: str, num_threads: int, exact: bool = False) -> None:
        self.note_empty()
        weights = read(Path(folder))
        self.vocab_size, self._length = weights.vocab_size, 0
        settings = {
            "INFERENCE_NUM_THREADS": num_threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32" if exact else "u8",  # as by default
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0 if exact else weights.width,
            "ENABLE_CPU_PINNING": False,
        }
        compiled = openvino.Core().compile_model(Graph(weights, exact).model(), "CPU", settings)
        self._request = compiled.create_infer_request()

    def forward(self, token_ids: Sequence[int]) -> Any:
        """Append tokens; logits of the last one, shape (1, V)."""
        start, count = self._length, len(token_ids)
        stop = self._length = start + count
        mask = np.zeros((1, 1, count, stop), np.float32)
        if count > 1:
            mask[0, 0] = np.triu(np.full((count, stop), -np.inf, np.float32), start + 1)
        inputs = {
            "ids": np.array([token_ids], np.int64),
            "positions": np.arange(start, stop),
            "mask": mask,
            "beam_idx": np.zeros(1, np.int32),
        }
        self._request.infer(inputs, share_inputs=True)
        return self._request.get_output_tensor(0).data[0]  # (1, 1, V) -> (1, V)

    def truncate(self, length: int) -> None:
        """Forget everything; OpenVINO cannot forget a part."""
        if length:
            raise ValueError(f"only everything can be forgotten here, not all but {length} tokens")
        self._request.reset_state()
        self._length = 0

    def versions(self) -> dict[str, str]:
        """Packages that do the work, by name."""
        return {"openvino": openvino.get_version()}
