"""The chapter 1 experiment: its arithmetic on made-up times, and one real run on the embedded model."""

import pytest

from benchmarks import baseline, workers
from benchmarks.baseline import metrics, predict

SMALL = {"width": 768, "vocab_size": 50257, "context_length": 1024, "num_layers": 12}


def test_the_metrics_are_the_sources() -> None:
    found = metrics(prefill_s=0.04, step_s=[0.02, 0.03, 0.01, 0.02], prompt_tokens=8)
    assert found["prefill_tokens_per_s"] == pytest.approx(200.0)
    assert found["decode_tokens_per_s"] == pytest.approx(4 / 0.08)
    assert found["mean_latency_s"] == pytest.approx(0.02)
    assert (found["p50_latency_s"], found["p90_latency_s"]) == (0.02, 0.03)
    assert found["wall_s"] == pytest.approx(0.12)
    assert found["cost_per_1k_tokens"] == pytest.approx(0.357 / 3600 * 0.12 / 5 * 1000)  # five tokens: 1 + 4 steps


def test_the_prediction_reads_every_weight_but_one_row_of_positions() -> None:
    found = predict(SMALL, bandwidth=10e9, matmul_rate=100e9)
    assert found["bytes_per_token"] == 4 * (124_439_808 - 1023 * 768)
    assert found["read_s"] == pytest.approx(found["bytes_per_token"] / 10e9, rel=1e-5)
    assert found["operations_per_prefill_token"] == 2 * 12 * (768 * 2304 + 768 * 768 + 2 * 768 * 3072)
    longest = found["prefill_products_s"][-1]
    assert longest == pytest.approx((512 * found["operations_per_prefill_token"] + 2 * 50257 * 768) / 100e9, rel=1e-5)


def test_speed_ups_are_paired_and_above_one_when_faster() -> None:
    def result(prefill: float) -> dict:
        return {"prefill_s": prefill, "step_s": [prefill], "token_ids": [1, 2]}

    runs = {"transformers": [result(2.0), result(40.0)], "lean": [result(1.0), result(10.0)]}
    profile = baseline._profile(runs, prompt_tokens=8)
    expected = {"median": 3.0, "low": 2.0, "high": 4.0}
    assert profile["speedup_over_base"] == {"lean": {"prefill": expected, "decode": expected, "wall": expected}}
    assert profile["engines"]["lean"]["same_tokens_as_base"] is True
    runs["lean"][1]["token_ids"] = [1, 3]
    assert baseline._profile(runs, prompt_tokens=8)["engines"]["lean"]["same_tokens_as_base"] is False


@pytest.mark.slow
def test_three_engines_measure_the_embedded_model_and_agree_on_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "REST_S", 0.0)
    monkeypatch.setattr(baseline, "PREFILL_LENGTHS", (1, 8))
    monkeypatch.setattr(baseline, "CONTEXTS", (8,))
    monkeypatch.setattr(baseline, "MIN_SAMPLE_S", 0.0)
    said: list[str] = []
    found = baseline.run("tiny", [1], 2, said.append)
    part = found["data"]["threads"]["1"]
    for name, (_, new_tokens) in baseline.PROFILES.items():
        for engine in part["profiles"][name]["engines"].values():
            assert engine["same_tokens_as_base"]
            assert [len(run["step_s"]) for run in engine["runs"]] == [new_tokens - 1] * 2
            assert engine["summary"]["decode_tokens_per_s"]["low"] > 0
    assert part["prefill_sweep"]["num_tokens"] == [1, 8]
    assert part["limits"]["read_bandwidth"] > 1e8
    assert found["model"]["name"] == "tiny"
    assert any("short profile" in line for line in said)
    record = {"data": found["data"]}
    assert "hand-written PyTorch" in baseline.table(record)
    pictures = baseline.charts(record)
    assert set(pictures) == {"prefill-1-threads", "decode-1-threads"}
    assert all(picture.startswith("<svg") for picture in pictures.values())
