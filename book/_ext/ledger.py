"""Three directives that make tables from stored measurements, so that no line and no engine can be forgotten.

``ledger`` lists every result of the reference machine: what it asks, the command, the model, the date, how many rounds,
how quiet the machine was, and the file itself to download.

``measured`` makes a table of one record. Its argument is a path, as in the role ``result``, to the columns (a mapping,
or a list); every column holds a mapping of rows::

    ```{measured} speed.data.threads.1.prefill
    :columns: 8, 128, 512
    :heads: 8 tokens, 128 tokens, 512 tokens
    :value: speedup_over.lean
    :labels: speed.data.engines
    ```

``inner`` is a path inside a column to its rows, ``rows`` picks rows, ``corner`` is what stands above the row names, and
``format`` is Python's. A summary is printed as its median with the range beneath. A row that a column lacks is a dash.
With the flag ``optional`` what is not stored yet is a sentence instead of a warning.

``chart`` shows a stored picture: ``chart speed-prefill-1-threads``, with its ``alt`` text; it is always optional.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

FOLDER = "benchmarks/results"
OURS = "this library"
log = logging.getLogger(__name__)


def walk(value: Any, path: str) -> Any:
    """Follow keys, or places in lists, separated by dots; raises LookupError."""
    for key in filter(None, path.split(".")):
        try:
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, TypeError, ValueError):
            raise LookupError(f"no {key!r} on the way to {path!r}") from None
    return value


def facts(record: dict[str, Any]) -> list[str]:
    """The cells of one result in the ledger, after its title."""
    settings, model = record.get("settings") or {}, record.get("model") or {}
    name = model.get("name") if isinstance(model, dict) else model
    share = (record.get("quiet") or {}).get("others_share")
    return [
        record["command"],
        str(name or "-").split(":")[0],
        str(settings.get("repeats", "-")),
        record["date"].removesuffix(" UTC"),
        "not told" if share is None else f"{share:.0%}",
    ]


def shown(value: Any, spec: str) -> tuple[str, str]:
    """A stored value as text, and its range if it is a summary."""
    if isinstance(value, dict) and {"median", "low", "high"} <= set(value):
        return format(value["median"], spec), f"{value['low']:{spec}} to {value['high']:{spec}}"
    if isinstance(value, dict | list) or value is None:
        raise LookupError(f"{type(value).__name__} is not one value")
    return (value if isinstance(value, str) else format(value, spec)), ""


def table(heads: list[str], rows: list[list[Any]], classes: list[str], right_from: int = 1) -> nodes.table:
    """A table of nodes, or of lists of nodes, whose columns stand to the right from one on."""
    group = nodes.tgroup(cols=len(heads))
    group += [nodes.colspec(colwidth=1) for _ in heads]
    head, body = nodes.thead(), nodes.tbody()
    for place, cells in [(head, [nodes.paragraph("", text) for text in heads]), *((body, row) for row in rows)]:
        line = nodes.row()
        for number, cell in enumerate(cells):
            inside = cell if isinstance(cell, list) else [cell]
            line += nodes.entry("", *inside, classes=["text-right" if number >= right_from else "text-left"])
        place += line
    group += [head, body]
    return nodes.table("", group, classes=["colwidths-auto", *classes])


class _FromResults(SphinxDirective):
    """What both directives need: the records, and one way to complain."""

    def folder(self) -> Path:
        """Where the reference machine's results are."""
        return Path(self.env.srcdir) / FOLDER / self.config.results_machine

    def read(self, path: Path) -> Any:
        """A record; the page depends on it, and will do when it is there."""
        self.env.note_dependency(str(path))
        return json.loads(path.read_text("utf-8"))

    def complain(self, problem: object) -> list[nodes.Node]:
        """A warning, which fails the build."""
        log.warning("%s: %s", self.name, problem, location=self.get_location())
        return []


class Ledger(_FromResults):
    """One line for every stored result."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        rows: list[list[Any]] = []
        for path in sorted(self.folder().glob("*.json")):
            record = self.read(path)
            target = f"/{FOLDER}/{path.parent.name}/{path.name}"
            link = addnodes.download_reference("", "", reftarget=target, refdoc=self.env.docname)
            link += nodes.literal("", path.name)
            title = nodes.paragraph("", f"{record['title']}: ")
            title += link
            command, *others = facts(record)
            code = nodes.paragraph("", "", nodes.literal("", command))
            rows.append([[title, code], *(nodes.paragraph("", text) for text in others)])
        if not rows:
            return self.complain(f"no results in {self.folder().name}")
        heads = ["experiment, and how to run it yourself", "model", "rounds", "measured", "others' share"]
        return [table(heads, rows, ["ledger"], right_from=4)]


class Measured(_FromResults):
    """A table of one record."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Callable[[str], Any]]] = dict.fromkeys(
        ("columns", "heads", "inner", "rows", "value", "labels", "corner", "format"), directives.unchanged
    ) | {"optional": directives.flag}

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        try:
            return [self._table()]
        except (LookupError, ValueError, OSError) as problem:
            if "optional" in self.options and isinstance(problem, LookupError | FileNotFoundError):
                words = f"Not measured on this machine yet: {self.options.get('corner', self.arguments[0])}."
                return [nodes.paragraph("", "", nodes.emphasis("", words))]
            return self.complain(problem)

    def _list(self, option: str, default: list[str]) -> list[str]:
        return [word.strip() for word in self.options[option].split(",")] if option in self.options else default

    def _table(self) -> nodes.table:
        name, _, path = self.arguments[0].partition(".")
        record = self.read(self.folder() / f"{name}.json")
        columns = walk(record, path)
        keys = self._list("columns", list(columns) if isinstance(columns, dict) else [])
        found = [walk(walk(columns, key), self.options.get("inner", "")) for key in keys]
        labels = walk(record, self.options["labels"].partition(".")[2]) if "labels" in self.options else {}
        names = self._list("rows", list(dict.fromkeys(row for column in found for row in column)))
        rows: list[list[nodes.Node]] = []
        for row in names:
            label = labels.get(row, row)
            kind = nodes.strong if label.startswith(OURS) else nodes.inline
            cells: list[nodes.Node] = [nodes.paragraph("", "", kind("", label))]
            rows.append(cells + [self._cell(column, row) for column in found])
        heads = self._list("heads", keys)
        return table([self.options.get("corner", ""), *heads], rows, ["measured"])

    def _cell(self, column: dict[str, Any], row: str) -> nodes.Node:
        if row not in column:
            return nodes.paragraph("", "–")
        middle, reach = shown(walk(column[row], self.options.get("value", "")), self.options.get("format", ".2f"))
        cell = nodes.paragraph("", middle)
        if reach:
            cell += [nodes.Text(" "), nodes.inline("", f"({reach})", classes=["range"])]
        return cell


class Chart(_FromResults):
    """A stored picture."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Callable[[str], Any]]] = {"alt": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Return the picture, or nothing while it is not there."""
        path = self.folder() / f"{self.arguments[0]}.svg"
        if "alt" not in self.options:
            return self.complain(f"{path.name} has no alt text")
        if not path.is_file():
            return []
        self.env.note_dependency(str(path))
        uri = f"/{FOLDER}/{path.parent.name}/{path.name}"
        return [nodes.image(uri=uri, alt=self.options["alt"], classes=["measured"])]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives; the extension ``results`` names the reference machine."""
    app.add_directive("ledger", Ledger)
    app.add_directive("measured", Measured)
    app.add_directive("chart", Chart)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
