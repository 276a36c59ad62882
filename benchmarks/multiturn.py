"""Chapter 14: how does a conversation feel, turn by turn, with a prefix cache and without?

The source's protocol: three conversations of eight turns, 12 new tokens a turn, an empty cache for each conversation
and pass. What was said is what the model says without a cache; every cached text must be the same. Turn 0 is the cold
one: nothing can be found yet, and the prompt is stored for the first time. The source stored prompts only; a last rival
keeps the replies' keys and values too, which serve the next turn as far as its text is cut into the same tokens.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import reuse
from benchmarks.records import BenchmarkError, significant, summary
from benchmarks.reuse import BASE, KEPT, PREFIX, TRIE, Arm, Say
from cachequant_lib.bench import pin_threads
from cachequant_lib.kv.match import PrefixStats
from cachequant_lib.kv.prefix import PrefixCache
from cachequant_lib.model.base import Model
from cachequant_lib.model.registry import load
from cachequant_lib.workloads import CONVERSATIONS, Conversation, Script

ENGINES = (BASE, TRIE, PREFIX, KEPT)
TITLE = "conversations of eight turns, with a prefix cache and without"
BESIDE = True  # other models than the default have records of their own
NEW_TOKENS = 12
LONG = "passage"
TOLERANCE = 0.01
BOOKS = ("requests", "copied_tokens", "inserted_tokens", "match_s", "copy_s", "insert_s", "spent_s", "saved_s")
SOURCE = {
    "label": reuse.SOURCE_LABEL,
    "prompt_tokens": {"short systems": [[25, 26], [207, 208]], "long system": [297, 489]},
    "by_turn": {
        "uncached_s": [0.038, 0.055, 0.072, 0.100, 0.117, 0.120, 0.142, 0.162],
        "cached_s": [0.044, 0.045, 0.051, 0.050, 0.051, 0.053, 0.055, 0.054],
        "hit_rate": [0.00, 0.53, 0.66, 0.75, 0.80, 0.84, 0.85, 0.87],
        "honest_source": [0.87, 1.22, 1.42, 2.02, 2.29, 2.28, 2.56, 3.01],
    },
    "long_by_turn": {"honest_source": [0.86, 4.27, 4.56, 5.02, 5.22, 5.52, 5.65, 5.81]},
}
PAIRS = {engine: BASE for engine in ENGINES if engine != BASE}


def run(model_name: str, threads: Sequence[int], repeats: int, say: Say) -> dict[str, Any]:
    """Measure at each thread count; returns the record's ``model``, ``settings`` and ``data``."""
    model = load(model_name)
    found = {str(n): _measure(model, n, repeats, say) for n in threads}
    settings = {"model": model_name, "threads": list(threads), "repeats": repeats, "new_tokens": NEW_TOKENS}
    settings |= {"max_tokens": reuse.MAX_TOKENS, "warmup_tokens": reuse.WARMUP_TOKENS, "tolerance": TOLERANCE}
    data = {"engines": list(ENGINES), "base": BASE, "long": LONG, "source": SOURCE, "threads": found}
    return {"model": reuse.described(model), "settings": settings, "data": data}


def _measure(model: Model, num_threads: int, repeats: int, say: Say) -> dict[str, Any]:
    rows: dict[str, list[reuse.Row]] = {}
    books: dict[str, Any] = {}
    with pin_threads(num_threads):
        reuse.warm_up(model)
        for name, script in CONVERSATIONS.items():
            passes, stats = [], []
            for number in range(repeats):
                reuse.fresh()
                turns, told = _talk(model, script, number)
                passes.append(turns)
                stats.append(told)
                say(f"{num_threads} thread(s), {name}: pass {number + 1} of {repeats}")
            rows[name] = reuse.gather(passes, PAIRS, lambda engine: True)
            books[name] = {part: summary([getattr(told, part) for told in stats]) for part in BOOKS}
    every = [row for part in rows.values() for row in part]
    return {
        "conversations": {n: {"rows": [_row(row) for row in part], "books": books[n]} for n, part in rows.items()},
        "by_turn": [_across(turns) for turns in zip(*rows.values(), strict=True)],
        "slower": {engine: _slower(every, engine) for engine in PAIRS},
    }


def _talk(model: Model, script: Script, number: int) -> tuple[list[reuse.Turn], PrefixStats]:
    """One conversation, one pass, and the books of the prefix cache. What is said without a cache is what was said."""
    arms = {engine: Arm(model, reuse.new_cache(engine, model), engine == KEPT) for engine in ENGINES}
    talk, turns = Conversation(script.system), []
    for i, line in enumerate(script.lines):
        answers = reuse.turn(arms, talk.prompt(line), NEW_TOKENS, number + i)
        said = answers[BASE].text
        for engine, answer in answers.items():
            if answer.text != said:
                raise BenchmarkError(f"turn {i}: {engine} says {answer.text!r}, {BASE} says {said!r}")
        talk = talk.after(line, said)
        turns.append(answers)
    cache = arms[PREFIX].cache
    assert isinstance(cache, PrefixCache)
    return turns, cache.stats


