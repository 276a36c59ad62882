"""`aligned_bits`, `aligned_error`, `aligned_quality`, `aligned_time` end to end on small models, and their parts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import __main__ as cli
from benchmarks import (
    aligned_bits,
    aligned_error,
    aligned_quality,
    aligned_rows,
    aligned_tasks,
    aligned_time,
    sweep,
    windows,
)
from benchmarks.aligned_readers import LibraryReader, TorchReader
from benchmarks.records import BenchmarkError
from cachequant_lib.kv.fixture import load_kv_fixture
from cachequant_lib.model.linear import Float32Linear
from cachequant_lib.model.llama import Llama, LlamaBlock
from cachequant_lib.model.ops import RMSNorm
from cachequant_lib.model.registry import load

FIXED = aligned_rows.CONTESTANTS["fixed-8"]


@pytest.fixture(scope="module")
def rows() -> aligned_rows.Rows:
    seen = load_kv_fixture()[15]
    q = np.concatenate([np.zeros((448, 9, 64), np.float32), seen.q])
    return aligned_rows.Rows(q, seen.k, seen.v)


def run(name: str, folder: Path, *more: str) -> dict[str, Any]:
    assert cli.main([name, "--model", "tiny", "--out", str(folder), "--machine", "box", *more]) == 0
    return json.loads((folder / "box" / f"{cli.stored_name(name, 'tiny')}.json").read_text())


def test_bits_and_errors_of_a_small_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module, lengths in ((aligned_bits, (64, 128)), (aligned_error, (128,))):
        monkeypatch.setattr(module, "LENGTHS", lengths)
        monkeypatch.setattr(module, "LAYERS", 2)
        monkeypatch.setattr(module, "TEXTS", 1)
        monkeypatch.setattr(module, "QUERIES", 2)
    bits = run("aligned_bits", tmp_path)["data"]
    assert bits["lengths"] == [64, 128]
    assert all(8 <= v <= 32 for found in bits["bits"].values() for v in found["mean"]["key"])
    data = run("aligned_error", tmp_path)["data"]["lengths"]["128"]
    for found in data.values():
        assert sum(found["scores"]) == pytest.approx(100, abs=0.1)
        assert sum(found["values"]) == pytest.approx(100, abs=0.1)
    assert data["paper-control"]["scores"][0] > 95
    assert data["fixed-11"]["head"]["median"] < data["fixed-8"]["head"]["median"]
    assert data["drop-4"]["head"]["median"] > data["drop-3"]["head"]["median"] > data["paper"]["head"]["median"]
    assert "13 bits of each" in capsys.readouterr().out


def test_what_a_cache_computes_comes_from_what_is_said_to_be_read(rows: aligned_rows.Rows) -> None:
    for name in ("paper", "released", "fixed-8", "fixed-control", "drop-3", "kivi-4"):
        kv = aligned_rows.CONTESTANTS[name].new_kv(1, 3, 64, 500)
        for position, y in aligned_rows.last_queries(kv, rows, 500, 2):
            k, v = aligned_error.as_read(kv, rows, position + 1)
            _, _, out = aligned_error.attention(rows.q[position].astype(float), k.astype(float), v.astype(float))
            assert np.abs(y - out).max() < 2e-3 * np.abs(out).max(), name


def test_sums_in_fp16_are_sums_in_fp16() -> None:
    a, b = np.ones((1, 1, 4096)), np.full((1, 4096, 1), 1.0)
    assert aligned_error.in_fp16(a, b).item() == 2048  # beyond, one more is lost
    assert aligned_error.matmul(a, b).item() == 4096


def test_classes_of_error() -> None:
    tally = aligned_error.Tally()
    exact = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    tally.add("scores", exact * (1 + np.array([0, 2**-10, 2**-9, 2**-8, 2**-7, 0.5])), exact)
    assert tally.counts["scores"].tolist() == [1, 0, 1, 1, 1, 2]


def test_dropped_bits_and_bf16() -> None:
    x = np.array([1.0, -1.2345, 3.14159e-3, 60000.0], np.float32)
    for bits in (3, 4):
        left = x.astype(np.float16).view(np.uint16) >> bits
        found = aligned_rows.drop(bits)(x).astype(np.float16).view(np.uint16)
        assert np.array_equal(found >> bits, left)
        assert set((found & ((1 << bits) - 1)).tolist()) == {1 << (bits - 1)}
    torch = pytest.importorskip("torch")
    assert np.array_equal(aligned_rows.bf16(x), torch.from_numpy(x).bfloat16().float().numpy())


def small_llama() -> Llama:
    """Two layers of random weights that read the tiny model's tokens."""
    tiny, rng = load("tiny"), np.random.default_rng(0)
    sizes = {"num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "width": 32, "hidden_width": 64}
    made = {"architecture": "llama", "norm_eps": 1e-5, "rope_theta": 1e4, "tied_head": True, "context_length": 512}
    config = replace(tiny.config, **sizes, **made)

    def linear(inputs: int, outputs: int) -> Float32Linear:
        return Float32Linear(rng.normal(0, inputs**-0.5, (outputs, inputs)).astype(np.float32), None)

    def norm() -> RMSNorm:
        return RMSNorm(np.ones(32, np.float32), 1e-5)

    shapes = {"q": (32, 32), "k": (32, 16), "v": (32, 16), "o": (32, 32), "gate": (32, 64), "up": (32, 64)}
    blocks = tuple(
        LlamaBlock(norm_1=norm(), norm_2=norm(), down=linear(64, 32), **{n: linear(*s) for n, s in shapes.items()})
        for _ in range(2)
    )
    head = linear(32, config.vocab_size)
    return Llama(
        config=config,
        tokenizer=tiny.tokenizer,
        name="small",
        embedding=head.weight,
        blocks=blocks,
        final_norm=norm(),
        head=head,
    )


def test_side_by_side_each_cache_sees_what_it_would_see_alone() -> None:
    model, names = small_llama(), ("exact", "fixed-8", "paper", "drop-4", "kivi-4")
    ids = np.random.default_rng(1).integers(0, model.config.vocab_size, 150).tolist()
    block = aligned_rows.prefilled(model, ids[:140])
    panel, twin = aligned_rows.panel_of(names, model, block, 10), aligned_rows.side_by_side(model, len(names))
    found = [aligned_rows.step(twin, panel, [token] * len(names)) for token in ids[140:]]
    for i, name in enumerate(names):
        kv = aligned_rows.panel_of([name], model, block, 10).caches[0]
        alone = np.concatenate([model.forward([token], kv) for token in ids[140:]])
        assert np.allclose(np.array(found)[:, i], alone, atol=1e-4), name


def test_quality_of_a_small_llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_llama()
    for module in (aligned_quality, windows):
        monkeypatch.setattr(module, "load", lambda name: model)
    windows.known_model.cache_clear()
    for name, value in (("CONTEXTS", (64,)), ("POSITIONS", 64), ("STRETCHES", 2)):
        monkeypatch.setattr(aligned_quality, name, value)
    monkeypatch.setattr(aligned_quality, "NUM_ITEMS", {"sums": 1})
    options = sweep.Options(work=tmp_path)
    found = aligned_quality.run("small", None, None, options, lambda line: None)["data"]
    rows = found["contexts"]["64"]
    assert set(rows) == set(aligned_rows.CONTESTANTS)
    assert rows["exact"]["kl_max"] == 0
    assert all(row["positions"] == 128 for row in rows.values())
    assert (
        rows["fixed-11"]["kl_mean"]["value"] < rows["drop-4"]["kl_mean"]["value"] < rows["kivi-2"]["kl_mean"]["value"]
    )
    assert found["tasks"]["sums"]["exact"]["same"] == 1
    record = {"model": {"name": "small"}, "data": found}
    assert "KIVI, 10 bits" in aligned_quality.table(record)
    windows.known_model.cache_clear()


def test_a_panel_needs_a_llama() -> None:
    with pytest.raises(BenchmarkError, match="choose a Llama"):
        aligned_rows.side_by_side(load("tiny"), 2)


def test_beside_measures_divergence_and_the_lead() -> None:
    logits = np.log(np.array([[0.6, 0.3, 0.1], [0.6, 0.3, 0.1], [0.3, 0.6, 0.1]]))
    nll, kl, same, gap = aligned_quality.beside(logits, 1)
    assert nll == pytest.approx(-np.log([0.3, 0.3, 0.6]))
    assert kl == pytest.approx([0, 0, 0.3 * np.log(2)])
    assert same.tolist() == [True, True, False]
    assert gap == pytest.approx(np.log(2))


def test_measures_of_two_stretches() -> None:
    units = aligned_quality.POSITIONS // aligned_quality.UNIT
    part = {"nll": [64.0] * units, "kl": [0.32] * units, "kl_max": 0.5, "reads": [10, 80, 40, 5]}
    flips = ([[3, 0.02]], [[9, 0.01], [1, 0.5]])
    found = aligned_quality.measures([part | {"flips": f} for f in flips], [part, part])
    assert found["positions"] == 2 * aligned_quality.POSITIONS
    assert found["perplexity"] == pytest.approx(np.exp(2), rel=1e-5)
    assert found["ratio"]["value"] == 1
    assert found["kl_mean"]["value"] == pytest.approx(0.01)
    assert found["gaps_at_flips"] == [0.01, 0.02, 0.5]
    assert found["bits"] == {"key": 8, "value": 4, "metadata": 0.25, "all": 6.25}


def test_tasks_have_one_right_answer() -> None:
    model = load("tiny")
    question = aligned_tasks.sums(model, 5)
    assert question == aligned_tasks.sums(model, 5)
    assert question != aligned_tasks.sums(model, 6)
    text = model.tokenizer.decode(list(question.ids))
    a, b = (int(v) for v in text.rsplit("Q:", 1)[1].split(" is how many")[0].rsplit(". ", 1)[1].split(" + "))
    assert int(question.answer) == a + b
    assert aligned_tasks.right(question, f" {a + b}\nQ:")
    assert not aligned_tasks.right(question, f" {a + b}1")
    window = model.tokenizer.encode("A sentence that goes on and on. " * 200)
    found = aligned_tasks.recall(model, window)
    assert aligned_tasks.right(found, found.answer)
    assert model.tokenizer.decode(list(found.ids)).count("The same text again") == 1


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("heads") / "heads.npz"
    seen = load_kv_fixture()[15]
    k, v = (part.transpose(1, 0, 2).astype(np.float16) for part in (seen.k, seen.v))
    q = np.stack([seen.q[-1].reshape(3, 3, 64)] * 2, axis=2)  # (N, 3, S, D)
    np.savez(path, k=k, v=v, q=q, lengths=np.array([64, 512]))
    return str(path)


def test_every_engine_answers_what_float64_answers(heads: str) -> None:
    shape = "3x64, 9 queries"
    for reader in (LibraryReader(heads, 1), TorchReader(heads, 1)):
        q, k, v = (x.astype(float) for x in reader.heads(shape, 512))
        scores = q @ k.transpose(1, 2, 0)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        right = (shares / shares.sum(-1, keepdims=True)) @ v.transpose(1, 0, 2)
        about = reader.prepare(shape, 512, 0)
        assert set(about) == set(reader.engines)
        for engine, (read, layers) in reader._layers.items():
            if isinstance(reader, TorchReader):
                found = np.asarray(read(layers[0]).float()).reshape(right.shape)
                assert np.abs(found - right).max() < (0.05 if "gear" in engine else 0.02) * np.abs(right).max(), engine
        assert all(seconds > 0 for seconds in reader.passes(True, False).values())


def test_copies_are_copies_behind_each_other(heads: str) -> None:
    reader = LibraryReader(heads, 1)
    reader.engines = ("half", "fixed-8")
    about = reader.prepare("3x64, 9 queries", 64, 1 << 20)
    for engine, (_, layers) in reader._layers.items():
        assert len(layers) == about[engine]["layers"] > 2
        first, second = layers[0][0], layers[1][0]
        assert np.array_equal(first, second)
        assert second.ctypes.data - first.ctypes.data == first.nbytes
    assert about["fixed-8"]["bits"] < 33


def test_best_of_torch_and_goals() -> None:
    samples = {name: [2.0, 3.0] for name in aligned_time.LABELS} | {"fixed-8": [1.0, 1.0], "sdpa_bf16": [1.5, 1.5]}
    found = aligned_time.cell(samples)
    assert aligned_time.best_torch(found) == "sdpa_bf16"
    case = {"shape": "32x128", "length": 512, "best_torch": "sdpa_bf16", "engines": found}
    goals = aligned_time.goals([case])["512"]
    assert goals["reached"] == [2.5, 1.5, 2.5]
    assert goals["met"] == [True, False, True]


def test_time_needs_heads_of_64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachequant_lib.model.registry.load", lambda name: small_llama())
    with pytest.raises(BenchmarkError, match="64 channels"):
        aligned_time.store_heads("small", tmp_path / "heads.npz", lambda line: None)
