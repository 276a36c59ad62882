"""Chapter 15: do quantised weights and a prefix cache help each other?

Three weight formats, each without a cache and with one, on the three prompt sets. The slower a prefill, the more a hit
saves. One prefix cache serves all three formats: keys and values computed with other weights are other values, and the
cache's namespaces keep them apart. In fp32 every cached text must equal the uncached one. For the integer formats the
record only says whether it does: they quantise what they multiply, so a last digit that depends on how a prompt
was cut may move a code, and with it a token.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks import reuse
from benchmarks.records import significant
from benchmarks.reuse import BASE, PREFIX, Arm, Say
from cachequant_lib.bench import pin_threads
from cachequant_lib.kv.prefix import PrefixCache
from cachequant_lib.model.base import Model
from cachequant_lib.model.quantize import quantize_model
from cachequant_lib.model.registry import load
from cachequant_lib.workloads import PROMPT_SETS

TITLE = "weight formats with and without a prefix cache, on the three prompt sets"
BESIDE = True  # other models than the default have records of their own
SCHEMES = ("fp32", "bfp8", "int8")
NEW_TOKENS = 10
SOURCE = {
    "label": reuse.SOURCE_LABEL + "; sum over five prompts, seconds",
    "total_honest_s": {
        "high_reuse": {"fp32": [0.175, 0.181], "bfp8": [0.973, 0.474], "int8": [0.597, 0.343]},
        "long_high_reuse": {"fp32": [1.051, 0.442], "bfp8": [7.361, 1.871], "int8": [5.269, 1.368]},
        "no_reuse": {"fp32": [0.163, 0.181], "bfp8": [0.372, 0.399], "int8": [0.274, 0.251]},
    },
    "columns": [BASE, PREFIX],
}
"""Its uncached column is the internal prefill alone, its cached one has the overhead in it; ours are named apart."""

PAIRS = {f"{scheme}, {PREFIX}": f"{scheme}, {BASE}" for scheme in SCHEMES}


def run(model_name: str, threads: Sequence[int], repeats: int, say: Say) -> dict[str, Any]:
    """Measure at each thread count; returns the record's ``model``, ``settings`` and ``data``."""
    models = in_schemes(load(model_name), say)
    found = {str(n): _measure(models, n, repeats, say) for n in threads}
    settings = {"model": model_name, "threads": list(threads), "repeats": repeats, "new_tokens": NEW_TOKENS}
    settings |= {"max_tokens_per_scheme": reuse.MAX_TOKENS, "warmup_tokens": reuse.WARMUP_TOKENS}
    data = {"schemes": list(SCHEMES), "pairs": PAIRS, "source": SOURCE, "threads": found}
    return {"model": reuse.described(models["fp32"]), "settings": settings, "data": data}


def in_schemes(model: Model, say: Say) -> dict[str, Model]:
    """The model with its weights in each format; embeddings and head are shared."""
    models = {"fp32": model}
    for scheme in SCHEMES[1:]:
        say(f"quantising to {scheme}")
        models[scheme] = quantize_model(model, scheme)
    return models


def _measure(models: dict[str, Model], num_threads: int, repeats: int, say: Say) -> dict[str, Any]:
    found = {}
    with pin_threads(num_threads):
        for model in models.values():
            reuse.warm_up(model)
        for name, prompts in PROMPT_SETS.items():
            passes = []
            for number in range(repeats):
                reuse.fresh()
                arms = _arms(models)
                passes.append([reuse.turn(arms, p, NEW_TOKENS, number + i) for i, p in enumerate(prompts)])
                say(f"{num_threads} thread(s), {name}: pass {number + 1} of {repeats}")
            found[name] = _set(reuse.gather(passes, PAIRS, lambda arm: arm.startswith("fp32")), prompts)
    return found


def _arms(models: dict[str, Model]) -> dict[str, Arm]:
    """Each format alone, and each with the one cache they share."""
    cache = PrefixCache(len(models) * reuse.MAX_TOKENS * reuse.row_bytes(models["fp32"]))
    arms = {}
    for scheme, model in models.items():
        arms[f"{scheme}, {BASE}"] = Arm(model)
        arms[f"{scheme}, {PREFIX}"] = Arm(model, cache)
    return arms


def _set(rows: list[reuse.Row], prompts: Sequence[str]) -> dict[str, Any]:
    names = [name for cached, base in PAIRS.items() for name in (base, cached)]
    kept = [
        {"prompt": prompt, "arms": {name: reuse.kept(row, name, PAIRS.get(name, name)) for name in names}}
        for row, prompt in zip(rows, prompts, strict=True)
    ]
    totals = {}
    for name in names:
        parts = {"prefill_s": 0.0, "honest_s": 0.0, "decode_s": 0.0}
        for row in rows:
            for part in parts:
                parts[part] += statistics.median(getattr(answer, part) for answer in row[name])
        rate = statistics.mean(row["arms"][name]["hit_rate"] for row in kept)
        same = sum(row["arms"][name]["same_tokens_as_uncached"] for row in kept)
        sums = {f"total_{part}": significant(seconds) for part, seconds in parts.items()}
        totals[name] = sums | {"hit_rate": significant(rate), "same_texts": same}
    speedup = {cached: reuse.speedups(rows, cached, base) for cached, base in PAIRS.items()}
    return {"rows": kept, "totals": totals, "speedup": speedup}


def table(record: dict[str, Any]) -> str:
    """One block per thread count: seconds up to the first token, honest, all five prompts."""
    data, lines = record["data"], []
    for n, sets in data["threads"].items():
        lines.append(f"\n{n} thread(s): honest prefill of five prompts, s; speed-up honest [pass by pass]")
        heads = f"{'no cache':>10s}{'cache':>10s}{'speed-up':>22s}{'same texts':>12s}{'source':>16s}"
        lines.append(f"{'set':17s}{'weights':9s}{heads}")
        for name, found in sets.items():
            for scheme, (cached, base) in zip(data["schemes"], data["pairs"].items(), strict=True):
                totals, ratio = found["totals"], found["speedup"][cached]["honest"]
                theirs = " -> ".join(f"{s:.3f}" for s in data["source"]["total_honest_s"][name][scheme])
                same = f"{totals[cached]['same_texts']} of {len(found['rows'])}"
                lines.append(
                    f"{name:17s}{scheme:9s}{totals[base]['total_honest_s']:10.3f}{totals[cached]['total_honest_s']:10.3f}"
                    f"{reuse.cell(ratio):>22s}{same:>12s}{theirs:>16s}"
                )
    return "\n".join(lines).strip()


def charts(record: dict[str, Any]) -> dict[str, str]:
    """SVG pictures of a record, by file name; none yet."""
    return {}
