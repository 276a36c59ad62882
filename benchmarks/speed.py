"""Chapter 7: a whole model, ours and other projects', at prefill and decode: who is the fastest, and by how much?

Every engine has the same weights and a process of its own. Before any is timed it must compute the right thing: the
scores after each of some tokens are compared with this library's fp32 scores, the other projects' first in fp32 (is it
the same model?) and then quantised. Then they take turns, and ratios are taken within a round.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.baseline import Say, glance, turns
from benchmarks.contestants import LABELS, OURS, makers
from benchmarks.peers import PEERS, ROOT, interpreter, weights
from benchmarks.records import BenchmarkError, significant, summary
from benchmarks.workers import PeerWorker, Worker

SUBJECT = "int8_certified"  # int8 layers, and a head whose choice is proved to be fp32's
# Threads, base, phase, sizes, and the times as fast as the base that we set out to reach at each of those sizes.
GOALS: tuple[tuple[str, str, str, tuple[str, ...], float], ...] = (
    ("1", "lean", "prefill", ("128",), 3.8),
    ("1", "lean", "prefill", ("512",), 3.2),
    ("1", "lean", "decode", ("8",), 4.3),
    ("2", "lean", "decode", ("8",), 5.5),
    ("1", "transformers", "decode", ("8",), 5.0),
    *((n, "ctranslate2", "prefill", ("128", "512"), 1.3) for n in "12"),
    *((n, "ctranslate2", "decode", ("8", "512"), 1.1) for n in "12"),
    *((n, "llamacpp", "prefill", ("128", "512"), 5.0) for n in "12"),
    *((n, "llamacpp", "decode", ("8", "512"), 2.5) for n in "12"),
    *(
        (n, peer, phase, sizes, 1.0)
        for peer in ("onnxruntime", "openvino")
        for phase, sizes in (("prefill", ("128", "512")), ("decode", ("8", "512")))
        for n in "12"
    ),
)

TITLE = "a whole model at prefill and decode, against PyTorch and other engines"
BASES = ("lean", "transformers", *(peer.name for peer in PEERS))
PREFILL_LENGTHS = (8, 128, 512)
CONTEXTS = (8, 512)
NEW_TOKENS = 50
MIN_SAMPLE_S = 0.1
CHECK_TOKENS, CHECK_FIRST = 24, 8
# Length of the difference between the scores and the fp32 scores, over the length of the latter. A wrong model is at
# 1.4; the random model, made to be sensitive, is at 0.13 in any 8-bit format. Tables of fp16 make 0.003 in llama.cpp.
EXACT_LIMIT, QUANTISED_LIMIT = 0.01, 0.25


def run(model_name: str, threads: Sequence[int], repeats: int, say: Say) -> dict[str, Any]:
    """Measure at each thread count; returns the record's ``model``, ``settings`` and ``data``."""
    from cachequant_lib.model.quantize import HEADS

    model, folder = _export(model_name, say)
    absent = {name: f"no {pair[1]} head yet" for name, pair in OURS.items() if pair[1] not in HEADS}
    absent |= {peer.name: "not installed: run `make peers`" for peer in PEERS if not interpreter().exists()}
    data: dict[str, Any] = {
        "engines": LABELS | {peer.name: peer.label for peer in PEERS},
        "absent": absent,
        "exact": _exact(folder, absent, say),
        "versions": {},
        "threads": {},
    }
    for n in threads:
        say(f"{n} thread{'s' if n > 1 else ''}: each engine in its own process")
        with _crew(model_name, folder, n, absent, say) as workers:
            data["threads"][str(n)] = _measure(workers, folder, absent, repeats, say)
            for worker in workers.values():
                data["versions"] |= worker.call("versions")
    data["goals"] = goals(data)
    for name, reason in absent.items():
        say(f"absent: {data['engines'][name]}: {reason}")
    settings = {
        "model": model_name,
        "threads": list(threads),
        "repeats": repeats,
        "prefill_lengths": list(PREFILL_LENGTHS),
        "contexts": list(CONTEXTS),
        "new_tokens": NEW_TOKENS,
        "min_sample_s": MIN_SAMPLE_S,
        "exact_limit": EXACT_LIMIT,
        "quantised_limit": QUANTISED_LIMIT,
    }
    return {"model": model, "settings": settings, "data": data}


