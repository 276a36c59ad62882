"""Hand-written figures: well-formed, legible, small, and red only where something was clipped."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable

import numpy as np
import pytest

from cachequant_lib.drawings import Figure, canvas, ch03

ROW = np.array([1.5, -0.7, 0.2, -1.9, 0.5, 0.25, -0.125, 0.0])


def frame(scale: float) -> str:
    wanted = ROW / scale * 127
    codes = np.clip(np.rint(wanted), -127, 127)
    return ch03.block_frame(ROW, [scale, scale], wanted, codes, codes * scale / 127, ["a < b", "scale", "c", "d"])


FIGURES = {
    "block_frame": frame(2.0),
    "bit_columns": ch03.bit_columns(),
    "code_histogram": ch03.code_histogram(np.arange(128), "Codes & counts"),
    "error_strips": ch03.error_strips({"one": ROW, "two": 2 * ROW}, 4),
    "trade_off": ch03.trade_off({"pow2": [("32", 8.25, 0.8), ("64", 8.125, 0.9)]}, (8, 9), (0.4, 1.2)),
}


@pytest.mark.parametrize("text", FIGURES.values(), ids=FIGURES)
def test_figures_are_sound(text: str, drawn_well: Callable[[str, int], None]) -> None:
    drawn_well(text, 6_000)


@pytest.mark.parametrize("text", FIGURES.values(), ids=FIGURES)
def test_words_stay_on_the_sheet(text: str) -> None:
    for word in ET.fromstring(text).iter("{http://www.w3.org/2000/svg}text"):
        wide = 7.2 * len(word.text or "")  # a generous 12.6-unit letter
        share = {"middle": 0.5, "end": 1.0}.get(word.attrib.get("text-anchor", ""), 0.0)
        left = float(word.attrib["x"]) - share * wide
        assert left >= -8
        assert left + wide <= canvas.WIDTH + 8


def test_only_clipped_values_are_red() -> None:
    assert canvas.RED not in frame(2.0)
    assert frame(1.0).count(canvas.RED) == 3  # the arrow on the ruler, the value, its loss


def test_one_path_a_series() -> None:
    few, many = ch03.error_strips({"x": ROW}, 4), ch03.error_strips({"x": np.tile(ROW, 16)}, 4)
    assert few.count("<path") == many.count("<path")


def test_figure_carries_its_words() -> None:
    shown = Figure(ch03.bit_columns(), 'less < "more"')._repr_mimebundle_()
    root = ET.fromstring(shown["text/html"])
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == shown["text/plain"] == 'less < "more"'


def test_a_panel_places_lines_across_and_from_point_to_point() -> None:
    panel = canvas.Panel(10, 20, 100, 50, (0, 4), (0, 100))
    assert panel.grid([0, 50.0]) == "M10 70H110M10 45H110"
    assert panel.line([0, 1, 4], np.array([0.0, 100.0, 30.0])) == "M10 70L35 20L110 55"
    with pytest.raises(ValueError, match="zip"):
        panel.line([0, 1], [0])
