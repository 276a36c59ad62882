"""Chapter 11: how long does attention take in decode, by context length, if it reads fewer bits?

Timed is what the paper timed: scores, softmax and output of one layer and one query, nothing else. Keys and values are
those of real heads, dealt out to three shapes: Llama-2-7B's, GPT-2 small's, and one whose query heads share keys. Cold
means that they come from memory: whole passes over many copies, one engine after the other. PyTorch sits in a process
of its own. Beside the times: bits read, memory held, and the cost of adding a token.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.aligned_readers import SHAPES, LibraryReader, TorchReader
from benchmarks.aligned_rows import record_rows
from benchmarks.records import BenchmarkError, significant, summary
from benchmarks.workers import Worker, crew

TITLE = "attention in decode by context length: AlignedKV, its controls, plain fp16, PyTorch"
MODEL = "smollm2-135m"  # unless another is asked for
BASE, CONTROL = "fixed-8", "fixed-control"
LABELS = {
    "half": "plain fp16, this library",
    "paper": "paper, thresholds 4/8",
    "released": "paper, V as released, 1/2",
    "paper-control": "paper's code, all 16 bits",
    "fixed-8": "fixed point, 2⁻⁸",
    "fixed-11": "fixed point, 2⁻¹¹",
    "fixed-control": "fixed point, all 16 bits",
    "sdpa_fp32": "PyTorch SDPA, fp32",
    "sdpa_bf16": "PyTorch SDPA, bf16",
    "sdpa_fp16": "PyTorch SDPA, fp16",
    "matmul_fp32": "PyTorch products, fp32",
    "matmul_bf16": "PyTorch products, bf16",
    "matmul_fp16": "PyTorch products, fp16",
    "kivi-10": "KIVI, 10 bits, in PyTorch",
    "gear-10": "GEAR, 10 bits, in PyTorch",
}
TORCH = tuple(name for name in LABELS if name.startswith(("sdpa", "matmul")))
LENGTHS = {
    "32x128": (128, 256, 512, 1024, 2048, 4096, 8192),
    "12x64": (128, 512, 1024),
    "3x64, 9 queries": (512, 1024, 4096, 8192),
}
WARM = (128, 512, 1024)
ALL_LENGTHS = LENGTHS["32x128"]
HEADS = 32
APPENDED = 1024
# What we set out for, cold, one thread, 32 heads of 128: times as fast as plain fp16, the best of PyTorch, the control.
GOALS = {512: (1.3, 2.4, 1.8), 1024: (1.5, 2.5, 1.9), 4096: (1.9, 3.0, 2.4), 8192: (2.1, 3.5, 2.7)}
SOURCE = {
    "label": "AlignedKV, the paper: attention of Llama-2-7B on a V100",
    "speedup": "up to 1.3 over PyTorch, at 7,000 to 8,000 tokens; slower than PyTorch at short contexts",
    "seconds": None,
}
Say = Callable[[str], None]


def run(model_name: str, threads: Sequence[int], repeats: int, say: Say) -> dict[str, Any]:
    """Measure; returns the record's ``model``, ``settings`` and ``data``."""
    footprint = footprint_bytes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "heads.npz"
        model, longest = store_heads(model_name, path, say)
        data: dict[str, Any] = {"engines": LABELS, "base": BASE, "shapes": SHAPES, "threads": {}, "warm": []}
        for n in threads:
            with crew({"library": (LibraryReader, (str(path), n)), "torch": (TorchReader, (str(path), n))}, n) as team:
                cases = [(s, length) for s in SHAPES for length in LENGTHS[s] if length <= longest]
                data["threads"][str(n)] = [measure(team, *case, footprint, repeats, say) for case in cases]
                if n == 1:
                    warm = [case for case in cases if case[1] in WARM]
                    data["warm"] = [measure(team, *case, 0, repeats, say) for case in warm]
                    data["append_s"] = appended(team["library"], min(APPENDED, longest), repeats)
    data["goals"] = goals(data["threads"].get("1", []))
    settings = {"model": model_name, "threads": list(threads), "repeats": repeats, "footprint_bytes": footprint}
    return {"model": model, "settings": settings, "data": data | {"source": SOURCE}}


def footprint_bytes() -> int:
    """Bytes of copies of each engine: four times the largest cache. Between its passes the other engines read more."""
    from cachequant_lib.machine import machine_info

    return min(max(4 * max(machine_info()["caches"].values(), default=0), 64 << 20), 512 << 20)


def store_heads(model_name: str, path: Path, say: Say) -> tuple[dict[str, Any], int]:
    """Let a model read a held-out text; keep keys, values and the queries at each length of some of its heads."""
    from benchmarks.windows import read_text
    from cachequant_lib.model.registry import load

    model = load(model_name)
    config = model.config
    if config.head_dim != 64:
        raise BenchmarkError(f"{model_name} has heads of {config.head_dim}; choose a model with heads of 64 channels")
    longest = max((n for n in ALL_LENGTHS if n <= config.context_length), default=0)
    ids = read_text("heldout", model, longest).windows[0][:longest]
    lengths = [n for n in ALL_LENGTHS if n <= len(ids)]
    say(f"{model.name} reads {len(ids)} tokens, for real keys and values")
    rows = record_rows(model, ids, range(config.num_layers))
    pairs = [(layer, head) for layer in rows for head in range(config.num_kv_heads)]
    pairs = [pairs[round(i)] for i in np.linspace(0, len(pairs) - 1, HEADS)]
    group, last = config.num_heads // config.num_kv_heads, [n - 1 for n in lengths]
    shared = [[head * group + i % group for i in range(3)] for _, head in pairs]
    np.savez(
        path,
        k=np.stack([rows[layer].k[:, head] for layer, head in pairs]).astype(np.float16),
        v=np.stack([rows[layer].v[:, head] for layer, head in pairs]).astype(np.float16),
        q=np.stack([rows[n].q[last][:, heads].swapaxes(0, 1) for (n, _), heads in zip(pairs, shared, strict=True)]),
        lengths=np.array(lengths),
    )
    return {"name": model.name, "fingerprint": model.fingerprint, "heads": [list(p) for p in pairs]}, lengths[-1]


