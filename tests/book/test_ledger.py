"""The ledger lists every stored result, and a table of measurements is the record's."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

from ledger import facts, shown, walk  # noqa: E402

SUMMARY = {"median": 2.0, "low": 1.5, "high": 3.25}
RECORD = {
    "name": "speed",
    "title": "how fast",
    "command": "python -m benchmarks speed --reps 5",
    "date": "2026-11-30 20:00 UTC",
    "model": {"name": "gpt2-random"},
    "settings": {"repeats": 5},
    "quiet": {"others_share": 0.041},
    "data": {
        "engines": {"int8": "this library, int8", "rival": "Rival"},
        "prefill": {"8": {"int8": {"x": SUMMARY}, "rival": {"x": SUMMARY}}, "512": {"int8": {"x": SUMMARY}}},
        "cells": [{"engines": {"int8": {"x": 0.5}}}],
    },
}


def build(folder: Path, page: str, **records: object) -> tuple[str, str]:
    """Build one page with these records stored; its text and what was warned."""
    results = folder / "benchmarks" / "results" / "here"
    results.mkdir(parents=True, exist_ok=True)
    for name, record in records.items():
        (results / f"{name}.json").write_text(json.dumps(record), "utf-8")
    (folder / "index.md").write_text(f"# Page\n\n{page}\n", "utf-8")
    said, settings = io.StringIO(), {"extensions": ["myst_parser", "results", "ledger"], "results_machine": "here"}
    with patch_docutils(), docutils_namespace():  # what one build registers is gone before the next
        Sphinx(folder, None, folder / "out", folder / "trees", "html", settings, status=None, warning=said).build()
    return (folder / "out" / "index.html").read_text("utf-8"), said.getvalue()


def test_every_result_of_the_reference_machine_has_what_the_ledger_shows() -> None:
    machine = re.search(r"results_machine: (\S+)", (ROOT / "_config.yml").read_text("utf-8"))
    assert machine is not None
    stored = sorted((ROOT / "benchmarks" / "results" / machine[1]).glob("*.json"))
    assert len(stored) >= 10
    for path in stored:
        record = json.loads(path.read_text("utf-8"))
        command, *rest = facts(record)
        assert command.startswith("python -m benchmarks"), path.name
        assert len(rest) == 4
        assert record["title"]
    assert "```{ledger}" in (ROOT / "book" / "results.md").read_text("utf-8")


def test_a_result_that_is_stored_is_listed_with_its_file(tmp_path: Path) -> None:
    page, said = build(tmp_path, "```{ledger}\n```", speed=RECORD, later=RECORD | {"title": "stored last"})
    assert said == ""
    for text in ("how fast", "stored last", "python -m benchmarks speed --reps 5", "gpt2-random", "4%", "11-30 20:00"):
        assert text in re.sub("<[^>]+>", "", page)
    files = re.findall(r'<a class="reference download internal" download="" href="(_downloads/\w+/\w+\.json)"', page)
    assert sorted(Path(name).name for name in files) == ["later.json", "speed.json"]
    assert all((tmp_path / "out" / name).is_file() for name in files)


def test_a_table_has_the_medians_the_ranges_and_a_dash_for_what_is_absent(tmp_path: Path) -> None:
    text = "```{measured} speed.data.prefill\n:value: x\n:labels: speed.data.engines\n:format: .1f\n```"
    page, said = build(tmp_path, text, speed=RECORD)
    assert said == ""
    assert "<strong>this library, int8</strong>" in page
    assert page.count("1.5 to 3.2") == 3
    assert page.count("–") == 1  # the rival at 512


def test_columns_of_a_list_rows_inside_and_heads(tmp_path: Path) -> None:
    text = "```{measured} speed.data.cells\n:columns: 0\n:heads: first\n:inner: engines\n:value: x\n```"
    page, said = build(tmp_path, text, speed=RECORD)
    assert said == ""
    assert ">first<" in page
    assert "0.50" in page


def test_a_record_that_may_be_missing_and_a_picture(tmp_path: Path) -> None:
    (tmp_path / "benchmarks" / "results" / "here").mkdir(parents=True)
    picture = tmp_path / "benchmarks" / "results" / "here" / "speed-prefill.svg"
    picture.write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>', "utf-8")
    text = "```{measured} later.data\n:optional:\n```\n"
    for name in ("speed-prefill", "later-prefill"):
        text += f"\n```{{chart}} {name}\n:alt: who is fast\n```\n"
    page, said = build(tmp_path, text)
    assert said == ""
    assert "Not measured on this machine yet: later.data." in page
    assert page.count('alt="who is fast"') == 1


@pytest.mark.parametrize(
    "text",
    ["```{ledger}\n```", "```{measured} other.data\n```", "```{measured} speed.data.nothing\n```", "```{chart} x\n```"],
)
def test_what_is_missing_is_a_warning(text: str, tmp_path: Path) -> None:
    records = {} if "ledger" in text else {"speed": RECORD}
    assert "WARNING" in build(tmp_path, text, **records)[1]


def test_the_small_parts() -> None:
    assert walk({"a": [1, {"b": 2}]}, "a.1.b") == 2
    assert walk(3, "") == 3
    with pytest.raises(LookupError, match="no 'c'"):
        walk({"a": {}}, "a.c")
    assert shown(SUMMARY, ".1f") == ("2.0", "1.5 to 3.2")
    assert shown(7, "d") == ("7", "")
    for bad in (None, [1], {"a": 1}):
        with pytest.raises(LookupError):
            shown(bad, "")
    poor = facts({"command": "c", "date": "d", "model": {"name": "none: no model"}, "quiet": {"others_share": None}})
    assert poor == ["c", "none", "-", "d", "not told"]
