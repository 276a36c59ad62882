"""The command that builds the book refuses what must not be published, and a stored result is read as it is."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

from results import look_up  # noqa: E402

STORED = {"short": {"decode_tok_s": {"median": 36.27, "all": [1, 2.5]}}, "name": "x"}


def cell(source: str, *outputs: dict, count: int | None = 1, **metadata: object) -> dict:
    """Return a code cell as stored in a notebook."""
    stored = {"cell_type": "code", "id": f"c{abs(hash(source)) % 10**6}", "metadata": metadata, "source": source}
    return stored | {"execution_count": count, "outputs": list(outputs)}


def notebook(*cells: dict) -> str:
    """Return a notebook with a title and these cells."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    title = {"cell_type": "markdown", "id": "title", "metadata": {}, "source": "# A page"}
    whole = {"cells": [title, *cells], "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole)


FAILED = {"output_type": "error", "ename": "ZeroDivisionError", "evalue": "division by zero", "traceback": []}
WARNED = {"output_type": "stream", "name": "stderr", "text": "careful"}
FOLDER = {"output_type": "stream", "name": "stdout", "text": "/home/someone/book"}
BAD = {
    "failed.ipynb": (notebook(cell("1/0", FAILED)), "stores the error ZeroDivisionError"),
    "warned.ipynb": (notebook(cell("warn()", WARNED)), "stores a warning"),
    "unrun.ipynb": (notebook(cell("2 + 2", count=None)), "was not run"),
    "folder.ipynb": (notebook(cell("print(here)", FOLDER)), "belongs to one machine"),
    "link.md": ("# A page\n\n[nowhere](no-such-page.md)\n", "no-such-page"),
    "number.md": ("# A page\n\n{result}`baseline.short.nothing`\n", "has no 'nothing'"),
    "machine.md": ("# A page\n\n{result}`other.short`\n", "no stored result 'other.json'"),
}
GOOD = {
    "number.md": "# A page\n\nIt makes {result}`baseline.short.decode_tok_s.median|.1f` tokens a second.\n",
    "error.ipynb": notebook(cell("1/0", FAILED, tags=["raises-exception"])),
}


def build(folder: Path, pages: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Build a small book of these pages with the project's settings and its command."""
    shutil.copytree(ROOT / "book" / "_ext", folder / "book" / "_ext")
    (folder / "book" / "_static").mkdir()
    for name in ("book.css", "widgets-a11y.js", "favicon.svg"):
        shutil.copy(ROOT / "book" / "_static" / name, folder / "book" / "_static")
    (folder / "book" / "references.bib").write_text("", "utf-8")
    shutil.copy(ROOT / "_config.yml", folder)
    machine = re.search(r"results_machine: (\S+)", (ROOT / "_config.yml").read_text("utf-8"))
    assert machine is not None
    results = folder / "benchmarks" / "results" / machine[1]
    results.mkdir(parents=True)
    (results / "baseline.json").write_text(json.dumps(STORED), "utf-8")
    names = [f"  - file: {Path(name).stem}" for name in pages]
    (folder / "_toc.yml").write_text("\n".join(["format: jb-book", "root: start", "chapters:", *names]), "utf-8")
    (folder / "start.md").write_text("# Start\n", "utf-8")
    for name, text in pages.items():
        (folder / name).write_text(text, "utf-8")
    builder = shutil.which("jupyter-book", path=Path(sys.executable).parent)
    assert builder is not None
    command = [builder, "build", ".", "-n", "-W", "--keep-going"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_good_book_builds_and_shows_the_stored_number(tmp_path: Path) -> None:
    done = build(tmp_path, GOOD)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "makes <span" in (page := (tmp_path / "_build" / "html" / "number.html").read_text("utf-8"))
    assert "36.3</span>" in page


@pytest.mark.slow
def test_a_bad_page_stops_the_build(tmp_path: Path) -> None:
    done = build(tmp_path, {name: text for name, (text, _) in BAD.items()})
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert [(name, message) for name, (_, message) in BAD.items() if message not in said] == []


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("baseline.short.decode_tok_s.median", "36.27"),
        ("baseline.short.decode_tok_s.median|.1f", "36.3"),
        ("baseline.short.decode_tok_s.all.1|.2f", "2.50"),
        ("baseline.short.decode_tok_s.median .1f", "36.3"),
        ("baseline.name", "x"),
    ],
)
def test_look_up(tmp_path: Path, path: str, shown: str) -> None:
    (tmp_path / "baseline.json").write_text(json.dumps(STORED), "utf-8")
    assert look_up(tmp_path, path) == (shown, tmp_path / "baseline.json")


@pytest.mark.parametrize(
    "path",
    [
        "other.x",
        "baseline.long",
        "baseline.short",
        "baseline.short.decode_tok_s.all.2",
        "baseline.name.0",
        "baseline.name|.1f",
    ],
)
def test_look_up_refuses(tmp_path: Path, path: str) -> None:
    (tmp_path / "baseline.json").write_text(json.dumps(STORED), "utf-8")
    with pytest.raises((LookupError, ValueError)):
        look_up(tmp_path, path)


def test_vendored_files_are_the_ones_named() -> None:
    vendor = ROOT / "book" / "_static" / "vendor"
    named = dict(reversed(line.split()) for line in re.findall(r"^[0-9a-f]{64}  \S+$", _note(vendor), re.MULTILINE))
    there = {p.relative_to(vendor).as_posix(): p for p in vendor.rglob("*") if p.is_file() and p.name != "VENDORED.md"}
    assert {name: hashlib.sha256(p.read_bytes()).hexdigest() for name, p in there.items()} == named


def _note(vendor: Path) -> str:
    return (vendor / "VENDORED.md").read_text("utf-8")
