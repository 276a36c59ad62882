"""Chapters 2 and 7: one model in each weight format, at prefill and decode: time, latency, and money.

The source's protocol: a short and a long profile, a warm-up of five tokens thrown away, then rounds in which the
engines take turns. Added: bfloat16, an int8 head, the strongest fp32 rival, prefill against prompt length and decode
against context for every format, and what each format could do at best.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import formats
from benchmarks.baseline import (
    MIN_SAMPLE_S,
    PARTS,
    PROFILES,
    WARMUP_TOKENS,
    Say,
    by_engine,
    glance,
    metrics,
    rounded,
    settings,
    turns,
)
from benchmarks.records import significant, summary
from benchmarks.workers import Worker, crew
from cachequant_lib.bench import CostModel

TITLE = "weight formats at prefill and decode: fp32, fp16, bf16, BFP8, int8, and the head"
BASE, FP32 = "fp32", ("fp32", "torch_fp32")
PREFILL_LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 270, 512)
CONTEXTS = (8, 270, 1000)
DECODE_STEPS = 6
PRICE = Path(__file__).with_name("price.json")
SOURCE = {
    "label": "CacheQuant, the source project: GPT-2 small in PyTorch and Numba, Intel i7-8700K, 8 threads",
    "columns": ["prefill_tokens_per_s", "decode_tokens_per_s", "cost_per_1k_tokens"],
    "short": {
        "fp32": [216.3, 40.9, 0.00244],
        "fp16": [7.2, 5.5, 0.01960],
        "bfp8": [106.8, 42.7, 0.00241],
        "int8": [159.8, 51.2, 0.00198],
    },
    "long": {
        "fp32": [1190.3, 36.3, 0.00471],
        "fp16": [8.6, 5.5, 0.32348],
        "bfp8": [190.7, 37.0, 0.01677],
        "int8": [268.0, 43.5, 0.01203],
    },
}
"""Medians of five runs, as it published them. Its fp16 is PyTorch's on a CPU without fp16 arithmetic."""


def price() -> CostModel:
    """The hourly price in ``benchmarks/price.json``, with its source."""
    return CostModel(**json.loads(PRICE.read_text("utf-8")))


def run(model_name: str, threads: Sequence[int], repeats: int, say: Say) -> dict[str, Any]:
    """Measure at each thread count; returns the record's ``model``, ``settings`` and ``data``."""
    cost = price()
    data: dict[str, Any] = {"base": BASE, "cost": vars(cost), "source": SOURCE, "threads": {}}
    model: dict[str, Any] = {}
    for n in threads:
        makers = formats.makers(model_name, n)
        data["engines"] = {name: formats.LABELS[name] for name in makers}
        say(f"{n} thread{'s' if n > 1 else ''}: making {len(makers)} engines, each in its own process")
        with crew(makers, n) as workers:
            model = workers[BASE].call("describe")
            data["threads"][str(n)] = _measure(workers, model, repeats, cost, say)
    return {"model": model, "settings": settings(model, model_name, threads, repeats), "data": data}


def _measure(
    workers: dict[str, Worker], model: dict[str, Any], repeats: int, cost: CostModel, say: Say
) -> dict[str, Any]:
    bandwidth, peaks = workers[BASE].call("read_bandwidth"), {name: w.call("peak") for name, w in workers.items()}
    library = {name: w.call("bytes_read") for name, w in workers.items() if name not in formats.FLOATS}
    weights = workers[BASE].call("num_weights")
    cold = {name: w.call("generate", model["short_ids"], WARMUP_TOKENS) for name, w in workers.items()}
    profiles = {}
    for name, (key, new_tokens) in PROFILES.items():
        say(f"  {name} profile: {len(model[key])} prompt tokens, {new_tokens} new, {repeats} rounds")
        profiles[name] = profile(turns(workers, repeats, "generate", model[key], new_tokens), len(model[key]), cost)
    sweep, decode = {}, {}
    room = min(model["context_length"], 1024)
    for n in (n for n in PREFILL_LENGTHS if n <= room):
        sweep[n] = turns(workers, repeats, "time_prefill", n, MIN_SAMPLE_S)
        say(f"  prefill of {n} tokens: " + glance(sweep[n]))
    for n in (n for n in CONTEXTS if n < room):
        decode[n] = turns(workers, repeats, "time_decode", n, DECODE_STEPS)
        say(f"  decode after {n} tokens: " + glance(decode[n]))
    bandwidth = max(bandwidth, workers[BASE].call("read_bandwidth"))  # a limit is the best of all that was seen
    return {
        "read_bandwidth": significant(bandwidth),
        "num_weights": weights,
        "limits": formats.limits(peaks, library, weights, bandwidth),
        "cold": {name: {k: rounded(v) for k, v in c.items() if k.endswith("_s")} for name, c in cold.items()},
        "profiles": profiles,
        "prefill_sweep": {"num_tokens": list(sweep), "engines": by_engine(sweep)},
        "decode_sweep": {"context": list(decode), "engines": by_engine(decode)},
    }


