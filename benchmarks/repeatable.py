"""Is a cached answer the cold one? The same prompt in one forward, and cut in two as a prefix cache cuts it.

The products of a layer are summed in another order when fewer rows are multiplied at once, so the last digits of the
activations depend on the cut. Where an activation is rounded to a code by its row's largest magnitude, every such digit
moves the scale, and here and there a code; a power of two moves only when the largest magnitude crosses one.

Two cures stand beside the plain path, which runs one linear layer after the other. Coarser scales make a difference
rarer. The compiled pass over all layers sums in one order however the prompt is cut, so there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from benchmarks import simulate, windows
from benchmarks.candidates import BASE, ROW, SNAPPED, known_format
from benchmarks.records import significant
from benchmarks.scoring import hidden
from cachequant_lib.formats.scheme import Scheme, codes_of, scales_of, split_groups
from cachequant_lib.model.base import Model
from cachequant_lib.model.ops import FloatArray
from cachequant_lib.workloads import LONG_PROMPT

NUM_PROMPTS = 24
PROMPT_TOKENS = 192
NEW_TOKENS = 16
SOURCE_CUT = 9  # the source cuts one prompt after nine tokens
COMPARED = (BASE, "bfp8", "int8", "int8-snapped")
WHOLE = {"bfp8-whole": "bfp8", "int8-whole": "int8"}  # in one compiled pass over all layers
PATHS = (*COMPARED, *WHOLE)
PERTURBATION = 1e-6
RULES = {"int8": ROW, "int8-snapped": SNAPPED, "bfp8": Scheme(32, "pow2")}
SOURCE = "published by the source project: cut after 9 tokens, largest change of a logit BFP8 < 1e-3, int8 > 1e-2"


def jobs(text: windows.Text) -> list[tuple[Any, ...]]:
    """Name, kind, format and argument of each job: prompts are the starts of windows, cut at random."""
    rng = np.random.default_rng(1)
    starts = [text.windows[i][:PROMPT_TOKENS] for i in text.order if len(text.windows[i]) > PROMPT_TOKENS][:NUM_PROMPTS]
    cuts = [int(c) for c in rng.integers(PROMPT_TOKENS // 8, PROMPT_TOKENS * 7 // 8, len(starts))]
    made: list[tuple[Any, ...]] = [
        (f"cut/{name}/{i}", "cut", name, (ids, cut))
        for i, (ids, cut) in enumerate(zip(starts, cuts, strict=True))
        for name in PATHS
    ]
    made += [(f"source-cut/{name}", "source-cut", name, None) for name in PATHS]
    return [*made, ("perturbed", "perturbed", BASE, text.windows[text.order[0]])]


@lru_cache(maxsize=len(PATHS))
def model_of(model_name: str, fingerprint: str, name: str) -> Model:
    """Return the model in one of these formats, on its path: layer by layer unless the name says otherwise."""
    return replace(known_format(model_name, fingerprint, WHOLE.get(name, name)), layer_by_layer=name not in WHOLE)


def answer(model: Model, kind: str, given: Any) -> dict[str, Any]:
    """Compare a prompt's cold answer with its answer after a cut."""
    if kind == "source-cut":
        ids = model.tokenizer.encode(LONG_PROMPT)
        kv = model.new_kv(capacity=len(ids))
        whole = model.forward(ids, model.new_kv(capacity=len(ids)))
        parts = np.concatenate([model.forward(ids[:SOURCE_CUT], kv), model.forward(ids[SOURCE_CUT:], kv)])
        return {"largest_gap": significant(float(np.abs(whole - parts).max())), "equal": bool((whole == parts).all())}
    ids, cut = given
    cold, cold_tokens = _answer(model, [ids])
    warm, warm_tokens = _answer(model, [ids[:cut], ids[cut:]])
    return {
        "equal": bool((cold == warm).all()),
        "largest_gap": significant(float(np.abs(cold - warm).max())),
        "first_difference": first_difference(warm_tokens, cold_tokens),
    }


