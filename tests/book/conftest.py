"""One web server and one browser for all tests of the pages; the site is served under a sub-path, as on a host."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, sync_playwright

SITE = Path(__file__).resolve().parents[2] / "_build" / "html"
PREFIX = "/some/sub/path/"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serve the built site below the prefix and nothing elsewhere, without a log."""

    def translate_path(self, path: str) -> str:
        """Return the file behind a path; outside the prefix there is none."""
        if not path.startswith(PREFIX):
            return str(SITE / "outside the prefix")
        return super().translate_path(path.removeprefix(PREFIX.rstrip("/")))

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@dataclass
class Visit:
    """A browser tab and what went wrong in it."""

    page: Page
    foreign: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def open(self, url: str) -> Page:
        """Load a page and wait until its widgets and its maths are drawn."""
        self.foreign.clear()
        self.faults.clear()
        self.page.goto(url)
        self.page.wait_for_function(
            """async () => {
                if (window.MathJax && MathJax.startup) await MathJax.startup.promise;
                const asked = 'script[type="application/vnd.jupyter.widget-view+json"]';
                const drawn = (script) => script.parentElement.querySelector('.jupyter-widgets');
                return document.readyState === 'complete' && [...document.querySelectorAll(asked)].every(drawn);
            }"""
        )
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return self.page


def visit(context: BrowserContext) -> Visit:
    """Open a tab whose every request is watched: what leaves this machine is stopped and written down."""
    seen = Visit(context.new_page())

    def gate(route: Route) -> None:
        if urlsplit(route.request.url).hostname in ("127.0.0.1", None):
            route.continue_()
        else:
            seen.foreign.append(route.request.url)
            route.abort()

    context.route("**/*", gate)
    seen.page.on("pageerror", lambda error: seen.faults.append(f"error: {error}"))
    seen.page.on("console", lambda m: seen.faults.append(f"console: {m.text}") if m.type == "error" else None)
    seen.page.on("response", lambda r: seen.faults.append(f"{r.status} {r.url}") if r.status >= 400 else None)
    return seen


@pytest.fixture(scope="session")
def base() -> Iterator[str]:
    """Return the address of the built site."""
    assert (SITE / "index.html").is_file(), "the pages are not built: run `make book` first"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(SITE)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}{PREFIX}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return the Chromium of the system, or Playwright's own."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def new_tab(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """Return a function that opens a watched tab; its arguments are those of Playwright's new_context."""
    opened: list[BrowserContext] = []

    def open_tab(**options: Any) -> Visit:
        opened.append(browser.new_context(**options))
        return visit(opened[-1])

    yield open_tab
    for context in opened:
        context.close()


@pytest.fixture(scope="module")
def tab(new_tab: Callable[..., Visit]) -> Visit:
    """Return a tab of a common desktop size."""
    return new_tab(viewport={"width": 1280, "height": 900})
