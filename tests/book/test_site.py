"""The built pages in a browser: nothing from elsewhere, nothing broken, readable by all, and every slider moves."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser

SITE = Path(__file__).resolve().parents[2] / "_build" / "html"
AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")
PAGES = sorted(
    p.relative_to(SITE).as_posix() for folder in ("book", "notebooks") for p in (SITE / folder).glob("*.html")
)
CHAPTERS = [path for path in PAGES if path.startswith("notebooks/")]
LOOKS = [(1280, "light"), (1280, "dark"), (375, "light"), (375, "dark")]
HTML_LIMIT, TRANSFER_LIMIT = 1_500_000, 1_300_000
PICTURES = "main :is(figure, .cell_output, .slides-view) :is(img, svg)"
CUT_OFF = (
    "(all, width) => all.filter((p) => p.getBoundingClientRect().right > width).map((p) => p.outerHTML.slice(0, 99))"
)
# What a reader, or a screen reader, gets from the frame that is showing.
SHOWN = """view => {
    const named = view.querySelector('img[alt], svg[aria-label]');
    const box = (named || view).getBoundingClientRect();
    const words = named ? named.getAttribute('alt') || named.getAttribute('aria-label') : view.innerText.trim();
    return [words, box.width > 40 && box.height > 10];
}"""


@pytest.fixture(scope="module", params=LOOKS, ids=lambda look: f"{look[0]}-{look[1]}")
def looked(request: pytest.FixtureRequest, new_tab: Callable[..., Any]) -> tuple[Any, int]:
    """Return a tab of one width and colour scheme."""
    width, scheme = request.param
    return new_tab(viewport={"width": width, "height": 900}, color_scheme=scheme), width


def test_pages_exist() -> None:
    assert CHAPTERS, "no chapter was built"
    assert {"book/index.html", "book/how-to-read.html", "book/notation.html", "book/machine.html"} <= set(PAGES)


@pytest.mark.parametrize("path", PAGES)
def test_page(looked: tuple[Any, int], base: str, path: str) -> None:
    seen, width = looked
    page = seen.open(base + path)
    assert seen.foreign == []
    assert seen.faults == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".bd-article h1").count() == 1
    assert page.locator(PICTURES).evaluate_all(CUT_OFF, width) == []
    nameless = (
        "e => [...e].filter(i => !/\\w\\w/.test(i.alt) || /_images|[0-9a-f]{16}|^image$/i.test(i.alt)).map(i => i.src)"
    )
    assert page.locator("main img").evaluate_all(nameless) == []
    page.add_script_tag(path=AXE)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    assert [(v["id"], v["nodes"][0]["html"][:200]) for v in found] == []


@pytest.mark.parametrize("path", PAGES)
def test_weight(new_tab: Callable[..., Any], base: str, path: str) -> None:
    html = (SITE / path).read_bytes()
    assert len(html) <= HTML_LIMIT
    seen, total, responses = new_tab(), 0, []
    seen.page.on("response", lambda response: responses.append(response))
    seen.open(base + path)
    for response in responses:
        body = response.body()
        packed = response.url.endswith((".woff", ".woff2", ".png"))
        total += len(body) if packed else len(gzip.compress(body, 6))
    assert total <= TRANSFER_LIMIT, f"{total:,} bytes to show {path}"


def shown(box: Locator) -> str:
    """Return the words of the frame on top, which must be a frame with a size."""
    words, has_size = box.locator(".slides-view").first.evaluate(SHOWN)
    assert has_size, f"the frame {words!r} is empty"
    assert words
    return str(words)


def settle(page: Page) -> None:
    """Wait until the page has drawn what a control has asked for."""
    page.evaluate("async () => { for (let i = 0; i < 4; i++) await new Promise(requestAnimationFrame); }")


def try_slider(page: Page, box: Locator, control: Locator) -> None:
    """Walk a slider from end to end by keyboard, then drag it to both ends with the mouse."""
    handle, readout = control.locator(".noUi-handle"), control.locator(".widget-readout")
    handle.scroll_into_view_if_needed()
    assert handle.get_attribute("aria-label") == control.locator(".widget-label").inner_text().strip()
    handle.focus()
    first_place, last_place = (float(handle.get_attribute(f"aria-value{end}") or "nan") for end in ("min", "max"))
    steps = round(last_place - first_place)
    page.keyboard.press("Home")
    settle(page)
    frames, labels = [shown(box)], [readout.inner_text()]
    for _ in range(steps):
        page.keyboard.press("ArrowRight")
        settle(page)
        frames.append(shown(box))
        labels.append(readout.inner_text())
        assert handle.get_attribute("aria-valuetext") == labels[-1]
    assert len(set(frames)) == len(set(labels)) == steps + 1, (labels, frames)
    page.keyboard.press("ArrowLeft")
    settle(page)
    assert shown(box) == frames[-2]
    page.keyboard.press("End")
    settle(page)
    assert shown(box) == frames[-1]
    rail = control.locator(".noUi-target").bounding_box()
    assert rail is not None
    for end, frame in ((0, frames[0]), (1, frames[-1])):
        grip = handle.bounding_box()
        assert grip is not None
        page.mouse.move(grip["x"] + grip["width"] / 2, grip["y"] + grip["height"] / 2)
        page.mouse.down()
        page.mouse.move(rail["x"] + end * rail["width"], rail["y"] + rail["height"] / 2, steps=6)
        page.mouse.up()
        settle(page)
        assert shown(box) == frame


def try_buttons(page: Page, box: Locator, control: Locator) -> None:
    """Press each button of a row, with the mouse and with the keyboard."""
    buttons, frames = control.locator("button"), []
    assert control.get_attribute("aria-label")
    for press in ("mouse", "Enter"):
        frames.clear()
        for number in range(buttons.count()):
            button = buttons.nth(number)
            if press == "mouse":
                button.click()
            else:
                button.focus()
                page.keyboard.press("Enter")
            settle(page)
            assert button.get_attribute("aria-pressed") == "true"
            frames.append(shown(box))
        assert len(set(frames)) == buttons.count()


@pytest.mark.parametrize("path", CHAPTERS)
def test_sliders(tab: Any, base: str, path: str) -> None:
    page = tab.open(base + path)
    boxes = page.locator(".slides.grid")
    assert boxes.count(), "a chapter has at least one picture that answers"
    for number in range(boxes.count()):
        box = boxes.nth(number)
        controls = box.locator(".slides-control")
        assert controls.count()
        for place in range(controls.count()):
            control = controls.nth(place)
            (try_slider if control.locator(".noUi-handle").count() else try_buttons)(page, box, control)
    assert tab.faults == []


@pytest.mark.parametrize("path", CHAPTERS)
def test_predictions(tab: Any, base: str, path: str) -> None:
    page = tab.open(base + path)
    boxes = page.locator(".slides.predict")
    assert boxes.count(), "a chapter asks before it tells"
    for number in range(boxes.count()):
        box, answers = boxes.nth(number), []
        choice = box.get_by_label("Your prediction")
        for option in range(choice.locator("option").count()):
            choice.select_option(index=option)
            settle(page)
            answers.append(shown(box))
        assert len(set(answers)) == len(answers) >= 3


@pytest.mark.parametrize("path", CHAPTERS)
def test_slider_on_a_telephone(new_tab: Callable[..., Any], base: str, path: str) -> None:
    page = new_tab(viewport={"width": 375, "height": 812}, has_touch=True, is_mobile=True).open(base + path)
    panels = page.locator(".slides.grid:has(.noUi-handle)")
    box = (panels if panels.count() else page.locator(".slides.grid:has(.widget-toggle-buttons)")).first
    before = shown(box)
    if panels.count():
        rail = box.locator(".noUi-target").first
        rail.scroll_into_view_if_needed()
        area = rail.bounding_box()
        assert area is not None
        assert area["width"] >= 100
        at_left = box.locator(".noUi-handle").first.get_attribute("aria-valuenow") == "0.0"
        page.touchscreen.tap(area["x"] + area["width"] * (0.98 if at_left else 0.02), area["y"] + area["height"] / 2)
    else:  # nothing but words to choose from
        box.locator(".widget-toggle-buttons button:not(.mod-active)").first.tap()
    settle(page)
    assert shown(box) != before


def test_maths_is_drawn(tab: Any, base: str) -> None:
    drawn = 0
    for path in PAGES:
        page = tab.open(base + path)
        drawn += page.locator("mjx-container mjx-math").count()
        assert page.locator("mjx-merror, mjx-mtext[style*='red']").count() == 0, path
        assert page.evaluate("document.querySelector('main').innerText.includes('\\\\(')") is False, path
    assert drawn > 5


def test_search_finds_a_word(tab: Any, base: str) -> None:
    page = tab.open(base + "search.html?q=mantissa")
    page.wait_for_selector("#search-results li a")
    assert page.locator("#search-results li a").count() >= 2
    assert tab.foreign == tab.faults == []


def test_search_box_opens(tab: Any, base: str) -> None:
    page = tab.open(base + "book/index.html")
    page.locator("button.search-button-field").first.click()
    page.keyboard.type("prefill")
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results li a")


def test_theme_button_changes_the_theme(tab: Any, base: str) -> None:
    page = tab.open(base + "book/notation.html")
    seen = set()
    for _ in range(3):
        page.locator(".theme-switch-button").first.click()
        seen.add(page.evaluate("document.documentElement.dataset.theme"))
    assert seen == {"light", "dark"}


@pytest.mark.parametrize("path", ["book/index.html", *CHAPTERS])
def test_printed_page_is_dark_ink_on_paper(new_tab: Callable[..., Any], base: str, path: str) -> None:
    page = new_tab(color_scheme="dark").open(base + path)
    page.emulate_media(media="print")
    settle(page)
    ink = page.locator("main p").first.evaluate("p => getComputedStyle(p).color.match(/\\d+/g).map(Number)")
    assert sum(ink[:3]) < 300, "light letters on white paper"
    assert len(page.locator("main").inner_text()) > 1000
    assert all(height > 10 for height in page.locator(".slides-view").evaluate_all("e => e.map(v => v.offsetHeight)"))
    assert len(page.pdf()) > 30_000
    page.emulate_media(media="screen")
    settle(page)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