def _export(model_name: str, say: Say) -> tuple[dict[str, Any], Path]:
    """Write the weights down for the peers, and beside them the scores that every engine is compared with."""
    import cachequant_lib as cq

    model = cq.load(model_name)
    if model.config.architecture != "gpt2":
        raise BenchmarkError(f"{model_name} is a {model.config.architecture}; this experiment compares GPT-2 models")
    folder = ROOT / "_build" / "peers" / f"{model.name}-{model.fingerprint[:12]}"
    say(f"weights and reference scores in {folder.relative_to(ROOT)}")
    weights.write(model, folder)
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, CHECK_TOKENS).tolist()
    logits = model.forward(ids, model.new_kv())[CHECK_FIRST - 1 :]  # (T, V) -> (rows, V)
    tokens = cq.generate(model, ids, CHECK_TOKENS // 2, stop_at_eos=False).token_ids
    np.savez(folder / "reference.npz", ids=ids, logits=logits, tokens=tokens)
    config = model.config
    return {
        "name": model.name,
        "fingerprint": model.fingerprint,
        "num_layers": config.num_layers,
        "width": config.width,
        "vocab_size": config.vocab_size,
        "context_length": config.context_length,
        "weight_bytes": model.nbytes,
    }, folder


def _peer(name: str, folder: Path, num_threads: int, exact: bool) -> PeerWorker:
    module = "benchmarks.peers.serve"
    return PeerWorker(name, interpreter(), module, name, folder, num_threads, exact, num_threads=num_threads)


def _exact(folder: Path, absent: dict[str, str], say: Say) -> dict[str, Any]:
    """Each peer in fp32, by the same conversion: is it this very model? Names those that are not in ``absent``."""
    found = {}
    for peer in (peer for peer in PEERS if peer.name not in absent):
        try:
            with _peer(peer.name, folder, 1, exact=True) as worker:
                worker.ready()
                found[peer.name] = _checked(worker, folder, EXACT_LIMIT)
            say(f"  {peer.label.split(',')[0]} in fp32: scores differ by {found[peer.name]['relative_error']:.1e}")
        except BenchmarkError as problem:
            absent[peer.name] = str(problem)
        for copy in folder.parent.glob(f"{folder.name}-*-fp32"):
            shutil.rmtree(copy)  # half a gigabyte, and of no more use
    return found


def _checked(worker: Worker, folder: Path, limit: float) -> dict[str, Any]:
    """What the worker's scores are like.

    Raises
    ------
    BenchmarkError
        They are not those of this model.
    """
    found: dict[str, Any] = worker.call("check", str(folder / "reference.npz"))
    error = found["relative_error"]
    if not error <= limit:
        raise BenchmarkError(f"engine {worker.name!r} computes another model: scores differ by {error:.2g} > {limit}")
    return {name: significant(v) if isinstance(v, float) else v for name, v in found.items()}


@contextmanager
def _crew(
    model_name: str, folder: Path, num_threads: int, absent: dict[str, str], say: Say
) -> Iterator[dict[str, Worker]]:
    """Workers by name, made one after the other; a peer that cannot be made joins ``absent``."""
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        heads = [head for name, (_, head) in OURS.items() if name not in absent]
        for name, (make, args) in makers(model_name, num_threads, heads).items():
            workers[name] = stack.enter_context(Worker(name, make, *args, num_threads=num_threads))
            workers[name].ready()
        for peer in (peer for peer in PEERS if peer.name not in absent):
            try:
                worker = stack.enter_context(_peer(peer.name, folder, num_threads, exact=False))
                worker.ready()
                workers[peer.name] = worker
            except BenchmarkError as problem:
                absent[peer.name] = str(problem)
                say(f"  {problem}")
        yield workers


def _measure(
    workers: dict[str, Worker], folder: Path, absent: dict[str, str], repeats: int, say: Say
) -> dict[str, Any]:
    checks = {}
    for name, worker in list(workers.items()):
        limit = EXACT_LIMIT if name in ("transformers", "lean", "fp32") else QUANTISED_LIMIT
        try:
            checks[name] = _checked(worker, folder, limit)
        except BenchmarkError as problem:
            if name in LABELS:  # ours, or PyTorch's: nothing measured here would mean anything
                raise
            absent[name] = str(problem)
            del workers[name]
    loaded = {name: worker.call("memory", True) for name, worker in workers.items()}
    bandwidth = workers["fp32"].call("read_bandwidth")
    say(f"  reads {bandwidth / 1e9:.1f} GB/s; {len(workers)} engines checked")
    prefill, decode = {}, {}
    for count in PREFILL_LENGTHS:
        samples = turns(workers, repeats, "time_first_token", count, MIN_SAMPLE_S)
        prefill[str(count)] = cell(samples)
        say(f"  prefill of {count}: {glance(samples)}")
    for context in CONTEXTS:
        samples = turns(workers, repeats, "time_decode_tokens", context, NEW_TOKENS)
        decode[str(context)] = cell(samples)
        say(f"  decode after {context}: {glance(samples)}")
    busy = {name: worker.call("memory") for name, worker in workers.items()}
    return {
        "read_bandwidth": significant(bandwidth),
        "checks": checks,
        "memory": {
            name: {
                "empty_bytes": loaded[name].get("empty"),
                "loaded_bytes": loaded[name].get("now"),
                "peak_bytes": busy[name].get("peak"),
                **beyond(loaded[name], busy[name]),
            }
            for name in workers
        },
        "weight_bytes": {name: workers[name].call("weight_bytes") for name in OURS if name in workers},
        "prefill": prefill,
        "decode": decode,
    }


def beyond(loaded: dict[str, int], busy: dict[str, int]) -> dict[str, float]:
    """Megabytes beyond the imported packages: with the weights, and at most while it worked."""
    if not (loaded and busy):
        return {}
    return {
        "weights_mb": significant((loaded["now"] - loaded["empty"]) / 1e6, 4),
        "work_mb": significant((busy["peak"] - loaded["empty"]) / 1e6, 4),
    }


def cell(samples: dict[str, list[float]]) -> dict[str, Any]:
    """For each engine its times, and how many times as fast it was as each base, round by round."""
    return {
        name: {
            "samples_s": [significant(value) for value in times],
            "seconds": summary(times),
            "speedup_over": {
                base: summary([b / t for b, t in zip(samples[base], times, strict=True)], 4)
                for base in BASES
                if base in samples
            },
        }
        for name, times in samples.items()
    }


def goals(data: dict[str, Any]) -> dict[str, Any]:
    """What was set out for, and what was reached by :data:`SUBJECT`: the least median over the sizes."""
    found: dict[str, dict[str, Any]] = {"goal": {}, "reached": {}, "met": {}}
    for threads, base, phase, sizes, goal in GOALS:
        cells = data["threads"].get(threads, {}).get(phase, {})
        ratios = [
            cells[size][SUBJECT]["speedup_over"][base]
            for size in sizes
            if base in cells.get(size, {}).get(SUBJECT, {}).get("speedup_over", {})
        ]
        if ratios:
            words = f"{phase} {'after' if phase == 'decode' else 'of'} {' and '.join(sizes)}"
            name = f"{words}, {threads} thread{'s' * (threads > '1')}, over {data['engines'][base]}"
            found["goal"][name] = goal
            found["reached"][name] = min(ratios, key=lambda ratio: float(ratio["median"]))
            found["met"][name] = "yes" if found["reached"][name]["median"] >= goal else "no"
    return found


def table(record: dict[str, Any]) -> str:
    """Times, one row an engine; then how many times as fast as the bases."""
    data, lines = record["data"], []
    for n, part in data["threads"].items():
        cells = [(f"prefill {k}", v) for k, v in part["prefill"].items()]
        cells += [(f"decode @{k}", v) for k, v in part["decode"].items()]
        names = list(next(iter(part["prefill"].values())))
        lines.append(f"\n{n} thread(s): milliseconds (a prefill, a decoded token), median; memory in MB at most")
        lines.append(f"{'engine':38s}" + "".join(f"{title:>14s}" for title, _ in cells) + f"{'memory':>9s}")
        for name in names:
            row = "".join(f"{found[name]['seconds']['median'] * 1e3:14.2f}" for _, found in cells)
            peak = part["memory"][name]["peak_bytes"]
            lines.append(f"{data['engines'][name]:38s}{row}" + (f"{peak / 1e6:9.0f}" if peak else f"{'-':>9s}"))
        for base in (base for base in BASES if base in names):
            lines.append(
                f"\n{n} thread(s): times as fast as {data['engines'][base]}, median [low .. high] of the rounds"
            )
            for name in names:
                row = "".join(f"{_spread(found[name]['speedup_over'][base]):>22s}" for _, found in cells)
                lines.append(f"{data['engines'][name]:38s}{row}")
    for name, goal in data["goals"]["goal"].items():
        reached = _spread(data["goals"]["reached"][name])
        lines.append(f"goal {goal:4.1f}, reached {reached:22s} {data['goals']['met'][name]:4s} {name}")
    lines += [f"absent: {data['engines'][name]}: {reason}" for name, reason in data["absent"].items()]
    return "\n".join(lines).strip()


def _spread(found: dict[str, float]) -> str:
    return f"{found['median']:.2f} [{found['low']:.2f} .. {found['high']:.2f}]"


def charts(record: dict[str, Any]) -> dict[str, str]:
    """SVG pictures of a record, by file name."""
    from cachequant_lib import figures

    drawn, labels = {}, record["data"]["engines"]
    for n, part in record["data"]["threads"].items():
        for phase, word in (("prefill", "{} tokens"), ("decode", "after {} tokens")):
            points = {
                labels[name]: {
                    word.format(size): found[name]["speedup_over"]["lean"] for size, found in part[phase].items()
                }
                for name in next(iter(part[phase].values()))
            }
            axes = figures.speedups(points, f"{phase}: times as fast as {labels['lean']}")
            drawn[f"{phase}-{n}-threads"] = figures.svg(axes.figure)
    return drawn
