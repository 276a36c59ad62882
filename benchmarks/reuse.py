"""What the experiments on prefix reuse have in common: rivals in turns, the honest price of a cache, texts compared.

A request is one call of :func:`cachequant_lib.generation.generate`, timed from outside. Its **overhead** is what
remains of that time without the forward passes: tokenising, making a KV cache, choosing tokens, and for a cache match,
copies and insert. Three speed-ups are kept, each uncached time over cached time:

``forward``        prefill over prefill; the cache itself costs nothing
``honest_source``  prefill over prefill and overhead: the source's definition, where only the cache pays for tokenising
``honest``         prefill and overhead over prefill and overhead: both sides pay for all they do

Each is the ratio of sums of medians (the source's way), with the same ratio pass by pass beside it for the spread.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.records import BenchmarkError, significant, summary
from cachequant_lib.generation import Generation, generate
from cachequant_lib.kv.prefix import PrefixCache
from cachequant_lib.kv.trie import TokenTrie
from cachequant_lib.model.base import Model
from cachequant_lib.workloads import SHORT_PROMPT

BASE = "no cache"
TRIE = "TokenTrie"
PREFIX = "PrefixCache"
KEPT = "PrefixCache, replies kept"
ENGINES = (BASE, TRIE, PREFIX)
MAX_TOKENS = 2048
"""The source's cap. No experiment but those on eviction reaches it."""
WARMUP_TOKENS = 5
SOURCE_LABEL = "CacheQuant, the source project: GPT-2 small, fp32 in PyTorch, Intel i7-8700K, 8 threads"

Cache = TokenTrie | PrefixCache
Say = Callable[[str], None]


@dataclass(frozen=True)
class Arm:
    """One rival: a model, the prefix cache it asks, or None, and whether that stores what was answered, too."""

    model: Model
    cache: Cache | None = None
    keep_reply: bool = False


@dataclass(frozen=True)
class Answer:
    """One request by one rival; times in seconds."""

    token_ids: tuple[int, ...]
    text: str
    prompt_tokens: int
    cached_tokens: int
    prefill_s: float
    decode_s: float
    overhead_s: float

    @property
    def honest_s(self) -> float:
        """Everything but decoding."""
        return self.prefill_s + self.overhead_s

    @property
    def fixed(self) -> tuple[object, ...]:
        """What must be the same in every pass."""
        return self.token_ids, self.text, self.prompt_tokens, self.cached_tokens


Turn = dict[str, Answer]
Row = dict[str, list[Answer]]


def row_bytes(model: Model) -> int:
    """Keys and values of one token, all layers."""
    c = model.config
    return c.num_layers * 2 * c.num_kv_heads * c.head_dim * 4


def new_cache(engine: str, model: Model, max_tokens: int = MAX_TOKENS) -> Cache | None:
    """An empty cache that holds as many tokens, or None for :data:`BASE`."""
    if engine == BASE:
        return None
    return TokenTrie(max_tokens) if engine == TRIE else PrefixCache(max_tokens * row_bytes(model))


def ask(arm: Arm, prompt: str, new_tokens: int) -> Answer:
    """One timed request.

    Raises
    ------
    BenchmarkError
        The parts last longer than the whole, so the clocks cannot be trusted.
    """
    start = time.perf_counter()
    found: Generation = generate(arm.model, prompt, new_tokens, prefix_cache=arm.cache, keep_reply=arm.keep_reply)
    wall_s = time.perf_counter() - start
    overhead_s = wall_s - found.prefill_s - found.decode_s
    if overhead_s < 0:
        raise BenchmarkError(f"overhead of {overhead_s} s: the forwards took longer than the call; run it again")
    parts = found.token_ids, found.text, found.prompt_tokens, found.cached_tokens
    return Answer(*parts, found.prefill_s, found.decode_s, overhead_s)


def turn(arms: Mapping[str, Arm], prompt: str, new_tokens: int, number: int) -> Turn:
    """Every rival answers one prompt, in reversed order if `number` is odd."""
    order = list(arms) if number % 2 == 0 else list(reversed(list(arms)))
    answers = {name: ask(arms[name], prompt, new_tokens) for name in order}
    return {name: answers[name] for name in arms}


