"""The head experiment: its arithmetic on made-up times, and one real run on the embedded model."""

from collections.abc import Iterator

import numba
import numpy as np
import pytest
import torch

import cachequant_lib as cq
from benchmarks import head, workers


def test_speed_ups_are_paired_and_shares_are_of_what_each_head_reads() -> None:
    samples = {"mkl": [2.0, 40.0], "blas": [3.0, 5.0], "int8": [1.0, 1.0], "certified": [1.0, 10.0]}
    samples["certified_50"] = [4.0, 4.0]
    steps = {"fp32": [6.0, 8.0], "int8": [3.0, 2.0], "certified": [3.0, 4.0]}
    found = head.figures_of(samples, steps, {"fp32": 4000, "int8": 1008, "certified": 1100}, 1000.0)
    assert found["fastest_fp32"] == "blas"
    certified = found["engines"]["certified"]
    assert certified["speedup_over_base"] == {"median": 3.0, "low": 2.0, "high": 4.0}
    assert certified["speedup_over_fastest_fp32"] == {"median": 1.75, "low": 0.5, "high": 3.0}
    assert certified["share_of_read_bandwidth"] == pytest.approx(1100 / 5.5 / 1000, rel=1e-2)
    assert found["engines"]["certified_50"]["share_of_read_bandwidth"] == pytest.approx(1100 / 4 / 1000, rel=1e-2)
    assert found["engines"]["blas"]["share_of_read_bandwidth"] == pytest.approx(4000 / 4 / 1000, rel=1e-2)
    assert found["engines"]["int8"]["share_of_read_bandwidth"] == pytest.approx(1008 / 1 / 1000, rel=1e-2)
    assert found["decode"]["int8"]["speedup_over_fp32_head"] == {"median": 3.0, "low": 2.0, "high": 4.0}


def test_bytes_are_those_of_the_layers() -> None:
    tiny = cq.load("tiny")
    found = head.describe(tiny)
    for name in ("int8", "certified"):
        made = cq.quantize_model(tiny, "int8", head=name)
        inside = made.head.nbytes - (tiny.embedding.nbytes + made.head.bias.nbytes if name == "certified" else 0)
        assert found["head_bytes"][name] == inside
        assert found["block_bytes"]["int8"] == sum(
            layer.nbytes for block in made.blocks for layer in vars(block).values() if isinstance(layer, cq.Int8Linear)
        )
    share = found["head_bytes"]["fp32"] / (found["head_bytes"]["fp32"] + found["block_bytes"]["int8"])
    assert found["head_share_of_bytes"]["int8 blocks, fp32 head"] == pytest.approx(share, rel=1e-3)


@pytest.fixture
def threads_and_gradients() -> Iterator[None]:
    """Put back what an engine sets for the whole of its process."""
    before = numba.get_num_threads(), torch.get_num_threads(), torch.is_grad_enabled()
    yield
    numba.set_num_threads(before[0])
    torch.set_num_threads(before[1])
    torch.set_grad_enabled(before[2])


@pytest.mark.usefixtures("threads_and_gradients")
def test_every_head_finds_a_token_and_so_does_its_copy() -> None:
    states = np.random.default_rng(0).standard_normal((3, 256)).astype(np.float32)
    truth = (states @ cq.load("tiny").head.weight.T).argmax(axis=1)
    makers = {"torch": head.TorchHead, "numpy": head.NumpyHead, "library": head.LibraryHead}
    for name in head.LABELS:
        bench = makers[head.PROCESS.get(name, "library")]("tiny", states, 1, 0)
        made, nbytes, clone = bench._make(name)
        assert nbytes > 4096 * 256
        for choose in (made, clone()):
            assert [choose(row[None]) for row in states] == truth.tolist()


def test_what_the_heads_choose_is_counted() -> None:
    states = np.random.default_rng(0).standard_normal((5, 256)).astype(np.float32)
    found = head.LibraryHead("tiny", states, numba.get_num_threads(), 0).choices()
    assert found["num_states"] == 5
    assert found["differs_from_fp32"]["certified"] == 0
    one = found["largest"]["1"]
    assert sum(count == 0 for count in one["candidates"]) <= one["fallbacks"] < 5  # none is scored if too many are left
    assert found["largest"]["50"]["summary"]["high"] == max(found["largest"]["50"]["candidates"])


@pytest.mark.slow
def test_the_embedded_model_is_measured_and_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "REST_S", 0.0)
    monkeypatch.setattr(head, "MIN_SAMPLE_S", 0.0)
    monkeypatch.setattr(head, "NUM_STATES", 20)
    monkeypatch.setattr(head, "ALSO", ("tiny",))
    monkeypatch.setattr(head, "DECODE_TOKENS", 3)
    monkeypatch.setattr(head, "footprint_bytes", lambda: 1 << 22)
    said: list[str] = []
    found = head.run("tiny", [1], 2, said.append)
    part = found["data"]["heads"]["tiny"]
    assert part["choices"]["num_states"] == 20
    engines = part["threads"]["1"]["engines"]
    assert set(engines) == set(head.LABELS)
    assert all(len(engine["samples_s"]) == 2 for engine in engines.values())
    assert found["model"] == {"name": "tiny", "fingerprint": cq.load("tiny").fingerprint}
    printed = head.table(found)
    assert "this library, certified" in printed
    assert "tiny: 4096 rows of 256; 20 hidden states" in printed
    assert head.charts(found)["1-threads"].startswith("<svg")
