"""Chapter 15: what happens at the edges, with each weight format and each prefix cache?

The source's cases and more. The source recorded what happened to happen; here each case has a promise, the class
of an error or a number of tokens, and the record says whether it was kept. Kept means also: no logit is infinite or not
a number, the cache never passes its cap, and after an error it holds what it held before. Tokens are compared with
the uncached ones: in fp32 a difference ends the run, in the integer formats it is recorded (:mod:`benchmarks.combined`
says why).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks import reuse
from benchmarks.combined import SCHEMES, in_schemes
from benchmarks.records import significant, summary
from benchmarks.reuse import BASE, PREFIX, TRIE, Cache, Say
from cachequant_lib.bench import pin_threads
from cachequant_lib.errors import CacheQuantError
from cachequant_lib.generation import generate, greedy
from cachequant_lib.kv.trie import TokenTrie
from cachequant_lib.model.base import Model
from cachequant_lib.model.registry import load

TITLE = "edge cases with each weight format and cache: promises and what came"
BESIDE = True  # other models than the default have records of their own
CONTEXT = 1024
"""Models that see further are held to this, or a full context would take a quarter of an hour."""
CAP = 256
SOURCE = {
    "label": reuse.SOURCE_LABEL,
    "cases": {
        "empty prompt": "RuntimeError from a reshape",
        "only spaces": "ok",
        "longer than the context": "IndexError in the embedding",
        "the whole context, ten new tokens": "IndexError in the first decode step",
        "no new tokens": "one token all the same",
        "200 new tokens": "ok: 5.06 s fp32, 4.92 s BFP8, 4.41 s int8",
        "eviction pressure": "ok: 2.96 s fp32, 8.12 s BFP8, 5.63 s int8",
    },
}

Prompt = str | list[Any]


@dataclass(frozen=True)
class Case:
    """Prompts asked one after the other, and what is promised: an error's name, or the new tokens of every prompt.

    ``cached`` is how many tokens each prompt finds in an empty cache of ``cap`` tokens, by kind of cache, if that is
    part of the promise.
    """

    name: str
    prompts: tuple[Prompt, ...]
    new_tokens: int
    error: str | None = None
    cap: int = reuse.MAX_TOKENS
    cached: dict[str, list[int]] | None = None


def cases(model: Model) -> list[Case]:
    """All of them, for a model's vocabulary and context."""
    rng, config = np.random.default_rng(0), model.config

    def ids(count: int) -> Prompt:
        return rng.integers(1, config.vocab_size, count).tolist()

    context, prompt = config.context_length, ids(40)
    long = ids(CAP + 44)
    return [
        Case("empty prompt", ("",), 5, "TokenError"),
        Case("no token ids", ([],), 5, "TokenError"),
        Case("only spaces", ("   ",), 5),
        Case("odd characters", ("\x00 naïve 🙂 \u202eשלום\ud7ff",), 5),
        Case("one token", (ids(1),), 5, cached={TRIE: [0], PREFIX: [0]}),
        Case("ids that are no whole numbers", ([1.5, 2.0],), 5, "TokenError"),
        Case("an id outside the vocabulary", ([config.vocab_size],), 5, "TokenError"),
        Case("fewer than no new tokens", (prompt,), -1, "TokenError"),
        Case("no new tokens", (prompt,), 0),
        Case("200 new tokens", (prompt,), 200),
        Case("longer than the context", (ids(context + 76),), 5, "ContextLengthError"),
        Case("the whole context, one new token", (ids(context),), 1),
        Case("the whole context, ten new tokens", (ids(context),), 10, "ContextLengthError"),
        Case("the same prompt twice", (prompt, prompt), 5, cached={TRIE: [0, 39], PREFIX: [0, 39]}),
        Case("the beginning of a stored prompt", (prompt, prompt[:20]), 5, cached={TRIE: [0, 19], PREFIX: [0, 19]}),
        Case(
            "longer than the cache's cap, twice",
            (long, long),
            2,
            cap=CAP,
            cached={TRIE: [0, CAP + 43], PREFIX: [0, 0]},  # the trie's cap is soft, as the source's
        ),
        Case("eviction pressure", tuple(ids(20) for _ in range(20)), 3, cap=CAP),
    ]


def run(model_name: str, threads: Sequence[int], repeats: int, say: Say) -> dict[str, Any]:
    """Try every case with every combination; returns the record's ``model``, ``settings`` and ``data``."""
    model = load(model_name)
    context = min(CONTEXT, model.config.context_length)
    model = replace(model, config=replace(model.config, context_length=context))
    models = in_schemes(model, say)
    found = {str(n): _try_all(models, n, repeats, say) for n in threads}
    settings = {"model": model_name, "threads": list(threads), "repeats": repeats, "context_length": context}
    data = {"combinations": [f"{s}, {e}" for s, e in _combinations()], "source": SOURCE, "threads": found}
    return {"model": reuse.described(model), "settings": settings | {"cap_tokens": CAP}, "data": data}


def _combinations() -> list[tuple[str, str]]:
    """Every format without a cache and with the prefix cache; the trie in fp32 only."""
    return [(s, e) for s in SCHEMES for e in (BASE, TRIE, PREFIX) if e != TRIE or s == "fp32"]


