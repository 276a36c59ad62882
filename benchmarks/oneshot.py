"""Chapter 13: what does a prefix cache save, and cost, on single prompts?

The source's protocol: three sets of five prompts, asked in order against an empty cache, 10 new tokens each. Without a
cache, with the teaching trie and with the prefix cache, the three taking turns prompt by prompt. Every text is compared
with the uncached one.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks import reuse
from benchmarks.records import significant
from benchmarks.reuse import BASE, ENGINES, Arm, Say
from cachequant_lib.bench import pin_threads
from cachequant_lib.model.base import Model
from cachequant_lib.model.registry import load
from cachequant_lib.workloads import PROMPT_SETS

TITLE = "single prompts with a prefix cache: what it saves and what it costs"
BESIDE = True  # other models than the default have records of their own
NEW_TOKENS = 10
SOURCE = {
    "label": reuse.SOURCE_LABEL,
    "sets": {
        "high_reuse": {
            "prompt_tokens": [23, 26, 23, 26, 24],
            "cached_tokens": [0, 19, 16, 19, 16],
            "hit_rate": 0.565,
            "forward": 1.10,
            "honest_source": [0.957, 0.962],
        },
        "long_high_reuse": {
            "prompt_tokens": [282, 282, 283, 284, 286],
            "cached_tokens": [0, 275, 275, 276, 276],
            "hit_rate": 0.777,
            "forward": 2.96,
            "honest_source": [2.32, 2.38],
        },
        "no_reuse": {
            "prompt_tokens": [7, 10, 8, 7, 9],
            "cached_tokens": [0, 0, 0, 0, 1],
            "hit_rate": 0.022,
            "forward": 1.01,
            "honest_source": [0.902, 0.909],
        },
    },
}
PAIRS = {engine: BASE for engine in ENGINES if engine != BASE}


def run(model_name: str, threads: Sequence[int], repeats: int, say: Say) -> dict[str, Any]:
    """Measure at each thread count; returns the record's ``model``, ``settings`` and ``data``."""
    model = load(model_name)
    found = {str(n): _measure(model, n, repeats, say) for n in threads}
    settings = {"model": model_name, "threads": list(threads), "repeats": repeats, "new_tokens": NEW_TOKENS}
    settings |= {"max_tokens": reuse.MAX_TOKENS, "warmup_tokens": reuse.WARMUP_TOKENS}
    data = {"engines": list(ENGINES), "base": BASE, "source": SOURCE, "threads": found}
    return {"model": reuse.described(model), "settings": settings, "data": data}


def _measure(model: Model, num_threads: int, repeats: int, say: Say) -> dict[str, Any]:
    found = {}
    with pin_threads(num_threads):
        reuse.warm_up(model)
        for name, prompts in PROMPT_SETS.items():
            passes = []
            for number in range(repeats):
                reuse.fresh()
                arms = {engine: Arm(model, reuse.new_cache(engine, model)) for engine in ENGINES}
                passes.append([reuse.turn(arms, p, NEW_TOKENS, number + i) for i, p in enumerate(prompts)])
                say(f"{num_threads} thread(s), {name}: pass {number + 1} of {repeats}")
            found[name] = _set(reuse.gather(passes, PAIRS, lambda engine: True), prompts)
    return found


def _set(rows: list[reuse.Row], prompts: Sequence[str]) -> dict[str, Any]:
    kept = [
        {
            "prompt": prompt,
            "engines": {engine: reuse.kept(row, engine, BASE) for engine in ENGINES},
            "speedup": {engine: reuse.speedups([row], engine, BASE) for engine in PAIRS},
        }
        for row, prompt in zip(rows, prompts, strict=True)
    ]
    rates = {engine: [row["engines"][engine]["hit_rate"] for row in kept] for engine in ENGINES}
    return {
        "rows": kept,
        "hit_rate": {engine: significant(statistics.mean(r)) for engine, r in rates.items()},
        "speedup": {engine: reuse.speedups(rows, engine, BASE) for engine in PAIRS},
    }


def table(record: dict[str, Any]) -> str:
    """One block per thread count: sets and caches, with the source's figures under them."""
    lines = []
    for n, sets in record["data"]["threads"].items():
        lines.append(f"\n{n} thread(s): uncached over cached time, ratio of sums of medians [pass by pass]")
        lines.append(f"{'set':17s}{'cache':13s}{'hits':>6s}{'forward only':>22s}{'honest, source':>22s}{'honest':>22s}")
        for name, found in sets.items():
            for engine, speedup in found["speedup"].items():
                cells = "".join(f"{reuse.cell(s):>22s}" for s in speedup.values())
                lines.append(f"{name:17s}{engine:13s}{found['hit_rate'][engine]:6.3f}{cells}")
            theirs = record["data"]["source"]["sets"][name]
            low, high = theirs["honest_source"]
            lines.append(
                f"{'':17s}{'the source':13s}{theirs['hit_rate']:6.3f}{theirs['forward']:22.2f}{f'{low} .. {high}':>22s}"
            )
    return "\n".join(lines).strip()


def charts(record: dict[str, Any]) -> dict[str, str]:
    """SVG pictures of a record, by file name; none yet."""
    return {}
