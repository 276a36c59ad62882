"""The kernel experiment: its arithmetic on made-up times, and one real run on the embedded model."""

from collections.abc import Iterator

import numba
import numpy as np
import pytest
import torch

from benchmarks import kernels, layers, workers
from benchmarks.kernels import cell, footprint_bytes, table

LIMITS = {"instruction_set": "generic", "instruction": "pmaddwd", "tile_rate": 1e9, "read_bandwidth": 1e6}


def test_speed_ups_are_paired_and_shares_are_of_the_limits() -> None:
    samples = {"mkl": [2.0, 40.0], "blas": [3.0, 5.0], "int8": [1.0, 10.0]}
    found = cell(depth=1000, columns=2000, rows=10, num_threads=2, samples=samples, limits=LIMITS)
    int8 = found["engines"]["int8"]
    assert int8["speedup_over_base"] == {"median": 3.0, "low": 2.0, "high": 4.0}
    assert found["engines"]["mkl"]["speedup_over_base"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert found["fastest_fp32"] == "blas"
    assert int8["speedup_over_fastest_fp32"] == {"median": 1.75, "low": 0.5, "high": 3.0}
    assert int8["seconds"]["median"] == 5.5
    assert int8["share_of_tile_rate"] == pytest.approx(2e7 / 5.5 / 2e9, rel=1e-2)
    assert int8["share_of_read_bandwidth"] == pytest.approx(2e6 / 5.5 / 1e6, rel=1e-2)  # a byte a weight
    assert found["engines"]["mkl"]["share_of_read_bandwidth"] == pytest.approx(8e6 / 21 / 1e6, rel=1e-2)  # four


def test_weights_rotate_through_more_than_the_largest_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 256 << 20 <= footprint_bytes() <= 1 << 30
    monkeypatch.setattr("cachequant_lib.machine.machine_info", lambda: {"caches": {"L2": 1 << 20, "L3": 64 << 20}})
    assert footprint_bytes() == 512 << 20
    monkeypatch.setattr("cachequant_lib.machine.machine_info", lambda: {"caches": {}})
    assert footprint_bytes() == 256 << 20


@pytest.fixture
def threads_and_gradients() -> Iterator[None]:
    """Put back what an engine sets for the whole of its process."""
    before = numba.get_num_threads(), torch.get_num_threads(), torch.is_grad_enabled()
    yield
    numba.set_num_threads(before[0])
    torch.set_num_threads(before[1])
    torch.set_grad_enabled(before[2])


@pytest.mark.usefixtures("threads_and_gradients")
def test_every_layer_computes_the_same_product() -> None:
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((48, 64), np.float32), rng.standard_normal(48, np.float32)
    x = rng.standard_normal((9, 64), np.float32)
    truth = x @ weight.T + bias
    makers = {"torch": layers.TorchBench, "numpy": layers.NumpyBench, "library": layers.LibraryBench}
    results = {}
    for name in kernels.LABELS:
        bench = makers[kernels.PROCESS.get(name, "library")](1, 0)
        layer, nbytes, clone = bench._make(name, weight, bias)
        assert nbytes > 0
        results[name], copied = (
            np.asarray(torch.as_tensor(f(bench._input(name, x))).float()) for f in (layer, clone())
        )
        assert (results[name] == copied).all(), name
        assert np.abs(results[name] - truth).max() < (1e-4 if "fp32" in kernels.LABELS[name] else 0.5), name
    assert all((results[name] == results["int8"]).all() for name in results if name.startswith("rung"))


@pytest.mark.slow
def test_every_engine_runs_every_shape_of_the_embedded_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "REST_S", 0.0)
    monkeypatch.setattr(kernels, "ROWS", (1, 9))
    monkeypatch.setattr(kernels, "MIN_SAMPLE_S", 0.0)
    monkeypatch.setattr(kernels, "footprint_bytes", lambda: 1 << 20)
    said: list[str] = []
    found = kernels.run("tiny", [1], 2, said.append)
    part = found["data"]["threads"]["1"]
    assert [(c["in_features"], c["out_features"], c["rows"]) for c in part["cells"]] == [
        (k, n, m) for k, n in found["model"]["shapes"] for m in (1, 9)
    ]
    assert set(found["model"]["shapes"][0]) == {256}
    for measured in part["cells"]:
        assert set(measured["engines"]) == set(kernels.LABELS)
        assert all(len(engine["samples_s"]) == 2 for engine in measured["engines"].values())
    assert part["limits"]["tile_rate"] > 1e8
    assert part["limits"]["read_bandwidth"] == max(part["limits"]["read_bandwidth_seen"])
    assert found["data"]["goals"]["goal"]["this library, int8, 1 row"] == 4.0
    record = {"data": found["data"]}
    assert set(kernels.charts(record)) == {"ladder-1-threads", "limits-1-threads"}
    if part["limits"]["instruction_set"].startswith("avx"):
        held = found["data"]["avx2"]
        assert held["limits"]["instruction_set"] == "avx2"
        assert all(set(c["engines"]) == set(kernels.AVX2_ENGINES) for c in held["cells"])
    printed = table(record)
    assert "this library, int8" in printed
    assert any("256 -> 768, 9 rows" in line for line in said)


def test_goals_are_held_against_the_shape_that_did_worst() -> None:
    def shape(rows: int, ratio: float) -> dict:
        return {"rows": rows, "engines": {"int8": {"speedup_over_base": {"median": ratio}}}}

    found = kernels.goals([("int8", 1, 4.0), ("int8", 8, 9.0)], [shape(1, 3.9), shape(1, 4.0), shape(512, 1.0)])
    name = "this library, int8, 1 row"
    assert found == {"goal": {name: 4.0}, "least": {name: 3.9}, "most": {name: 4.0}, "met": {name: "1 of 2"}}
