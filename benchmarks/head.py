"""Chapter 6: the next token is the largest of 50,257 products. Who finds it first, and is it the right one?

A head is timed as a decode step uses it: one hidden state in, one token out. Its weight comes from memory (each call
takes the next of many copies), its hidden states are those of the model on a text. Rivals sit in processes of their own
and take turns. Beside the times: how often int8 alone finds another token than fp32, how many rows the certified head
had to look at again, and how often it had to run the fp32 head after all.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.kernels import footprint_bytes
from benchmarks.records import significant, summary
from benchmarks.workers import Worker, crew

TITLE = "the head: the next token from fp32, int8 and certified products"
BASE = "mkl"
LABELS = {
    "mkl": "PyTorch, fp32",
    "blas": "NumPy, fp32",
    "int8": "this library, int8",
    "certified": "this library, certified",
    "certified_50": "certified, the 50 largest",
}
PROCESS = {"mkl": "torch", "blas": "numpy"}  # the rest share the library's
ALSO = ("gpt2-random", "smollm2-135m", "tiny")  # beside the model asked for: its heads are other sizes
HEADS = ("fp32", "int8", "certified")
NUM_STATES, DECODE_TOKENS = 512, 24
MIN_SAMPLE_S = 0.1

Say = Callable[[str], None]


def run(model_name: str, threads: Sequence[int], repeats: int, say: Say) -> dict[str, Any]:
    """Measure each model at each thread count; returns the record's ``model``, ``settings`` and ``data``."""
    footprint = footprint_bytes()
    data: dict[str, Any] = {"engines": LABELS, "base": BASE, "heads": {}}
    model: dict[str, Any] = {}
    for name, found, states in _models(model_name, say):
        model = model or {"name": name, "fingerprint": found.pop("fingerprint")}
        found.pop("fingerprint", None)
        data["heads"][name] = found
        say(f"{name}: {found['vocab_size']} rows of {found['width']}, {len(states)} hidden states")
        for n in threads:
            makers = {"torch": TorchHead, "numpy": NumpyHead, "library": LibraryHead}
            with crew({key: (make, (name, states, n, footprint)) for key, make in makers.items()}, n) as workers:
                if "choices" not in found:
                    found["choices"] = workers["library"].call("choices")
                found["threads"][str(n)] = _measure(workers, found, repeats, say)
    settings = {
        "model": model_name,
        "threads": list(threads),
        "repeats": repeats,
        "num_states": NUM_STATES,
        "decode_tokens": DECODE_TOKENS,
        "min_sample_s": MIN_SAMPLE_S,
        "footprint_bytes": footprint,
    }
    return {"model": model, "settings": settings, "data": data}


def _models(model_name: str, say: Say) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Each model that is there: its name, its part of the record, and its hidden states (N, C) on a text."""
    import cachequant_lib as cq
    from cachequant_lib.workloads import LONG_PROMPT

    for name in dict.fromkeys((model_name, *ALSO)):
        try:
            model = cq.load(name)
        except cq.ModelNotFoundError:
            if name == model_name:
                raise
            say(f"{name} has not been fetched: left out")
            continue
        text = f"{LONG_PROMPT} {cq.heldout_text()[:4000]}"
        ids = model.tokenizer.encode(text)[: min(NUM_STATES, model.config.context_length)]
        states = model.final_norm(model.hidden_states(np.array(ids), model.new_kv(capacity=len(ids))))
        yield name, describe(model), states


def describe(model: Any) -> dict[str, Any]:
    """The head's size, and its share of what a decode step reads: for each format of the blocks and of the head."""
    from cachequant_lib.model.linear import Linear

    layers = [layer for block in model.blocks for layer in vars(block).values() if isinstance(layer, Linear)]
    vocab, width = model.config.vocab_size, model.config.width
    blocks = {
        "fp32": sum(layer.nbytes for layer in layers),
        "int8": sum(layer.out_features * (layer.in_features + 8) for layer in layers),
    }
    heads = {"fp32": vocab * width * 4, "int8": vocab * (width + 8), "certified": vocab * (width + 12)}
    return {
        "fingerprint": model.fingerprint,
        "vocab_size": vocab,
        "width": width,
        "block_bytes": blocks,
        "head_bytes": heads,
        "head_share_of_bytes": {
            f"{scheme} blocks, {head} head": significant(size / (size + rest), 4)
            for scheme, rest in blocks.items()
            for head, size in heads.items()
        },
        "threads": {},
    }


def _measure(workers: dict[str, Worker], found: dict[str, Any], repeats: int, say: Say) -> dict[str, Any]:
    bandwidth = workers["library"].call("bandwidth")
    samples: dict[str, list[float]] = {name: [] for name in LABELS}
    steps: dict[str, list[float]] = {head: [] for head in HEADS}
    for number in range(repeats):
        for name in list(LABELS) if number % 2 == 0 else list(reversed(LABELS)):
            samples[name].append(workers[PROCESS.get(name, "library")].call("time", name, MIN_SAMPLE_S))
        for head in HEADS if number % 2 == 0 else reversed(HEADS):
            steps[head].append(workers["library"].call("decode", head, DECODE_TOKENS))
    part = figures_of(samples, steps, found["head_bytes"], bandwidth)
    ratios = (f"{name} {engine['speedup_over_base']['median']:.2f}x" for name, engine in part["engines"].items())
    say("  " + ", ".join(ratios))
    return part


