"""What every chapter holds, checked in its file: short code, prose around it, a question, boxes, exercises, sources."""

from __future__ import annotations

import ast
import json
import re
import statistics
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = [path.name for path in CHAPTERS]
STUB = ROOT / "cachequant_lib" / "__init__.pyi"
MAX_LINES, MEDIAN_LINES, WORDS_PER_LINE = 20, 4, 6
TAGS = {"hide-cell", "hide-input", "hide-output", "nbval-ignore-output", "raises-exception", "remove-input"}
BOXES = ("Takeaway", "Losing cases", "In the wild", "What we simplified")
each = pytest.mark.parametrize("name", NAMES)


@cache
def load(name: str) -> dict[str, Any]:
    """Return a notebook as stored."""
    return dict(json.loads((ROOT / "notebooks" / name).read_text("utf-8")))


def cells(name: str, kind: str) -> list[dict[str, Any]]:
    """Return the cells of one kind."""
    return [cell for cell in load(name)["cells"] if cell["cell_type"] == kind]


def source(cell: dict[str, Any]) -> str:
    """Return the text of a cell."""
    return "".join(cell["source"])


def prose(name: str) -> str:
    """Return all Markdown of a notebook."""
    return "\n\n".join(source(cell) for cell in cells(name, "markdown"))


def code_lines(cell: dict[str, Any]) -> int:
    """Count the lines of a cell that are neither empty nor only a comment."""
    lines = source(cell).splitlines()
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in lines)


def trees(name: str) -> list[ast.Module]:
    """Parse each code cell."""
    return [ast.parse(source(cell)) for cell in cells(name, "code")]


def public_names() -> set[str]:
    """Return the names that `cachequant_lib` offers."""
    tree = ast.parse(STUB.read_text("utf-8"))
    found = [alias.asname or alias.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for alias in n.names]
    return set(found) - {"*"}


def test_there_are_chapters() -> None:
    assert len(CHAPTERS) >= 2
    listed = re.findall(r"file: notebooks/(\S+)", (ROOT / "_toc.yml").read_text("utf-8"))
    assert [f"{name}.ipynb" for name in listed] == NAMES


@each
def test_code_is_short_and_prose_surrounds_it(name: str) -> None:
    lengths = [code_lines(cell) for cell in cells(name, "code")]
    long = [cell["id"] for cell, lines in zip(cells(name, "code"), lengths, strict=True) if lines > MAX_LINES]
    assert long == []
    seen = [n for cell, n in zip(cells(name, "code"), lengths, strict=True) if not hidden(cell)]
    assert statistics.median(seen) <= MEDIAN_LINES
    assert len(re.findall(r"\w+", prose(name))) >= WORDS_PER_LINE * sum(seen)


def hidden(cell: dict[str, Any]) -> bool:
    """Return whether the page leaves out or folds the code of a cell."""
    return bool({"hide-cell", "hide-input", "remove-input"} & set(cell["metadata"].get("tags", [])))


@each
def test_imports_are_in_the_first_cell_only(name: str) -> None:
    first, *rest = trees(name)
    assert any(isinstance(node, ast.Import | ast.ImportFrom) for node in first.body)
    late = [ast.unparse(n) for tree in rest for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    assert late == []


@each
def test_no_shell_no_paths_no_silencing(name: str) -> None:
    for cell in cells(name, "code"):
        text = source(cell)
        for line in text.splitlines():
            assert not line.lstrip().startswith(("!", "%")), line
            assert not line.rstrip().endswith(";"), f"nbval runs it differently: {line}"
        assert not re.search(r"""["'](/|~/|[A-Z]:\\|\.\./)""", text), text
        assert "warnings" not in text
        assert not re.search(r"\bos\.environ|\bsys\.path|open\(", text), text


@each
def test_no_library_name_is_redefined(name: str) -> None:
    taken = public_names() | {"cq", "np", "interact", "slides", "predict", "live"}
    made = {
        target.id if isinstance(target, ast.Name) else target.name
        for tree in trees(name)[1:]
        for target in ast.walk(tree)
        if (isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store))
        or isinstance(target, ast.FunctionDef | ast.ClassDef)
    }
    assert made & taken == set()