def _row(row: reuse.Row) -> dict[str, Any]:
    return {
        "engines": {engine: reuse.kept(row, engine, BASE) for engine in ENGINES},
        "speedup": {engine: reuse.speedups([row], engine, BASE) for engine in PAIRS},
    }


def _across(turns: Sequence[reuse.Row]) -> dict[str, Any]:
    """One turn over all conversations, the source's way: medians of medians, and the ratios of those."""

    def middle(engine: str, part: Callable[[reuse.Answer], float]) -> float:
        return statistics.median(statistics.median(map(part, row[engine])) for row in turns)

    base_prefill, base_honest = middle(BASE, _prefill), middle(BASE, _honest)
    found: dict[str, Any] = {"uncached_prefill_s": significant(base_prefill)}
    for engine in ENGINES:
        found[engine] = {
            "honest_s": significant(middle(engine, _honest)),
            "decode_s": significant(middle(engine, lambda a: a.decode_s)),
            "hit_rate": significant(middle(engine, lambda a: a.cached_tokens / a.prompt_tokens)),
            "honest_source": significant(base_prefill / middle(engine, _honest)),
            "honest": significant(base_honest / middle(engine, _honest)),
        }
    return found


def _prefill(answer: reuse.Answer) -> float:
    return answer.prefill_s


def _honest(answer: reuse.Answer) -> float:
    return answer.honest_s


def _slower(rows: Sequence[reuse.Row], engine: str) -> dict[str, Any]:
    """How much longer turns take up to their first token than without a cache, pass by pass: the worst, and a count."""
    extra = [
        summary([a.honest_s / b.honest_s - 1 for a, b in zip(row[engine], row[BASE], strict=True)]) for row in rows
    ]
    worst = max(extra, key=lambda spread: spread["median"])
    return {
        "num_turns": len(extra),
        "beyond_tolerance": sum(spread["median"] > TOLERANCE for spread in extra),
        "beyond_tolerance_in_every_pass": sum(spread["low"] > TOLERANCE for spread in extra),
        "worst": worst,
    }


def table(record: dict[str, Any]) -> str:
    """Turn by turn: medians over the conversations, then the long one, each beside the source's figures."""
    data, lines = record["data"], []
    theirs, long = data["source"]["by_turn"], data["source"]["long_by_turn"]["honest_source"]
    engines = [TRIE, PREFIX]
    heads = "".join(f"{f'{engine} ms':>16s}{'speed-up':>10s}" for engine in engines)
    for n, part in record["data"]["threads"].items():
        lines.append(f"\n{n} thread(s): time to the first token, honest; medians over {len(part['conversations'])}")
        lines.append(
            f"{'turn':>4s}{'hits':>7s}{'uncached ms':>13s}{heads}{'source':>9s}{'long one':>10s}{'source':>8s}"
            f"{'kept: hits':>12s}{'speed-up':>10s}{'long one':>10s}"
        )
        for i, turn in enumerate(part["by_turn"]):
            cells = "".join(f"{turn[e]['honest_s'] * 1e3:16.1f}{turn[e]['honest']:10.2f}" for e in engines)
            alone = part["conversations"][data["long"]]["rows"][i]["speedup"]
            lines.append(
                f"{i:4d}{turn[PREFIX]['hit_rate']:7.2f}{turn[data['base']]['honest_s'] * 1e3:13.1f}{cells}"
                f"{theirs['honest_source'][i]:9.2f}{alone[PREFIX]['honest']['ratio']:10.2f}{long[i]:8.2f}"
                f"{turn[KEPT]['hit_rate']:12.2f}{turn[KEPT]['honest']:10.2f}{alone[KEPT]['honest']['ratio']:10.2f}"
            )
        for name, talk in part["conversations"].items():
            books = {key: value["median"] * 1e3 for key, value in talk["books"].items() if key.endswith("_s")}
            lines.append("{}: {spent_s:.1f} ms spent, {saved_s:.0f} ms saved as estimated".format(name, **books))
        for engine, found in part["slower"].items():
            worst = "{median:+.1%} [{low:+.1%} .. {high:+.1%}]".format(**found["worst"])
            lines.append(
                f"{engine}: {found['beyond_tolerance']} of {found['num_turns']} turns are slower than uncached by more "
                f"than {TOLERANCE:.0%}; least favourable turn {worst}"
            )
    return "\n".join(lines).strip()


def charts(record: dict[str, Any]) -> dict[str, str]:
    """SVG pictures of a record, by file name; none yet."""
    return {}
