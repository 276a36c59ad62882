"""`oneshot`, `multiturn`, `combined`, `stress` and `eviction` end to end on the embedded model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import __main__ as cli
from benchmarks import combined, eviction, multiturn, oneshot, reuse, stress
from benchmarks.records import BenchmarkError
from benchmarks.reuse import BASE, PREFIX, TRIE
from cachequant_lib.kv.prefix import PrefixCache
from cachequant_lib.model.registry import load
from cachequant_lib.workloads import TRACES

ALL = {"oneshot": oneshot, "multiturn": multiturn, "combined": combined, "stress": stress, "eviction": eviction}


def run(name: str, folder: Path, model: str = "tiny") -> int:
    place = ["--out", str(folder), "--machine", "box"]
    return cli.main([name, "--model", model, "--threads", "1", "--reps", "1", *place])


def record(name: str, folder: Path) -> dict[str, Any]:
    return json.loads((folder / "box" / f"{cli.stored_name(name, 'tiny')}.json").read_text())


def test_oneshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("oneshot", tmp_path) == 0
    data = record("oneshot", tmp_path)["data"]
    sets = data["threads"]["1"]
    assert set(sets) == set(data["source"]["sets"])
    for found in sets.values():
        for row in found["rows"]:
            engines = row["engines"]
            assert [engines[e]["same_tokens_as_uncached"] for e in (BASE, TRIE, PREFIX)] == [True] * 3
            assert engines[BASE]["cached_tokens"] == 0
            assert engines[TRIE]["cached_tokens"] == engines[PREFIX]["cached_tokens"]
            assert all(len(samples) == 1 and samples[0] >= 0 for samples in engines[PREFIX]["samples"].values())
        assert found["rows"][0]["engines"][PREFIX]["cached_tokens"] == 0  # a fresh cache for every set
    assert sets["no_reuse"]["hit_rate"][PREFIX] < 0.1 < sets["long_high_reuse"]["hit_rate"][PREFIX]
    table = capsys.readouterr().out
    assert table.count("PrefixCache") == 3
    assert "0.957 .. 0.962" in table


def test_multiturn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("multiturn", tmp_path) == 0
    data = record("multiturn", tmp_path)["data"]
    part = data["threads"]["1"]
    assert len(part["by_turn"]) == len(data["source"]["by_turn"]["honest_source"]) == 8
    for talk in part["conversations"].values():
        rows = [row["engines"][PREFIX] for row in talk["rows"]]
        assert [row["cached_tokens"] for row in rows] == [0] + [row["prompt_tokens"] for row in rows[:-1]]
        assert all(row["same_tokens_as_uncached"] for row in rows)
        kept = [row["engines"][reuse.KEPT] for row in talk["rows"]]
        assert [row["cached_tokens"] for row in kept][1:] > [row["cached_tokens"] for row in rows][1:]
        assert all(row["same_tokens_as_uncached"] for row in kept)
        assert talk["books"]["saved_s"]["low"] >= 0 < talk["books"]["spent_s"]["low"]
    assert part["slower"][PREFIX]["num_turns"] == 24
    table = capsys.readouterr().out
    assert "of 24 turns are slower than uncached by more than 1%" in table
    assert "5.81" in table


def test_multiturn_stops_when_a_cached_reply_differs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    honest = reuse.ask

    def wrong(arm: reuse.Arm, prompt: str, new_tokens: int) -> reuse.Answer:
        found = honest(arm, prompt, new_tokens)
        hit = found.cached_tokens > 0 and isinstance(arm.cache, PrefixCache)
        return reuse.Answer(*(found.token_ids, "other" if hit else found.text), *list(vars(found).values())[2:])

    monkeypatch.setattr(reuse, "ask", wrong)
    assert run("multiturn", tmp_path) == 1
    assert not (tmp_path / "box" / "multiturn-tiny.json").exists()


def test_combined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("combined", tmp_path) == 0
    sets = record("combined", tmp_path)["data"]["threads"]["1"]
    for found in sets.values():
        assert list(found["speedup"]) == list(combined.PAIRS)
        for arm, total in found["totals"].items():
            assert arm.startswith(combined.SCHEMES)
            assert total["total_honest_s"] > total["total_prefill_s"] > 0
            assert (total["hit_rate"] == 0) == arm.endswith(BASE)
        for cached in combined.PAIRS:  # one cache for all, yet every format starts cold
            assert found["rows"][0]["arms"][cached]["cached_tokens"] == 0
        assert found["totals"][f"fp32, {PREFIX}"]["same_texts"] == 5
    assert "7.361 -> 1.871" in capsys.readouterr().out


def test_stress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(stress, "CONTEXT", 256)
    monkeypatch.setattr(stress, "CAP", 64)
    assert run("stress", tmp_path) == 0
    cases = record("stress", tmp_path)["data"]["threads"]["1"]
    assert set(stress.SOURCE["cases"]) <= set(cases)
    for name, case in cases.items():
        assert len(case["combinations"]) == 7
        for combination, outcome in case["combinations"].items():
            assert outcome["kept"], (name, combination, outcome)
            assert outcome.get("same_tokens_as_uncached", True) or not combination.startswith("fp32")
    pressed = cases["eviction pressure"]["combinations"][f"fp32, {PREFIX}"]
    assert pressed["stored_tokens"][1] <= stress.CAP
    table = capsys.readouterr().out
    assert "RuntimeError from a reshape" in table
    assert "broken" not in table


def test_a_promise_that_is_not_kept_is_told() -> None:
    good = {"outcome": "tokens", "message": None, "new_ids": [[1, 2]], "cached_tokens": [0], "finite": True}
    good |= {"within_cap": True, "stored_tokens": [0, 3]}
    case = stress.Case("x", ("a",), 2)
    assert stress.judge(case, PREFIX, [good, good], [[1, 2]])["kept"]
    assert stress.judge(case, PREFIX, [good], [[1, 3]])["same_tokens_as_uncached"] is False
    for change in ({"new_ids": [[1]]}, {"finite": False}, {"within_cap": False}, {"outcome": "TokenError"}):
        assert not stress.judge(case, PREFIX, [good | change], None)["kept"]
    assert not stress.judge(case, PREFIX, [good, good | {"new_ids": [[2, 1]]}], None)["kept"]
    assert not stress.judge(stress.Case("x", ("a",), 2, cached={PREFIX: [1]}), PREFIX, [good], None)["kept"]
    failed = {"outcome": "TokenError", "message": "no", "new_ids": [], "stored_tokens": [8, 8]}
    failing = stress.Case("x", ("a",), 2, "TokenError")
    assert stress.judge(failing, PREFIX, [good | failed], None)["kept"]
    for change in ({"outcome": "CacheError"}, {"message": ""}, {"stored_tokens": [8, 7]}):
        assert not stress.judge(failing, PREFIX, [good | failed | change], None)["kept"]


def test_eviction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(eviction, "NUM_REQUESTS", 120)
    assert run("eviction", tmp_path) == 0
    first = record("eviction", tmp_path)["data"]
    assert run("eviction", tmp_path) == 0
    assert record("eviction", tmp_path)["data"] == first  # no clock in it
    assert min(first["shares"]) == 0.05
    assert max(first["shares"]) == 1.5
    for trace in first["traces"].values():
        for found in trace["policies"].values():
            rates = found["hit_rate"]
            assert len(rates) == len(first["shares"])
            assert rates[0] < trace["ceiling"]
            assert rates[-1] == trace["ceiling"]  # with room for all, no policy matters
            assert max(rates) <= trace["ceiling"]
            assert found["evicted_tokens"][-1] == 0
    assert "few-shot: 120 requests" in capsys.readouterr().out


def test_a_scan_larger_than_the_cache_leaves_lru_only_the_hot_prompts() -> None:
    prompts = list(TRACES["scan"](240))
    room = 9_000  # tokens; the sixty documents alone are 18,000
    rates = {p: eviction.replay(prompts, PrefixCache(room * 4, p)).stats.hit_rate for p in ("lru", "lfu")}
    assert rates["lru"] <= 300 / 2 / 320
    assert rates["lfu"] >= rates["lru"]


def test_a_hit_with_other_rows_is_refused() -> None:
    class Wrong(PrefixCache):
        def insert(self, token_ids: Any, kv: Any, namespace: Any = "", start: int = 0) -> int:
            return super().insert(token_ids, np.asarray(kv) + 1, namespace, start)

    with pytest.raises(BenchmarkError, match="returned rows of other tokens"):
        eviction.replay([[1, 2, 3], [1, 2, 4]], Wrong(1000))


@pytest.mark.parametrize("name", ["oneshot", "multiturn", "combined", "stress"])
def test_an_unknown_model_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name, tmp_path, model="nonsense") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "error: no model 'nonsense'" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ALL)
def test_ctrl_c_in_the_middle_keeps_the_old_result(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "box").mkdir()
    stored = tmp_path / "box" / f"{cli.stored_name(name, 'tiny')}.json"
    stored.write_text("old")

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    place, what = {"stress": (stress, "attempt"), "eviction": (eviction, "replay")}.get(name, (reuse, "turn"))
    monkeypatch.setattr(place, what, interrupted)
    monkeypatch.setattr(combined, "in_schemes", lambda model, say: dict.fromkeys(combined.SCHEMES, model))
    monkeypatch.setattr(stress, "in_schemes", combined.in_schemes)
    assert run(name, tmp_path) == 130
    assert "earlier results are as they were" in capsys.readouterr().err
    assert stored.read_text() == "old"
    assert list((tmp_path / "box").iterdir()) == [stored]


def test_each_model_has_its_record() -> None:
    names = [cli.stored_name(name, model) for name in ALL for model in ("gpt2-random", "smollm2-135m")]
    assert names[:4] == ["oneshot", "oneshot-smollm2-135m", "multiturn", "multiturn-smollm2-135m"]
    assert names[-2:] == ["eviction", "eviction"]  # no model in it


def test_threads_and_memory_are_those_of_the_model() -> None:
    assert reuse.row_bytes(load("tiny")) == 6 * 2 * 4 * 64 * 4
