"""Pages show the outputs committed in the notebooks, so a notebook that was not run, or failed, is a warning."""

from __future__ import annotations

import json
import re

from sphinx.application import Sphinx
from sphinx.util import logging

LOCAL = re.compile(r"ipykernel_\d+|\w+Warning:|site-packages|(?<![\w.])/(?:home|Users|tmp|root)/\w")
log = logging.getLogger(__name__)


def faults(notebook: dict) -> list[str]:
    """Return what is wrong with the stored outputs of a notebook."""
    found = []
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code":
            continue
        if cell.get("execution_count") is None and "".join(cell["source"]).strip():
            found.append(f"cell {number} was not run")
        for output in cell["outputs"]:
            if output["output_type"] == "error" and "raises-exception" not in cell["metadata"].get("tags", []):
                found.append(f"cell {number} stores the error {output['ename']}: {output['evalue']}")
            if output.get("name") == "stderr":
                found.append(f"cell {number} stores a warning or log line")
            data = {k: v for k, v in output.get("data", {}).items() if not k.startswith("image/png")}
            if leak := LOCAL.search(json.dumps([output.get("text"), output.get("evalue"), data])):
                found.append(f"cell {number} shows {leak[0]!r}, which belongs to one machine")
    return found


def check(app: Sphinx, docname: str, source: list[str]) -> None:
    """Warn of each fault of a notebook just read."""
    if str(app.env.doc2path(docname)).endswith(".ipynb"):
        for fault in faults(json.loads(source[0])):
            log.warning("%s: run `python -m benchmarks.notebooks`", fault, location=docname)


def setup(app: Sphinx) -> dict[str, bool]:
    """Look at each notebook as it is read."""
    app.connect("source-read", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
