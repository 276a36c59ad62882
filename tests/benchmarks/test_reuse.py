"""The arithmetic that the reuse experiments share, on made-up times; and what they refuse."""

import time

import pytest

from benchmarks import reuse
from benchmarks.records import BenchmarkError
from benchmarks.reuse import BASE, PREFIX, TRIE, Answer, Arm
from cachequant_lib.generation import Generation, generate
from cachequant_lib.model.base import Model
from cachequant_lib.model.registry import load


@pytest.fixture(scope="module")
def model() -> Model:
    return load("tiny")


def answer(prefill: float, overhead: float, *, cached: int = 0, token: int = 7) -> Answer:
    return Answer((token,), "x", 10, cached, prefill, 0.5, overhead)


def test_the_three_speed_ups_differ_in_who_pays_for_the_overhead() -> None:
    row = {BASE: [answer(8.0, 2.0)], PREFIX: [answer(2.0, 3.0, cached=8)]}
    found = {name: part["ratio"] for name, part in reuse.speedups([row], PREFIX, BASE).items()}
    assert found == {"forward": 4.0, "honest_source": 8 / 5, "honest": 10 / 5}


def test_a_set_is_the_ratio_of_sums_of_medians_not_the_mean_of_ratios() -> None:
    rows = [
        {BASE: [answer(p, 0.0) for p in (1.0, 9.0, 2.0)], PREFIX: [answer(p, 0.0) for p in (2.0, 2.0, 50.0)]},
        {BASE: [answer(8.0, 0.0)] * 3, PREFIX: [answer(2.0, 0.0)] * 3},
    ]
    found = reuse.speedups(rows, PREFIX, BASE)["honest"]
    assert found["ratio"] == (2 + 8) / (2 + 2)
    assert found["passes"]["low"] == pytest.approx((2 + 8) / (50 + 2), rel=1e-5)
    assert found["passes"]["high"] == (9 + 8) / (2 + 2)


def test_parts_longer_than_the_whole_are_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def impossible(*args: object, **options: object) -> Generation:
        return Generation((1,), "x", 3, 0, 100.0, (), 0.0, 0)

    monkeypatch.setattr(reuse, "generate", impossible)
    with pytest.raises(BenchmarkError, match=r"overhead of -\d+"):
        reuse.ask(Arm(model), "x", 1)


def test_the_overhead_is_the_call_without_its_forwards(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*args: object, **options: object) -> Generation:
        time.sleep(0.05)
        return generate(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(reuse, "generate", slow)
    found = reuse.ask(Arm(model), "She was", 2)
    assert found.overhead_s >= 0.05
    assert found.honest_s == found.prefill_s + found.overhead_s


def test_the_order_is_reversed_in_every_second_turn(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Arm] = []
    monkeypatch.setattr(reuse, "ask", lambda arm, prompt, new: asked.append(arm))
    arms = {"a": Arm(model), "b": Arm(model, reuse.new_cache(TRIE, model))}
    assert list(reuse.turn(arms, "x", 1, 0)) == list(reuse.turn(arms, "x", 1, 1)) == ["a", "b"]
    assert asked == [arms["a"], arms["b"], arms["b"], arms["a"]]


def test_another_text_than_the_uncached_one_is_refused_or_recorded() -> None:
    passes = [[{BASE: answer(1.0, 0.0), PREFIX: answer(1.0, 0.0, token=8)}]]
    with pytest.raises(BenchmarkError, match="PrefixCache says 'x', no cache says 'x'"):
        reuse.gather(passes, {PREFIX: BASE}, lambda name: True)
    (row,) = reuse.gather(passes, {PREFIX: BASE}, lambda name: False)
    assert reuse.kept(row, PREFIX, BASE)["same_tokens_as_uncached"] is False


def test_passes_that_differ_in_hits_are_refused() -> None:
    passes = [[{PREFIX: answer(1.0, 0.0, cached=n)}] for n in (3, 4)]
    with pytest.raises(BenchmarkError, match="passes differ in tokens or hits"):
        reuse.gather(passes, {}, lambda name: True)


def test_both_caches_hold_the_same_number_of_tokens(model: Model) -> None:
    assert reuse.new_cache(BASE, model) is None
    trie, prefix = (reuse.new_cache(engine, model, 100) for engine in (TRIE, PREFIX))
    assert trie.max_tokens == 100
    assert prefix.capacity_bytes == 100 * 6 * 2 * 256 * 4
