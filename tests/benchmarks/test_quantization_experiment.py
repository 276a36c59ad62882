"""The experiment on weight formats: its arithmetic on made-up times, its engines against the library, one real run."""

import json
from collections.abc import Iterator

import numpy as np
import pytest

import cachequant_lib as cq
from benchmarks import formats, quantization, workers
from benchmarks.floats import FloatEngine
from benchmarks.quantization import first_difference, price, profile, table
from cachequant_lib.bench import CostModel

TORCH = pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.05), ("float16", 0.01)])


def result(prefill_s: float, step_s: float, ids: list[int]) -> dict[str, object]:
    return {"prefill_s": prefill_s, "step_s": [step_s] * (len(ids) - 1), "token_ids": ids}


def test_speed_is_paired_and_compared_with_the_faster_fp32_of_each_part() -> None:
    runs = {
        "fp32": [result(1.0, 0.2, [1, 2, 3]), result(1.0, 0.4, [1, 2, 3])],
        "torch_fp32": [result(0.5, 0.8, [1, 2, 3]), result(0.5, 0.8, [1, 2, 3])],
        "int8": [result(0.25, 0.1, [1, 2, 9]), result(0.25, 0.1, [1, 2, 9])],
    }
    found = profile(runs, 8, CostModel(3.6, "a machine", "made up"))
    assert found["fastest_fp32"] == {"prefill": "torch_fp32", "decode": "fp32", "wall": "fp32"}
    int8 = found["engines"]["int8"]
    assert int8["speedup_over_base"]["prefill"] == {"median": 4.0, "low": 4.0, "high": 4.0}
    assert int8["speedup_over_base"]["decode"] == {"median": 3.0, "low": 2.0, "high": 4.0}
    assert int8["speedup_over_fastest_fp32"]["prefill"]["median"] == 2.0
    assert int8["first_difference"] == 2
    assert found["engines"]["fp32"]["first_difference"] is None
    assert int8["summary"]["cost_per_1k_tokens"]["median"] == pytest.approx(0.001 * 0.45 / 3 * 1000)


def test_first_difference() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [4, 2, 3]) == 0


def test_the_price_is_in_a_file_with_its_source() -> None:
    stored = json.loads(quantization.PRICE.read_text("utf-8"))
    assert price() == CostModel(**stored)
    assert "source project" in stored["source"]
    assert price().dollars_per_hour == CostModel().dollars_per_hour


@pytest.fixture
def torch_as_before() -> Iterator[None]:
    """An engine made here, not in a process of its own, leaves its switches to every test that follows."""
    import torch

    yield
    torch.set_flush_denormal(False)
    torch.set_grad_enabled(True)


@TORCH
@pytest.mark.usefixtures("torch_as_before")
def test_the_float_engine_computes_what_the_library_does(dtype: str, tolerance: float) -> None:
    model = cq.load("tiny")
    ids, kv = model.tokenizer.encode("It is a truth universally acknowledged"), model.new_kv(capacity=32)
    expected = [model.forward(ids, kv, last_only=True), model.forward([5], kv)]
    engine = FloatEngine("tiny", 1, dtype)
    for given, right in zip((ids, [5]), expected, strict=True):
        logits = engine.forward(given).float().numpy()
        assert np.abs(logits - right).max() < tolerance * np.abs(right).max()
    assert engine.peak() > 0


def test_bytes_of_a_decode_step_are_all_weights_but_the_unread_rows_of_the_tables() -> None:
    model = cq.load("tiny")
    c, parts = model.config, formats.bytes_read(model)
    unread = model.positions.nbytes - model.positions[0].nbytes
    row = model.embedding[0].nbytes  # the token's row is read from the table that the head is
    assert sum(parts.values()) == model.nbytes - unread + row
    int8 = formats.bytes_read(cq.quantize_model(model, "int8", head="int8"))
    assert int8["head"] == c.vocab_size * (c.width + 8)
    assert 3.8 < parts["blocks"] / int8["blocks"] < 4


def test_limits_follow_from_bytes_and_products() -> None:
    library = {
        "fp32": {"blocks": 600, "head": 300, "other": 100},
        "int8": {"blocks": 150, "head": 300, "other": 50},
    }
    found = formats.limits(
        {"fp32": 10.0, "torch_bf16": 40.0, "int8": 80.0}, library, {"blocks": 150, "head": 75}, 100.0
    )
    assert found["torch_bf16"]["bytes_read"] == {"blocks": 300, "head": 150, "other": 50, "total": 500}
    assert found["int8"]["head_share"] == 0.6
    assert found["fp32"]["read_s"] == 10.0
    assert found["int8"]["products_s_per_prefill_token"] == 1.875


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "REST_S", 0.0)
    monkeypatch.setattr(quantization, "PREFILL_LENGTHS", (1, 4))
    monkeypatch.setattr(quantization, "CONTEXTS", (8,))
    monkeypatch.setattr(quantization, "PROFILES", {"short": ("short_ids", 3), "long": ("long_ids", 2)})
    monkeypatch.setattr(quantization, "MIN_SAMPLE_S", 0.0)
    monkeypatch.setattr(formats, "LABELS", {k: formats.LABELS[k] for k in ("fp32", "torch_bf16", "int8")})


@pytest.mark.slow
@pytest.mark.compiled
def test_a_real_run_holds_every_sample(quick: None) -> None:
    said: list[str] = []
    found = quantization.run("tiny", [1], 2, said.append)
    part = found["data"]["threads"]["1"]
    assert set(part["profiles"]) == {"short", "long"}
    for profiled in part["profiles"].values():
        assert set(profiled["engines"]) == {"fp32", "torch_bf16", "int8"}
        assert all(len(engine["runs"]) == 2 for engine in profiled["engines"].values())
    assert part["prefill_sweep"]["num_tokens"] == [1, 4]
    assert part["num_weights"]["blocks"] == 6 * 12 * 256**2
    text = table({"data": found["data"]})
    assert "hand-written PyTorch, bf16" in text
    assert "source, fp16" in text
    assert json.loads(json.dumps(found)) == found
