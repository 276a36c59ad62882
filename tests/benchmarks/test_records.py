"""Result files: whole or not there, readable by people, and honest about the state they were made in."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import records

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_the_layout_changes_nothing(record: dict) -> None:
    assert json.loads(records.dumps(record)) == record


def test_samples_stay_on_one_line() -> None:
    assert (
        records.dumps({"a": [1, 2, 3], "b": [{"c": 1}]}) == '{\n "a": [1, 2, 3],\n "b": [\n  {\n   "c": 1\n  }\n ]\n}\n'
    )


def test_a_number_that_json_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        records.dumps({"a": float("nan")})


def test_writing_replaces_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "speed.json").write_text("old")
    path = records.write({"name": "speed", "x": 1}, tmp_path)
    assert json.loads(path.read_text()) == {"name": "speed", "x": 1}
    assert os.listdir(tmp_path) == ["speed.json"]


def test_a_failed_write_leaves_the_old_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "speed.json").write_text("old")
    with pytest.raises(TypeError):
        records.write({"name": "speed", "x": object()}, tmp_path)

    def interrupted(*paths: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(records.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        records.write({"name": "speed", "x": 1}, tmp_path)
    assert (tmp_path / "speed.json").read_text() == "old"
    assert os.listdir(tmp_path) == ["speed.json"]


def test_a_place_that_cannot_be_written_to_is_found_out_first(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(records.BenchmarkError, match="choose another place with --out"):
        records.prepare(blocked / "inside")
    records.prepare(tmp_path / "new" / "folder")
    assert os.listdir(tmp_path / "new" / "folder") == []


def test_significant_figures_not_decimals() -> None:
    assert records.significant(0.00123456789, 3) == 0.00123
    assert records.significant(123456789.0, 3) == 123000000.0
    assert records.summary([3.0, 1.0, 2.0]) == {"median": 2.0, "low": 1.0, "high": 3.0}


def test_a_checkout_that_was_changed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer:
        def __init__(self, text: str) -> None:
            self.stdout = text

    changes = ""

    def git(command: list[str], **options: object) -> Answer:
        return Answer("abcdef123456\n" if "rev-parse" in command else changes)

    monkeypatch.setattr(records.subprocess, "run", git)
    assert records.commit() == "abcdef123456"
    changes = " M file\n"
    assert records.commit() == "abcdef123456+"

    def no_git(*args: object, **options: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(records.subprocess, "run", no_git)
    assert records.commit() is None


def test_the_share_of_others_is_what_remains_of_the_busy_time(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([(100.0, 10.0), (112.0, 16.0)])  # busy seconds of all, of this program
    monkeypatch.setattr(records.Quiet, "_read", staticmethod(lambda: next(readings)))
    monkeypatch.setattr(records.os, "cpu_count", lambda: 2)
    assert records.Quiet().stop(elapsed_s=6.0)["others_share"] == 0.5  # 6 s of others on two cores in 6 s
    monkeypatch.setattr(records.Quiet, "_read", staticmethod(lambda: None))
    assert records.Quiet().stop(elapsed_s=6.0)["others_share"] is None
