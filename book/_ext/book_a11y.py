"""Repair, at build time, what axe-core finds in the theme's HTML, and drop what the pages do not need."""

from __future__ import annotations

from pathlib import Path

from bs4 import BeautifulSoup
from sphinx.application import Sphinx


def repaired(text: str) -> str:
    """Return the page with its roles, names and scripts put right."""
    soup = BeautifulSoup(text, "html.parser")
    for tag in soup.select("[role=list].citation-list, [role=doc-biblioentry]"):
        del tag["role"]  # the parts are not list items
    for tag in soup.select("button.search-button-field[aria-label], details summary[aria-label]"):
        del tag["aria-label"]  # it differs from the words that are shown
    for tag in soup.select(".theme-switch[title]"):
        del tag["title"]
    for tag in soup.select('#ethical-ad-placement, script[src*="scripts/fontawesome.js"]'):
        tag.decompose()  # the script is 1.4 MB; the web font of the theme draws the same icons
    for tag in soup.select("thead"):
        if not tag.get_text(strip=True):
            tag.decompose()  # Markdown asks for a head even where a table has none
    for tag in soup.select("th"):
        if not tag.get_text(strip=True):
            tag.name = "td"  # the empty corner of a table heads nothing
    for tag in soup.select("#pst-primary-sidebar"):
        tag["role"], tag["aria-label"] = "complementary", "Book"
    return str(soup)


def repair_all(app: Sphinx, error: Exception | None) -> None:
    """Rewrite every page that was built."""
    if error is None and app.builder.name == "html":
        for path in Path(app.outdir).rglob("*.html"):
            if "_static" not in path.parts:
                path.write_text(repaired(path.read_text("utf-8")), "utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Run when the build is done."""
    app.connect("build-finished", repair_all)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
