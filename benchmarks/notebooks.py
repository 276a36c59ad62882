"""Run the notebooks and keep their outputs: the same bytes on every run.

``python -m benchmarks.notebooks [paths]`` runs them in place. ``--check`` runs them in memory and compares
with the committed bytes, outside cells tagged ``nbval-ignore-output``. ``--nbval`` compares the outputs of
each cell with nbval.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WIDGETS = "application/vnd.jupyter.widget-state+json"
IGNORED = "nbval-ignore-output"
MODEL_ID = re.compile(r"[0-9a-f]{32}")
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
# What a page must not hold: it would differ on the next machine, or tell where this one keeps its files.
LEAKS = re.compile(
    r"0x[0-9a-f]{8,16}|ipykernel_\d+|\w+Warning:|site-packages"
    r"|(?<![\w.])/(?:home|Users|tmp|root|work|mnt)/\w[^\s\"']*|\b[A-Z]:\\\\\w+"
)
# A page holds no timing of its own, so one thread is enough, and it makes every sum repeat.
ENVIRONMENT = {
    "CACHEQUANT_PAGE": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",
    "NUMBA_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    "JUPYTER_PLATFORM_DIRS": "1",
}
# What a page folds or leaves out is folded in JupyterLab as well.
FOLDED: dict[str, dict[str, bool]] = {
    "hide-cell": {"outputs_hidden": True, "source_hidden": True},
    "hide-input": {"source_hidden": True},
    "remove-input": {"source_hidden": True},
}
DEFAULTS: dict[str, object] = {  # what the browser fills in by itself; leaving it out keeps the page small
    "_dom_classes": [],
    "description": "",
    "description_allow_html": False,
    "disabled": False,
    "placeholder": "\u200b",
    "box_style": "",
    "titles": [],
}


class NotebookError(RuntimeError):
    """A notebook fails, or prints what a page must not hold."""


def execute(path: Path) -> dict[str, Any]:
    """Run one notebook from the top in a fresh kernel and return it in its stable form."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.read(path, 4)
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute()
    except CellExecutionError as error:
        lines = re.sub(r"\x1b.*?m", "", str(error)).strip().splitlines()
        raise NotebookError("\n".join([f"{path} fails:", *lines[:12], "    ...", *lines[-12:]])) from error
    stable = _stable(json.loads(json.dumps(notebook)), path.stem)
    _refuse_leaks(stable, path)
    nbformat.validate(nbformat.from_dict(stable))
    return stable


def dumps(notebook: dict[str, Any]) -> str:
    """Return the bytes a notebook is stored as: keys sorted, one space of indent, a newline at the end."""
    return json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def check(path: Path) -> str:
    """Run a notebook in memory and return the difference from the stored file; empty when there is none."""
    stored_text = path.read_text("utf-8")
    fresh, stored = execute(path), json.loads(stored_text)
    for new, old in zip(fresh["cells"], stored["cells"], strict=True):
        if IGNORED in new["metadata"].get("tags", []):
            new["outputs"] = old["outputs"]
    fresh_text = dumps(fresh)
    if fresh_text == stored_text:
        return ""
    old_lines, new_lines = stored_text.splitlines(), fresh_text.splitlines()
    lines = difflib.unified_diff(old_lines, new_lines, "stored", "run now", n=1, lineterm="")
    shown = [line if len(line) <= 200 else f"{line[:200]} ... ({len(line)} characters)" for line in lines]
    more = f"\n... and {len(shown) - 60} lines more" if len(shown) > 60 else ""
    return "\n".join(shown[:60]) + more


