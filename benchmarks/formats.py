"""One model in every weight format, each in a process of its own: what it reads, how fast it multiplies, its clock.

The floating-point rivals are :class:`benchmarks.floats.FloatEngine`; here are the library's own formats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.engines import Engine, LibraryEngine
from benchmarks.floats import FloatEngine
from benchmarks.records import significant

#: Format and head of the library's engines.
LIBRARY = {
    "fp32": ("fp32", "fp32"),
    "bfp8": ("bfp8", "fp32"),
    "int8": ("int8", "fp32"),
    "int8_head": ("int8", "int8"),
    "int8_certified": ("int8", "certified"),
}
FLOATS = {"torch_fp32": "float32", "torch_bf16": "bfloat16", "torch_fp16": "float16"}
LABELS = {
    "fp32": "this library, fp32",
    "torch_fp32": "hand-written PyTorch, fp32",
    "torch_bf16": "hand-written PyTorch, bf16",
    "torch_fp16": "hand-written PyTorch, fp16",
    "bfp8": "this library, BFP8",
    "int8": "this library, int8",
    "int8_head": "this library, int8 and int8 head",
    "int8_certified": "this library, int8 and certified head",
}
FLOAT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class FormatEngine(LibraryEngine):
    """The library's forward pass with the weights in one format."""

    def __init__(self, model_name: str, num_threads: int, scheme: str, head: str) -> None:
        import cachequant_lib as cq

        super().__init__(model_name, num_threads)
        self._scheme = scheme
        # a certified head reads its quarter of the bytes only for a caller who looks at the best logits alone
        self._options = {"num_best": 1} if head == "certified" else {"last_only": True}
        if scheme != "fp32":
            self.model = cq.quantize_model(self.model, scheme, head=head)

    def forward(self, token_ids: Sequence[int]) -> Any:
        """Append tokens; logits of the last one, shape (1, V)."""
        return self.model.forward(token_ids, self._kv, **self._options)  # (T,) -> (1, V)

    def peak(self) -> float:
        """Multiply-adds a second at best: the fastest fp32 product, or one integer tile that never leaves the cache."""
        from benchmarks.layers import tile_rate
        from cachequant_lib.checkup import matmul_rate
        from cachequant_lib.kernels.isa import best_instruction_set

        if self._scheme == "fp32":
            return matmul_rate(self._threads, size=2048, budget_s=1.5) / 2
        return self._threads * tile_rate(best_instruction_set())

    def read_bandwidth(self) -> float:
        """Bytes a second that this many threads read from memory."""
        from cachequant_lib.checkup import read_bandwidth

        return read_bandwidth(self._threads, budget_s=1.5)

    def bytes_read(self) -> dict[str, int]:
        """Weight bytes that one decode step needs: the linears, the head, and all that is small."""
        parts, head = bytes_read(self.model), self.model.head
        if "num_best" in self._options:  # codes and two numbers an output; the few rows that it proves are left out
            parts["head"] = head.out_features * (head.in_features + 8)
        return parts

    def num_weights(self) -> dict[str, int]:
        """Weights in the linears of the blocks and in the head: each is multiplied once a token."""
        linears = [layer for block in self.model.blocks for layer in linears_of(block)]
        count = sum(layer.in_features * layer.out_features for layer in linears)
        return {"blocks": count, "head": self.model.head.in_features * self.model.head.out_features}


def linears_of(block: Any) -> list[Any]:
    """The linear layers of a decoder block."""
    from cachequant_lib.model.linear import Linear

    return [part for part in vars(block).values() if isinstance(part, Linear)]


def bytes_read(model: Any) -> dict[str, int]:
    """Weight bytes of one decode step as stored in their format; biases count with the layer they belong to.

    Of the token and position tables one row each is read.
    """
    norms = [part for block in model.blocks for part in vars(block).values() if hasattr(part, "eps")]
    tables = [model.embedding, *([model.positions] if hasattr(model, "positions") else [])]
    small = [part for norm in (*norms, model.final_norm) for part in vars(norm).values() if hasattr(part, "nbytes")]
    return {
        "blocks": sum(layer.nbytes for block in model.blocks for layer in linears_of(block)),
        "head": model.head.nbytes,
        "other": sum(part.nbytes for part in small) + sum(table[0].nbytes for table in tables),
    }


def makers(model_name: str, num_threads: int) -> dict[str, tuple[Callable[..., Engine], tuple[Any, ...]]]:
    """Engine constructors with their arguments, in the order of the tables. A head this library lacks is left out."""
    from cachequant_lib.model.quantize import HEADS

    made: dict[str, tuple[Callable[..., Engine], tuple[Any, ...]]] = {}
    for name in LABELS:
        if name in FLOATS:
            made[name] = (FloatEngine, (model_name, num_threads, FLOATS[name]))
        elif LIBRARY[name][1] in HEADS:
            made[name] = (FormatEngine, (model_name, num_threads, *LIBRARY[name]))
    return made


def limits(
    peaks: dict[str, float], library: dict[str, dict[str, int]], num_weights: dict[str, int], bandwidth: float
) -> dict[str, Any]:
    """For each engine: bytes of a decode step, the least time that reading them takes, and its fastest products.

    Parameters
    ----------
    peaks : dict
        Multiply-adds a second, by engine.
    library : dict
        Engine to :func:`bytes_read`; those of the floats follow from fp32's.
    """
    found = {}
    for name, peak in peaks.items():
        if name in FLOATS:
            parts = {part: count * FLOAT_BYTES[FLOATS[name]] // 4 for part, count in library["fp32"].items()}
        else:
            parts = library[name]
        total = sum(parts.values())
        found[name] = {
            "bytes_read": parts | {"total": total},
            "head_share": significant(parts["head"] / total, 4),
            "read_s": significant(total / bandwidth),
            "multiply_adds_per_s": significant(peak),
            "products_s_per_prefill_token": significant(num_weights["blocks"] / peak),
        }
    return found
