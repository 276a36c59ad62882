"""Chapter 11: how wrong are the scores and the outputs of attention, if fewer bits are read?

Real queries, keys and values, as in :mod:`benchmarks.aligned_bits`. For each way of reading, the two products of
attention are made from the numbers as read and put into the paper's six classes of relative error: the scores Q Kᵀ, and
S V from exact S. Exact means float64 sums of fp16 rows; results are rounded to fp16 before they are compared, so class
0 is "the same fp16 number". Sums are in float32 unless a row says fp16. Beside that the error of the whole head, as its
cache computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import windows
from benchmarks.aligned_rows import CONTESTANTS, EXACT, Rows, last_queries, record_rows, some_layers
from benchmarks.records import significant
from benchmarks.sweep import Options, Say
from cachequant_lib.formats.bitplanes import quantize_bitplanes
from cachequant_lib.formats.fixedpoint import quantize_fixedpoint
from cachequant_lib.kernels.attention import BLOCK
from cachequant_lib.kv.aligned import AlignedKV
from cachequant_lib.kv.base import FloatArray, KVCache
from cachequant_lib.kv.paper import PaperKV
from cachequant_lib.model.base import KV_FORMATS
from cachequant_lib.model.registry import load

TITLE = "relative error of Q Kᵀ and of S V in six classes: AlignedKV, dropped bits, KIVI, GEAR"
MODEL = "smollm2-135m"  # unless another is asked for
PER_MODEL = True
LENGTHS = (512, 4096)
TEXTS, LAYERS, QUERIES = 2, 8, 4
EDGES = (0.0, 1e-12, 2.0**-10, 2.0**-9, 2.0**-8, 2.0**-7, np.inf)
CLASSES = ("0", "< 1/1024", "< 1/512", "< 1/256", "< 1/128", "1/128 and more")
IN_FP16 = {"paper-fp16": "paper", "paper-control-fp16": "paper-control"}  # the same reading, sums in fp16
SOURCE = {
    "label": "AlignedKV, the paper's draft of 12 August 2024, table 1: Llama-2-7B, 12.5 bits on average, per cent",
    "classes": {
        "scores": {
            "AlignedKV": [57.13, 34.32, 6.47, 1.27, 0.43, 0.37],
            "13 bits of each": [23.16, 36.89, 29.80, 7.66, 1.48, 1.02],
        },
        "values": {
            "AlignedKV": [70.87, 21.40, 4.52, 1.76, 0.80, 0.65],
            "13 bits of each": [19.64, 30.68, 27.02, 12.63, 5.32, 4.73],
        },
    },
    "sums": "not said; its released kernel adds in fp16",
}


def run(model_name: str, text: str | None, window: int | None, options: Options, say: Say) -> dict[str, Any]:
    """Compare; returns the record's ``model``, ``settings`` and ``data``."""
    model = load(model_name)
    lengths = [n for n in LENGTHS if n <= model.config.context_length]
    read = windows.read_text(text, model, window or lengths[-1])
    lengths = [n for n in lengths if n <= len(read.windows[0]) - 1]
    layers = some_layers(model, LAYERS)
    names = [n for n, c in CONTESTANTS.items() if n != EXACT and c.format in (*KV_FORMATS, "rounded")]
    tally = {length: {name: Tally() for name in [*names, *IN_FP16]} for length in lengths}
    for number in [n for n in read.order if len(read.windows[n]) > lengths[-1]][:TEXTS]:
        say(f"reading {lengths[-1]} tokens")
        with windows.pin_threads(1):
            rows = record_rows(model, read.windows[number][: lengths[-1]], layers)
            for length in lengths:
                for layer in layers:
                    for name in names:
                        compare(name, rows[layer], length, tally[length])
                say(f"{length} tokens: compared")
    labels = {n: CONTESTANTS[n].label for n in names}
    labels |= {n: f"{CONTESTANTS[of].label}, fp16 sums" for n, of in IN_FP16.items()}
    data = {
        "classes": CLASSES,
        "labels": labels,
        "lengths": {str(length): {n: t.summary() for n, t in found.items()} for length, found in tally.items()},
        "text": read.protocol,
        "source": SOURCE,
    }
    settings = {"model": model_name, "text": read.name, "layers": layers, "texts": TEXTS, "queries": QUERIES}
    return {"model": {"name": model.name, "fingerprint": model.fingerprint}, "settings": settings, "data": data}


class Tally:
    """Counts of results in each class, and errors of whole heads."""

    def __init__(self) -> None:
        self.counts = {"scores": np.zeros(6, np.int64), "values": np.zeros(6, np.int64)}
        self.median: dict[str, list[float]] = {"scores": [], "values": []}
        self.heads: list[float] = []
        self.bits: list[float] = []

    def add(self, product: str, got: NDArray[Any], exact: NDArray[Any]) -> None:
        """Take in one product's results."""
        got, exact = (x.astype(np.float16).astype(np.float64) for x in (got, exact))
        relative = np.abs(got - exact) / np.maximum(np.abs(exact), 2.0**-24)
        self.counts[product] += np.histogram(relative, EDGES)[0]
        self.median[product].append(float(np.median(relative)))

    def summary(self) -> dict[str, Any]:
        """Per cent in each class, median and 99th percentile of the heads' relative error, and bits read."""
        out: dict[str, Any] = {
            key: [significant(100 * float(n) / max(int(found.sum()), 1), 4) for n in found]
            for key, found in self.counts.items()
        }
        if self.heads:
            median, most = np.quantile(self.heads, (0.5, 0.99))
            out["head"] = {"median": significant(float(median), 4), "p99": significant(float(most), 4)}
        return out | {"bits": significant(float(np.mean(self.bits)), 5) if self.bits else None}