def figures_of(
    samples: dict[str, list[float]], steps: dict[str, list[float]], head_bytes: dict[str, int], bandwidth: float
) -> dict[str, Any]:
    """Times, ratios round by round, and shares of the read bandwidth. `steps` are whole decode steps, int8 blocks."""
    engines = {}
    fastest = min(("mkl", "blas"), key=lambda name: summary(samples[name])["median"])
    for name, times in samples.items():
        seconds = summary(times)
        read = head_bytes[name.split("_")[0] if name not in PROCESS else "fp32"]
        engines[name] = {
            "samples_s": [significant(value) for value in times],
            "seconds": seconds,
            "speedup_over_base": summary([b / t for b, t in zip(samples[BASE], times, strict=True)], 4),
            "speedup_over_fastest_fp32": summary([b / t for b, t in zip(samples[fastest], times, strict=True)], 4),
            "share_of_read_bandwidth": significant(read / seconds["median"] / bandwidth, 3),
        }
    decode = {
        head: {
            "samples_s": [significant(value) for value in times],
            "seconds": summary(times),
            "speedup_over_fp32_head": summary([b / t for b, t in zip(steps["fp32"], times, strict=True)], 4),
        }
        for head, times in steps.items()
    }
    return {"read_bandwidth": significant(bandwidth), "fastest_fp32": fastest, "engines": engines, "decode": decode}


# ---- The engines, each in its own process ----------------------------------------------------------------------------


