"""Chapter 13: what should a full prefix cache forget?

Three policies on three traces, from a twentieth of the working set to one and a half of it. No model and no clock:
prompts are token ids, rows are four bytes, and a run gives the same numbers on every machine. The working set is what a
cache without a limit holds at the end; its hit rate is the ceiling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.records import BenchmarkError, significant
from cachequant_lib.kv.policies import POLICIES
from cachequant_lib.kv.prefix import PrefixCache
from cachequant_lib.workloads import TRACES

TITLE = "hit rate against capacity: three policies on three traces"
NUM_REQUESTS, SEED = 600, 0
SHARES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)
ROW_BYTES = 4
SOURCE = {
    "label": "CacheQuant, the source project",
    "note": "one policy, the least recently used leaf; no hit rates under eviction were published",
}

Say = Callable[[str], None]


def run(model_name: str, threads: Sequence[int], repeats: int, say: Say) -> dict[str, Any]:
    """Replay the traces; the options for a model, threads and repeats change nothing here."""
    traces = {}
    for name, make in TRACES.items():
        prompts = list(make(NUM_REQUESTS, SEED))
        traces[name] = _replay_all(prompts)
        ceiling, size = traces[name]["ceiling"], traces[name]["working_set_tokens"]
        say(f"{name}: {len(prompts)} requests, working set {size} tokens, at most {ceiling:.3f} can hit")
    settings = {"model": None, "requests": NUM_REQUESTS, "seed": SEED, "row_bytes": ROW_BYTES}
    model = {"name": "none: token ids and rows of four bytes", "fingerprint": None}
    return {"model": model, "settings": settings, "data": {"shares": list(SHARES), "source": SOURCE, "traces": traces}}


def _replay_all(prompts: Sequence[Any]) -> dict[str, Any]:
    asked = sum(map(len, prompts))
    whole = replay(prompts, PrefixCache(asked * ROW_BYTES))
    capacities = [max(1, round(share * whole.stats.num_tokens)) for share in SHARES]
    policies = {}
    for policy in POLICIES:
        caches = [replay(prompts, PrefixCache(capacity * ROW_BYTES, policy)) for capacity in capacities]
        policies[policy] = {
            "hit_rate": [significant(cache.stats.hit_rate) for cache in caches],
            "evicted_tokens": [cache.stats.evicted_tokens for cache in caches],
            "refused": [cache.stats.refused for cache in caches],
        }
    return {
        "num_requests": len(prompts),
        "prompt_tokens": asked,
        "working_set_tokens": whole.stats.num_tokens,
        "ceiling": significant(whole.stats.hit_rate),
        "capacity_tokens": capacities,
        "policies": policies,
    }


def replay(prompts: Sequence[Any], cache: PrefixCache) -> PrefixCache:
    """Match and insert every prompt, as a request does; returns the cache with its counts.

    Every row is its token's own number, so a hit is checked: what comes out must be the prompt.

    Raises
    ------
    BenchmarkError
        It is not, or the cache holds more than it may.
    """
    for ids in prompts:
        with cache.match(ids) as match:
            if match.length and not np.array_equal(match.block().rows[:, 0], ids[: match.length]):
                raise BenchmarkError(f"a hit of {match.length} tokens returned rows of other tokens")
        cache.insert(ids, np.asarray(ids, np.float32)[:, None])  # (T,) -> (T, 1)
        if cache.bytes_used > cache.capacity_bytes:
            raise BenchmarkError(f"{cache.bytes_used} bytes in a cache for {cache.capacity_bytes}")
    return cache


def table(record: dict[str, Any]) -> str:
    """Hit rates, one block a trace."""
    data, lines = record["data"], []
    for name, trace in data["traces"].items():
        lines.append(
            f"\n{name}: {trace['num_requests']} requests, working set {trace['working_set_tokens']} tokens, "
            f"hit rate without a limit {trace['ceiling']:.3f}"
        )
        lines.append(f"{'capacity':10s}" + "".join(f"{share:7.0%}" for share in data["shares"]))
        for policy, found in trace["policies"].items():
            lines.append(f"{policy:10s}" + "".join(f"{rate:7.3f}" for rate in found["hit_rate"]))
    return "\n".join(lines).strip()


def charts(record: dict[str, Any]) -> dict[str, str]:
    """SVG pictures of a record, by file name; none yet."""
    return {}