@each
def test_stored_as_the_runner_stores_it(name: str) -> None:
    book = load(name)
    assert book["metadata"]["kernelspec"] == {"display_name": "Python 3", "language": "python", "name": "python3"}
    assert set(book["metadata"]) <= {"kernelspec", "language_info", "widgets"}
    assert {tag for cell in book["cells"] for tag in cell["metadata"].get("tags", [])} <= TAGS
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    for cell in cells(name, "code"):
        assert cell["metadata"].get("jupyter", {}).get("source_hidden", False) == hidden(cell), cell["id"]
    counts = [cell["execution_count"] for cell in cells(name, "code")]
    assert counts == list(range(1, len(counts) + 1)), "run it: python -m benchmarks.notebooks"
    assert (ROOT / "notebooks" / name).stat().st_size <= 1_500_000


@each
def test_outputs_are_committed_and_clean(name: str) -> None:
    outputs = [(cell, output) for cell in cells(name, "code") for output in cell["outputs"]]
    assert len(outputs) >= 5
    for cell, output in outputs:
        assert output.get("name") != "stderr", cell["id"]
        assert output["output_type"] != "error" or "raises-exception" in cell["metadata"].get("tags", []), cell["id"]


@each
def test_every_picture_has_words(name: str) -> None:
    for cell in cells(name, "code"):
        given = cell["metadata"].get("mystnb", {}).get("image", {}).get("alt", "")
        for output in cell["outputs"]:
            data = output.get("data", {})
            plain = "".join(data.get("text/plain", ""))
            if "image/png" in data or "image/svg+xml" in data:
                words = given or plain
                assert len(words.split()) >= 4, f"{cell['id']}: {words!r}"
                assert not words.startswith("<"), f"{cell['id']}: {words!r}"
    for tag in re.findall(r"!\[(.*?)\]\(|<img(?![^>]*alt=\"\w)", prose(name)):
        assert len(tag.split()) >= 4, tag


@each
def test_every_slider_panel_holds_a_frame(name: str) -> None:
    stored = load(name)["metadata"].get("widgets", {})
    models = next(iter(stored.values()), {"state": {}})["state"]
    stacks = [model["state"] for model in models.values() if model["model_name"] == "StackModel"]
    assert stacks
    for stack in stacks:
        frames = [models[child.removeprefix("IPY_MODEL_")] for child in stack["children"]]
        assert len(frames) >= 2
        assert all(f["model_name"] == "StackModel" or len(f["state"]["value"]) > 10 for f in frames)
    linked = {models[m["state"]["target"][0].removeprefix("IPY_MODEL_")]["model_name"] for m in links(models)}
    assert linked == {"StackModel"}
    assert len(links(models)) == len(stacks)


def links(models: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the links that move a stack without a kernel."""
    return [model for model in models.values() if model["model_name"] == "LinkModel"]


@each
def test_the_page_tells_what_to_expect(name: str) -> None:
    opening = source(load(name)["cells"][0]) + source(cells(name, "markdown")[1])
    title = opening.splitlines()[0]
    assert title.startswith("# ")
    assert title.endswith("?"), "a chapter's title is a question"
    assert len(re.findall(r"^# ", prose(name), re.MULTILINE)) == 1
    head = re.search(r"> \*\*In this chapter\.\*\*.*?(?:\n\n|\Z)", opening, re.DOTALL)
    assert head is not None
    assert len(re.findall(r"^> - ", head[0], re.MULTILINE)) == 3, "three outcomes"
    assert re.search(r"\*Needs:\*", head[0])
    assert re.search(r"\d+ minutes", head[0])
    assert re.search(r"\d+ seconds", head[0])


@each
def test_the_parts_of_a_chapter_are_there(name: str) -> None:
    text = prose(name)
    for box in BOXES:
        assert f"> **{box}" in text or f"## {box}" in text, box
    asked = text.count("> **Your prediction") + sum("predict(" in source(cell) for cell in cells(name, "code"))
    assert asked >= 2
    assert re.search(r"^#+ Sources", text, re.MULTILINE)
    checks = {called(node) for tree in trees(name) for node in ast.walk(tree) if called(node).startswith("check_ex")}
    assert 3 <= len(checks) <= 5, checks
    assert text.count("<details>") == text.count("</details>")
    folded = [cell for cell in load(name)["cells"] if "hide-cell" in cell["metadata"].get("tags", [])]
    assert text.count("<details>") + len(folded) >= 3, "solutions are folded away"


def called(node: ast.AST) -> str:
    """Return the name a node calls, such as `check_ex1` of `ch03.check_ex1(answer)`, or nothing."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
