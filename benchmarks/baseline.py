"""Chapter 1: how long does one request take in fp32, and where does the time go?

The source project's protocol, with rivals: a warm-up generation of five tokens is thrown away, then every
profile is timed in rounds, the engines taking turns. Added to it: prefill time against prompt length, decode
time against context length, and the two limits of the machine (bytes it can read, products it can make).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.engines import ENGINES, LABELS
from benchmarks.records import significant, summary
from benchmarks.workers import Worker, crew
from cachequant_lib.bench import CostModel, percentile

TITLE = "fp32 GPT-2 on this machine: prefill and decode apart"
BASE = "transformers"
WARMUP_TOKENS = 5
PROFILES = {"short": ("short_ids", 50), "long": ("long_ids", 10)}
PREFILL_LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS = (8, 128, 256, 512, 1000)
DECODE_STEPS = 6
MIN_SAMPLE_S = 0.1

Say = Callable[[str], None]


def run(model_name: str, threads: Sequence[int], repeats: int, say: Say) -> dict[str, Any]:
    """Measure at each thread count; returns the record's ``model``, ``settings`` and ``data``."""
    data: dict[str, Any] = {"engines": LABELS, "base": BASE, "cost": asdict(CostModel()), "threads": {}}
    model: dict[str, Any] = {}
    for n in threads:
        say(f"{n} thread{'s' if n > 1 else ''}: starting {len(ENGINES)} engines, each in its own process")
        makers = {name: (engine, (model_name, n)) for name, engine in ENGINES.items()}
        with crew(makers, n) as workers:
            model = workers["library"].call("describe")
            data["threads"][str(n)] = _measure(workers, model, repeats, say)
    return {"model": model, "settings": settings(model, model_name, threads, repeats), "data": data}


def settings(model: dict[str, Any], model_name: str, threads: Sequence[int], repeats: int) -> dict[str, Any]:
    """What a run over the profiles was set to; takes the prompts out of what a worker said of the model."""
    ids = {f"{name}_ids": model.pop(f"{name}_ids") for name in PROFILES}
    return {
        "model": model_name,
        "threads": list(threads),
        "repeats": repeats,
        "warmup_tokens": WARMUP_TOKENS,
        "profiles": {
            name: {"prompt_tokens": len(ids[key]), "new_tokens": new} for name, (key, new) in PROFILES.items()
        },
        "min_sample_s": MIN_SAMPLE_S,
    }


def _measure(workers: dict[str, Worker], model: dict[str, Any], repeats: int, say: Say) -> dict[str, Any]:
    limits = {name: worker.call("limits") for name, worker in workers.items()}
    bandwidth = limits["library"]["read_bandwidth"]
    matmul = {name: limit["matmul_rate"] for name, limit in limits.items()}
    say(f"  reads {bandwidth / 1e9:.1f} GB/s; fastest product {max(matmul.values()) / 1e9:.0f} GFLOP/s")
    cold = {name: w.call("generate", model["short_ids"], WARMUP_TOKENS) for name, w in workers.items()}
    profiles = {}
    for name, (key, new_tokens) in PROFILES.items():
        say(f"  {name} profile: {len(model[key])} prompt tokens, {new_tokens} new, {repeats} rounds")
        runs = turns(workers, repeats, "generate", model[key], new_tokens)
        profiles[name] = _profile(runs, len(model[key]))
    sweep = {}
    for n in (n for n in PREFILL_LENGTHS if n <= model["context_length"]):
        sweep[n] = turns(workers, repeats, "time_prefill", n, MIN_SAMPLE_S)
        say(f"  prefill of {n} tokens: " + glance(sweep[n]))
    decode = {}
    for n in (n for n in CONTEXTS if n < model["context_length"]):
        decode[n] = turns(workers, repeats, "time_decode", n, DECODE_STEPS)
        say(f"  decode after {n} tokens: " + glance(decode[n]))
    return {
        "limits": {
            "read_bandwidth": significant(bandwidth),
            "read_gb_per_s": significant(bandwidth / 1e9),
            "matmul_rate": {name: significant(rate) for name, rate in matmul.items()},
            "matmul_gflop_per_s": {name: significant(rate / 1e9) for name, rate in matmul.items()},
            **predict(model, bandwidth, max(matmul.values())),
        },
        "cold": {name: {k: rounded(v) for k, v in c.items() if k.endswith("_s")} for name, c in cold.items()},
        "profiles": profiles,
        "prefill_sweep": {"num_tokens": list(sweep), "engines": by_engine(sweep)},
        "decode_sweep": {"context": list(decode), "engines": by_engine(decode)},
    }


def turns(workers: dict[str, Worker], repeats: int, method: str, *args: Any) -> dict[str, list[Any]]:
    """Every engine once a round, the order reversed in every second one."""
    samples: dict[str, list[Any]] = {name: [] for name in workers}
    for number in range(repeats):
        for name in list(workers) if number % 2 == 0 else list(reversed(workers)):
            samples[name].append(workers[name].call(method, *args))
    return samples


def glance(samples: dict[str, list[float]]) -> str:
    """Each engine's median in milliseconds, on one line."""
    return ", ".join(f"{name} {summary(s)['median'] * 1e3:.1f} ms" for name, s in samples.items())


def rounded(value: float | Sequence[float]) -> Any:
    """One number or a list of numbers, to six figures."""
    return significant(value) if isinstance(value, float) else [significant(v) for v in value]


