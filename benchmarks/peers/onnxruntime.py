"""ONNX Runtime: int8 weights with one scale a column, input quantised as it comes (one scale for all its rows).

The graph is written node by node: ``DynamicQuantizeMatMul`` is what its own dynamic quantisation turns a product into,
and ``GroupQueryAttention`` keeps keys and values in place, in buffers of the whole context.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from benchmarks.peers.weights import Weights, once, read
from benchmarks.whole_model import Stepwise

MICROSOFT = "com.microsoft"


class Graph:
    """Nodes and constants of a GPT-2 in the making; each method adds some and returns the name of a result."""

    def __init__(self, weights: Weights, exact: bool) -> None:
        self.weights, self.exact = weights, exact
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, values: Any) -> str:
        """Store an array under a name."""
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def node(self, kind: str, inputs: list[str], output: str, domain: str = "", **options: Any) -> str:
        """Add one operation with one result."""
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, domain=domain, **options))
        return output

    def norm(self, x: str, name: str) -> str:
        """LayerNorm over the last axis."""
        gain, bias = self.weights.pair(name)
        inputs = [x, self.constant(f"{name}.gain", gain), self.constant(f"{name}.bias", bias)]
        return self.node("LayerNormalization", inputs, f"{name}.out", axis=-1, epsilon=self.weights.eps)

    def linear(self, x: str, name: str, weight: Any, bias: Any) -> str:
        """A product with a weight (in, out), and its bias (out,)."""
        if self.exact:
            product = self.node("MatMul", [x, self.constant(f"{name}.weight", weight)], f"{name}.product")
            return self.node("Add", [product, self.constant(f"{name}.bias", bias)], f"{name}.out")
        scales = np.abs(weight).max(axis=0) / np.float32(127)  # (in, out) -> (out,)
        codes = np.rint(weight / scales).astype(np.int8)
        inputs = [
            self.constant(f"{name}.codes", codes),
            self.constant(f"{name}.scales", scales),
            self.constant(f"{name}.zeros", np.zeros(len(scales), np.int8)),
            self.constant(f"{name}.bias", bias),
        ]
        return self.node("DynamicQuantizeMatMul", [x, *inputs], f"{name}.out", MICROSOFT)

    def block(self, x: str, n: int) -> str:
        """One decoder block."""
        w, heads = self.weights, self.weights.num_heads
        qkv = self.linear(self.norm(x, f"h.{n}.ln_1"), f"h.{n}.attn.c_attn", *w.pair(f"h.{n}.attn.c_attn"))
        self.nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [qkv, "", "", f"past.{n}.key", f"past.{n}.value", "last_position", "num_positions"],
                [f"h.{n}.attended", f"present.{n}.key", f"present.{n}.value"],
                domain=MICROSOFT,
                num_heads=heads,
                kv_num_heads=heads,
            )
        )
        y = self.linear(f"h.{n}.attended", f"h.{n}.attn.c_proj", *w.pair(f"h.{n}.attn.c_proj"))
        x = self.node("Add", [x, y], f"h.{n}.middle")
        up = self.linear(self.norm(x, f"h.{n}.ln_2"), f"h.{n}.mlp.c_fc", *w.pair(f"h.{n}.mlp.c_fc"))
        hidden = self.node("FastGelu", [up], f"h.{n}.gelu", MICROSOFT)
        y = self.linear(hidden, f"h.{n}.mlp.c_proj", *w.pair(f"h.{n}.mlp.c_proj"))
        return self.node("Add", [x, y], f"h.{n}.end")

    def model(self) -> Any:
        """The whole model: ids in, the scores of the last position out."""
        w = self.weights
        embedding = w.tensors["wte.weight"]
        words = self.node("Gather", [self.constant("embedding", embedding), "ids"], "words")
        places = self.node("Gather", [self.constant("position_table", w.tensors["wpe.weight"]), "positions"], "places")
        x = self.node("Add", [words, places], "start")
        for n in range(w.num_layers):
            x = self.block(x, n)
        last = self.node("Gather", [x, self.constant("minus_one", np.array([-1]))], "last", axis=1)
        bias = np.zeros(w.vocab_size, np.float32)
        scores = self.linear(self.norm(last, "ln_f"), "head", embedding.T, bias)
        cache = [1, w.num_heads, w.context_length, w.width // w.num_heads]

        def value(name: str, kind: int, shape: list[Any]) -> Any:
            return helper.make_tensor_value_info(name, kind, shape)

        caches = [f"{n}.{part}" for n in range(w.num_layers) for part in ("key", "value")]
        inputs = [
            value("ids", TensorProto.INT64, [1, "T"]),
            value("positions", TensorProto.INT64, [1, "T"]),
            value("last_position", TensorProto.INT32, [1]),
            value("num_positions", TensorProto.INT32, []),
            *(value(f"past.{name}", TensorProto.FLOAT, cache) for name in caches),
        ]
        outputs = [
            value(scores, TensorProto.FLOAT, [1, 1, w.vocab_size]),
            *(value(f"present.{name}", TensorProto.FLOAT, cache) for name in caches),
        ]
        graph = helper.make_graph(self.nodes, "gpt2", inputs, outputs, self.constants)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
        made = helper.make_model(graph, opset_imports=opsets)
        made.ir_version = 9
        return made


class OnnxRuntimeModel(Stepwise):
    """One inference session; its key-value buffers are bound once and written in place."""

    def __init__(self, folder: str, num_threads: int, exact: bool = False) -> None:
        self.note_empty()
        source = Path(folder)
        weights = read(source)
        self.vocab_size = weights.vocab_size

        made = source.with_name(f"{source.name}-onnx{'-fp32' * exact}")
        once(made, lambda place: onnx.save(Graph(weights, exact).model(), place / "model.onnx"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = num_threads, 1
        options.add_session_config_entry("session.force_spinning_stop", "1")  # let the others run in their turn
        path = str(made / "model.onnx")
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._binding, self._length = self._session.io_binding(), 0
        shape = (1, weights.num_heads, weights.context_length, weights.width // weights.num_heads)
        self._caches = []
        for n in range(weights.num_layers):
            for part in ("key", "value"):
                cache = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
                self._binding.bind_ortvalue_input(f"past.{n}.{part}", cache)
                self._binding.bind_ortvalue_output(f"present.{n}.{part}", cache)
                self._caches.append(cache)
        self._binding.bind_output("head.out")

    def forward(self, token_ids: Sequence[int]) -> Any:
        """Append tokens; logits of the last one, shape (1, V)."""
        start, stop = self._length, self._length + len(token_ids)
        bind = self._binding.bind_cpu_input
        bind("ids", np.array([token_ids], np.int64))
        bind("positions", np.arange(start, stop)[None])
        bind("last_position", np.array([stop - 1], np.int32))
        bind("num_positions", np.array(stop, np.int32))
        self._session.run_with_iobinding(self._binding)
        self._length = stop
        return self._binding.get_outputs()[-1].numpy()[0]  # (1, 1, V) -> (1, V)

    def truncate(self, length: int) -> None:
        """Forget everything after the first ``length`` tokens."""
        self._length = min(length, self._length)

    def versions(self) -> dict[str, str]:
        """Packages that do the work, by name."""
        return {"onnxruntime": onnxruntime.__version__}
