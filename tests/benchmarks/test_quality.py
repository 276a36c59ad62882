"""The experiments about quality: the text they read, the numbers they store, and what they refuse."""

import json
from dataclasses import replace

import numpy as np
import pytest

import cachequant_lib as cq
from benchmarks import __main__ as cli
from benchmarks import candidates, grid, quality, repeatable, windows
from benchmarks.records import BenchmarkError
from benchmarks.sweep import Options, unpack

TEXT = "It was a very fine day, and she walked to the village with her sister, who spoke of nothing but the ball. " * 4


@pytest.fixture(scope="module")
def tiny():
    return cq.load("tiny")


@pytest.fixture
def text(tmp_path):
    (tmp_path / "walk.txt").write_text(TEXT)
    return str(tmp_path / "walk.txt")


@pytest.fixture
def few(monkeypatch):
    """Ask the smaller questions about few and short prompts."""
    monkeypatch.setattr(quality, "PROMPTS", quality.PROMPTS[:2])
    monkeypatch.setattr(quality, "NEW_TOKENS", 3)
    monkeypatch.setattr(repeatable, "NUM_PROMPTS", 2)
    monkeypatch.setattr(repeatable, "PROMPT_TOKENS", 24)
    monkeypatch.setattr(repeatable, "NEW_TOKENS", 3)


# ---- The text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 7, 40, 1000])
def test_windows_ask_for_every_token_after_the_first_once(tiny, text, window):
    read = windows.read_text(text, tiny, window)
    ids = tiny.tokenizer.encode(TEXT)
    assert [token for ids in read.windows for token in ids[1:]] == ids[1:]
    assert all(before[-1] == after[0] for before, after in zip(read.windows, read.windows[1:], strict=False))
    assert max(map(len, read.windows)) <= window + 1
    assert sorted(read.order) == list(range(len(read.windows)))
    assert read.num_scored == len(ids) - 1 == read.protocol["text_tokens"] - 1


def test_the_text_may_come_from_the_environment(tiny, text, monkeypatch):
    assert windows.read_text(None, tiny, None).name == "Jane Austen, held out"
    monkeypatch.setenv("CACHEQUANT_TEXT", text)
    assert windows.read_text(None, tiny, None).name == "walk"


@pytest.mark.parametrize(
    ("content", "window", "error", "words"),
    [
        ("", None, cq.TokenError, "walk has 0"),
        ("a", None, cq.TokenError, "walk has 1"),
        (TEXT, 1025, cq.ContextLengthError, "window 1025 is longer than tiny's context 1024"),
        (TEXT, 0, cq.FormatError, "at least 1 token"),
        (b"\xff\xfe", None, BenchmarkError, "cannot read the text"),
        (None, None, BenchmarkError, "give --text a UTF-8 file, 'heldout', or 'hub'"),
    ],
)
def test_a_text_that_cannot_be_scored_is_refused(tiny, tmp_path, content, window, error, words):
    path = tmp_path / "walk.txt"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(error, match=words):
        windows.read_text(str(path), tiny, window)


def test_everything_a_number_depends_on_is_in_the_key(tiny, text):
    keys = [windows.key(tiny, windows.read_text(text, tiny, window)) for window in (20, 30)]
    keys.append(windows.key(replace(tiny, embedding=tiny.embedding * 2), windows.read_text(text, tiny, 20)))
    keys.append(windows.key(tiny, windows.read_text("heldout", tiny, 20)))
    assert len({json.dumps(key) for key in keys}) == 4


def test_a_worker_with_another_model_is_refused():
    with pytest.raises(BenchmarkError, match="tiny is another model here"):
        windows.known_model("tiny", "0" * 32)


# ---- What is stored --------------------------------------------------------------------------------------------------


def run(experiment, folder, text, **options):
    return experiment.run("tiny", text, 40, Options(work=folder, **options), lambda line: None)


def record(found):
    """A run's record as it comes back from the disk."""
    return json.loads(json.dumps({"name": "x", **found}))


def test_quality_stores_what_compare_finds(tiny, text, tmp_path, few):
    found = record(run(quality, tmp_path / "work", text))
    data = found["data"]
    assert data["scored"]["whole_text"]
    assert data["scored"]["tokens"] == data["protocol"]["text_tokens"] - 1
    assert set(data["formats"]) == set(candidates.FORMATS)
    int8, bfp8 = cq.quantize_model(tiny, "int8"), replace(cq.quantize_model(tiny, "bfp8"), layer_by_layer=True)
    for name, model in {"int8": replace(int8, layer_by_layer=True), "int8-whole": int8, "bfp8": bfp8}.items():
        row, expected = data["formats"][name], cq.compare(model, tiny, TEXT, 40)
        assert row["ratio"]["value"] == pytest.approx(expected.perplexity_ratio.value, abs=2e-6)
        assert row["kl_mean"]["value"] == pytest.approx(expected.kl_mean, rel=0.01)
        assert row["kl_max"] == pytest.approx(expected.kl_max, rel=0.02)
        assert row["perplexity"]["value"] == pytest.approx(cq.perplexity(model, TEXT, 40).value, rel=1e-5)
        assert row["bits_per_byte"] == pytest.approx(cq.perplexity(model, TEXT, 40).bits_per_byte, rel=1e-5)
    assert data["greedy"]["formats"]["fp32"] == {"identical": 2, "first_divergence": [None, None]}
    assert data["source_protocol"]["passages"] == ["news", "code comment", "dialogue"]
    again = data["reproducible"]
    assert all(row["prompts"] == 2 for row in again["formats"].values())
    for name in repeatable.WHOLE:
        assert again["formats"][name]["bit_equal"] == again["formats"][name]["same_texts"] == 2
        assert again["formats"][name]["source_cut"]["largest_gap"] < 1e-4
    assert again["perturbed"]["rules"]["int8"]["scales_moved"] == 1
    assert again["perturbed"]["rules"]["bfp8"]["scales_moved"] < 0.01
    assert "the whole text" in quality.table(found)
    assert run(quality, tmp_path / "work", text, minutes=0)["data"] == found["data"]


