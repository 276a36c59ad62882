"""Boxes written as plain Markdown quotes: ``> **Takeaway.** ...`` gets a box on the page, and reads well anywhere."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

KINDS = {
    "in this chapter": "header",
    "your prediction": "prediction",
    "takeaway": "takeaway",
    "losing cases": "losing",
    "in the wild": "wild",
    "what we simplified": "simplified",
    "try it": "exercise",
}


def kind_of(quote: nodes.block_quote) -> str | None:
    """Return the kind a quote announces in its first bold words, or None."""
    first = next(iter(quote.findall(nodes.strong)), None)
    if first is None or not quote.astext().startswith(first.astext()):
        return None
    return KINDS.get(first.astext().strip(" .:?").lower())


class Callouts(SphinxTransform):
    """Mark the quotes that are boxes; the style sheet does the rest."""

    default_priority = 500

    def apply(self, **kwargs: object) -> None:
        """Add the classes."""
        for quote in self.document.findall(nodes.block_quote):
            if kind := kind_of(quote):
                quote["classes"] += ["callout", f"callout-{kind}"]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the transform."""
    app.add_transform(Callouts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
