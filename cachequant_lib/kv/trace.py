"""A prefix cache's diary: one line of JSON an event, from which the cache can be made again.

Line by line, in the order in which the cache did them: ``match`` (which pins), ``copy``, ``release``, ``report``,
``insert``, ``evict`` and ``use``, with tokens, sizes and seconds; what followed from a call (``drop``, ``refuse``)
stands before it. The first line says how the cache was made, the last one what it held in the end. Keys and values are
not written, but what was asked is, so only its owner can read the file.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from cachequant_lib.errors import CacheError
from cachequant_lib.kv.arena import Rows
from cachequant_lib.kv.match import PrefixMatch, PrefixStats
from cachequant_lib.kv.policies import POLICIES
from cachequant_lib.kv.prefix import PrefixCache
from cachequant_lib.kv.radix import pack, unpack

FORMAT = "cachequant-prefix-trace-1"
CONSEQUENCES = {"drop", "refuse"}
Line = dict[str, Any]


@contextlib.contextmanager
def record(cache: PrefixCache, path: str | Path) -> Iterator[PrefixCache]:
    """Write down all that a cache does inside the ``with`` block, which is where its life must begin.

    Raises
    ------
    CacheError
        If the cache has been used already, is written down elsewhere, or has a policy of one's own.
    """
    if cache.stats != PrefixStats() or cache._ledger.listener is not None or cache.policy not in POLICIES:
        raise CacheError("a trace begins with a new cache, that is not recorded yet and has a policy of the library's")
    begin = {"format": FORMAT, "capacity_bytes": cache.capacity_bytes, "policy": cache.policy}
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
        started, num_lines = time.perf_counter(), 0

        def write(event: str, told: Line) -> Line:
            nonlocal num_lines
            num_lines += 1
            at = {"event": event, "at_s": round(time.perf_counter() - started, 6)}
            ids = {"token_ids": unpack(told["key"])} if "key" in told else {}
            file.write(json.dumps(at | ids | {k: v for k, v in told.items() if k != "key"}, allow_nan=False) + "\n")
            return told

        write("begin", begin | {"min_tokens": cache.min_tokens})
        cache._ledger.listener = write
        try:
            yield cache
        finally:
            with cache._lock:
                cache._ledger.listener = None
                write("end", {"lines": num_lines + 1, "stats": asdict(cache.stats)})


def replay(path: str | Path) -> PrefixCache:
    """Make a cache again from its trace: the same prompts in the same order of use, the same stats; all rows are 0.

    Every step is compared with what the trace says happened.

    Raises
    ------
    CacheError
        If the file is no trace, ends too early, or tells of a cache that behaves in another way.
    FileNotFoundError
        If there is no such file.
    """
    name, lines = Path(path).name, _read(Path(path))
    begin, end = lines[0], lines[-1]
    cache = PrefixCache(begin["capacity_bytes"], begin["policy"], min_tokens=begin["min_tokens"])
    matches: dict[int, PrefixMatch] = {}
    at = 1

    def compare(event: str, told: Line) -> Line:
        nonlocal at
        line = lines[at]
        found = json.loads(json.dumps({k: v for k, v in told.items() if k != "key"}))
        if line["event"] != event or any(line.get(k) != v for k, v in found.items() if not k.endswith("_s")):
            raise CacheError(f"{name}, line {at + 1}: the trace says {line}, this cache {event} {found}")
        at += 1
        return {k: line[k] if k.endswith("_s") else v for k, v in told.items()}

    cache._ledger.listener = compare
    while at < len(lines) - 1:
        command = next(i for i in range(at, len(lines)) if lines[i]["event"] not in CONSEQUENCES)
        _perform(cache, matches, lines[command], f"{name}, line {command + 1}")
        if at != command + 1:
            raise CacheError(f"{name}, line {at + 1}: the trace says {lines[at]}, this cache did not")
    cache._ledger.listener = None
    if asdict(cache.stats) != end["stats"]:
        raise CacheError(f"{name}: the trace ends with {end['stats']}, this cache with {cache.stats}")
    return cache


def _read(path: Path) -> list[Line]:
    """Read all lines, from a first to a last one that are what they should be."""
    lines: list[Line] = []
    try:
        for text in path.read_text("utf-8").splitlines():
            lines.append(json.loads(text))
            lines[-1]["event"]
    except (ValueError, KeyError, TypeError) as error:
        raise CacheError(f"{path.name}, line {len(lines) or 1}: this is no line of a trace ({error!r})") from error
    if not lines or lines[0].get("format") != FORMAT:
        raise CacheError(f"{path.name} is no trace of a prefix cache ({FORMAT})")
    if lines[-1]["event"] != "end" or lines[-1]["lines"] != len(lines):
        raise CacheError(f"{path.name} is cut short or has lost lines: there are {len(lines)}, and no end to them")
    return lines


def _perform(cache: PrefixCache, matches: dict[int, PrefixMatch], line: Line, place: str) -> None:
    """Do again what one line tells."""
    names = line.get("namespace", "")
    namespace = tuple(names) if isinstance(names, list) else names
    match line:
        case {"event": "match", "token_ids": ids}:
            made = cache.match(ids, namespace)
            matches[cache._ledger.counts["requests"]] = made
        case {"event": "insert", "token_ids": ids, "shape": shape, "dtype": dtype, "start": start, "failed": failed}:

            def read(first: int, stop: int, rows: Rows) -> None:
                if failed:
                    raise InterruptedError
                rows[...] = 0

            pool = cache._arena.pool(tuple(shape), np.dtype(dtype))
            with contextlib.suppress(InterruptedError):
                cache._insert(pack(ids), namespace, start, pool, read, 0.0)
        case {"event": "use", "token_ids": ids}:
            cache._touch(pack(ids), namespace)
        case {"event": "evict", "num_bytes": num_bytes}:
            cache.evict(num_bytes)
        case {"event": "release", "number": number} if number in matches:
            matches.pop(number).release()
        case {"event": "copy", "number": number, "copied_tokens": count, "copy_s": seconds}:
            cache._ledger.note("copy", number=number, copied_tokens=count, copy_s=seconds)
        case {"event": "report", "found": found, "computed": computed, "prefill_s": seconds}:
            cache._ledger.report(namespace, found, computed, seconds)
        case _:
            raise CacheError(f"{place}: nothing can be done with {line}")
