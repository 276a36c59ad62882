"""The breakdown: its differences and sums on made-up times, its bare kernel against NumPy, one real run."""

import json
from typing import Any

import numpy as np
import pytest

import cachequant_lib as cq
from benchmarks import breakdown, compiled_stages, stages, workers
from benchmarks.breakdown import kept, layer_stages, table, total
from benchmarks.stages import LayerStages
from cachequant_lib.formats import quantize_bfp8, quantize_int8
from cachequant_lib.model.ops import gelu


def made_up() -> dict[str, list[float]]:
    taken = {"blas": [8.0, 8.0], "mkl": [16.0, 12.0]}
    for scheme in breakdown.SCHEMES:
        taken |= {scheme: [10.0, 4.0], f"{scheme}_quantize": [1.0, 1.0]}
        taken |= {f"{scheme}_multiply": [7.0, 2.0], f"{scheme}_bare": [5.0, 1.5]}
    return taken


def test_differences_are_taken_round_by_round() -> None:
    int8 = layer_stages(made_up())["int8"]
    assert int8["scale"]["samples_s"] == [2.0, 0.5]
    assert int8["call"]["samples_s"] == [2.0, 1.0]
    parts = ("quantize", "multiply", "scale", "call")
    assert sum(int8[part]["samples_s"][0] for part in parts) == int8["whole"]["samples_s"][0]
    assert int8["times_as_long_as_fp32"]["blas"] == {"median": 0.875, "low": 0.5, "high": 1.25}


def test_a_pass_is_its_stages_and_a_rest() -> None:
    layers = [{"in_features": 4, "out_features": 4, "per_block": 2, "stages": layer_stages(made_up())}]
    pieces = {name: kept([1.0, 1.0]) for name in (*breakdown.PIECES, "head_int8", "head_fp32")}
    pieces |= {"whole_int8": kept([100.0, 100.0]), "whole_fp32": kept([60.0, 60.0])}
    int8 = total("int8", layers, pieces, num_layers=3, compiled=False)
    assert int8["quantize"] == 3 * 2 * 1.0
    assert int8["sum"] == pytest.approx(6 * (1 + 3.25 + 1.25 + 1.5) + 5)
    assert int8["sum"] + int8["rest"] == int8["whole"] == 100.0
    fp32 = total("fp32", layers, pieces, num_layers=3, compiled=False)
    assert fp32["multiply"] == 6 * 8.0
    assert "quantize" not in fp32


def test_a_compiled_pass_has_stages_of_its_own_and_calls_no_layer() -> None:
    layers = [{"in_features": 4, "out_features": 4, "per_block": 1, "stages": layer_stages(made_up())}]
    pieces = {f"{name}_compiled": kept([0.5, 0.5]) for name in breakdown.COMPILED}
    pieces |= {name: kept([1.0, 1.0]) for name in (*breakdown.PIECES, "head_int8")}
    pieces |= {"whole_int8": kept([9.0, 9.0]), "whole_int8_layers": kept([12.0, 12.0])}
    once = total("int8", layers, pieces, num_layers=1, compiled=True)
    assert (once["norm"], once["attention"], once["activation"]) == (0.5, 0.5, 0.5)
    assert not {"call", "residual"} & set(once)
    layered = total("int8_layers", layers, pieces, num_layers=1, compiled=False)
    assert layered["norm"] == layered["residual"] == 1.0
    assert layered["sum"] > once["sum"]


