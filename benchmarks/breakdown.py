"""Chapter 7: where do the milliseconds of one forward pass go? Each stage alone, and their sum against the whole.

Four stages of a linear layer, at each of the model's shapes: its input is quantised, integers are multiplied, the sums
are scaled, and Python calls all that. Then norms, attention, activations, residuals and the head. Calls are batched
until the clock's own cost vanishes, and a layer's weights come from memory, as in a model: each call takes the next of
many copies. What the whole pass takes beyond the sum of its stages is called ``rest``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.baseline import rounded, turns
from benchmarks.formats import LIBRARY
from benchmarks.kernels import footprint_bytes
from benchmarks.layers import NumpyBench, TorchBench
from benchmarks.records import significant, summary
from benchmarks.stages import CONTEXT, LayerStages, ModelStages
from benchmarks.workers import Worker, crew

TITLE = "one forward pass taken apart: every stage of every format, at decode and at prefill"
ROWS = {"decode": 1, "prefill": CONTEXT}
SCHEMES = ("int8", "bfp8")
STAGES = ("", "_quantize", "_multiply", "_bare")
PIECES = ("norm", "attention", "activation", "residual")
COMPILED = ("norm", "attention", "activation")  # stages of the compiled pass; it adds residuals while it multiplies
ORDER = ("quantize", "multiply", "scale", "call", *PIECES, "head", "rest", "sum", "whole")
MIN_SAMPLE_S = 0.05
SOURCE = {
    "label": "CacheQuant, the source project: one layer of GPT-2 small, Intel i7-8700K, 8 threads, milliseconds",
    "shapes": [[768, 2304], [768, 768], [768, 3072], [3072, 768]],
    "kernel_ms": {
        "decode": {"bfp8": [0.106, 0.049, 0.130, 0.142], "int8": [0.076, 0.039, 0.093, 0.100]},
        "prefill": {"bfp8": [21.29, 7.22, 28.37, 28.26], "int8": [14.47, 4.95, 19.25, 18.76]},
    },
    "times_as_long_as_fp32": {
        "decode": {"bfp8": [2.8, 4.6], "int8": [2.2, 2.7]},
        "prefill": {"bfp8": [10.7, 11.9], "int8": [7.3, 8.0]},
    },
}
"""Its layers are called again and again on the same weights, which therefore lie in the cache; the ranges are over its
four shapes, whole layer over PyTorch's fp32."""

Say = Callable[[str], None]


def run(model_name: str, threads: Sequence[int], repeats: int, say: Say) -> dict[str, Any]:
    """Measure at each thread count; returns the record's ``model``, ``settings`` and ``data``."""
    from cachequant_lib.model.quantize import HEADS

    formats = {name: parts for name, parts in LIBRARY.items() if parts[1] in HEADS}
    footprint, model = footprint_bytes(), {}
    data: dict[str, Any] = {"formats": {k: list(v) for k, v in formats.items()}, "source": SOURCE, "threads": {}}
    for n in threads:
        say(f"{n} thread{'s' if n > 1 else ''}: weights rotate through {footprint >> 20} MiB of copies")
        makers: dict[str, Any] = {
            "layers": (LayerStages, (n, footprint)),
            "numpy": (NumpyBench, (n, footprint)),
            "torch": (TorchBench, (n, footprint)),
            "model": (ModelStages, (model_name, n, formats)),
        }
        with crew(makers, n) as workers:
            model = workers["model"].call("describe")
            data["threads"][str(n)] = {
                phase: _phase(workers, model, rows, list(formats), repeats, say) | {"rows": rows}
                for phase, rows in ROWS.items()
            }
    settings = {"model": model_name, "threads": list(threads), "repeats": repeats, "context": CONTEXT}
    settings |= {"min_sample_s": MIN_SAMPLE_S, "footprint_bytes": footprint}
    return {"model": model, "settings": settings, "data": data}


def _phase(
    workers: dict[str, Worker], model: dict[str, Any], rows: int, formats: list[str], repeats: int, say: Say
) -> dict[str, Any]:
    layers = []
    for shape in model["shapes"]:
        place = shape["in_features"], shape["out_features"]
        engines = {f"{s}{stage}": workers["layers"] for s in SCHEMES for stage in STAGES}
        engines |= {"blas": workers["numpy"], "mkl": workers["torch"]}
        taken = _rounds(engines, repeats, *place, rows, MIN_SAMPLE_S)
        layers.append(shape | {"stages": layer_stages(taken)})
        say(f"  {place[0]} -> {place[1]}, {rows} rows: " + _glance(layers[-1]["stages"]))
    layered = model["layered"]
    names = [*PIECES, *(f"head_{f}" for f in formats), *(f"whole_{f}" for f in (*formats, *layered))]
    names += [f"{piece}_compiled" for piece in COMPILED if model["compiled"]]
    taken = _rounds(dict.fromkeys(names, workers["model"]), repeats, rows, MIN_SAMPLE_S)
    pieces = {name: kept(samples) for name, samples in taken.items()}
    totals = {
        name: total(name, layers, pieces, model["num_layers"], name in model["compiled"])
        for name in (*formats, *layered)
    }
    say("  whole pass: " + ", ".join(f"{k} {v['whole'] * 1e3:.2f} ms" for k, v in totals.items()))
    return {"layers": layers, "pieces": pieces, "totals": totals}


