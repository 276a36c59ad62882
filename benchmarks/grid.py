"""Chapter 5: how many values share a scale, and how exact the scale is: which of the two axes matters?

Every corner of {32, 64, 128, 256, a row, the whole matrix} x {power of two, exact, fp16, snapped}, applied to the
weights alone, to the inputs of the linear layers alone, and to both. Simulated: values are rounded to their codes and
back and multiplied in float32, which loses what the format loses and saves no time. All cells move through the text
together, in a shuffled order, so what is stored at any time is a fair sample of windows, the same for every cell.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, get_args

from benchmarks import simulate, windows
from benchmarks.records import significant
from benchmarks.sweep import Options, Say, Store, sweep
from cachequant_lib.formats.scheme import ScaleRule, Scheme
from cachequant_lib.model.base import Model
from cachequant_lib.model.registry import load

TITLE = "8-bit schemes: values that share a scale x rule of the scale, weights and activations"
PER_MODEL, MODEL = True, "tiny"
BASE = "fp32"
GRANULARITIES: tuple[Any, ...] = (32, 64, 128, 256, "row", "tensor")
SCALES: tuple[ScaleRule, ...] = get_args(ScaleRule)
PARTS = ("weights", "both", "activations")  # the first two share their rounded weights
SHIPPED = {(32, "pow2"): "bfp8", ("row", "exact"): "int8"}
SOURCE = {
    "label": "published by the source project: GPT-2 small, three passages; weights and activations together",
    "fp32_perplexity": 39.8597,
    "perplexity": {
        "32": {"pow2": 40.0124, "exact": 39.8264},
        "row": {"pow2": 40.9298, "exact": 39.9944},
        "tensor": {"exact": 67.20},
    },
    "weights_per_tensor_perplexity": 47.57,
}


def run(model_name: str, text: str | None, window: int | None, options: Options, say: Say) -> dict[str, Any]:
    """Do what is missing of the sweep; returns the record's ``model``, ``settings`` and ``data``."""
    model = load(model_name)
    read = windows.read_text(text, model, window)
    with Store(options.work, f"grid-{model.name}", windows.key(model, read), say) as store:
        store.seed(options.stored)
        sweep(jobs(model_name, model, read), do, store, options, say)
    data = gather(store.found, model, read) | {"jobs": store.record()}
    about = {"name": model.name, "fingerprint": model.fingerprint, "linears": len(simulate.shapes(model))}
    return {"model": about, "settings": {"model": model_name, "text": read.name, "window": window}, "data": data}


def cells() -> list[tuple[Any, ScaleRule, str]]:
    """All cells, those with the same rounded weights beside each other."""
    return [(granularity, scale, part) for granularity in GRANULARITIES for scale in SCALES for part in PARTS]


def cell_name(cell: tuple[Any, ScaleRule, str]) -> str:
    """A cell in one word."""
    return "-".join(map(str, cell))


def jobs(model_name: str, model: Model, text: windows.Text) -> list[tuple[str, Any]]:
    """One job for each cell and window: all cells of a window before any of the next."""
    about = (model_name, model.fingerprint)
    return [
        (f"{BASE if cell is None else cell_name(cell)}/{number}", (*about, cell, text.windows[number]))
        for number in text.order
        for cell in (None, *cells())
    ]


Job = tuple[str, str, tuple[Any, ScaleRule, str] | None, tuple[int, ...]]


def do(job: Job) -> windows.Scores:
    """Score a window with one cell."""
    found: windows.Scores = windows.alone(_do, job)
    return found


def _do(job: Job) -> windows.Scores:
    name, fingerprint, cell, ids = job
    if cell is None:
        return windows.score(name, fingerprint, ids, None)
    rounding, part = simulate.rounder(Scheme(cell[0], cell[1])), cell[2]
    weights, inputs = (None if part == other else rounding for other in ("activations", "weights"))
    model = _simulator(name, fingerprint).model(f"{cell[0]}-{cell[1]}", weights, inputs)
    return windows.score(name, fingerprint, ids, model)


@lru_cache(maxsize=1)
def _simulator(name: str, fingerprint: str) -> simulate.Simulator:
    return simulate.Simulator(windows.known_model(name, fingerprint))


def gather(found: dict[str, windows.Scores], model: Model, text: windows.Text) -> dict[str, Any]:
    """The record's data, from the windows that every cell has scored."""
    out = windows.tabulate(found, [BASE, *map(cell_name, cells())], BASE, text)
    measured, grid = out.pop("measured"), {}
    for cell in cells():
        granularity, scale, part = cell
        place = grid.setdefault(str(granularity), {}).setdefault(scale, _about(Scheme(granularity, scale), model))
        place[part] = measured[cell_name(cell)]
    fixed = {"arithmetic": "simulated (round and multiply in float32)", "base": measured[BASE], "cells": grid}
    return fixed | {"source": SOURCE} | out


def _about(scheme: Scheme, model: Model) -> dict[str, Any]:
    widths = sorted({k for _, k in simulate.shapes(model)})
    by_width = {str(k): significant(simulate.bits_per_value(scheme, k), 9) for k in widths}
    return {
        "bits_per_weight": significant(simulate.mean_bits(scheme, model), 9),
        "bits_per_value_of_row": None if scheme.granularity == "tensor" else by_width,
        "shipped_as": SHIPPED.get((scheme.granularity, scheme.scale)),
    }


def table(record: dict[str, Any]) -> str:
    """One line per corner: bits, and what it costs in perplexity for weights, activations and both."""
    data = record["data"]
    base, protocol = data["base"]["perplexity"], data["protocol"]
    lines = [
        f"{record['model']['name']}, {protocol['text']}: {data['scored']['in_words']}, {data['scored']['tokens']} "
        f"tokens; window {protocol['window']}, stride {protocol['stride']}, no BOS, each token scored once",
        f"fp32 perplexity {base['value']:.3f} [{base['low']:.3f} .. {base['high']:.3f}]; below: change "
        "against fp32, %, paired, 95 %",
        "",
        f"{'shared by':10s}{'scale':9s}{'bits':>9s}"
        + "".join(f"{part:>26s}" for part in PARTS)
        + f"{'KL, both':>12s}{'same top':>10s}",
    ]
    for granularity, row in data["cells"].items():
        for scale, cell in row.items():
            shown = "".join(f"{percent(cell[part]['ratio']):>26s}" for part in PARTS)
            lines.append(
                f"{granularity:10s}{scale:9s}{cell['bits_per_weight']:9.4f}{shown}{cell['both']['kl_mean']['value']:12.2e}"
                f"{cell['both']['top1_agreement']['value']:10.2%}"
            )
    return "\n".join(lines)


def percent(ratio: dict[str, float]) -> str:
    """A ratio as a change in percent with its interval."""
    value, low, high = (100 * (ratio[name] - 1) for name in ("value", "low", "high"))
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]" if abs(value) < 100 else f"{value:+.0f} [{low:+.0f}, {high:+.0f}]"


def charts(record: dict[str, Any]) -> dict[str, str]:
    """SVG pictures of a record, by file name; the chapter draws its own."""
    return {}