def _answer(model: Model, parts: Sequence[Sequence[int]]) -> tuple[FloatArray, list[int]]:
    """Logits after the prompt, and the greedy tokens that follow."""
    kv = model.new_kv(capacity=sum(map(len, parts)) + NEW_TOKENS)
    for part in parts:
        found = model.forward(part, kv, last_only=True)[0]
    first, tokens = found, [int(found.argmax())]
    while len(tokens) < NEW_TOKENS:
        tokens.append(int(model.forward(tokens[-1:], kv)[0].argmax()))
    return first, tokens


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """First place at which two texts differ, the end of one included; None if there is none."""
    for place, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return place
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def perturbed(model: Model, ids: Sequence[int]) -> dict[str, Any]:
    """Share of scales and codes that move when every input of every linear moves by a millionth of itself."""
    seen: list[FloatArray] = []

    def keep(x: FloatArray, out: FloatArray) -> None:
        seen.append(x.copy())
        out[:] = x

    hidden(simulate.Simulator(model).model("float32", None, keep), ids)
    rng = np.random.default_rng(0)
    out = {}
    moved = [x * (1 + PERTURBATION * rng.choice([-1, 1], x.shape)).astype(np.float32) for x in seen]
    for name, rule in RULES.items():
        scales = codes = num_scales = num_codes = 0
        for x, y in zip(seen, moved, strict=True):
            (s, c), (t, d) = _quantized(x, rule), _quantized(y, rule)
            scales, codes = scales + int((s != t).sum()), codes + int((c != d).sum())
            num_scales, num_codes = num_scales + s.size, num_codes + c.size
        out[name] = {
            "scales_moved": significant(scales / num_scales),
            "codes_moved": significant(codes / num_codes),
            "num_scales": num_scales,
        }
    return {"relative": PERTURBATION, "inputs": len(seen), "rules": out}


def _quantized(x: FloatArray, rule: Scheme) -> tuple[FloatArray, Any]:
    group = x.shape[1] if isinstance(rule.granularity, str) else int(rule.granularity)
    groups = split_groups(x, x.shape[1] // group)
    scales = scales_of(np.abs(groups).max(axis=-1), rule.scale)
    return scales, codes_of(groups, scales[..., None])


def gather(found: dict[str, Any]) -> dict[str, Any]:
    """The record's part."""
    ready = [i for i in range(NUM_PROMPTS) if all(f"cut/{name}/{i}" in found for name in PATHS)]
    formats = {}
    for name in PATHS:
        rows = [found[f"cut/{name}/{i}"] for i in ready]
        places = [row["first_difference"] for row in rows]
        formats[name] = {
            "prompts": len(rows),
            "bit_equal": sum(row["equal"] for row in rows),
            "largest_gap": max((row["largest_gap"] for row in rows), default=0.0),
            "same_next_token": sum(place != 0 for place in places),
            "same_texts": places.count(None),
            "first_differences": places,
            "source_cut": found.get(f"source-cut/{name}"),
        }
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": NEW_TOKENS,
        "paths": {"": "one linear layer after the other", "-whole": "one compiled pass over all layers"},
        "formats": formats,
        "perturbed": found.get("perturbed"),
        "source": SOURCE,
    }


def table(part: dict[str, Any]) -> list[str]:
    """One line a format: how often a cut prompt is answered as the whole one."""
    lines = [
        f"a prompt of {part['prompt_tokens']} tokens, whole and cut in two; then {part['new_tokens']} greedy ones",
        f"{'format':21s}{'prompts':>8s}{'bit-equal':>11s}{'same texts':>12s}{'largest gap of a logit':>24s}"
        f"{'scales moved':>14s}{'codes moved':>13s}  by {PERTURBATION:.0e}",
    ]
    rules = (part["perturbed"] or {"rules": {}})["rules"]
    for name, row in part["formats"].items():
        line = f"{name:21s}{row['prompts']:8d}{row['bit_equal']:11d}{row['same_texts']:12d}{row['largest_gap']:24.2e}"
        if name in rules:
            line += f"{rules[name]['scales_moved']:14.2%}{rules[name]['codes_moved']:13.2e}"
        lines.append(line)
    for label, over in (("snapped", part["snapped_over_int8"]), ("in one pass", part["whole_over_int8"])):
        shown = f"{over['value']:.6f} [{over['low']:.6f} .. {over['high']:.6f}]"
        lines.append(f"perplexity, int8 {label} over int8: {shown}")
    return lines
