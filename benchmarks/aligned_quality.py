"""Chapter 11: is it still the same model when attention reads fewer bits? Decoded token by token, in every format.

Only decode reads a compressed cache, so a text's beginning is fed at once, exactly, and what follows token by token,
whatever the model would have said. All formats take each step together, side by side with the exact cache: divergence
of the predictions, tokens found likeliest, and how near the race between the two likeliest was wherever another one
won. Two small tasks with exact answers stand beside that (:mod:`benchmarks.aligned_tasks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import windows
from benchmarks.aligned_rows import (
    ALIGNED,
    CONTESTANTS,
    EXACT,
    QUANTISED,
    ROUNDED,
    panel_of,
    prefilled,
    side_by_side,
    step,
)
from benchmarks.aligned_tasks import NUM_ITEMS, Item, item, right
from benchmarks.records import significant
from benchmarks.sweep import Options, Say, Store, sweep
from cachequant_lib.evaluate import mean_interval
from cachequant_lib.kv.base import KVBlock
from cachequant_lib.kv.compressed import CompressedKV
from cachequant_lib.model.base import Model
from cachequant_lib.model.registry import load

TITLE = "AlignedKV and its rivals, decoded token by token: divergence, same tokens, small tasks"
MODEL = "smollm2-135m"  # unless another is asked for
PER_MODEL = True
CONTEXTS = (512, 1024, 4096)
STRETCHES, POSITIONS = 4, 256  # texts for each context, and positions decoded in each
UNIT = 32  # neighbouring positions that the bootstrap draws together
PANELS = {"aligned": (EXACT, *ALIGNED, *ROUNDED), "quantised": (EXACT, *QUANTISED)}
SOURCE = {
    "label": "AlignedKV, the paper: Llama-2-7B in fp16",
    "tasks": "CoQA, TruthfulQA and GSM8K in table 2, one greedy text of 128 tokens in table 3",
    "found": None,
    "greedy": "identical to the original's in its example",
}


def run(model_name: str, text: str | None, window: int | None, options: Options, say: Say) -> dict[str, Any]:
    """Do what is missing of the sweep; returns the record's ``model``, ``settings`` and ``data``."""
    model = load(model_name)
    contexts = [c for c in CONTEXTS if c + POSITIONS < model.config.context_length]
    read = windows.read_text(text, model, window or contexts[-1] + POSITIONS)
    with Store(options.work, f"aligned_quality-{model.name}", windows.key(model, read), say) as store:
        store.seed(options.stored)
        sweep(jobs(model_name, model, read, contexts), do, store, options, say)
    about = {"name": model.name, "fingerprint": model.fingerprint}
    settings = {"model": model_name, "text": read.name, "contexts": contexts, "positions": POSITIONS}
    data = gather(store.found) | {"text": read.protocol, "jobs": store.record(), "source": SOURCE}
    return {"model": about, "settings": settings, "data": data}


def jobs(model_name: str, model: Model, text: windows.Text, contexts: list[int]) -> list[tuple[str, Any]]:
    """Every context of one stretch of text, then the tasks, then the other stretches."""
    about, order = (model_name, model.fingerprint), [n for n in text.order if n < len(text.windows) - 1]
    decoding = [
        (f"decode/{panel}/{context}/{i}", (*about, panel, "decode", context, text.windows[order[i]]))
        for i in range(min(STRETCHES, len(order)))
        for context in contexts
        for panel in PANELS
    ]
    tasks = [
        (f"{task}/{panel}/{i}", (*about, panel, task, i, text.windows[order[-1 - i % len(order)]]))
        for task, count in NUM_ITEMS.items()
        for i in range(count)
        for panel in PANELS
    ]
    first = len(contexts) * len(PANELS)
    return decoding[:first] + tasks + decoding[first:]


def do(job: tuple[str, str, str, str, int, tuple[int, ...]]) -> Any:
    """Do one job of any kind."""
    return windows.alone(_do, job)


