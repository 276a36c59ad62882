"""The role ``result``: a number on a page is read from a stored measurement when the page is built.

``{result}`baseline.data.threads.1.limits.read_ms|.1f``` reads ``baseline.json`` in the folder of the reference
machine, walks the keys (a number is a key, or a place in a list), and formats the value by the part after the bar.
Inside a table, where a bar ends the cell, a space stands for it. What is missing is a warning, and the book is built
with warnings as errors.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

FOLDER = "benchmarks/results"
log = logging.getLogger(__name__)


def look_up(folder: Path, text: str) -> tuple[str, Path]:
    """Return the formatted value that ``NAME.key.key|format`` names, and the file it came from."""
    path, *spec = re.split(r"[|\s]+", text.strip(), maxsplit=1)
    name, *keys = path.split(".")
    file = folder / f"{name}.json"
    if not file.is_file():
        raise LookupError(f"there is no stored result {file.name!r} in {folder.name!r}")
    value: Any = json.loads(file.read_text("utf-8"))
    for depth, key in enumerate(keys):
        try:
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, TypeError, ValueError):
            known = list(value) if isinstance(value, dict) else f"{type(value).__name__}"
            raise LookupError(f"{'.'.join([name, *keys[:depth]])} has no {key!r}, only {known}") from None
    if isinstance(value, dict | list) or value is None:
        raise LookupError(f"{path} is {type(value).__name__}, not one value")
    return format(value, *spec), file


class Result(SphinxRole):
    """Insert one stored value."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the value as text."""
        folder = Path(self.env.srcdir) / FOLDER / self.config.results_machine
        try:
            shown, file = look_up(folder, self.text)
        except (LookupError, ValueError) as error:
            log.warning("result %r: %s", self.text, error, location=self.get_location())
            return [nodes.inline(self.text, f"[{self.text}]", classes=["result-missing"])], []
        self.env.note_dependency(str(file))
        return [nodes.inline(self.text, shown, classes=["result"])], []


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the role and the name of the reference machine."""
    app.add_config_value("results_machine", "reference", "env", types=[str])
    app.add_role("result", Result())
    return {"parallel_read_safe": True, "parallel_write_safe": True}
