"""Chapter 11: how many bits does attention read of a number, and does that fall as the context grows?

Real queries, keys and values: a model reads a text once, and some of its layers are kept. Each cache is filled with
them and asked by the last queries of each length. Bits are counted where they are read; exponents, scales and column
maxima are counted apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import windows
from benchmarks.aligned_rows import ALIGNED, Rows, last_queries, record_rows, some_layers
from benchmarks.records import significant
from benchmarks.sweep import Options, Say
from cachequant_lib.kv.compressed import CompressedKV, Reads
from cachequant_lib.model.registry import load

TITLE = "bits that attention reads of a number of K and of V, by context length"
MODEL = "smollm2-135m"  # unless another is asked for
PER_MODEL = True
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
TEXTS, LAYERS, QUERIES = 2, 8, 8
NAMES = ("paper", "released", "fixed-8", "fixed-11")
PARTS = ("key", "value", "metadata", "all")
SOURCE = {
    "label": "AlignedKV, the paper: Llama-2-7B, real keys and values",
    "bits": {"final": "about 12", "draft of August 2024": 12.5},
    "by_length": "falls with the context; its figure's points are published nowhere as numbers",
}


def run(model_name: str, text: str | None, window: int | None, options: Options, say: Say) -> dict[str, Any]:
    """Count; returns the record's ``model``, ``settings`` and ``data``."""
    model = load(model_name)
    lengths = [n for n in LENGTHS if n <= model.config.context_length]
    read = windows.read_text(text, model, window or lengths[-1])
    lengths = [n for n in lengths if n <= len(read.windows[0]) - 1]
    layers, samples = some_layers(model, LAYERS), {name: [] for name in NAMES}  # type: dict[str, list[Any]]
    for number in [n for n in read.order if len(read.windows[n]) > lengths[-1]][:TEXTS]:
        say(f"reading {lengths[-1]} tokens")
        with windows.pin_threads(1):
            rows = record_rows(model, read.windows[number][: lengths[-1]], layers)
            for name in NAMES:
                samples[name] += [count(name, rows[layer], lengths) for layer in layers]
        say("counted")
    data = {
        "lengths": lengths,
        "labels": {name: ALIGNED[name].label for name in NAMES},
        "bits": {name: summary(np.array(found)) for name, found in samples.items()},
        "text": read.protocol,
        "source": SOURCE,
    }
    settings = {"model": model_name, "text": read.name, "layers": layers, "texts": TEXTS, "queries": QUERIES}
    return {"model": {"name": model.name, "fingerprint": model.fingerprint}, "settings": settings, "data": data}


def count(name: str, rows: Rows, lengths: list[int]) -> list[tuple[float, ...]]:
    """Bits read of a key, of a value, metadata a number, and all of them a number, at each length."""
    kv, found = ALIGNED[name].new_kv(1, *rows.k.shape[1:], lengths[-1]), []
    assert isinstance(kv, CompressedKV)
    for length in lengths:
        kv.reads = Reads()
        for _ in last_queries(kv, rows, length, QUERIES):
            pass
        seen = kv.reads
        metadata = seen.meta_bits / (2 * seen.num_values)
        found.append((seen.bits_per_key, seen.bits_per_value, metadata, seen.bits_per_number))
    return found


def summary(found: Any) -> dict[str, Any]:
    """Means over texts and layers, by part and length, and every sample; from shape (texts x layers, lengths, 4)."""
    means = {part: [significant(float(v), 5) for v in found[:, :, i].mean(axis=0)] for i, part in enumerate(PARTS)}
    samples = {part: np.round(found[:, :, i], 3).tolist() for i, part in enumerate(PARTS[:2])}
    return {"mean": means, "samples": samples}


def table(record: dict[str, Any]) -> str:
    """One line a cache and part, one column a length."""
    data = record["data"]
    lines = [f"{record['model']['name']}, {data['text']['text']}: bits read of a number"]
    lines += ["", f"{'':28s}{'':10s}" + "".join(f"{n:>8d}" for n in data["lengths"])]
    for name, found in data["bits"].items():
        for part in PARTS:
            line = "".join(f"{v:8.2f}" for v in found["mean"][part])
            lines.append(f"{data['labels'][name]:28s}{part:10s}{line}")
    return "\n".join(lines)


def charts(record: dict[str, Any]) -> dict[str, str]:
    """SVG pictures of a record, by file name; the chapter draws its own."""
    return {}