def _do(job: tuple[str, str, str, str, int, tuple[int, ...]]) -> Any:
    name, fingerprint, panel, kind, number, ids = job
    if kind == "decode":
        return decode(name, fingerprint, PANELS[panel], ids[: number + POSITIONS + 1])
    return answer(name, fingerprint, PANELS[panel], item(kind, number, windows.known_model(name, fingerprint), ids))


@lru_cache(maxsize=2)
def _twin(name: str, fingerprint: str, many: int) -> Model:
    return side_by_side(windows.known_model(name, fingerprint), many)


@lru_cache(maxsize=1)
def _block(name: str, fingerprint: str, ids: tuple[int, ...]) -> KVBlock:
    return prefilled(windows.known_model(name, fingerprint), ids)


def decode(name: str, fingerprint: str, names: tuple[str, ...], ids: tuple[int, ...]) -> dict[str, Any]:
    """Feed the last positions of a text to all caches; what each predicted, beside the first."""
    block = _block(name, fingerprint, ids[: -POSITIONS - 1])
    panel = panel_of(names, windows.known_model(name, fingerprint), block, POSITIONS)
    twin, rows = _twin(name, fingerprint, len(names)), []
    for token, target in zip(ids[-POSITIONS - 1 : -1], ids[-POSITIONS:], strict=True):
        rows.append(beside(step(twin, panel, [token] * len(names)), target))
    nll, kl, same = (np.array([row[i] for row in rows]) for i in (0, 1, 2))  # each (T, N)
    gaps = [row[3] for row in rows]
    found: dict[str, Any] = {}
    for i, (contestant, kv) in enumerate(zip(names, panel.caches, strict=True)):
        flips = [[int(t), significant(gaps[t], 3)] for t in np.flatnonzero(~same[:, i])]
        sums = {key: np.add.reduceat(part[:, i], range(0, POSITIONS, UNIT)) for key, part in (("nll", nll), ("kl", kl))}
        found[contestant] = {key: [significant(float(v)) for v in part] for key, part in sums.items()}
        found[contestant] |= {"kl_max": significant(float(kl[:, i].max()), 3), "flips": flips, "reads": reads(kv)}
    return {"contestants": found, "gaps": [significant(gap, 3) for gap in gaps]}


def beside(logits: NDArray[np.float64], target: int) -> tuple[Any, Any, Any, float]:
    """Surprise, divergence from the first row, same token likeliest; and the first row's lead of its likeliest."""
    top = logits.max(axis=1, keepdims=True)
    logs = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))  # (N, V)
    kl = (np.exp(logs[0]) * (logs[0] - logs)).sum(axis=1)
    second, first = np.partition(logits[0], -2)[-2:]
    return -logs[:, target], kl, logits.argmax(axis=1) == logits[0].argmax(), float(first - second)


def reads(kv: Any) -> list[int] | None:
    """What was read: numbers of K (and as many of V), bits of keys, of values, of metadata."""
    if not isinstance(kv, CompressedKV):
        return None
    seen = kv.reads
    return [int(v) for v in (seen.num_values, seen.key_bits, seen.value_bits, seen.meta_bits)]


def answer(name: str, fingerprint: str, names: tuple[str, ...], question: Item) -> dict[str, Any]:
    """Let every cache write its own answer, greedily."""
    model = windows.known_model(name, fingerprint)
    panel = panel_of(names, model, _block(name, fingerprint, question.ids[:-1]), question.num_tokens)
    twin, last = _twin(name, fingerprint, len(names)), [question.ids[-1]] * len(names)
    written: list[list[int]] = [[] for _ in names]
    for _ in range(question.num_tokens):
        last = [int(i) for i in step(twin, panel, last).argmax(axis=1)]
        for tokens, token in zip(written, last, strict=True):
            tokens.append(token)
    texts = {n: model.tokenizer.decode(tokens) for n, tokens in zip(names, written, strict=True)}
    return {"answer": question.answer, "right": {n: right(question, text) for n, text in texts.items()}, "texts": texts}


# ---- The record ------------------------------------------------------------------------------------------------------


