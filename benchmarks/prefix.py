"""Chapters 12 to 14: what does the prefix cache itself cost, apart from what it saves?

Four questions. How long does a match take among ten thousand prompts, and does it, or an eviction, take longer the
more is stored (against the teaching trie, whose eviction walks the whole tree)? How far is a hit from a plain copy of
the same bytes? What does a prompt pay that finds nothing? How many bytes does a token take, bookkeeping included?
The first uses rows of four bytes, so that a million tokens fit anywhere; the others rows of the model's true size.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.records import significant, summary
from cachequant_lib.bench import Measurement, interleave, measure, pin_threads, rotate
from cachequant_lib.kv.base import KVBlock
from cachequant_lib.kv.dense import DenseKV
from cachequant_lib.kv.prefix import PrefixCache
from cachequant_lib.kv.trie import TokenTrie
from cachequant_lib.model.base import Model
from cachequant_lib.model.registry import load

TITLE = "the prefix cache by itself: match, evict, copy, and what a miss pays"
NUM_PROMPTS, PREFIX_TOKENS = 10_000, 1000
STORED = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
TRIE_STORED = 100_000
"""The trie is not built beyond this: its eviction takes a step a token, and its nodes a gigabyte."""
RUN = 100
HIT_TOKENS = 276
COLD_BYTES = 300 << 20
MISS_TOKENS = (8, 282)
MIN_SAMPLE_S = 0.02

Say = Callable[[str], None]


def run(model_name: str, threads: Sequence[int], repeats: int, say: Say) -> dict[str, Any]:
    """Measure; only what a miss pays depends on the number of threads, since prefill does."""
    data: dict[str, Any] = {"match": _match(repeats, say), "scaling": _scaling(repeats, say)}
    model = load(model_name)
    data["hit"] = _hit(model, repeats, say)
    data["bytes_per_token"] = _bytes_per_token(model, say)
    data["miss"] = {str(n): _miss(model, n, repeats, say) for n in threads}
    settings = {"model": model_name, "threads": list(threads), "repeats": repeats, "min_sample_s": MIN_SAMPLE_S}
    described = {"name": model.name, "fingerprint": model.fingerprint, "row_bytes": _row_bytes(model)}
    return {"model": described, "settings": settings, "data": data}


def _row_bytes(model: Model) -> int:
    c = model.config
    return c.num_layers * 2 * c.num_kv_heads * c.head_dim * 4


def _kept(measured: Measurement) -> dict[str, Any]:
    return {"seconds": summary(measured.samples_s), "samples_s": [significant(s) for s in measured.samples_s]}


def _find(cache: PrefixCache, ids: Any) -> None:
    cache.match(ids).release()


# ---- One match among many prompts ------------------------------------------------------------------------------------


def _match(repeats: int, say: Say) -> dict[str, Any]:
    """Time a match of 1,000 tokens, the stored prompts sharing them, or some of them, or nothing."""
    found = {}
    for kind in ("all share it", "they part every 100 tokens", "one has it"):
        cache, trunk = _crowd(kind)
        prompt = np.append(trunk, 0)
        with cache.match(prompt) as match:
            assert match.length == PREFIX_TOKENS
        calls = {"array": partial(_find, cache, prompt), "list": partial(_find, cache, prompt.tolist())}
        timed = interleave(calls, repeats, min_sample_s=MIN_SAMPLE_S)
        found[kind] = {name: _kept(m) for name, m in timed.items()} | {"stored_tokens": cache.stats.num_tokens}
        say(f"match, {kind}: " + ", ".join(f"{name} {m.median * 1e6:.1f} us" for name, m in timed.items()))
    return {"num_prompts": NUM_PROMPTS, "prefix_tokens": PREFIX_TOKENS, "kinds": found}


def _crowd(kind: str) -> tuple[PrefixCache, Any]:
    """A cache with ten thousand prompts, and the prefix to ask for."""
    rng = np.random.default_rng(0)
    cache = PrefixCache(1 << 30)
    trunk = rng.integers(0, 50_257, PREFIX_TOKENS)
    rows = np.zeros((PREFIX_TOKENS + 20, 1), np.float32)
    for i in range(NUM_PROMPTS):
        own = rng.integers(0, 50_257, 20)
        if kind == "one has it":
            ids = trunk if i == NUM_PROMPTS // 2 else rng.integers(0, 50_257, PREFIX_TOKENS)
        else:
            shared = PREFIX_TOKENS if kind == "all share it" else 100 * (1 + i % 10)
            ids = np.concatenate([trunk[:shared], own])
        cache.insert(ids, rows[: len(ids)])
    return cache, trunk


# ---- Cost against tokens stored --------------------------------------------------------------------------------------


def _scaling(repeats: int, say: Say) -> dict[str, Any]:
    """Time a lookup of 100 tokens, and one insert of 100 that evicts 100, as the cache grows: radix tree and trie."""
    found: dict[str, dict[str, list[Any]]] = {name: {"lookup": [], "replace": []} for name in ("lru", "lfu", "trie")}
    for stored in STORED:
        rng = np.random.default_rng(stored)
        rows = np.zeros((RUN, 1), np.float32)
        prompts = [rng.integers(0, 50_257, RUN).tolist() for _ in range(stored // RUN)]
        for name, parts in found.items():
            if name == "trie" and stored > TRIE_STORED:
                continue
            cache = TokenTrie(stored) if name == "trie" else PrefixCache(stored * 4, name)
            for ids in prompts:
                cache.insert(ids, rows)
            look_up = partial(cache.lookup if isinstance(cache, TokenTrie) else partial(_find, cache), prompts[0])
            replace = partial(_replace, cache, rng, rows)
            slow = name == "trie" and stored > 3_000
            parts["lookup"].append(_kept(measure(look_up, repeats, min_sample_s=MIN_SAMPLE_S)))
            parts["replace"].append(_kept(measure(replace, 1 if slow else repeats, 0 if slow else 1)))
            say(f"{stored} stored, {name}: " + _glance(parts))
    return {"stored_tokens": list(STORED), "run_tokens": RUN, "policies": found}


def _replace(cache: PrefixCache | TokenTrie, rng: np.random.Generator, rows: Any) -> None:
    cache.insert(rng.integers(0, 50_257, RUN).tolist(), rows)


def _glance(parts: dict[str, list[Any]]) -> str:
    return ", ".join(f"{name} {values[-1]['seconds']['median'] * 1e6:.1f} us" for name, values in parts.items())


# ---- A hit, a miss, a byte -------------------------------------------------------------------------------------------


def _rows(model: Model, num_tokens: int) -> Any:
    c = model.config
    shape = (num_tokens, c.num_layers, 2, c.num_kv_heads, c.head_dim)
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def _new_kv(model: Model, capacity: int) -> DenseKV:
    c = model.config
    return DenseKV(c.num_layers, c.num_kv_heads, c.head_dim, capacity)


def _hit(model: Model, repeats: int, say: Say) -> dict[str, Any]:
    """Time match and copy into a KV cache against one plain copy of as many bytes.

    Both take turns through more prompts than any processor's cache holds, as a cache full of prompts would be read.
    """
    count = max(2, COLD_BYTES // (HIT_TOKENS * _row_bytes(model)))
    rows = _rows(model, HIT_TOKENS)
    copies = [rows.copy() for _ in range(count)]
    cache, kv, flat = PrefixCache(count * rows.nbytes), _new_kv(model, HIT_TOKENS), np.zeros_like(rows)
    prompts = [[i] * (HIT_TOKENS + 1) for i in range(count)]
    for ids in prompts:
        cache.insert(ids[:-1], rows)

    def hit(ids: list[int]) -> None:
        kv.truncate(0)
        with cache.match(ids) as match:
            match.copy_into(kv)

    hits = rotate([partial(hit, ids) for ids in prompts])
    plain = rotate([partial(np.copyto, flat, copy) for copy in copies])
    timed = interleave({"hit": hits, "memcpy": plain}, max(repeats, 5), min_sample_s=5 * MIN_SAMPLE_S)
    ratio = timed["hit"].ratio(timed["memcpy"])
    say(f"hit of {HIT_TOKENS} tokens: {timed['hit'].median * 1e3:.2f} ms, {ratio} times memcpy")
    return {
        "num_tokens": HIT_TOKENS,
        "num_bytes": rows.nbytes,
        "num_prompts": count,
        "over_memcpy": {"median": ratio.median, "low": ratio.low, "high": ratio.high},
        **{name: _kept(m) for name, m in timed.items()},
    }


def _miss(model: Model, num_threads: int, repeats: int, say: Say) -> dict[str, Any]:
    """Time what an unknown prompt pays, match and insert, against its prefill.

    The cache has its default size and is full, so room is made.
    """
    found = {}
    with pin_threads(num_threads):
        for num_tokens in MISS_TOKENS:
            rng, vocab = np.random.default_rng(1), model.config.vocab_size
            cache = PrefixCache()
            kv = _new_kv(model, num_tokens)
            kv.write_block(KVBlock(_rows(model, num_tokens)))

            def pay(cache: PrefixCache = cache, kv: DenseKV = kv, rng: Any = rng, size: int = num_tokens) -> None:
                ids = rng.integers(0, vocab, size).tolist()  # noqa: B023 (used before the loop goes on)
                _find(cache, ids)
                cache.insert(ids, kv)

            def prefill(size: int = num_tokens) -> None:
                model.forward(np.arange(size), _new_kv(model, size), last_only=True)

            while not cache.stats.evictions:
                pay()
            timed = interleave({"tax": pay, "prefill": prefill}, repeats)
            ratio = timed["tax"].ratio(timed["prefill"])
            found[str(num_tokens)] = {name: _kept(m) for name, m in timed.items()} | {
                "tax_over_prefill": {"median": ratio.median, "low": ratio.low, "high": ratio.high}
            }
            say(f"{num_threads} threads, {num_tokens} unknown tokens: {ratio} of prefill")
    return found


def _bytes_per_token(model: Model, say: Say) -> dict[str, Any]:
    """All memory that Python and NumPy hold for a cache of ten prompts of 100 tokens, over its tokens."""
    rows = _rows(model, RUN)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    cache = PrefixCache(10 * rows.nbytes)
    for i in range(10):
        cache.insert(np.arange(RUN) + RUN * i, rows)
    total = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    num_tokens = cache.stats.num_tokens
    say(f"{total / num_tokens:.0f} bytes a token, {cache.bytes_used / num_tokens:.0f} of them keys and values")
    return {"all": significant(total / num_tokens), "rows": cache.bytes_used / num_tokens, "num_tokens": num_tokens}


def table(record: dict[str, Any]) -> str:
    """One block a question."""
    data, lines = record["data"], [f"match of {PREFIX_TOKENS} tokens among {NUM_PROMPTS} prompts, us"]
    for kind, found in data["match"]["kinds"].items():
        lines.append(f"  {kind:28s}" + "".join(f"{n:>8s}{_us(found[n]):>8s}" for n in ("array", "list")))
    policies = data["scaling"]["policies"]
    heads = [f"{name} {part}" for name, parts in policies.items() for part in parts]
    lines.append(f"{'tokens stored':>14s}" + "".join(f"{head:>14s}" for head in heads) + "  us")
    for i, stored in enumerate(data["scaling"]["stored_tokens"]):
        cells = [_us(v[i]) if i < len(v) else "-" for parts in policies.values() for v in parts.values()]
        lines.append(f"{stored:14d}" + "".join(f"{cell:>14s}" for cell in cells))
    r = data["hit"]["over_memcpy"]
    lines.append(f"a hit takes {r['median']:.2f} [{r['low']:.2f} .. {r['high']:.2f}] times a plain copy of its bytes")
    for n, found in data["miss"].items():
        for size, part in found.items():
            lines.append(
                f"{n} thread(s), {size} unknown tokens pay {part['tax_over_prefill']['median']:.2%} of prefill"
            )
    return "\n".join([*lines, f"bytes a token: {data['bytes_per_token']['all']:.0f}"])


def _us(kept: dict[str, Any]) -> str:
    return f"{kept['seconds']['median'] * 1e6:.1f}"


def charts(record: dict[str, Any]) -> dict[str, str]:
    """SVG pictures of a record, by file name; none yet."""
    return {}
