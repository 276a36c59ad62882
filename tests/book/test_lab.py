"""A chapter in JupyterLab, from start to a slider that moves: opened without running, run, dragged."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.font_manager  # makes the font list
import pytest
from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
CHAPTER = "03-bfp8-by-hand.ipynb"
TOKEN = "for-this-test-only"
OPTIONS = [
    "--no-browser",
    "--ip=127.0.0.1",
    "--port-retries=0",
    "--allow-root",
    f"--IdentityProvider.token={TOKEN}",
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.expose_app_in_browser=True",
]
RUN_ALL = """async () => {
    const panel = window.jupyterapp.shell.currentWidget;
    await panel.context.ready;
    await panel.sessionContext.ready;
    await window.jupyterapp.commands.execute('notebook:run-all-cells');
}"""
FAULTS = """() => window.jupyterapp.shell.currentWidget.content.model.toJSON().cells
    .filter((cell) => cell.cell_type === 'code' && !(cell.metadata.tags || []).includes('raises-exception'))
    .flatMap((cell) => cell.outputs)
    .filter((output) => output.output_type === 'error' || output.name === 'stderr')
"""
WORDS = "v => { const i = v.querySelector('img[alt], svg[aria-label]'); return i.alt || i.getAttribute('aria-label'); }"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start JupyterLab on a copy of a chapter, with a home of its own, and return its address."""
    home = tmp_path_factory.mktemp("home")
    shutil.copy(ROOT / "notebooks" / CHAPTER, home)
    settings = home / "settings" / "@jupyterlab" / "notebook-extension"
    settings.mkdir(parents=True)
    # every cell is drawn, not only those on the screen
    (settings / "tracker.jupyterlab-settings").write_text('{"windowingMode": "none"}', "utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {name: str(home / name.lower()) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")}
    own["JUPYTERLAB_SETTINGS_DIR"] = str(home / "settings")
    own["MPLCONFIGDIR"] = matplotlib.get_cachedir()  # its font list is there: a kernel that makes one says so
    environment = os.environ | own | {"HOME": str(home), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("CACHEQUANT_PAGE", None)
    command = [sys.executable, "-m", "jupyterlab", *OPTIONS, f"--port={port}", f"--ServerApp.root_dir={home}"]
    log = (home / "log.txt").open("wb")
    server = subprocess.Popen(command, cwd=home, env=environment, stdout=log, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                with urllib.request.urlopen(f"{address}/api/status?token={TOKEN}", timeout=5):
                    break
            except OSError:
                assert server.poll() is None, (home / "log.txt").read_text("utf-8")
                time.sleep(0.25)
        yield f"{address}/lab/tree/{CHAPTER}?reset&token={TOKEN}"
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        log.close()


@pytest.fixture(scope="module")
def page(lab: str, new_tab: Callable[..., Any]) -> Page:
    """Return the chapter as JupyterLab opens it, before any cell has run."""
    page: Page = new_tab(viewport={"width": 1280, "height": 900}).page
    page.goto(lab)
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
    page.wait_for_function("window.jupyterapp")
    return page


def test_unrun_notebook_shows_pictures_not_errors(page: Page) -> None:
    page.wait_for_selector(".jp-OutputArea-output")
    page.wait_for_timeout(2000)  # widgets give up, if they do, only after looking for their models
    said = page.locator(".jp-Notebook").inner_text()
    assert "Error displaying widget" not in said
    assert "Loading widget" not in said
    pictures = ".jp-OutputArea-output :is(img, svg, table), .jp-OutputArea-output .widget-html-content"
    assert page.locator(pictures).count() >= 4


def test_run_all_then_drag_a_slider(page: Page) -> None:
    page.evaluate(RUN_ALL)
    page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'", timeout=120_000
    )
    assert page.evaluate(FAULTS) == []
    box = page.locator(".slides.grid:has(.noUi-handle)").first
    box.scroll_into_view_if_needed()
    view, handle = box.locator(".slides-view").first, box.locator(".noUi-handle").first
    before = view.evaluate(WORDS)
    drag(page, handle, box.locator(".noUi-target").first, 0.0)
    left = view.evaluate(WORDS)
    drag(page, handle, box.locator(".noUi-target").first, 1.0)
    right = view.evaluate(WORDS)
    assert left != right
    assert before in (left, right) or len({before, left, right}) == 3
    handle.focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(200)
    assert view.evaluate(WORDS) != right


def test_live_cell_answers(page: Page) -> None:
    box = page.locator(".slides.live").first
    box.scroll_into_view_if_needed()
    output = box.locator(".jp-OutputArea")
    before = output.inner_html()
    drag(page, box.locator(".noUi-handle").first, box.locator(".noUi-target").first, 0.7)
    for _ in range(100):
        if output.inner_html() not in (before, ""):
            break
        page.wait_for_timeout(100)
    assert output.inner_html() not in (before, "")
    assert box.locator(".jp-mod-error").count() == 0


def drag(page: Page, handle: Locator, rail: Locator, part: float) -> None:
    """Drag a handle to a part of its rail."""
    grip, area = handle.bounding_box(), rail.bounding_box()
    assert grip is not None
    assert area is not None
    page.mouse.move(grip["x"] + grip["width"] / 2, grip["y"] + grip["height"] / 2)
    page.mouse.down()
    page.mouse.move(area["x"] + part * area["width"], area["y"] + area["height"] / 2, steps=8)
    page.mouse.up()
    page.wait_for_timeout(300)