def profile(runs: dict[str, list[dict[str, Any]]], prompt_tokens: int, cost: CostModel) -> dict[str, Any]:
    """One profile: the source's table for each engine, and its speed over two fp32 rivals, round by round.

    ``speedup_over_base`` compares with the same code in fp32, ``speedup_over_fastest_fp32`` with whichever fp32 was the
    faster in that part. ``first_difference`` counts the tokens that equal fp32's; null if all do.
    """
    fastest = {
        part: min((n for n in FP32 if n in runs), key=lambda n: summary([seconds(r) for r in runs[n]])["median"])
        for part, seconds in PARTS.items()
    }
    engines: dict[str, Any] = {}
    for name, results in runs.items():
        rows = [metrics(r["prefill_s"], r["step_s"], prompt_tokens) for r in results]
        for row, r in zip(rows, results, strict=True):
            row["cost_per_1k_tokens"] = cost.per_1k_tokens(row["wall_s"], len(r["step_s"]) + 1)
        engines[name] = {
            "summary": {metric: summary([row[metric] for row in rows]) for metric in rows[0]},
            "speedup_over_base": {part: _speedup(runs[BASE], results, part) for part in PARTS},
            "speedup_over_fastest_fp32": {part: _speedup(runs[fastest[part]], results, part) for part in PARTS},
            "first_difference": first_difference(runs[BASE][0]["token_ids"], results[0]["token_ids"]),
            "runs": [{"prefill_s": rounded(r["prefill_s"]), "step_s": rounded(r["step_s"])} for r in results],
        }
    return {"prompt_tokens": prompt_tokens, "fastest_fp32": fastest, "engines": engines}


def _speedup(base: list[dict[str, Any]], results: list[dict[str, Any]], part: str) -> dict[str, float]:
    seconds = PARTS[part]
    return summary([seconds(b) / seconds(r) for b, r in zip(base, results, strict=True)], 4)


def first_difference(right: Sequence[int], given: Sequence[int]) -> int | None:
    """How many tokens are equal before the first that is not, or None if none differs."""
    return next((i for i, (a, b) in enumerate(zip(right, given, strict=True)) if a != b), None)


def table(record: dict[str, Any]) -> str:
    """The source's table, one block per thread count and profile, with its own figures below."""
    data, lines = record["data"], []
    for n, part in data["threads"].items():
        for name, found in part["profiles"].items():
            lines.append(f"\n{n} thread(s), {name} profile ({found['prompt_tokens']} prompt tokens), median [range]")
            heads = f"{'prefill tok/s':>24s}{'x fp32':>8s}{'decode tok/s':>22s}{'x fp32':>8s}{'p90 ms':>8s}"
            lines.append(f"{'engine':40s}{heads}{'$ per 1K':>10s}{'tokens as fp32':>16s}")
            for engine, label in data["engines"].items():
                e, s = found["engines"][engine], found["engines"][engine]["summary"]
                pre, dec = (
                    f"{s[k]['median']:.1f} [{s[k]['low']:.0f} .. {s[k]['high']:.0f}]"
                    for k in ("prefill_tokens_per_s", "decode_tokens_per_s")
                )
                ratio = {part: spread["median"] for part, spread in e["speedup_over_fastest_fp32"].items()}
                p90, cost = s["p90_latency_s"]["median"] * 1e3, s["cost_per_1k_tokens"]["median"]
                same = "all" if e["first_difference"] is None else str(e["first_difference"])
                lines.append(
                    f"{label:40s}{pre:>24s}{ratio['prefill']:8.2f}{dec:>22s}{ratio['decode']:8.2f}"
                    f"{p90:8.1f}{cost:10.5f}{same:>16s}"
                )
            for engine, (prefill, decode, cost) in data["source"][name].items():
                lines.append(f"{'source, ' + engine:40s}{prefill:24.1f}{'':8s}{decode:22.1f}{'':16s}{cost:10.5f}")
    lines.append(f"\nx fp32: over the faster of two fp32 engines. Source: {data['source']['label']}")
    return "\n".join(lines).strip()


def charts(record: dict[str, Any]) -> dict[str, str]:
    """No pictures of its own: chapters 2 and 7 draw from the record."""
    return {}