def gather(found: Mapping[str, Any]) -> dict[str, Any]:
    """The record's data, from the jobs that are finished."""
    data: dict[str, Any] = {"contexts": {}, "tasks": {}, "labels": {n: c.label for n, c in CONTESTANTS.items()}}
    for context in CONTEXTS:
        parts: dict[str, list[Any]] = {}
        for name, result in found.items():
            if name.split("/")[0] == "decode" and name.split("/")[2] == str(context):
                for contestant, part in result["contestants"].items():
                    if contestant != EXACT or "/aligned/" in name:
                        parts.setdefault(contestant, []).append(part)
        data["contexts"][str(context)] = {n: measures(parts[n], parts[EXACT]) for n in CONTESTANTS if n in parts}
    for task in NUM_ITEMS:
        results = [(n, r) for n, r in found.items() if n.split("/")[0] == task]
        marks: dict[str, list[bool]] = {}
        equal: dict[str, list[bool]] = {}
        for name, result in results:
            for contestant, mark in result["right"].items():
                if contestant != EXACT or "/aligned/" in name:
                    marks.setdefault(contestant, []).append(mark)
                    equal.setdefault(contestant, []).append(result["texts"][contestant] == result["texts"][EXACT])
        data["tasks"][task] = {n: {"right": sum(m), "same": sum(equal[n]), "of": len(m)} for n, m in marks.items()}
    return data


def measures(parts: list[Any], exact: list[Any]) -> dict[str, Any]:
    """One contestant at one context, over all stretches that are finished."""
    count = np.full(len(parts) * POSITIONS // UNIT, UNIT)
    nll, kl = (np.concatenate([part[key] for part in parts]) for key in ("nll", "kl"))
    base = np.concatenate([part["nll"] for part in exact])[: len(nll)]
    seen = [part["reads"] for part in parts if part["reads"]]
    flips = sorted(gap for part in parts for _, gap in part["flips"])
    out: dict[str, Any] = {
        "positions": len(parts) * POSITIONS,
        "perplexity": significant(float(np.exp(nll.sum() / count.sum()))),
        "ratio": windows.exp_interval(nll - base, count),
        "kl_mean": windows.interval(mean_interval(kl, count)),
        "kl_max": max(part["kl_max"] for part in parts),
        "flips": len(flips),
        "gaps_at_flips": flips,
    }
    if seen:
        numbers, keys, values, meta = np.sum(seen, axis=0)
        per = {"key": keys / numbers, "value": values / numbers, "metadata": meta / numbers / 2}
        per["all"] = (keys + values + meta) / numbers / 2
        out["bits"] = {name: significant(float(v), 5) for name, v in per.items()}
    return out


def table(record: dict[str, Any]) -> str:
    """One line a contestant and context."""
    data = record["data"]
    lines = [f"{record['model']['name']}, {data['text']['text']}, token by token; flips: another token is likeliest"]
    head = f"{'context':>7s}  {'':26s}{'bits':>7s}{'KL mean':>10s}{'KL max':>10s}{'flips':>8s}{'largest gap':>13s}"
    for context, found in data["contexts"].items():
        lines += ["", head + f"{'perplexity':>12s}"]
        for name, row in found.items():
            bits = f"{row['bits']['all']:.2f}" if "bits" in row else f"{CONTESTANTS[name].bits:g}"
            gap = f"{row['gaps_at_flips'][-1]:.4f}" if row["flips"] else ""
            far = f"{row['kl_mean']['value']:10.1e}{row['kl_max']:10.1e}"
            lines.append(
                f"{context:>7s}  {data['labels'][name]:26s}{bits:>7s}{far}{row['flips']:5d}"
                f"/{row['positions']}{gap:>10s}{row['perplexity']:12.4f}"
            )
    for task, found in data["tasks"].items():
        lines += [
            "",
            f"{task}: right, and same answer as float32, of {max((r['of'] for r in found.values()), default=0)}",
        ]
        lines += [f"{'':9s}{data['labels'][name]:26s}{row['right']:5d}{row['same']:5d}" for name, row in found.items()]
    return "\n".join(lines)


def charts(record: dict[str, Any]) -> dict[str, str]:
    """SVG pictures of a record, by file name; the chapter draws its own."""
    return {}