def measure(team: dict[str, Worker], shape: str, length: int, footprint: int, repeats: int, say: Say) -> dict[str, Any]:
    """All engines at one length; warm if there is no footprint."""
    about: dict[str, Any] = {}
    for worker in team.values():
        about |= worker.call("prepare", shape, length, footprint)
    samples: dict[str, list[float]] = {name: [] for name in about}
    for number in range(repeats):
        for worker in team.values():
            for name, seconds in worker.call("passes", not footprint, number % 2 == 1).items():
                samples[name].append(seconds)
    found = cell(samples)
    for name, engine in found.items():
        engine |= about[name]
    best = best_torch(found)
    ratios = ((name, found[name]["over_base"]["median"]) for name in ("half", best, CONTROL, "paper"))
    words = f"{shape}, {length} tokens, {'cold' if footprint else 'warm'}"
    times = ", ".join(f"{name} x {ratio:.2f}" for name, ratio in ratios)
    say(f"{words}: {found[BASE]['seconds']['median'] * 1e3:.3f} ms; {times}")
    return {"shape": shape, "length": length, "best_torch": best, "engines": found}


def cell(samples: dict[str, list[float]]) -> dict[str, Any]:
    """Times of each engine, and how many times as long as the base it took, round by round."""
    return {
        name: {
            "samples_s": [significant(t, 5) for t in times],
            "seconds": summary(times, 5),
            "over_base": summary([t / b for t, b in zip(times, samples[BASE], strict=True)], 4),
        }
        for name, times in samples.items()
    }


def best_torch(found: dict[str, Any]) -> str:
    """PyTorch's fastest way, whichever it is."""
    return min((name for name in TORCH if name in found), key=lambda name: found[name]["seconds"]["median"])


def appended(worker: Worker, num_tokens: int, repeats: int) -> dict[str, Any]:
    """Seconds to add one token to one layer of the first shape."""
    runs = [worker.call("append", next(iter(SHAPES)), num_tokens) for _ in range(repeats)]
    return {name: summary([run[name] for run in runs], 4) for name in runs[0]}


def goals(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """What was set out for, and what was reached, cold on one thread."""
    found: dict[str, Any] = {}
    for case in cells:
        if case["shape"] == "32x128" and case["length"] in GOALS:
            rivals = ("half", case["best_torch"], CONTROL)
            reached = [case["engines"][name]["over_base"]["median"] for name in rivals]
            met = [r >= g for r, g in zip(reached, GOALS[case["length"]], strict=True)]
            found[str(case["length"])] = {"goal": GOALS[case["length"]], "reached": reached, "met": met}
    return found


def table(record: dict[str, Any]) -> str:
    """One line an engine, one column a length: ms a layer; and times as long as the base."""
    data, lines = record["data"], []
    parts = {f"{n} thread(s), cold": cells for n, cells in data["threads"].items()} | {"1 thread, warm": data["warm"]}
    for title, cells in parts.items():
        for shape in data["shapes"]:
            chosen = [c for c in cells if c["shape"] == shape]
            if chosen:
                lines += ["", f"{shape}, {title}: ms a layer (times as long as {data['engines'][BASE]})"]
                lines += [f"{'':28s}" + "".join(f"{c['length']:>16d}" for c in chosen)]
                for name in chosen[0]["engines"]:
                    found = [c["engines"][name] for c in chosen]
                    row = (f"{e['seconds']['median'] * 1e3:9.3f} ({e['over_base']['median']:4.2f})" for e in found)
                    lines.append(f"{data['engines'][name]:28s}" + "".join(row))
    for length, found in data["goals"].items():
        words = ("plain fp16", "best of PyTorch", "own control")
        each = zip(words, found["reached"], found["goal"], strict=True)
        lines.append(f"goals at {length}: " + ", ".join(f"{w} {r:.2f} (set out for {g})" for w, r, g in each))
    if "append_s" in data:
        each = (f"{name} {s['median'] * 1e6:.1f}" for name, s in data["append_s"].items())
        lines.append("append, microseconds a token and layer: " + ", ".join(each))
    return "\n".join(lines).strip()


def charts(record: dict[str, Any]) -> dict[str, str]:
    """SVG pictures of a record, by file name: the first shape, cold, relative to the recommended design."""
    from cachequant_lib import figures

    drawn = {}
    for n, cells in record["data"]["threads"].items():
        chosen = [c for c in cells if c["shape"] == "32x128"]
        rows = {
            record["data"]["engines"][name]: {f"{c['length']} tokens": c["engines"][name]["over_base"] for c in chosen}
            for name in ("half", "sdpa_fp32", "sdpa_bf16", "paper", "paper-control", "fixed-11", "fixed-control")
        }
        axis = f"times as long as {record['data']['engines'][BASE]}"
        drawn[f"times-{n}-threads"] = figures.svg(figures.speedups(rows, axis).figure)
    return drawn