def _try_all(models: dict[str, Model], num_threads: int, repeats: int, say: Say) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with pin_threads(num_threads):
        for model in models.values():
            reuse.warm_up(model)
        for case in cases(models["fp32"]):
            reuse.fresh()
            found[case.name] = {"promise": _promise(case), "combinations": {}}
            reference: dict[str, Any] = {}
            for scheme, engine in _combinations():
                rounds = [attempt(models[scheme], engine, case) for _ in range(repeats)]
                outcome = judge(case, engine, [outcome for outcome, _ in rounds], reference.get(scheme))
                if engine == BASE:
                    reference[scheme] = outcome["new_ids"]
                if scheme == "fp32" and outcome.get("same_tokens_as_uncached") is False:
                    raise reuse.BenchmarkError(f"{case.name}: {engine} gives other tokens than {BASE}")
                outcome["wall_s"] = summary([wall for _, wall in rounds])
                outcome["samples_s"] = [significant(wall) for _, wall in rounds]
                found[case.name]["combinations"][f"{scheme}, {engine}"] = outcome
            good = sum(outcome["kept"] for outcome in found[case.name]["combinations"].values())
            say(f"{num_threads} thread(s), {case.name}: {good} of {len(_combinations())} as promised")
    return found


def _promise(case: Case) -> str:
    return case.error or f"{case.new_tokens} new tokens"


def attempt(model: Model, engine: str, case: Case) -> tuple[dict[str, Any], float]:
    """One case against a new cache, which is empty unless an error is due: what came, and the seconds it took."""
    cache = reuse.new_cache(engine, model, case.cap)
    if case.error:
        generate(model, list(range(1, 9)), 1, prefix_cache=cache)  # something to damage
    before = _stored(cache)
    new_ids: list[list[int]] = []
    cached: list[int] = []
    finite, sampler = _watched()
    within, outcome, message = True, "tokens", None
    start = time.perf_counter()
    try:
        for prompt in case.prompts:
            answer = generate(model, prompt, case.new_tokens, prefix_cache=cache, sampler=sampler, stop_at_eos=False)
            new_ids.append(list(answer.token_ids))
            cached.append(answer.cached_tokens)
            within = within and _within_cap(cache, case)
    except CacheQuantError as error:
        outcome, message = type(error).__name__, str(error)
    wall = time.perf_counter() - start
    if cache is not None:
        cache.check_invariants()
    return {
        "outcome": outcome,
        "message": message,
        "new_ids": new_ids,
        "cached_tokens": cached,
        "finite": all(finite),
        "within_cap": within,
        "stored_tokens": [before, _stored(cache)],
    }, wall


def _watched() -> tuple[list[bool], Callable[..., int]]:
    """Greedy, and a list that it fills with whether all logits were finite."""
    finite: list[bool] = []

    def sampler(logits: Any, rng: np.random.Generator) -> int:
        finite.append(bool(np.isfinite(logits).all()))
        return greedy(logits, rng)

    return finite, sampler


def _stored(cache: Cache | None) -> int:
    if cache is None:
        return 0
    return cache.num_tokens if isinstance(cache, TokenTrie) else cache.stats.num_tokens


def _within_cap(cache: Cache | None, case: Case) -> bool:
    """Whether a hard cap holds; a soft one may be passed by one prompt that is longer."""
    if cache is None or isinstance(cache, TokenTrie):
        return _stored(cache) <= max(case.cap, *map(len, case.prompts), 0)
    return cache.bytes_used <= cache.capacity_bytes


def judge(case: Case, engine: str, outcomes: list[dict[str, Any]], reference: list[list[int]] | None) -> dict[str, Any]:
    """The first outcome, and whether all are as promised; tokens are compared with `reference` if there is one."""
    first = dict(outcomes[0])
    good = all(outcome == outcomes[0] for outcome in outcomes) and first["finite"] and first["within_cap"]
    if case.error:
        good = good and first["outcome"] == case.error and bool(first["message"])
        good = good and first["stored_tokens"][0] == first["stored_tokens"][1]
    else:
        lengths = [len(ids) for ids in first["new_ids"]]
        good = good and first["outcome"] == "tokens" and lengths == [case.new_tokens] * len(case.prompts)
        if reference is not None:
            first["same_tokens_as_uncached"] = first["new_ids"] == reference
        if case.cached and engine in case.cached:
            good = good and first["cached_tokens"] == case.cached[engine]
    return first | {"kept": good}


def table(record: dict[str, Any]) -> str:
    """One line a case: the promise, how many combinations kept it, their time together and the source's outcome."""
    data, lines = record["data"], []
    for n, found in data["threads"].items():
        lines.append(f"\n{n} thread(s), {len(data['combinations'])} combinations: {', '.join(data['combinations'])}")
        lines.append(f"{'case':36s}{'promise':20s}{'kept':>6s}{'same':>6s}{'s, all':>9s}  the source")
        for name, case in found.items():
            outcomes = list(case["combinations"].values())
            kept, seconds = sum(o["kept"] for o in outcomes), sum(o["wall_s"]["median"] for o in outcomes)
            compared = [o["same_tokens_as_uncached"] for o in outcomes if "same_tokens_as_uncached" in o]
            same = f"{sum(compared)}/{len(compared)}" if compared else "-"
            theirs = data["source"]["cases"].get(name, "-")
            lines.append(f"{name:36s}{case['promise']:20s}{kept:4d}/{len(outcomes)}{same:>6s}{seconds:9.2f}  {theirs}")
            lines += [
                f"    broken: {c}: {o['outcome']} {o['message'] or o['cached_tokens']}"
                for c, o in case["combinations"].items()
                if not o["kept"]
            ]
    return "\n".join(lines).strip()


def charts(record: dict[str, Any]) -> dict[str, str]:
    """SVG pictures of a record, by file name; none yet."""
    return {}