class HeadBench:
    """What every process does: copy a model's head until its copies leave the cache, and time calls of it."""

    def __init__(self, model_name: str, states: Any, num_threads: int, footprint: int) -> None:
        import cachequant_lib as cq

        self._model, self._states = cq.load(model_name), states
        self._threads, self._footprint, self._calls = num_threads, footprint, 0
        self._heads: dict[str, list[Callable[[Any], int]]] = {}

    def time(self, engine: str, min_sample_s: float) -> float:
        """Seconds from a hidden state (1, C) to a token; each call takes the next state and the next copy."""
        if engine not in self._heads:
            head, nbytes, clone = self._make(engine)
            self._heads[engine] = [head, *(clone() for _ in range(self._footprint // nbytes))]
            head(self._states[:1])  # compiles, and starts the threads
        heads, states = self._heads[engine], self._states
        calls, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < min_sample_s or calls < 2:
            at = self._calls % len(states)
            heads[calls % len(heads)](states[at : at + 1])
            calls, self._calls = calls + 1, self._calls + 1
        return spent / calls

    def _make(self, engine: str) -> tuple[Callable[[Any], int], int, Callable[[], Callable[[Any], int]]]:
        """A head, the bytes it reads, and a function that copies it."""
        raise NotImplementedError


class NumpyHead(HeadBench):
    """The BLAS behind NumPy."""

    def _make(self, engine: str) -> Any:
        def head(weight: Any) -> Callable[[Any], int]:
            return lambda x: int((x @ weight.T).argmax())

        weight = self._model.head.weight  # type: ignore[attr-defined]
        return head(weight), weight.nbytes, lambda: head(weight.copy())


class TorchHead(HeadBench):
    """MKL, called through PyTorch."""

    def __init__(self, model_name: str, states: Any, num_threads: int, footprint: int) -> None:
        import torch

        super().__init__(model_name, states, num_threads, footprint)
        torch.set_num_threads(num_threads)
        torch.set_grad_enabled(False)

    def _make(self, engine: str) -> Any:
        import torch

        def head(weight: Any) -> Callable[[Any], int]:
            return lambda x: int(torch.nn.functional.linear(torch.from_numpy(x), weight).argmax())

        weight = torch.from_numpy(self._model.head.weight)  # type: ignore[attr-defined]
        return head(weight), weight.nbytes, lambda: head(weight.clone())


class LibraryHead(HeadBench):
    """The heads of this library; also what they choose, and whole decode steps with each of them."""

    def __init__(self, model_name: str, states: Any, num_threads: int, footprint: int) -> None:
        import numba

        import cachequant_lib as cq

        super().__init__(model_name, states, num_threads, footprint)
        numba.set_num_threads(num_threads)
        self._models = {head: cq.quantize_model(self._model, "int8", head) for head in HEADS}

    def _make(self, engine: str) -> Any:
        def choose(head: Any) -> Callable[[Any], int]:
            if engine == "int8":
                return lambda x: int(head(x).argmax())
            count = 50 if engine == "certified_50" else 1
            return lambda x: int(head.largest(x, count).argmax())

        def clone() -> Callable[[Any], int]:
            other = copy.copy(head)
            other._packed = type(head._packed)(*(part.copy() for part in head._packed))
            return choose(other)

        head: Any = self._models[engine.split("_")[0]].head
        return choose(head), head._packed.nbytes, clone

    def bandwidth(self) -> float:
        """Bytes read a second."""
        from cachequant_lib.checkup import read_bandwidth

        return read_bandwidth(self._threads, budget_s=1.5)

    def choices(self) -> dict[str, Any]:
        """For each hidden state the candidates of the certified head; how often it and int8 differ from fp32."""
        exact, int8, head = (self._models[name].head for name in HEADS)
        counts: dict[int, list[int]] = {1: [], 50: []}
        fallbacks = dict.fromkeys(counts, 0)
        differs = dict.fromkeys(HEADS[1:], 0)
        for row in self._states:
            x = row[None]  # (C,) -> (1, C)
            token = exact(x).argmax()
            differs["int8"] += int(int8(x).argmax() != token)
            differs["certified"] += int(head.largest(x, 1).argmax() != token)
            for count, seen in counts.items():
                before = head.candidates, head.fallbacks  # type: ignore[attr-defined]
                head.largest(x, count)
                seen.append(head.candidates - before[0])  # type: ignore[attr-defined]
                fallbacks[count] += head.fallbacks - before[1]  # type: ignore[attr-defined]
        return {
            "num_states": len(self._states),
            "differs_from_fp32": differs,
            "largest": {
                str(count): {"candidates": seen, "summary": summary(seen), "fallbacks": fallbacks[count]}
                for count, seen in counts.items()
            },
        }

    def decode(self, head: str, num_tokens: int) -> float:
        """Median seconds of a whole decode step after a short prompt: int8 blocks and this head."""
        import cachequant_lib as cq
        from cachequant_lib.workloads import SHORT_PROMPT

        steps = cq.generate(self._models[head], SHORT_PROMPT, num_tokens + 1, stop_at_eos=False).decode_step_s
        return float(np.median(steps))


# ---- What is printed and drawn ---------------------------------------------------------------------------------------


def table(record: dict[str, Any]) -> str:
    """One block a head, one row a thread count and engine."""
    lines = []
    for name, found in record["data"]["heads"].items():
        chosen = found["choices"]
        one, fifty, total = chosen["largest"]["1"], chosen["largest"]["50"], chosen["num_states"]
        lines += [
            f"\n{name}: {found['vocab_size']} rows of {found['width']}; {total} hidden states",
            f"  another token than fp32: int8 {chosen['differs_from_fp32']['int8']}, "
            f"certified {chosen['differs_from_fp32']['certified']}",
            f"  candidates for the largest: median {one['summary']['median']:.0f}, most {one['summary']['high']:.0f}, "
            f"fp32 run {one['fallbacks']} times; for the 50 largest: median {fifty['summary']['median']:.0f}, "
            f"most {fifty['summary']['high']:.0f}, fp32 run {fifty['fallbacks']} times",
            f"{'threads':>9s}  {'engine':28s}{'ms':>9s}{'x PyTorch fp32':>24s}{'x best':>8s}{'of reads':>9s}",
        ]
        for n, part in found["threads"].items():
            for key, engine in part["engines"].items():
                ratio, best = engine["speedup_over_base"], engine["speedup_over_fastest_fp32"]["median"]
                spread = f"{ratio['median']:.2f} [{ratio['low']:.2f} .. {ratio['high']:.2f}]"
                lines.append(
                    f"{n:>9s}  {record['data']['engines'][key]:28s}{engine['seconds']['median'] * 1e3:9.3f}"
                    f"{spread:>24s}{best:8.2f}{engine['share_of_read_bandwidth']:9.1%}"
                )
            for head, step in part["decode"].items():
                share = found["head_share_of_bytes"][f"int8 blocks, {head} head"]
                lines.append(
                    f"{n:>9s}  {f'whole step, {head} head':28s}{step['seconds']['median'] * 1e3:9.3f}  "
                    f"{step['speedup_over_fp32_head']['median']:.2f}x the fp32 head's; the head is {share:.1%} of bytes"
                )
    return "\n".join(lines).strip()


def charts(record: dict[str, Any]) -> dict[str, str]:
    """Speed over PyTorch's fp32 head, one group of bars a model, with the spread of the rounds."""
    from cachequant_lib import figures

    drawn, names = {}, list(record["data"]["heads"])
    engines = [name for name in LABELS if name != BASE]
    for n in map(str, record["settings"]["threads"]):
        ax = figures.new_axes(6.4, 3.2)
        for i, engine in enumerate(engines):
            parts = [record["data"]["heads"][name]["threads"][n]["engines"][engine] for name in names]
            ratios = [part["speedup_over_base"] for part in parts]
            at = [k + (i - (len(engines) - 1) / 2) * 0.2 for k in range(len(names))]
            spread = [[r["median"] - r["low"] for r in ratios], [r["high"] - r["median"] for r in ratios]]
            ax.bar(at, [r["median"] for r in ratios], 0.18, yerr=spread, label=LABELS[engine])
        ax.axhline(1, color="#6b6b6b", linestyle="--")
        ax.set_xticks(range(len(names)), names)
        ax.set_ylabel("times PyTorch's fp32 head")
        ax.legend(fontsize=7)
        drawn[f"{n}-threads"] = figures.svg(ax.figure)
    return drawn
