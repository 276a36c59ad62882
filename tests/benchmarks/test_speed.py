"""The speed experiment: its arithmetic, its refusal of a wrong model, and what it does without a peer."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import speed, workers
from benchmarks.contestants import LABELS, LibraryModel
from benchmarks.peers import PEERS, weights
from benchmarks.records import BenchmarkError
from benchmarks.whole_model import Stepwise
from benchmarks.workers import PeerWorker, Worker


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "REST_S", 0.0)


class Counting(Stepwise):
    """Scores that name the sum of all tokens so far, modulo 50."""

    vocab_size = 50

    def __init__(self, wrong: bool = False) -> None:
        self.tokens: list[int] = []
        self.shift = int(wrong)

    def forward(self, token_ids: Sequence[int]) -> Any:
        self.tokens += token_ids
        return np.eye(50, dtype=np.float32)[[(sum(self.tokens) + self.shift) % 50]]

    def truncate(self, length: int) -> None:
        del self.tokens[length:]


def test_ratios_are_taken_round_by_round() -> None:
    found = speed.cell({"lean": [8.0, 2.0, 6.0], "int8": [2.0, 1.0, 2.0]})
    assert found["int8"]["speedup_over"] == {"lean": {"median": 3.0, "low": 2.0, "high": 4.0}}
    assert found["lean"]["speedup_over"]["lean"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert found["int8"]["samples_s"] == [2.0, 1.0, 2.0]


def test_an_engine_fed_pass_by_pass_generates_and_scores_the_same() -> None:
    engine = Counting()
    found = engine.generate([1, 2], 3)
    assert found["token_ids"] == [3, 6, 12]
    assert engine.logits([1, 2, 3, 4], first=2).argmax(axis=1).tolist() == [3, 6, 10]
    assert engine.filler(5) == engine.filler(5) != engine.filler(6)[:5]
    assert engine.time_first_token(4, 0.0) > 0
    assert engine.time_decode_tokens(4, 3) > 0


def test_a_model_that_computes_something_else_is_not_timed(tmp_path: Path) -> None:
    ids = [1, 2, 3, 4]
    right = Counting()
    np.savez(tmp_path / "reference.npz", ids=ids, logits=right.logits(ids, 2), tokens=[10, 20])
    assert right.check(str(tmp_path / "reference.npz"))["relative_error"] == 0
    with Worker("right", Counting, num_threads=1) as worker:
        worker.ready()
        found = speed._checked(worker, tmp_path, 0.25)
        assert found == {"relative_error": 0, "same_winner": 1, "rows": 3, "same_tokens": 2, "tokens": 2}
    with Worker("wrong", Counting, True, num_threads=1) as worker:
        worker.ready()
        with pytest.raises(BenchmarkError, match=r"'wrong' computes another model: scores differ by 1\.4 > 0\.25"):
            speed._checked(worker, tmp_path, 0.25)


def test_weights_reach_a_peer_as_they_are(tmp_path: Path) -> None:
    import cachequant_lib as cq

    model = cq.load("tiny")
    weights.write(model, tmp_path / "tiny")
    weights.write(model, tmp_path / "tiny")  # it is there: nothing to do
    found = weights.read(tmp_path / "tiny")
    matrix, bias = found.linear("h.0.mlp.c_fc")
    assert (matrix == model.blocks[0].mlp_up.weight).all()
    assert (bias == model.blocks[0].mlp_up.bias).all()
    assert (found.width, found.num_layers, found.num_heads) == (256, 6, 4)
    assert (found.vocab_size, found.context_length) == (4096, 1024)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny"]


def test_a_conversion_that_fails_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    def fail(place: Path) -> None:
        (place / "half").write_text("x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        weights.once(tmp_path / "model", fail)
    assert not list(tmp_path.iterdir())


def test_the_library_answers_as_its_own_generate_does() -> None:
    import cachequant_lib as cq

    model = cq.load("tiny")
    engine = LibraryModel("tiny", "fp32", "fp32", 1)
    try:
        found = engine.generate([5, 6, 7], 4)
        assert found["token_ids"] == list(cq.generate(model, [5, 6, 7], 4, stop_at_eos=False).token_ids)
        assert found["first_s"] > 0 < found["rest_s"]
        assert np.allclose(engine.logits([5, 6, 7], 2), model.forward([5, 6, 7], model.new_kv())[1:], atol=1e-3)
        assert engine.weight_bytes()["blocks"] < engine.weight_bytes()["all"] == model.nbytes
    finally:
        engine._pin.__exit__(None, None, None)


def test_a_peer_that_is_not_installed_says_so_in_one_error(tmp_path: Path) -> None:
    with (
        PeerWorker(
            "ctranslate2",
            Path(sys.executable),
            "benchmarks.peers.serve",
            "ctranslate2",
            tmp_path,
            1,
            False,
            num_threads=1,
        ) as worker,
        pytest.raises(BenchmarkError, match=r"engine 'ctranslate2': ModuleNotFoundError: .*ctranslate2"),
    ):
        worker.ready()


def test_a_peer_that_dies_is_noticed_with_its_last_words() -> None:
    with (
        PeerWorker("gone", Path(sys.executable), "benchmarks.no_such_module", num_threads=1) as worker,
        pytest.raises(BenchmarkError, match=r"'gone' ended without an answer \(exit code 1\): .*no_such_module"),
    ):
        worker.ready()


@pytest.mark.slow
def test_the_experiment_runs_without_any_peer_and_says_which_are_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(speed, "PREFILL_LENGTHS", (3,))
    monkeypatch.setattr(speed, "CONTEXTS", (2,))
    monkeypatch.setattr(speed, "NEW_TOKENS", 2)
    monkeypatch.setattr(speed, "MIN_SAMPLE_S", 0.0)
    monkeypatch.setattr(speed, "ROOT", tmp_path)
    monkeypatch.setattr(speed, "interpreter", lambda: tmp_path / "nothing")
    said: list[str] = []
    found = speed.run("tiny", [1], 2, said.append)
    absent = found["data"]["absent"]
    assert {peer.name for peer in PEERS} <= set(absent)
    assert all("make peers" in absent[peer.name] for peer in PEERS)
    part = found["data"]["threads"]["1"]
    engines = set(LABELS) - set(absent)
    assert (
        set(part["prefill"]["3"]) == set(part["decode"]["2"]) == set(part["checks"]) == set(part["memory"]) == engines
    )
    assert all(len(engine["samples_s"]) == 2 for engine in part["prefill"]["3"].values())
    assert part["checks"]["lean"]["relative_error"] < 1e-4
    record = {"data": found["data"], "settings": found["settings"]}
    json.dumps(record)
    assert "absent: CTranslate2, int8: not installed" in speed.table(record)
    drawn = speed.charts(record)
    assert set(drawn) == {"prefill-1-threads", "decode-1-threads"}
    assert all("hand-written PyTorch" in picture for picture in drawn.values())


def test_only_a_gpt2_can_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    import cachequant_lib as cq

    class Llama:
        class config:
            architecture = "llama"

    monkeypatch.setattr(cq, "load", lambda name: Llama)
    with pytest.raises(BenchmarkError, match="smollm2-135m is a llama; this experiment compares GPT-2 models"):
        speed.run("smollm2-135m", [1], 1, print)


def test_goals_take_the_size_that_did_worst_and_leave_out_who_is_absent() -> None:
    def cell(ratio: float) -> dict[str, Any]:
        return {speed.SUBJECT: {"speedup_over": {"ctranslate2": {"median": ratio, "low": ratio, "high": ratio}}}}

    part = {"prefill": {"128": cell(1.5), "512": cell(1.2)}, "decode": {"8": cell(1.1), "512": cell(1.4)}}
    labels = LABELS | {peer.name: peer.label for peer in PEERS}
    found = speed.goals({"engines": labels, "threads": {"1": part}})
    assert found["met"] == {
        "prefill of 128 and 512, 1 thread, over CTranslate2, int8": "no",
        "decode after 8 and 512, 1 thread, over CTranslate2, int8": "yes",
    }
    assert [ratio["median"] for ratio in found["reached"].values()] == [1.2, 1.1]
    assert list(found["goal"].values()) == [1.3, 1.1]
