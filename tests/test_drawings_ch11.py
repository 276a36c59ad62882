"""Chapter 11's figures: well-formed and legible; each number's width in its place and colour."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from cachequant_lib.drawings import ch11

KEYS = np.full((500, 64), 16)
KEYS[:, 40:] = 12
KEYS[448:] = 32
VALUES = np.array([0, 8, 16, 12] * 125)
SERIES = {"fixed point": [0.1, 0.4, 1.6], "paper": [0.2, None, 3.2], "plain fp16": [0.1, 0.3, 1.2]}

FIGURES = {
    "widths_map": ch11.widths_map(KEYS, VALUES, "Layer 15", ["Average", "Error 1e-3"]),
    "exponents": ch11.exponents({"K": [0.1, 0.0, 0.9], "V": [0.5, 0.5, 0.0]}, -4, "Share of numbers by size"),
    "curves": ch11.curves("ms a layer", [128, 1024, 8192], SERIES, [0.1, 1, 10]),
    "classes": ch11.classes({"13 bits each": [20, 30, 20, 20, 5, 5]}, "Results", list("abcdef")),
}


@pytest.mark.parametrize("text", FIGURES.values(), ids=FIGURES)
def test_figures_are_sound(text: str, drawn_well: Callable[[str, int], None]) -> None:
    drawn_well(text, 16_000)


def areas(text: str) -> dict[str, float]:
    """Area of all rectangles of a colour, legend boxes left out."""
    found: dict[str, float] = {}
    for data, colour in re.findall(r"<path d='([^']*)' fill='(#\w+)'/>", text):
        sides = re.findall(r"h([\d.]+)v([\d.]+)", data)
        found[colour] = found.get(colour, 0) + sum(float(w) * float(h) for w, h in sides)
    return found


@pytest.mark.parametrize("keys", [KEYS, KEYS[:, :1].repeat(64, axis=1)], ids=["by channel", "by token"])
def test_a_map_gives_each_width_its_area(keys: np.ndarray) -> None:
    found = areas(ch11.widths_map(keys, np.zeros(500, int), "", ["."]))
    whole = 296 * 128
    for width in np.unique(keys):
        assert found[ch11.WIDTHS[int(width)]] == pytest.approx(whole * (keys == width).mean(), rel=0.02)


def test_what_is_not_read_is_not_drawn() -> None:
    assert ch11.WIDTHS[0] not in areas(ch11.widths_map(np.zeros((64, 8), int), np.zeros(64, int), "", ["."]))


def test_classes_fill_the_whole_bar() -> None:
    text = FIGURES["classes"]
    assert sum(float(w) for w in re.findall(r"h([\d.]+)v14h-", text)) == pytest.approx(328, abs=0.1)


def test_a_missing_length_leaves_the_line_shorter() -> None:
    lines = re.findall(r"<path d='(M[^']*L[^']*)'", FIGURES["curves"])
    assert [data.count("L") for data in lines] == [2, 1, 2]
