"""A sheet to draw on: hand-written SVG, small enough to store one picture for every slider position.

Every figure is 344 units wide, so that its letters are 12 pixels on a phone, and brings its own white background, so
that it reads the same in dark mode. One series is one path.
"""

import html
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

WIDTH = 344
INK, MUTED, GRID, BAND = "#1b1f24", "#525a64", "#c9d1db", "#e9eff6"
BLUE, RED, ORANGE, OLIVE = "#0072b2", "#b3200e", "#b84a00", "#7a5600"  # blue is the colour of BFP8 in the book
BOLD, MIDDLE, END = " font-weight='600'", " text-anchor='middle'", " text-anchor='end'"


class Figure:
    """An SVG text and what it says: inline on a page and in JupyterLab, the words alone where there is neither."""

    def __init__(self, text: str, alt: str) -> None:
        self.text, self.alt = text, alt

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        named = self.text.replace("<svg", f'<svg role="img" aria-label="{html.escape(self.alt)}"', 1)
        return {"text/html": named, "image/svg+xml": named, "text/plain": self.alt}


@dataclass(frozen=True)
class Panel:
    """A rectangle of the figure with a linear scale on both sides."""

    left: float
    top: float
    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]

    def px(self, value: float) -> str:
        """Place a value along the horizontal scale."""
        low, high = self.x
        return number(self.left + (value - low) / (high - low) * self.width)

    def py(self, value: float) -> str:
        """Place a value along the vertical scale."""
        low, high = self.y
        return number(self.top + (high - value) / (high - low) * self.height)

    def bars(self, xs: ArrayLike, tops: ArrayLike, base: float = 0.0) -> str:
        """Path data of one vertical stroke from `base` to each top."""
        pairs = zip(np.asarray(xs).tolist(), np.asarray(tops).tolist(), strict=True)
        return "".join(f"M{self.px(x)} {self.py(base)}V{self.py(top)}" for x, top in pairs)

    def steps(self, edges: ArrayLike, levels: ArrayLike) -> str:
        """Path data of a flat line at each level, between neighbouring edges."""
        stops, heights = np.asarray(edges).tolist(), np.asarray(levels).tolist()
        flat = zip(stops[:-1], stops[1:], heights, strict=True)
        return "".join(f"M{self.px(a)} {self.py(y)}H{self.px(b)}" for a, b, y in flat)

    def grid(self, levels: Iterable[float]) -> str:
        """Path data of a line across the panel at each level."""
        return "".join(self.steps(self.x, [level]) for level in levels)

    def line(self, xs: ArrayLike, ys: ArrayLike) -> str:
        """Path data of one line from point to point."""
        points = zip(np.asarray(xs).tolist(), np.asarray(ys).tolist(), strict=True)
        return "M" + "L".join(f"{self.px(x)} {self.py(y)}" for x, y in points)


def number(value: float) -> str:
    """Write a coordinate with one decimal at most."""
    return f"{value:.1f}".removesuffix(".0")


def path(data: str, colour: str, width: float = 1, more: str = "") -> str:
    """Draw path data as one stroke; nothing for empty data."""
    return f"<path d='{data}' fill='none' stroke='{colour}' stroke-width='{number(width)}'{more}/>" if data else ""


def text(x: float | str, y: float | str, words: str, more: str = "") -> str:
    """Write words at a place; `more` holds further attributes, such as ``BOLD + MIDDLE``."""
    return f"<text x='{x}' y='{y}'{more}>{html.escape(words)}</text>"


def canvas(height: float, parts: Iterable[str]) -> str:
    """Put parts on a white sheet of some height; returns SVG text."""
    head = f"xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {number(height)}' width='460'"
    look = "style='width:100%;max-width:460px;height:auto;border-radius:6px'"
    sheet = f"<path d='M0 0H{WIDTH}V{number(height)}H0Z' fill='#fff'/>"
    group = f"font-family='system-ui,sans-serif' font-size='12.6' fill='{INK}'"
    return f"<svg {head} {look}>{sheet}<g {group}>{''.join(parts)}</g></svg>"