def warm_up(model: Model) -> None:
    """One discarded request through each kind of cache: compiles, starts threads, takes the fingerprint."""
    for engine in ENGINES:
        ask(Arm(model, new_cache(engine, model)), SHORT_PROMPT, WARMUP_TOKENS)


def gather(passes: Sequence[Sequence[Turn]], pairs: Mapping[str, str], exact: Callable[[str], bool]) -> list[Row]:
    """Turn passes of prompts into prompts of passes, and refuse what must not differ.

    Parameters
    ----------
    passes : sequence of sequence of Turn
    pairs : mapping of str to str
        For each rival with a cache, the one whose text it must repeat.
    exact : callable
        Whether a rival must do so; if not, it is only recorded.

    Raises
    ------
    BenchmarkError
        A text differs from the uncached one, or an answer from the same one in another pass.
    """
    columns = zip(*passes, strict=True)
    rows: list[Row] = [{name: [turns[name] for turns in column] for name in column[0]} for column in columns]
    for row in rows:
        for name, answers in row.items():
            if len({answer.fixed for answer in answers}) != 1:
                raise BenchmarkError(f"{name}: passes differ in tokens or hits: {[a.fixed for a in answers]}")
        for name, base in pairs.items():
            if exact(name) and not same_tokens(row, name, base):
                raise BenchmarkError(f"{name} says {row[name][0].text!r}, {base} says {row[base][0].text!r}")
    return rows


def same_tokens(row: Row, name: str, base: str) -> bool:
    """Whether two rivals gave the same new tokens."""
    return row[name][0].token_ids == row[base][0].token_ids


def kept(row: Row, name: str, base: str) -> dict[str, Any]:
    """A rival's part of one row of the record: counts, every sample, and summaries."""
    answers, first = row[name], row[name][0]
    times = {field: [getattr(a, field) for a in answers] for field in ("prefill_s", "overhead_s", "decode_s")}
    return {
        "prompt_tokens": first.prompt_tokens,
        "cached_tokens": first.cached_tokens,
        "hit_rate": significant(first.cached_tokens / first.prompt_tokens),
        "same_tokens_as_uncached": same_tokens(row, name, base),
        "text": first.text,
        "honest_s": summary([a.honest_s for a in answers]),
        **{field: summary(samples) for field, samples in times.items()},
        "samples": {field: [significant(s) for s in samples] for field, samples in times.items()},
    }


def speedups(rows: Sequence[Row], name: str, base: str) -> dict[str, Any]:
    """The three speed-ups of a set of prompts, or of a single one: see the module."""

    def forward(answer: Answer) -> float:
        return answer.prefill_s

    def honest(answer: Answer) -> float:
        return answer.honest_s

    return {
        "forward": _ratio(rows, (base, forward), (name, forward)),
        "honest_source": _ratio(rows, (base, forward), (name, honest)),
        "honest": _ratio(rows, (base, honest), (name, honest)),
    }


Part = tuple[str, Callable[[Answer], float]]


def _ratio(rows: Sequence[Row], over: Part, under: Part) -> dict[str, Any]:
    def total(part: Part) -> float:
        return sum(statistics.median(map(part[1], row[part[0]])) for row in rows)

    def by_pass(part: Part) -> list[float]:
        return [sum(map(part[1], answers)) for answers in zip(*(row[part[0]] for row in rows), strict=True)]

    passes = [a / b for a, b in zip(by_pass(over), by_pass(under), strict=True)]
    return {"ratio": significant(total(over) / total(under)), "passes": summary(passes)}


def fresh() -> None:
    """Drop the caches of the pass before: the trie's nodes point at each other, so they wait for this."""
    gc.collect()


def described(model: Model) -> dict[str, Any]:
    """The record's ``model`` part."""
    return {"name": model.name, "fingerprint": model.fingerprint, "row_bytes": row_bytes(model)}


def cell(found: Mapping[str, Any]) -> str:
    """A ratio with its spread, for a table."""
    return f"{found['ratio']:.2f} [{found['passes']['low']:.2f} .. {found['passes']['high']:.2f}]"
