"""Chapter 8: is it still the same model? Every weight format on one text, at a size that can rank them.

Four questions, and what answers each. How well does it predict: perplexity, and its ratio to fp32's on the same
windows, which is what ranks. Does it predict the same: divergence from fp32's predictions, and how often both find the
same token likeliest. Does it write the same: greedy texts beside fp32's. Does it answer the same when a prefix cache
cuts its prompt in two: :mod:`benchmarks.repeatable`. The source's protocol, three short passages, stands beside them to
show what it cannot tell apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import repeatable, scoring, simulate, windows
from benchmarks.candidates import BASE, FORMATS, Format, known_format
from benchmarks.grid import percent
from benchmarks.records import significant
from benchmarks.sweep import Options, Say, Store, sweep
from cachequant_lib.generation import generate
from cachequant_lib.model.base import Model
from cachequant_lib.model.registry import load
from cachequant_lib.workloads import EVALUATION_PASSAGES, PROMPT_SETS

TITLE = "is it still the same model? perplexity, divergence, texts and repeatability of every weight format"
PER_MODEL, MODEL = True, "tiny"
NEW_TOKENS = 30
FIRST_WINDOWS = 8  # before the smaller questions are answered; the rest of the text comes after them
STRETCHES = 8  # of all passages: units that are drawn again
PROMPTS = [prompt for prompts in PROMPT_SETS.values() for prompt in prompts]
SOURCE = {
    "label": "published by the source project: GPT-2 small, three passages, one forward each",
    "perplexity": {
        "fp32": 39.8597,
        "bfp8": 40.0124,
        "int8": 39.9944,
        "int8-tensor-weights": 47.57,
        "int8-tensor": 67.2,
    },
    "greedy": "two prompts, 30 tokens each: BFP8 identical to fp32 on both, int8 on neither",
}


def run(model_name: str, text: str | None, window: int | None, options: Options, say: Say) -> dict[str, Any]:
    """Do what is missing of the sweep; returns the record's ``model``, ``settings`` and ``data``."""
    model = load(model_name)
    read = windows.read_text(text, model, window)
    with Store(options.work, f"quality-{model.name}", windows.key(model, read), say) as store:
        store.seed(options.stored)
        sweep(jobs(model_name, model, read), do, store, options, say)
    about = {"name": model.name, "fingerprint": model.fingerprint, "linears": len(simulate.shapes(model))}
    settings = {"model": model_name, "text": read.name, "window": window, "new_tokens": NEW_TOKENS}
    data = gather(store.found, model, read) | {"jobs": store.record()}
    return {"model": about, "settings": settings, "data": data}


def jobs(model_name: str, model: Model, text: windows.Text) -> list[tuple[str, Any]]:
    """Some windows with every format, then the texts and the cut prompts, then the other windows."""
    about = (model_name, model.fingerprint)
    scores = [(f"{n}/{i}", (*about, "score", n, text.windows[i])) for i in text.order for n in FORMATS]
    first = FIRST_WINDOWS * len(FORMATS)
    small = [(f"passages/{name}", (*about, "passages", name, None)) for name in FORMATS]
    small += [(name, (*about, kind, *job)) for name, kind, *job in repeatable.jobs(text)]
    small += [(f"greedy/{n}/{i}", (*about, "greedy", n, i)) for i in range(len(PROMPTS)) for n in FORMATS]
    return [*scores[:first], *small, *scores[first:]]


def do(job: tuple[str, str, str, str, Any]) -> Any:
    """Do one job of any kind."""
    return windows.alone(_do, job)


def _do(job: tuple[str, str, str, str, Any]) -> Any:
    name, fingerprint, kind, about, given = job
    if kind == "score":
        return windows.score(
            name, fingerprint, given, None if about == BASE else known_format(name, fingerprint, about)
        )
    if kind == "perturbed":
        return repeatable.perturbed(windows.known_model(name, fingerprint), given)
    if kind in ("cut", "source-cut"):
        return repeatable.answer(repeatable.model_of(name, fingerprint, about), kind, given)
    model = known_format(name, fingerprint, about)
    if kind == "passages":
        ids = (model.tokenizer.encode(passage) for passage in EVALUATION_PASSAGES.values())
        return [[round(float(v), 7) for v in scoring.surprise(scoring.base(model, passage))] for passage in ids]
    return [int(i) for i in generate(model, PROMPTS[given], max_new_tokens=NEW_TOKENS).token_ids]


