"""Chapter 10's figures: well-formed and legible, every digit in its column, colours that mean what the legend says."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable

import numpy as np
import pytest

from cachequant_lib.drawings import canvas, ch10

SVG = "{http://www.w3.org/2000/svg}"
LINES = ["Ends: first 2⁻¹⁰, second 2⁻¹⁶, result 2⁻¹⁰.", "Read past the end of the result: 2 digits.", "Result: 3."]


def frame(kinds: str = " kkwwff") -> str:
    rows = [("first", "1101   ", "kkkk   "), ("second", " 110110", kinds), ("sum", "10101  ", "kkkkk  ")]
    return ch10.addition([*rows, ("result", "101    ", "rrr    ")], 1, 4, LINES)


FIGURES = {
    "addition": frame(),
    "reads": ch10.reads({"16 bits": "s" + "e" * 5 + "m" * 10, "8 bits": "seeeeemm" + "f" * 8}),
    "log_lines": ch10.log_lines("Error", [1, 4, 1024], {"a": [1, 2, 3], "b": [2, 4, 8]}, [1, 2, 4, 8], "n", ["b"]),
    "fill_errors": ch10.fill_errors({"000…": -np.arange(16), "100…": np.arange(-7, 9)}, 15),
    "cube": ch10.cube(),
    "error_bars": ch10.error_bars("Off by", {"x": 0.5, "x + y, in quadrature": 1.3}, 2),
    "stacked": ch10.stacked("Sum", [2, 3], {"a": [1, 2], "b": [2, 1]}, ("seen", [3, 3]), [0, 2, 4], "bits"),
}


def words(text: str) -> list[ET.Element]:
    return list(ET.fromstring(text).iter(f"{SVG}text"))


def digits(text: str, colour: str) -> str:
    """The digits written in one colour, from left to right, row by row."""
    marked = [w for w in words(text) if "monospace" in w.attrib.get("font-family", "") and w.text != "."]
    return "".join(w.text or "" for w in marked if w.attrib["fill"] == colour)


@pytest.mark.parametrize("text", FIGURES.values(), ids=FIGURES)
def test_figures_are_sound(text: str, drawn_well: Callable[[str, int], None]) -> None:
    drawn_well(text, 14_000)


@pytest.mark.parametrize("text", FIGURES.values(), ids=FIGURES)
def test_words_stay_on_the_sheet(text: str) -> None:
    bottom = float(ET.fromstring(text).attrib["viewBox"].split()[3])
    for word in words(text):
        places = [float(x) for x in word.attrib["x"].split()]
        wide = 7.2 * len(word.text or "") / len(places)  # a generous 12.6-unit letter
        share = {"middle": 0.5, "end": 1.0}.get(word.attrib.get("text-anchor", ""), 0.0)
        assert min(places) - share * wide >= -8
        assert max(places) + (1 - share) * wide <= canvas.WIDTH + 8, word.text
        assert float(word.attrib["y"]) < bottom


def test_each_digit_stands_in_its_column() -> None:
    for word in words(frame()):
        places = [float(x) for x in word.attrib["x"].split()]
        if len(places) > 1:
            assert len(places) == len(word.text or "")
            columns = [(x - ch10.FIRST) / ch10.PITCH for x in places]
            assert np.allclose(columns, np.round(columns), atol=0.01)


def test_colours_tell_what_became_of_a_digit() -> None:
    assert digits(frame(), canvas.RED) == "01"
    assert digits(frame(), canvas.OLIVE) == "10"
    assert digits(frame(), canvas.BLUE) == "101"
    assert digits(frame(" kkkkkk"), canvas.RED) == ""


def test_the_result_ends_where_the_grey_field_begins() -> None:
    field = next(p for p in ET.fromstring(frame()).iter(f"{SVG}path") if p.attrib.get("fill") == canvas.BAND)
    left = float(field.attrib["d"].split()[0].removeprefix("M"))
    assert ch10.FIRST + 3 * ch10.PITCH < left < ch10.FIRST + 4 * ch10.PITCH


def test_one_addend_of_the_cube_for_each_step_in_depth() -> None:
    paths = ET.fromstring(ch10.cube()).iter(f"{SVG}path")
    rod = next(p for p in paths if p.attrib.get("stroke") == canvas.RED)
    assert rod.attrib["d"].count("M") == 5


def test_boxes_are_as_many_as_bits() -> None:
    paths = ET.fromstring(FIGURES["reads"]).iter(f"{SVG}path")
    boxes = dict.fromkeys(ch10.BITS.values(), 0)
    for p in paths:
        if p.attrib["fill"] in boxes:
            boxes[p.attrib["fill"]] += p.attrib["d"].count("M")
    assert boxes == {canvas.MUTED: 2, canvas.ORANGE: 10, canvas.BLUE: 12, canvas.GRID: 8}


def test_stacked_bars_stand_on_each_other() -> None:
    paths = [p for p in ET.fromstring(FIGURES["stacked"]).iter(f"{SVG}path") if p.attrib.get("stroke-width") == "24"]
    ends = [p.attrib["d"].split("M")[1].split()[1].split("V") for p in paths]
    assert len(ends) == 2
    assert ends[0][1] == ends[1][0]
