"""One recipe by which a slider works on a static page and in JupyterLab (the only ipywidgets import).

A browser without a Python kernel can still copy a number from one widget to another. So all pictures are
made ahead and lie in a stack, and the control chooses which one is on top.
"""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import ipywidgets as w
from IPython.display import HTML, Image, Markdown, display
from ipywidgets.widgets.widget_string import HTMLStyle

from cachequant_lib.errors import CacheQuantError

__all__ = ["InteractError", "Shown", "live", "page_mode", "predict", "slides", "table", "yours"]

LIVE_SENTENCE = "This cell is live: start JupyterLab with make lab, open this notebook and run the cell."
UNDECIDED = "Pick one"
FITTING = {"description_width": "initial"}


class InteractError(CacheQuantError, ValueError):
    """A figure was asked for that cannot be shown."""


class Shown:
    """A widget to display, and the still frame and text that stand for it where there are no widgets."""

    def __init__(self, box: w.DOMWidget | None, still: str | bytes, alt: str) -> None:
        self.box, self.still, self.alt = box, still, alt

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, object]:
        bundle: dict[str, object] = dict(self.box._repr_mimebundle_()) if self.box is not None else {}
        bundle["text/plain"] = self.alt
        if isinstance(self.still, bytes):
            bundle["image/png"] = base64.b64encode(self.still).decode()
        elif self.still.startswith("<svg"):
            bundle["image/svg+xml"] = _svg_named(self.still, self.alt)
        else:
            bundle["text/html"] = self.still
        return bundle


def page_mode() -> bool:
    """Whether the cells of a page are being produced (CACHEQUANT_PAGE=1), so nothing live may be shown."""
    return os.environ.get("CACHEQUANT_PAGE") == "1"


def slides(
    make: Callable[..., str | bytes],
    alt: Callable[..., str],
    *,
    start: Mapping[str, object] | None = None,
    labels: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
    choose: Collection[str] | None = None,
    **axes: Sequence[object] | Mapping[str, object],
) -> Shown:
    """Show one frame per point of a grid, with one control per axis; no kernel is needed to move them.

    Parameters
    ----------
    make
        ``make(**point)`` returns one frame: SVG text, HTML text or PNG bytes. It is called once per point,
        and every frame is stored in the page: keep to about 50 points, and 10 kB a frame.
    alt
        ``alt(**point)`` says in words what the frame shows. Each point needs its own text.
    start
        The point shown first, e.g. ``{"block_size": 32}``. Axes not named start at their first value.
    labels, units
        Axis -> the words beside its control (default: ``block_size`` as "Block size"), and its unit.
    choose
        The axes that get a row of buttons; the others get a slider. Default: axes whose values are words.
    axes
        Name -> the values, in order; or a mapping "shown text" -> value.

    Raises
    ------
    InteractError
        No axis, an axis without values, an unknown axis name, a start value that is not on its axis, an empty
        alternative text, one text for two frames, or a frame that is none of the three.
    """
    grid = {name: _options(values, (units or {}).get(name, "")) for name, values in axes.items()}
    for given in (start, labels, units, dict.fromkeys(choose or ())):
        if unknown := set(given or {}) - set(grid):
            raise InteractError(f"unknown axis {sorted(unknown)}; the axes are {sorted(grid)}")
    if not grid or not all(grid.values()):
        raise InteractError(f"every figure needs an axis and every axis a value, got {axes}")
    first = {name: _index(name, grid[name], (start or {}).get(name, grid[name][0][1])) for name in grid}
    controls = {}
    for name, options in grid.items():
        words = name in choose if choose is not None else all(isinstance(v, str) for _, v in options)
        shown = [(text, i) for i, (text, _) in enumerate(options)]
        controls[name] = _control(_label(name, labels), shown, first[name], buttons=words)

    names, layout, style, texts = list(grid), w.Layout(), HTMLStyle(), set[str]()
    still: list[tuple[str | bytes, str]] = []

    def build(point: dict[str, object], is_start: bool) -> w.DOMWidget:
        if len(point) == len(names):
            frame, text = _frame(make(**point)), alt(**point)
            if not text.strip() or text in texts:
                raise InteractError(f"each frame needs an alternative text of its own: {text!r} at {point}")
            texts.add(text)
            if is_start:
                still.append((frame, text))
            return w.HTML(_inner(frame, text), layout=layout, style=style)
        name = names[len(point)]
        places = enumerate(grid[name])
        children = [build({**point, name: o[1]}, is_start and i == first[name]) for i, o in places]
        stack = w.Stack(children, selected_index=first[name], layout=layout)
        w.jslink((controls[name], "index"), (stack, "selected_index"))
        return stack

    view = build({}, True).add_class("slides-view")
    return Shown(_box([*controls.values(), view], "grid"), *still[0])


def predict(
    question: str,
    guesses: Sequence[object] | Mapping[str, object],
    feedback: Mapping[Any, str] | Callable[[Any], str],
    *,
    label: str = "Your prediction",
) -> Shown:
    """Ask for a guess and answer it, on the page as in JupyterLab.

    ``question`` is plain text. ``guesses``: in order, or a mapping "shown text" -> value. ``feedback``
    answers a guess in HTML text, as a mapping or a function. ``label`` stands beside the choice.

    Raises
    ------
    InteractError
        A guess has no feedback.
    """
    answers = [f"<p>{UNDECIDED}, then read on.</p>"]
    for text, value in (options := _options(guesses, "")):
        said = feedback(value) if callable(feedback) else feedback.get(value, "")
        if not said:
            raise InteractError(f"no feedback for the guess {value!r} of {question!r}")
        answers.append(f"<p><strong>{html.escape(text)}.</strong> {said}</p>")
    layout, style = w.Layout(), HTMLStyle()
    shown = [(text, i) for i, text in enumerate([UNDECIDED, *(text for text, _ in options)])]
    control = w.Dropdown(options=shown, index=0, **_named(label))
    asked = w.HTML(f"<p>{html.escape(question)}</p>", layout=layout, style=style)
    panels = [w.HTML(answer, layout=layout, style=style) for answer in answers]
    view = w.Stack(panels, selected_index=0, layout=layout).add_class("slides-view")
    w.jslink((control, "index"), (view, "selected_index"))
    alt = f"{question} Choices: {', '.join(text for text, _ in options)}."
    return Shown(_box([asked, control, view], "predict"), f"<p>{html.escape(alt)}</p>", alt)


