"""Every address in the built pages leads somewhere, and no page tells where it was built."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup

pytestmark = pytest.mark.browser

SITE = Path(__file__).resolve().parents[2] / "_build" / "html"
PAGES = sorted(p.relative_to(SITE).as_posix() for p in SITE.rglob("*.html") if "_static" not in p.parts)
LOCAL = re.compile(r"/home/\w|/Users/\w|/tmp/\w|/root/\w|[A-Z]:\\\\|ipykernel_\d|UserWarning|Traceback|site-packages")


@cache
def soup(path: Path) -> BeautifulSoup:
    """Return a page, parsed once."""
    return BeautifulSoup(path.read_text("utf-8"), "html.parser")


def dead(path: Path) -> list[str]:
    """Return the addresses of a page that lead nowhere, or that a browser would fetch from another site."""
    found = []
    for tag in soup(path).select("[href], [src], [srcset], [data]"):
        address = next(str(tag[name]) for name in ("href", "src", "srcset", "data") if tag.has_attr(name))
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            if tag.name != "a" and parts.scheme != "data":
                found.append(f"fetched from elsewhere: {address}")
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        target = target / "index.html" if target.is_dir() else target
        if not target.is_file() or not target.is_relative_to(SITE):
            found.append(f"no such file: {address}")
        elif parts.fragment and target.suffix == ".html" and not soup(target).find(id=unquote(parts.fragment)):
            found.append(f"no such place: {address}")
    return found


@pytest.mark.parametrize("path", PAGES)
def test_addresses_lead_somewhere(path: str) -> None:
    assert dead(SITE / path) == []


@pytest.mark.parametrize("path", PAGES)
def test_page_does_not_tell_where_it_was_built(path: str) -> None:
    assert LOCAL.findall((SITE / path).read_text("utf-8")) == []


@pytest.mark.parametrize("path", PAGES)
def test_no_markup_is_left_as_text(path: str) -> None:
    words = "\n".join(tag.get_text() for tag in soup(SITE / path).select("main p, main td, main li, main h1, main h2"))
    assert re.findall(r"\{[a-z:-]+\}`.{0,40}|\]\(.{0,40}|\*\*.{0,40}|<(?:details|br|img)", words) == []


def test_strays_are_not_published() -> None:
    published = {p.relative_to(SITE).parts[0] for p in SITE.rglob("*.html") if "_static" not in p.parts}
    assert published <= {"book", "notebooks", "genindex.html", "index.html", "search.html"}
    assert (SITE / ".nojekyll").is_file()