def gather(found: dict[str, Any], model: Model, text: windows.Text) -> dict[str, Any]:
    """The record's data, from what every format has done."""
    out = windows.tabulate(found, list(FORMATS), BASE, text)
    measured, numbers = out.pop("measured"), out["windows"]["numbers"]
    formats = {name: _about(made, name, model) | measured[name] for name, made in FORMATS.items()}
    parts = {"formats": formats, "source_protocol": _passages(found), "greedy": _greedy(found)}
    again, counts = repeatable.gather(found), np.array(out["windows"]["tokens"])
    for cure in ("snapped", "whole"):
        gap = [found[f"int8-{cure}/{i}"]["nll"] - found[f"int8/{i}"]["nll"] for i in numbers]
        again[f"{cure}_over_int8"] = windows.exp_interval(np.array(gap), counts)
    return out | parts | {"reproducible": again, "source": SOURCE}


def _about(made: Format, name: str, model: Model) -> dict[str, Any]:
    bits = made.bits(model)
    return {"label": made.label, "arithmetic": made.arithmetic, "bits_per_weight": significant(bits, 9)}


def _passages(found: dict[str, Any]) -> dict[str, Any]:
    """The source's protocol: every passage in one forward, its first token not scored, all tokens weighed alike."""
    nll = {name: np.concatenate(found[f"passages/{name}"]) for name in FORMATS if f"passages/{name}" in found}
    if BASE not in nll:
        return {}
    starts = np.linspace(0, len(nll[BASE]), STRETCHES + 1).astype(int)[:-1]
    counts = np.diff([*starts, len(nll[BASE])])
    formats = {}
    for name, values in nll.items():
        formats[name] = {"perplexity": windows.exp_interval(np.add.reduceat(values, starts), counts)}
        if name != BASE:
            formats[name]["ratio"] = windows.exp_interval(np.add.reduceat(values - nll[BASE], starts), counts)
    return {
        "passages": list(EVALUATION_PASSAGES),
        "tokens": len(nll[BASE]),
        "interval": f"95 %, bootstrap over {STRETCHES} stretches of the tokens: far too few to be trusted",
        "formats": formats,
    }


def _greedy(found: dict[str, Any]) -> dict[str, Any]:
    """How many greedy texts equal fp32's, and where the others leave it; prompts that every format has finished."""
    ready = [i for i in range(len(PROMPTS)) if all(f"greedy/{name}/{i}" in found for name in FORMATS)]
    formats = {}
    for name in FORMATS:
        pairs = [(found[f"greedy/{name}/{i}"], found[f"greedy/{BASE}/{i}"]) for i in ready]
        places = [repeatable.first_difference(ours, theirs) for ours, theirs in pairs]
        formats[name] = {"identical": places.count(None), "first_divergence": places}
    return {"new_tokens": NEW_TOKENS, "prompts": [PROMPTS[i] for i in ready], "of": len(ready), "formats": formats}


def table(record: dict[str, Any]) -> str:
    """One line a format: perplexity, change against fp32 with its interval, divergence, agreement, equal texts."""
    data = record["data"]
    protocol, formats = data["protocol"], data["formats"]
    base = formats[BASE]["perplexity"]
    lines = [
        f"{record['model']['name']}, {protocol['text']}: {data['scored']['in_words']}, {data['scored']['tokens']} "
        f"tokens; window {protocol['window']}, stride {protocol['stride']}, no BOS, each token scored once",
        f"fp32 perplexity {base['value']:.3f} [{base['low']:.3f} .. {base['high']:.3f}], "
        f"{formats[BASE]['bits_per_byte']:.4f} bits per byte; change against fp32 is paired, 95 %",
        "",
        f"{'format':21s}{'bits':>8s}{'perplexity':>12s}{'change, %':>26s}{'KL mean':>10s}{'KL max':>9s}"
        f"{'same top':>10s}{'texts':>7s}   {'three passages, %':24s}",
    ]
    for name, row in formats.items():
        greedy = data["greedy"]["formats"][name]["identical"]
        line = f"{name:21s}{row['bits_per_weight']:8.4f}{row['perplexity']['value']:12.4f}"
        if name != BASE:
            short = data["source_protocol"].get("formats", {}).get(name)
            line += (
                f"{percent(row['ratio']):>26s}{row['kl_mean']['value']:10.2e}{row['kl_max']:9.2e}"
                f"{row['top1_agreement']['value']:10.2%}{greedy:>4d}/{data['greedy']['of']}"
                f"   {percent(short['ratio']) if short else '':24s}"
            )
        lines.append(line)
    return "\n".join([*lines, "", *repeatable.table(data["reproducible"])])


def charts(record: dict[str, Any]) -> dict[str, str]:
    """SVG pictures of a record, by file name; the chapter draws its own."""
    return {}
