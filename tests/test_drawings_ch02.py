"""Chapter 2's drawings: sound, legible, small; bars and roofs are where the numbers are."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from cachequant_lib.drawings import ch02

BYTES = {
    "fp32": {"blocks": 340e6, "head": 154e6, "other": 0.6e6},
    "int8, int8 head": {"blocks": 86e6, "head": 39e6, "other": 0.6e6},
}
ROOFS = {
    "fp32": ch02.Roof(40e9, 120e9, [0.25, 4.0, 60.0], [5e9, 60e9, 90e9]),
    "fp16": ch02.Roof(40e9, 14e9, [0.5, 8.0, 120.0], [9e9, 12e9, 13e9]),
    "int8": ch02.Roof(40e9, 460e9, [0.5, 8.0, 181.0], [1e9, 150e9, 300e9]),
}
LINES = ["int8, 512 rows: multiplying is the limit", "181 multiply-adds for each byte", "roof 460 G/s"]
FIGURES = {
    "bytes": ch02.byte_bars(BYTES),
    "first row": ch02.roofline(ROOFS, "int8", 0, LINES),
    "last row": ch02.roofline(ROOFS, "fp16", 2, LINES),
    "context": ch02.context_bytes({"fp32": 495e6, "int8": 240e6, "int8, int8 head": 125e6}, 73728, 1024),
}


@pytest.mark.parametrize("drawn", FIGURES.values(), ids=FIGURES)
def test_figures_are_sound(drawn: str, drawn_well: Callable[[str, int], None]) -> None:
    drawn_well(drawn, 5_000)


def test_bars_are_as_long_as_the_bytes() -> None:
    wide = [float(w) for w in re.findall(r"M[\d.]+ [\d.]+h([\d.]+)v15h", FIGURES["bytes"])]
    assert len(wide) == 6
    assert wide[0] / wide[3] == pytest.approx(340 / 86, rel=0.01)
    assert sum(wide[:3]) == pytest.approx(264, abs=1)


def test_a_roof_is_the_lower_limit() -> None:
    roof = ROOFS["int8"]
    assert roof.attainable(1.0) == 40e9
    assert roof.attainable(100.0) == 460e9


def test_a_mark_is_under_its_roof_and_a_tiny_rate_stays_on_the_sheet() -> None:
    places = re.findall(r"d='M([\d.]+) ([\d.]+)V([\d.]+)' fill='none' stroke='#b84a00'", FIGURES["first row"])
    ((_, measured, limit),) = places
    assert float(measured) > float(limit)
    assert float(measured) <= 24 + 17 * 2 + 208


def test_formats_have_colours_of_their_own() -> None:
    assert len(set(ch02.COLOURS.values())) == len(ch02.COLOURS)
    assert set(ROOFS) < set(ch02.COLOURS)