def _stable(notebook: dict[str, Any], stem: str) -> dict[str, Any]:
    models = notebook["metadata"].get("widgets", {}).get(WIDGETS, {}).get("state", {})
    notebook["metadata"] = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    for number, cell in enumerate(notebook["cells"]):
        if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f-]+)?", cell.get("id", "")) or "id" not in cell:
            cell["id"] = f"cell-{number:03d}"  # an id drawn at random becomes the place of the cell, once
        cell["metadata"] = {k: v for k, v in cell["metadata"].items() if k in ("tags", "mystnb")}
        for tag in cell["metadata"].get("tags", []):
            if tag in FOLDED and cell["cell_type"] == "code":
                cell["metadata"]["jupyter"] = FOLDED[tag]
        for output in cell.get("outputs", []):
            if output["output_type"] == "error":
                output["traceback"] = [f"{output['ename']}: {output['evalue']}"]
    if state := _slim(models, json.dumps(notebook)):
        stored = {"state": state, "version_major": 2, "version_minor": 0}
        notebook["metadata"]["widgets"] = {WIDGETS: stored}
    names = {old: f"{stem}-{number:04d}" for number, old in enumerate(state)}
    text = MODEL_ID.sub(lambda found: names.get(found[0], found[0]), json.dumps(notebook))
    return json.loads(text)  # type: ignore[no-any-return]


def _slim(models: dict[str, Any], shown: str) -> dict[str, Any]:
    """Keep the models a shown widget needs, in order of creation, without what a browser assumes."""
    texts = {name: json.dumps(model["state"]) for name, model in models.items()}
    links = [name for name, model in models.items() if "Link" in model["model_name"]]
    needed: set[str] = set()
    waiting = [*MODEL_ID.findall(shown), *links]
    while waiting:
        name = waiting.pop()
        if name in models and name not in needed:
            needed.add(name)
            waiting += MODEL_ID.findall(texts[name])
    return {
        name: model | {"state": {k: v for k, v in model["state"].items() if not _assumed(k, v)}}
        for name, model in models.items()
        if name in needed
    }


def _assumed(key: str, value: object) -> bool:
    return value is None or DEFAULTS.get(key, key) == value or key.startswith(("_view_", "_model_"))


def _refuse_leaks(notebook: dict[str, Any], path: Path) -> None:
    for number, cell in enumerate(notebook["cells"]):
        for output in cell.get("outputs", []):
            text = json.dumps({k: v for k, v in output.items() if k != "data"}) + json.dumps(
                {k: v for k, v in output.get("data", {}).items() if not k.startswith("image/png")}
            )
            if output.get("name") == "stderr":
                raise NotebookError(f"{path}: cell {number} writes to stderr: {text[:400]}")
            if found := LEAKS.search(text):
                raise NotebookError(f"{path}: cell {number} prints {found[0]!r}, which no page may hold")


def nbval(paths: Sequence[Path]) -> int:
    """Compare every cell's output with the stored one (strict nbval); return pytest's exit code."""
    config = ROOT / "tests" / "notebooks" / "nbval_sanitize.cfg"
    options = ["--nbval", f"--nbval-sanitize-with={config}", "-p", "no:cacheprovider", "-q"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *map(str, paths)], cwd=ROOT, check=False
    ).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, check or compare the notebooks named, or all of ``notebooks/``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.notebooks", description=__doc__)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="run in memory and compare bytes; write nothing")
    mode.add_argument("--nbval", action="store_true", help="compare cell by cell with nbval")
    parser.add_argument("paths", nargs="*", type=Path, help="default: every notebook of the book")
    given = parser.parse_args(arguments)
    paths = [p.resolve() for p in given.paths] or sorted((ROOT / "notebooks").glob("*.ipynb"))
    os.environ.update(ENVIRONMENT, PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    import matplotlib.font_manager  # noqa: F401  (builds its font list now: a kernel would print a line about it)

    if given.nbval:
        return nbval(paths)
    failed = 0
    for path in paths:
        begin = time.perf_counter()
        try:
            if given.check:
                word = check(path)
            else:
                path.write_text(dumps(execute(path)), "utf-8", newline="\n")
                word = ""
        except NotebookError as error:
            word = str(error)
        failed += bool(word)
        seconds, size = time.perf_counter() - begin, path.stat().st_size
        print(f"{'FAILED' if word else 'ok'} {path.name}: {seconds:.1f} s, {size:,} bytes")
        if word:
            print(word, file=sys.stderr)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