def by_engine(sweep: dict[int, dict[str, list[float]]]) -> dict[str, Any]:
    """Turn point -> engine -> samples around: for each engine its samples and their summary, point by point."""
    names = next(iter(sweep.values())).keys()
    return {
        name: {
            "samples_s": [rounded(point[name]) for point in sweep.values()],
            "seconds": [summary(point[name]) for point in sweep.values()],
        }
        for name in names
    }


def _profile(runs: dict[str, list[dict[str, Any]]], prompt_tokens: int) -> dict[str, Any]:
    engines: dict[str, Any] = {}
    for name, results in runs.items():
        rows = [metrics(r["prefill_s"], r["step_s"], prompt_tokens) for r in results]
        reference = runs[BASE][0]["token_ids"]
        engines[name] = {
            "summary": {metric: summary([row[metric] for row in rows]) for metric in rows[0]},
            "same_tokens_as_base": all(r["token_ids"] == reference for r in results),
            "runs": [{"prefill_s": rounded(r["prefill_s"]), "step_s": rounded(r["step_s"])} for r in results],
        }
    speedup = {
        name: {
            part: summary([seconds(b) / seconds(a) for a, b in zip(results, runs[BASE], strict=True)])
            for part, seconds in PARTS.items()
        }
        for name, results in runs.items()
        if name != BASE
    }
    return {"prompt_tokens": prompt_tokens, "engines": engines, "speedup_over_base": speedup}


PARTS: dict[str, Callable[[dict[str, Any]], float]] = {
    "prefill": lambda r: r["prefill_s"],
    "decode": lambda r: sum(r["step_s"]),
    "wall": lambda r: r["prefill_s"] + sum(r["step_s"]),
}


def metrics(prefill_s: float, step_s: Sequence[float], prompt_tokens: int) -> dict[str, float]:
    """The source's table for one run. Latencies are of decode steps; the wall time is the sum of both timers."""
    wall = prefill_s + sum(step_s)
    return {
        "prefill_tokens_per_s": prompt_tokens / prefill_s,
        "decode_tokens_per_s": len(step_s) / sum(step_s),
        "mean_latency_s": sum(step_s) / len(step_s),
        "p50_latency_s": percentile(step_s, 50),
        "p90_latency_s": percentile(step_s, 90),
        "wall_s": wall,
        "cost_per_1k_tokens": CostModel().per_1k_tokens(wall, len(step_s) + 1),
    }


def predict(model: dict[str, Any], bandwidth: float, matmul_rate: float) -> dict[str, Any]:
    """What the bytes and the products say: the least time for one decode step, and for prefills.

    A decode step must read every weight of a GPT-2 once (but only one row of the position table). A prefill of N tokens
    reads the same bytes and makes 2 operations per weight and token; the head is needed for the last token
    only. Attention's own products are left out: at these lengths they are under a tenth.
    """
    width, vocab, layers = model["width"], model["vocab_size"], model["num_layers"]
    block_weights = layers * 12 * width * width
    other_weights = layers * 13 * width + 2 * width + vocab * width + width  # biases, norms, head, one position
    bytes_read = 4 * (block_weights + other_weights)
    lengths = [n for n in PREFILL_LENGTHS if n <= model["context_length"]]
    products = [(2 * n * block_weights + 2 * vocab * width) / matmul_rate for n in lengths]
    return {
        "bytes_per_token": bytes_read,
        "read_ms": significant(bytes_read / bandwidth * 1e3),
        "read_s": significant(bytes_read / bandwidth),
        "operations_per_prefill_token": 2 * block_weights,
        "prefill_num_tokens": lengths,
        "prefill_products_s": [significant(v) for v in products],
    }


def table(record: dict[str, Any]) -> str:
    """The source's table, one block per thread count and profile."""
    lines = []
    for n, part in record["data"]["threads"].items():
        for name, profile in part["profiles"].items():
            lines.append(
                f"\n{n} thread(s), {name} profile ({profile['prompt_tokens']} prompt tokens), median [low .. high]"
            )
            lines.append(f"{'engine':28s}{'prefill tok/s':>26s}{'decode tok/s':>26s}{'p90 ms':>9s}{'$ per 1K':>11s}")
            for engine, found in profile["engines"].items():
                s = found["summary"]
                pre, dec = (
                    f"{s[k]['median']:.1f} [{s[k]['low']:.1f} .. {s[k]['high']:.1f}]"
                    for k in ("prefill_tokens_per_s", "decode_tokens_per_s")
                )
                p90, cost = s["p90_latency_s"]["median"] * 1e3, s["cost_per_1k_tokens"]["median"]
                label = record["data"]["engines"][engine]
                lines.append(f"{label:28s}{pre:>26s}{dec:>26s}{p90:9.1f}{cost:11.5f}")
        limits = part["limits"]
        lines.append(
            f"limits: reads {limits['read_bandwidth'] / 1e9:.1f} GB/s, so the bytes of one token take "
            f"{limits['read_s'] * 1e3:.1f} ms ({1 / limits['read_s']:.1f} tok/s)"
        )
    return "\n".join(lines).strip()


def charts(record: dict[str, Any]) -> dict[str, str]:
    """SVG pictures of a record, by file name."""
    from cachequant_lib import figures

    drawn, labels = {}, record["data"]["engines"]
    for n, part in record["data"]["threads"].items():
        drawn[f"prefill-{n}-threads"] = figures.svg(figures.prefill_rate(part, labels).figure)
        drawn[f"decode-{n}-threads"] = figures.svg(figures.decode_time(part, labels).figure)
    return drawn