def test_bits_are_those_that_the_librarys_layers_tell(tiny):
    for name, made in candidates.FORMATS.items():
        model = made.make(tiny)
        layers = [x for b in model.blocks for x in (b.attn_qkv, b.attn_out, b.mlp_up, b.mlp_down)]
        if made.arithmetic != candidates.SIMULATED:
            sizes = [x.in_features * x.out_features for x in layers]
            mean = np.average([x.bits_per_weight() for x in layers], weights=sizes)
            assert made.bits(tiny) == pytest.approx(mean), name


def test_the_grid_has_every_corner_and_gives_an_early_answer(tiny, text, tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "GRANULARITIES", (32, "row", "tensor"))
    monkeypatch.setattr(grid, "SCALES", ("pow2", "exact"))
    with pytest.raises(BenchmarkError, match="no window is finished for every cell yet"):
        run(grid, tmp_path / "work", text, minutes=0)
    model, folder = cq.load("tiny"), tmp_path / "part"
    read = windows.read_text(text, model, 40)
    one = [job for job in grid.jobs("tiny", model, read) if job[0].endswith(f"/{read.order[0]}")]
    done = {name: grid.do(job) for name, job in one}
    data = grid.gather(done, model, read)
    assert data["scored"]["in_words"] == f"1 of {len(read.windows)} windows, drawn at random"
    found = record(run(grid, folder, text))
    assert found["data"]["scored"]["whole_text"]
    cells = found["data"]["cells"]
    assert {g: set(row) for g, row in cells.items()} == {g: {"pow2", "exact"} for g in ("32", "row", "tensor")}
    assert cells["32"]["pow2"]["shipped_as"] == "bfp8"
    assert cells["32"]["pow2"]["bits_per_weight"] == 8.25
    expected = cq.compare(cq.quantize_model(tiny, cq.Scheme(32, "pow2")), tiny, TEXT, 40)
    assert cells["32"]["pow2"]["both"]["ratio"]["value"] == pytest.approx(expected.perplexity_ratio.value, abs=2e-6)
    assert cells["tensor"]["pow2"]["both"]["kl_mean"]["value"] > 2 * cells["32"]["exact"]["both"]["kl_mean"]["value"]
    jobs = unpack(found["data"]["jobs"])
    assert all(jobs[name] == result for name, result in done.items())
    assert "the whole text" in grid.table(found)


@pytest.mark.parametrize(
    ("ours", "theirs", "place"),
    [([1, 2], [1, 2], None), ([1, 3], [1, 2], 1), ([1], [1, 2], 1), ([], [], None), ([1, 2], [], 0)],
)
def test_where_two_texts_part(ours, theirs, place):
    assert repeatable.first_difference(ours, theirs) == place


# ---- The command line ------------------------------------------------------------------------------------------------


def test_each_model_has_its_own_file(tmp_path):
    assert cli.stored_name("baseline", "tiny") == "baseline"
    assert cli.stored_name("grid", "smollm2-135m") == "grid-smollm2-135m"
    assert cli.stored_name("quality", str(tmp_path / "My model.v2")) == "quality-My-model-v2"


def test_the_command_line_runs_a_sweep(text, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(grid, "GRANULARITIES", ("row",))
    monkeypatch.setattr(grid, "SCALES", ("exact",))
    place = ["--model", "tiny", "--out", str(tmp_path / "out"), "--machine", "box", "--work", str(tmp_path / "work")]
    assert cli.main(["grid", *place, "--text", text, "--window", "50"]) == 0
    stored = json.loads((tmp_path / "out" / "box" / "grid-tiny.json").read_text())
    assert stored["name"] == "grid-tiny"
    assert stored["command"] == "python -m benchmarks grid --model tiny --text walk.txt --window 50"
    assert str(tmp_path) not in json.dumps({k: v for k, v in stored.items() if k != "system"})
    first = capsys.readouterr().out
    assert cli.main(["grid", *place, "--charts-only"]) == 0
    assert capsys.readouterr().out == first
    for file in (tmp_path / "work").iterdir():
        file.unlink()
    assert cli.main(["grid", *place, "--text", text, "--window", "50", "--minutes", "0"]) == 0
    assert "jobs are taken from the stored record" in capsys.readouterr().err


@pytest.mark.parametrize("minutes", ["-1", "x", "", "1e3", "nan"])
def test_minutes_that_are_none_get_a_plain_message(minutes, capsys):
    with pytest.raises(SystemExit):
        cli.main(["grid", f"--minutes={minutes}"])
    assert "is not a number of minutes" in capsys.readouterr().err


def test_a_work_folder_in_the_way_stops_before_any_work(text, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    options = ["--model", "tiny", "--text", text, "--out", str(tmp_path / "out"), "--work", str(tmp_path / "file")]
    assert cli.main(["quality", *options]) == 1
    assert "choose another place with --work DIR" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