def live(fn: Callable[..., Any], *, labels: Mapping[str, str] | None = None, **controls: object) -> Shown | w.VBox:
    """Run ``fn`` with the values of its controls, again after each change; on a page a fixed sentence.

    ``fn(**values)`` returns what to show: a figure, SVG or HTML text, PNG bytes, any object, or None.
    ``controls``: name -> ``(low, high[, step])`` for a slider, a list or a mapping "shown text" -> value for
    a choice, a text for a text field, or a widget. ``labels``: name -> the words beside the control.

    Raises
    ------
    InteractError
        A control is none of these.
    """
    if page_mode():
        return _sentence()
    made = {name: _live_control(_label(name, labels), spec) for name, spec in controls.items()}

    def show(**values: object) -> None:
        result = fn(**values)
        kinds: dict[type, Any] = {bytes: Image, str: HTML}
        if result is not None:
            display(kinds.get(type(result), lambda other: other)(result))  # type: ignore[no-untyped-call]

    return _box([*made.values(), w.interactive_output(show, made)], "live")


def yours(fn: Callable[[], object]) -> object:
    """Return ``fn()`` on the reader's own machine; on a page a fixed sentence, and ``fn`` is not called."""
    return _sentence() if page_mode() else fn()


def table(head: Sequence[object], *rows: Sequence[object]) -> Markdown:
    """Return rows as a Markdown table, which pages, JupyterLab and GitHub all show; minus signs are real ones.

    Parameters
    ----------
    head : sequence
        Column titles.
    *rows : sequence
        Cells, as text or as numbers already rounded.
    """
    lines = [" | ".join(str(cell) for cell in row) for row in (head, *rows)]
    lines = [line.replace(" %", "\u00a0%").replace("| -", "| −") for line in (f"| {line} |" for line in lines)]
    lines.insert(1, "|" + " --- |" * len(head))
    return Markdown("\n".join(lines))  # type: ignore[no-untyped-call]


def _options(values: Sequence[object] | Mapping[str, object], unit: str) -> list[tuple[str, object]]:
    if isinstance(values, Mapping):
        return [(str(text), value) for text, value in values.items()]
    return [(f"{value} {unit}".strip(), value) for value in values]


def _index(name: str, options: list[tuple[str, object]], value: object) -> int:
    known = [v for _, v in options]
    if value not in known:
        raise InteractError(f"start value {value!r} is not on the axis {name!r}: {known}")
    return known.index(value)


def _label(name: str, labels: Mapping[str, str] | None) -> str:
    plain = name.replace("_", " ")
    return (labels or {}).get(name, plain[:1].upper() + plain[1:])


def _named(label: str) -> dict[str, Any]:
    return {"description": label, "style": FITTING, "layout": w.Layout(width="min(100%, 30rem)")}


def _control(label: str, options: list[tuple[str, int]], index: int, *, buttons: bool) -> w.DOMWidget:
    if buttons:
        named = _named(label) | {"style": FITTING | {"button_width": "auto"}}
        return w.ToggleButtons(options=options, index=index, **named).add_class("slides-control")
    return w.SelectionSlider(options=options, index=index, **_named(label)).add_class("slides-control")


def _live_control(label: str, spec: object) -> w.DOMWidget:
    if isinstance(spec, w.DOMWidget):
        return spec
    if isinstance(spec, str):
        return w.Text(value=spec, continuous_update=False, **_named(label))
    if isinstance(spec, tuple) and len(spec) in (2, 3):
        kind = w.IntSlider if all(isinstance(v, int) for v in spec) else w.FloatSlider
        bounds = dict(zip(("min", "max", "step"), spec, strict=False))
        return kind(value=spec[0], continuous_update=False, **bounds, **_named(label))
    if isinstance(spec, list | range | Mapping):
        return w.Dropdown(options=_options(spec, ""), **_named(label))
    raise InteractError(f"control {label!r} is {spec!r}; give (low, high), a list, a text or a widget")


def _box(children: list[w.DOMWidget], kind: str) -> w.VBox:
    return w.VBox(children).add_class("slides").add_class(kind)


def _frame(frame: object) -> str | bytes:
    if isinstance(frame, str | bytes) and frame.strip():
        return frame
    raise InteractError(f"a frame is SVG text, HTML text or PNG bytes, never empty; got {frame!r}")


def _svg_named(text: str, alt: str) -> str:
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(alt, quote=True)}"', 1)


def _inner(frame: str | bytes, alt: str) -> str:
    if isinstance(frame, bytes):
        data = base64.b64encode(frame).decode()
        return f'<img alt="{html.escape(alt, quote=True)}" src="data:image/png;base64,{data}">'
    return _svg_named(frame, alt) if frame.startswith("<svg") else frame


def _sentence() -> Shown:
    return Shown(None, f'<p class="live-note">{html.escape(LIVE_SENTENCE)}</p>', LIVE_SENTENCE)
