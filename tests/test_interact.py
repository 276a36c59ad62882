"""Figures that answer: built from plain values, the same each time, with words for every frame."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import ipywidgets as w
import numpy as np
import pytest
from matplotlib import pyplot
from PIL import Image

from cachequant_lib import interact
from cachequant_lib.figures import png, svg
from cachequant_lib.interact import InteractError, Shown, live, predict, slides, table, yours

VIEW = "application/vnd.jupyter.widget-view+json"


def text_frame(**point: object) -> str:
    """Return a frame that names its point."""
    return f"<p>{point}</p>"


def words(**point: object) -> str:
    """Return the words of that frame."""
    return f"The point {point}."


def figure() -> Any:
    """Return a small picture with a long decimal in its labels."""
    fig, ax = pyplot.subplots(figsize=(3, 2))
    ax.plot(np.linspace(0, 1, 50) ** 2)
    ax.set_title("0.0625 and 12.345")
    return fig


def parts(shown: Shown) -> tuple[list[w.Widget], w.Widget]:
    """Return the controls and the outermost stack of a figure."""
    assert shown.box is not None
    *controls, view = shown.box.children
    return controls, view


def test_one_frame_per_point_and_the_start_on_top() -> None:
    shown = slides(text_frame, words, start={"size": 32, "rule": "b"}, size=[16, 32, 64], rule=["a", "b"])
    (size, rule), view = parts(shown)
    assert [type(size), type(rule)] == [w.SelectionSlider, w.ToggleButtons]
    assert (size.index, rule.index, view.selected_index) == (1, 1, 1)
    assert [len(inner.children) for inner in view.children] == [2, 2, 2]
    assert all(inner.selected_index == 1 for inner in view.children)
    top = view.children[1].children[1]
    assert top.value == text_frame(size=32, rule="b")
    assert shown._repr_mimebundle_()["text/plain"] == words(size=32, rule="b")


def test_each_stack_is_linked_to_its_control(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, Any]] = []
    monkeypatch.setattr(w, "jslink", lambda source, target: made.append((source, target)))
    (size, rule), view = parts(slides(text_frame, words, size=[1, 2], rule=["a", "b", "c"]))
    inner = [((rule, "index"), (stack, "selected_index")) for stack in view.children]
    assert made == [*inner, ((size, "index"), (view, "selected_index"))]


def test_labels_units_and_the_choice_of_control() -> None:
    shown = slides(
        text_frame,
        words,
        labels={"n": "Tokens"},
        units={"n": "tok"},
        choose=("n",),
        n=[1, 2],
        bits_kept={"few": 4, "all": 8},
    )
    (n, bits), _ = parts(shown)
    assert (n.description, bits.description) == ("Tokens", "Bits kept")
    assert [label for label, _ in n.options] == ["1 tok", "2 tok"]
    assert [type(n), type(bits)] == [w.ToggleButtons, w.SelectionSlider]
    assert shown._repr_mimebundle_()["text/html"] == text_frame(n=1, bits_kept=4)


def test_pictures_carry_their_words() -> None:
    shown = slides(lambda n: svg(figure()), lambda n: f'Line "{n}" & more.', n=[1, 2])
    frame = parts(shown)[1].children[0].value
    root = ET.fromstring(frame)
    assert (root.get("role"), root.get("aria-label")) == ("img", 'Line "1" & more.')
    assert shown._repr_mimebundle_()["image/svg+xml"] == frame
    shown = slides(lambda n: png(figure()), lambda n: f'Map "{n}".', n=[1, 2])
    assert parts(shown)[1].children[1].value.startswith('<img alt="Map &quot;2&quot;." src="data:image/png;base64,')
    assert str(shown._repr_mimebundle_()["image/png"]).startswith("iVBOR")


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: slides(text_frame, words), "needs an axis"),
        (lambda: slides(text_frame, words, n=[]), "needs an axis"),
        (lambda: slides(text_frame, words, start={"m": 1}, n=[1]), "unknown axis"),
        (lambda: slides(text_frame, words, choose=("m",), n=[1]), "unknown axis"),
        (lambda: slides(text_frame, words, start={"n": 3}, n=[1, 2]), "3 is not on the axis 'n'"),
        (lambda: slides(text_frame, lambda n: "the same", n=[1, 2]), "text of its own"),
        (lambda: slides(text_frame, lambda n: " ", n=[1]), "text of its own"),
        (lambda: slides(lambda n: "", words, n=[1]), "never empty"),
        (lambda: slides(lambda n: None, words, n=[1]), "never empty"),  # type: ignore[arg-type, return-value]
        (lambda: predict("How many?", [1, 2], {1: "Yes."}), "no feedback for the guess 2"),
        (lambda: live(text_frame, n=3), "is 3"),
    ],
)
def test_what_cannot_be_shown_is_refused(build: Callable[[], object], says: str) -> None:
    with pytest.raises(InteractError, match=re.escape(says)):
        build()


def test_predict_waits_for_a_guess() -> None:
    shown = predict("How many?", [1, 2], lambda guess: f"You said {guess}.", label="Guess")
    assert shown.box is not None
    _, choice, view = shown.box.children
    assert [label for label, _ in choice.options] == ["Pick one", "1", "2"]
    assert (choice.description, choice.index, view.selected_index) == ("Guess", 0, 0)
    assert "You said" not in view.children[0].value
    assert "You said 2." in view.children[2].value
    bundle = shown._repr_mimebundle_()
    assert bundle["text/plain"] == "How many? Choices: 1, 2."
    assert VIEW in bundle


def test_svg_is_slim_exact_and_repeatable() -> None:
    first, second = svg(figure()), svg(figure())
    assert first == second
    assert "0.0625 and 12.345" in first, "words are not rounded"
    assert not re.search(r' d="[^"]*\.\d\d', first)
    used = set(re.findall(r'(?:href="#|url\(#)([\w.-]+)', first))
    assert used <= set(re.findall(r' id="([\w.-]+)"', first))
    assert "<!--" not in first
    ET.fromstring(first)


def test_ids_of_two_pictures_stay_apart() -> None:
    fig, ax = pyplot.subplots(figsize=(3, 2))
    ax.bar([1, 2], [3, 4])
    ids = [set(re.findall(r' id="([\w.-]+)"', text)) for text in (svg(figure()), svg(fig))]
    assert ids[0]
    assert ids[1]
    assert not ids[0] & ids[1]


def test_png_is_a_small_palette_and_repeatable() -> None:
    first = png(figure(), colours=16)
    assert first == png(figure(), colours=16)
    with Image.open(io.BytesIO(first)) as picture:
        assert picture.mode == "P"
        assert len(picture.getcolors() or []) <= 16


def test_frames_close_their_figures() -> None:
    open_before = pyplot.get_fignums()
    svg(figure())
    png(figure())
    assert pyplot.get_fignums() == open_before


def test_a_page_shows_a_sentence_and_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEQUANT_PAGE", "1")

    def refuse(**_: object) -> None:
        raise AssertionError("a page must not run live code")

    for shown in (live(refuse, n=(1, 5)), yours(lambda: refuse())):
        assert isinstance(shown, Shown)
        bundle = shown._repr_mimebundle_()
        assert bundle["text/plain"] == interact.LIVE_SENTENCE
        assert VIEW not in bundle


def test_live_runs_with_the_values_of_its_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CACHEQUANT_PAGE", raising=False)
    seen: list[dict[str, object]] = []
    shown = live(lambda **values: seen.append(values), n=(1, 9), x=(0.0, 1.0, 0.25), rule=["a", "b"], text="hello")
    assert isinstance(shown, w.VBox)
    n, x, rule, text, _ = shown.children
    assert seen == [{"n": 1, "x": 0.0, "rule": "a", "text": "hello"}]
    assert [type(n), type(x), type(rule), type(text)] == [w.IntSlider, w.FloatSlider, w.Dropdown, w.Text]
    assert not n.continuous_update
    n.value, x.value, rule.value = 9, 0.5, "b"
    assert seen[-1] == {"n": 9, "x": 0.5, "rule": "b", "text": "hello"}
    assert len(seen) == 4
    assert all(control.description for control in (n, x, rule, text))


def test_yours_runs_outside_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CACHEQUANT_PAGE", raising=False)
    assert yours(lambda: 42) == 42


def test_table_is_markdown_with_real_minus_signs() -> None:
    assert table(["value", "share"], [-1.5, "5 %"], ["a-b", 2]).data == (
        "| value | share |\n| --- | --- |\n| \u22121.5 | 5\u00a0% |\n| a-b | 2 |"
    )