def compare(name: str, rows: Rows, length: int, tally: dict[str, Tally]) -> None:
    """Fill one cache, let the last queries read it, and put their errors into classes."""
    kv = CONTESTANTS[name].new_kv(1, *rows.k.shape[1:], length)
    for position, y in last_queries(kv, rows, length, QUERIES):
        q, (k, v) = rows.q[position], (part[: position + 1].astype(np.float64) for part in (rows.k, rows.v))
        scores, shares, out = attention(q.astype(np.float64), k, v)
        read_k, read_v = as_read(kv, rows, position + 1)
        for entry, kind in ((name, np.float32), *((n, np.float16) for n, of in IN_FP16.items() if of == name)):
            add = in_fp16 if kind is np.float16 else matmul
            tally[entry].add("scores", grouped(q, read_k, add) / np.sqrt(q.shape[1]), scores)
            tally[entry].add("values", weighted(shares.astype(kind), read_v, add), out)
        tally[name].heads += (np.linalg.norm(y - out, axis=1) / np.linalg.norm(out, axis=1)).tolist()
        if hasattr(kv, "reads") and (kv.reads.key_bits + kv.reads.value_bits):
            tally[name].bits.append(kv.reads.bits_per_number)


def attention(q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    """Scores and softmax (H, L), and the output (H, D), in float64."""
    scores = grouped(q, k, np.matmul) / np.sqrt(q.shape[1])
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return scores, shares, weighted(shares, v, np.matmul)


Add = Callable[[Any, Any], Any]


def grouped(q: Any, k: Any, add: Add) -> Any:
    """Products of queries (H, D) with the keys (L, Hkv, D) that they share: (H, L)."""
    num_kv_heads = k.shape[1]
    found = add(q.reshape(num_kv_heads, -1, q.shape[1]), k.transpose(1, 2, 0))  # (Hkv, G, D) @ (Hkv, D, L)
    return found.reshape(len(q), -1)


def weighted(shares: Any, v: Any, add: Add) -> Any:
    """Sums of values (L, Hkv, D) with shares (H, L): (H, D)."""
    found = add(shares.reshape(v.shape[1], -1, shares.shape[1]), v.transpose(1, 0, 2))  # (Hkv, G, L) @ (Hkv, L, D)
    return found.reshape(len(shares), -1)


def matmul(a: Any, b: Any) -> Any:
    """Products with sums in float32."""
    return np.matmul(a.astype(np.float32), b.astype(np.float32))


def in_fp16(a: Any, b: Any) -> Any:
    """Products (B, G, K) @ (B, K, N) whose partial sums are rounded to fp16 one after the other."""
    total = np.zeros((*a.shape[:2], b.shape[2]), np.float16)
    for i in range(a.shape[2]):
        step = a[:, :, i, None].astype(np.float32) * b[:, None, i].astype(np.float32)
        total = (total + step).astype(np.float16)  # a fused multiply-add
    return total


def as_read(kv: KVCache, rows: Rows, length: int) -> tuple[FloatArray, FloatArray]:
    """Keys and values (L, Hkv, D) as the last decode step of a cache of one layer has read them."""
    if not isinstance(kv, AlignedKV | PaperKV):
        block = kv.read_block(0, length)
        return block.keys[:, 0], block.values[:, 0]
    widths = kv.bits_map(0)
    k, v = rows.k[:length], rows.v[:length]
    if isinstance(kv, PaperKV):
        planes = [{w: quantize_bitplanes(x).dequantize(w) for w in (8, 12, 16)} for x in (k, v)]
        found = [choose(bits, read) for bits, read in zip(widths, planes, strict=True)]
    else:
        sealed = length // BLOCK * BLOCK
        blocks = quantize_fixedpoint(k[:sealed].reshape(-1, BLOCK, *k.shape[1:]), axis=1)
        keys = {w: k.copy() for w in (8, 16, 32)}
        for digits in (1, 2):
            keys[8 * digits][:sealed] = blocks.dequantize(digits).reshape(-1, *k.shape[1:])
        tokens = quantize_fixedpoint(v)
        values = {0: np.zeros_like(v), 8: tokens.dequantize(1), 16: tokens.dequantize(2)}
        found = [choose(widths[0], keys), choose(widths[1], values)]
    return found[0], found[1]


def choose(bits: NDArray[np.uint8], read: dict[int, FloatArray]) -> FloatArray:
    """Each number at its width."""
    return np.select([bits == width for width in read], list(read.values()))


def table(record: dict[str, Any]) -> str:
    """One line a contestant, product and length."""
    data = record["data"]
    lines = [f"{record['model']['name']}, {data['text']['text']}: per cent of results in each class of relative error"]
    for length, found in data["lengths"].items():
        for product in ("scores", "values"):
            lines += ["", f"{length:>5s} {product:26s}{'bits':>6s}" + "".join(f"{c:>15s}" for c in data["classes"])]
            for name, row in found.items():
                bits = "" if row["bits"] is None else f"{row['bits']:.2f}"
                shares = "".join(f"{v:15.2f}" for v in row[product])
                lines.append(f"      {data['labels'][name]:26s}{bits:>6s}{shares}")
        lines += ["", f"{length:>5s} error of a head's output, relative: median, and of the worst of a hundred"]
        for name, row in found.items():
            if "head" in row:
                lines.append(f"      {data['labels'][name]:26s}{row['head']['median']:10.1e}{row['head']['p99']:10.1e}")
    return "\n".join(lines)


def charts(record: dict[str, Any]) -> dict[str, str]:
    """SVG pictures of a record, by file name; the chapter draws its own."""
    return {}