def _rounds(engines: dict[str, Worker], repeats: int, *arguments: Any) -> dict[str, list[float]]:
    """Every stage once a round, in turns; a worker is asked by the stage's name."""
    asked = {name: _Asked(worker, name) for name, worker in engines.items()}
    return turns(asked, repeats, "time", *arguments)  # type: ignore[arg-type]


class _Asked:
    """A worker that knows which of its stages is meant."""

    def __init__(self, worker: Worker, stage: str) -> None:
        self._worker, self._stage = worker, stage

    def call(self, method: str, *arguments: Any) -> Any:
        return self._worker.call(method, self._stage, *arguments)


def kept(samples: Sequence[float]) -> dict[str, Any]:
    """Samples with their summary."""
    return {"samples_s": rounded(samples), "seconds": summary(samples)}


def layer_stages(taken: dict[str, list[float]]) -> dict[str, Any]:
    """For each scheme: quantise, multiply, scale, call and the whole layer; differences are taken round by round.

    ``multiply`` is the bare kernel, ``scale`` what the real one takes beyond it, ``call`` what the layer takes beyond
    its two kernels. A difference of two close times can come out below zero: then it is lost in the noise.
    """
    found: dict[str, Any] = {"blas": kept(taken["blas"]), "mkl": kept(taken["mkl"])}
    for scheme in SCHEMES:
        whole, quantize, multiply, bare = (taken[f"{scheme}{stage}"] for stage in STAGES)
        found[scheme] = {
            "whole": kept(whole),
            "quantize": kept(quantize),
            "multiply": kept(bare),
            "scale": kept([m - b for m, b in zip(multiply, bare, strict=True)]),
            "call": kept([w - q - m for w, q, m in zip(whole, quantize, multiply, strict=True)]),
        }
        found[scheme]["times_as_long_as_fp32"] = {
            rival: summary([w / f for w, f in zip(whole, taken[rival], strict=True)], 4) for rival in ("blas", "mkl")
        }
    return found


def total(
    name: str, layers: list[dict[str, Any]], pieces: dict[str, Any], num_layers: int, compiled: bool
) -> dict[str, float]:
    """Seconds of each stage in one forward pass of a format, from medians; ``rest`` is whole minus sum.

    A compiled pass calls no layer from Python, and has norms, attention and activations of its own.
    """
    key = name.removesuffix("_layers")
    scheme, found = LIBRARY[key][0], {}
    stages = ("multiply",) if scheme == "fp32" else ("quantize", "multiply", "scale", "call")[: 3 if compiled else 4]
    for stage in stages:
        found[stage] = num_layers * sum(
            layer["per_block"]
            * _median(layer["stages"]["blas"] if scheme == "fp32" else layer["stages"][scheme][stage])
            for layer in layers
        )
    if compiled:
        found |= {piece: _median(pieces[f"{piece}_compiled"]) for piece in COMPILED}
    else:
        found |= {piece: _median(pieces[piece]) for piece in PIECES}
    found["head"] = _median(pieces[f"head_{key}"])
    parts, whole = sum(found.values()), _median(pieces[f"whole_{name}"])
    found |= {"sum": parts, "whole": whole, "rest": whole - parts}
    return {stage: significant(seconds) for stage, seconds in found.items()}


def _median(found: dict[str, Any]) -> float:
    return float(found["seconds"]["median"])


def _glance(stages: dict[str, Any]) -> str:
    return ", ".join(f"{s} {_median(stages[s]['whole']) * 1e3:.3f} ms" for s in SCHEMES) + (
        f", fp32 {_median(stages['blas']) * 1e3:.3f} (NumPy) {_median(stages['mkl']) * 1e3:.3f} (PyTorch)"
    )


def table(record: dict[str, Any]) -> str:
    """One block per thread count and phase: the stages of each layer shape, then the pass as a whole."""
    lines = []
    for n, phases in record["data"]["threads"].items():
        for phase, found in phases.items():
            lines.append(f"\n{n} thread(s), {phase}, {found['rows']} row(s): microseconds of one layer")
            heads = ("quantise", "multiply", "scale", "call", "layer", "fp32", "x NumPy", "x PyTorch")
            lines.append(f"{'shape':>14s} {'format':8s}" + "".join(f"{h:>11s}" for h in heads))
            for layer in found["layers"]:
                for scheme in SCHEMES:
                    s = layer["stages"][scheme]
                    parts = (s[k] for k in ("quantize", "multiply", "scale", "call", "whole"))
                    us = [_median(part) * 1e6 for part in (*parts, layer["stages"]["blas"])]
                    times = [1 / s["times_as_long_as_fp32"][k]["median"] for k in ("blas", "mkl")]
                    shape = f"{layer['in_features']} -> {layer['out_features']}"
                    lines.append(
                        f"{shape:>14s} {scheme:8s}"
                        + "".join(f"{v:11.1f}" for v in us)
                        + "".join(f"{t:11.2f}" for t in times)
                    )
            lines.append(f"{n} thread(s), {phase}: milliseconds of one forward pass")
            lines.append(f"{'':14s} " + "".join(f"{s:>11s}" for s in ORDER))
            for name, parts in found["totals"].items():
                cells = (f"{parts[s] * 1e3:11.3f}" if s in parts else f"{'':11s}" for s in ORDER)
                lines.append(f"{name:>14s} " + "".join(cells))
    return "\n".join(lines).strip()


def charts(record: dict[str, Any]) -> dict[str, str]:
    """No pictures of its own: chapter 7 draws from the record."""
    return {}
