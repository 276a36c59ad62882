"""The command line: one clear error for each thing that can go wrong, and earlier results kept."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import __main__ as cli
from benchmarks.records import BenchmarkError


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A quick experiment named "stub"."""
    stub = SimpleNamespace(
        TITLE="a stub",
        run=lambda model, threads, reps, say: {
            "model": {"name": model},
            "settings": {"threads": threads, "repeats": reps},
            "data": {"answer": 42},
        },
        table=lambda record: f"answer {record['data']['answer']}",
        charts=lambda record: {"picture": "<svg/>"},
    )
    monkeypatch.setattr(cli, "EXPERIMENTS", {"stub": stub})
    return stub


def test_a_run_stores_one_record_and_prints_one_table(
    experiment: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["stub", "--out", str(tmp_path), "--machine", "box", "--threads", "1,4", "--reps", "3"]) == 0
    record = json.loads((tmp_path / "box" / "stub.json").read_text())
    assert record["machine"] == "box"
    assert record["settings"] == {"threads": [1, 4], "repeats": 3}
    assert record["command"] == "python -m benchmarks stub --model gpt2-random --threads 1,4 --reps 3"
    assert set(record) == {
        *("schema", "name", "title", "machine", "date", "command", "commit"),
        *("settings", "model", "system", "quiet", "data"),
    }
    assert sorted(path.name for path in (tmp_path / "box").iterdir()) == ["stub-picture.svg", "stub.json"]
    out, err = capsys.readouterr()
    assert out == "answer 42\n"
    assert "done in" in err


def test_charts_only_measures_nothing(experiment: SimpleNamespace, tmp_path: Path) -> None:
    place = ["stub", "--out", str(tmp_path), "--machine", "box"]
    assert cli.main([*place, "--charts-only"]) == 1  # nothing stored yet
    assert not (tmp_path / "box").exists()
    assert cli.main(place) == 0
    stored = (tmp_path / "box" / "stub.json").read_bytes()
    experiment.run = None
    (tmp_path / "box" / "stub-picture.svg").unlink()
    assert cli.main([*place, "--charts-only"]) == 0
    assert (tmp_path / "box" / "stub.json").read_bytes() == stored
    assert (tmp_path / "box" / "stub-picture.svg").exists()


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (BenchmarkError("engine 'x': it broke"), 1, "error: engine 'x': it broke"),
        (KeyboardInterrupt(), 130, "nothing was written"),
    ],
)
def test_a_run_that_ends_early_keeps_the_old_result(
    error: BaseException,
    code: int,
    words: str,
    experiment: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = ["stub", "--out", str(tmp_path), "--machine", "box"]
    assert cli.main(place) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "box").iterdir()}
    capsys.readouterr()

    def broken(*args: object) -> None:
        raise error

    experiment.run = broken
    assert cli.main(place) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert "Traceback" not in err
    assert {path.name: path.read_bytes() for path in (tmp_path / "box").iterdir()} == before


def test_a_place_that_cannot_be_written_to_stops_before_measuring(
    experiment: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment.run = None
    (tmp_path / "file").write_text("in the way")
    assert cli.main(["stub", "--out", str(tmp_path / "file")]) == 1
    assert "choose another place with --out" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nosuch", "./nosuch", "a" * 5000, "~no-such-user", ""])
def test_an_unknown_model_is_refused_even_where_none_is_used(
    name: str, experiment: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment.run = None
    assert cli.main(["stub", "--model", name, "--out", str(tmp_path / "new")]) == 1
    assert "error: no model" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_failed_run_leaves_no_folder_behind_that_it_made(experiment: SimpleNamespace, tmp_path: Path) -> None:
    def broken(*args: object) -> None:
        raise BenchmarkError("it broke")

    experiment.run = broken
    (tmp_path / "kept").mkdir()
    assert cli.main(["stub", "--out", str(tmp_path / "new" / "results"), "--machine", "box"]) == 1
    assert cli.main(["stub", "--out", str(tmp_path), "--machine", "kept"]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("count", ["²", "-1", "1.5", "", "9" * 5000, "x"])
def test_a_count_that_is_none_gets_the_plain_message(
    count: str, experiment: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["stub", f"--reps={count}"])
    assert "is not a whole number of at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["unknown"], ["stub", "--reps", "0"], ["stub", "--threads", "1,x"], []])
def test_a_wrong_command_says_what_is_right(
    arguments: list[str], experiment: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    assert "usage: python -m benchmarks" in capsys.readouterr().err


def test_the_help_lists_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    text = capsys.readouterr().out
    for name, module in cli.EXPERIMENTS.items():
        assert name in text
        assert module.TITLE in text