@pytest.mark.compiled
@pytest.mark.parametrize("scheme", breakdown.SCHEMES)
@pytest.mark.parametrize("rows", [1, 5, 21])
def test_the_bare_kernel_sums_products_of_codes(scheme: str, rows: int) -> None:
    depth, columns = 64, 100
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, depth), dtype=np.float32)
    weight = rng.standard_normal((columns, depth), dtype=np.float32)
    packed, tile = stages.packed_weight(scheme, weight, np.zeros(columns, np.float32)), stages.tile_of(scheme)
    arrays = LayerStages(1, 1)._input(f"{scheme}_bare", x)
    out = np.empty((rows, packed.panels.shape[0] * tile.width), np.float32)
    stages.multiply_bare(tile, arrays[0], packed.panels, scheme == "bfp8", out)
    quantize: Any = {"int8": quantize_int8, "bfp8": quantize_bfp8}[scheme]
    names = {"int8": "codes", "bfp8": "mantissas"}
    a, b = (getattr(quantize(m), names[scheme]).astype(np.int64) for m in (x, weight))
    flip = tile.flip  # the unsigned operand carries 128 more than its code
    a, b = (a - flip, b) if scheme == "int8" else (a, b - flip)
    assert np.array_equal(out[:, :columns], (a @ b.T).astype(np.float32))


@pytest.mark.slow
@pytest.mark.compiled
def test_a_real_run_times_every_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "REST_S", 0.0)
    monkeypatch.setattr(breakdown, "MIN_SAMPLE_S", 0.0)
    monkeypatch.setattr(breakdown, "footprint_bytes", lambda: 1 << 20)
    found = breakdown.run("tiny", [1], 2, lambda line: None)
    phases = found["data"]["threads"]["1"]
    assert set(phases) == {"decode", "prefill"}
    for phase in phases.values():
        assert [(s["in_features"], s["out_features"]) for s in phase["layers"]] == [
            *((256, 768), (256, 256), (256, 1024), (1024, 256))
        ]
        assert {"fp32", "bfp8", "int8", "int8_head", "int8_layers"} <= set(phase["totals"])
        assert all(parts["whole"] > 0 for parts in phase["totals"].values())
    text = table({"data": found["data"]})
    assert "decode, 1 row(s)" in text
    assert json.loads(json.dumps(found)) == found


@pytest.mark.compiled
@pytest.mark.parametrize("rows", [1, 5])
def test_the_compiled_stages_compute_what_the_plain_ones_do(rows: int) -> None:
    model, tile, rng = cq.load("tiny"), stages.tile_of("int8"), np.random.default_rng(rows)
    c, kv = model.config, model.new_kv(capacity=16)
    x = rng.standard_normal((rows, c.width), dtype=np.float32)
    h = rng.standard_normal((rows, c.hidden_width), dtype=np.float32)
    norm, lines = model.blocks[0].norm_1, np.empty((1, c.width), np.float32)
    stacked = np.stack([norm.weight, norm.bias])[None]  # (1, 2, C)
    compiled_stages._norms(tile, x[-1:], c.width, stacked, np.float32(c.norm_eps), True, lines)
    np.testing.assert_allclose(lines, norm(x[-1:]), rtol=1e-4, atol=1e-5)
    wide = np.empty((1, c.hidden_width), np.float32)
    compiled_stages._activations(tile, h[-1:], h[0], False, 2, wide)
    np.testing.assert_allclose(wide, gelu(h[-1:].copy()), rtol=1e-4, atol=1e-5)
    kv.keys[:], kv.values[:] = (rng.standard_normal(kv.keys.shape, dtype=np.float32) for _ in range(2))
    q, layer = rng.standard_normal((rows, c.width), dtype=np.float32), c.num_layers - 1
    plain = model.new_kv(capacity=16)
    for t in range(3 + rows):
        plain.append(layer, kv.keys[layer, t : t + 1], kv.values[layer, t : t + 1])
    expected = plain.attend(layer, q.reshape(rows, c.num_heads, c.head_dim)).reshape(rows, -1)
    room = np.empty((2, compiled_stages.room_needed(tile, c.head_dim, 3 + rows)), np.float32)
    last = (kv.keys[layer].reshape(-1), kv.values[layer].reshape(-1))
    compiled_stages._attention(tile, q, 3, 1, c.num_kv_heads, c.head_dim, *last, room)
    np.testing.assert_allclose(q, expected, rtol=1e-4, atol=1e-5)
