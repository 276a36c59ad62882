"""Chapter 7's drawings: sound, legible, small; the fastest is marked and a cut bar says so."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from cachequant_lib.drawings import ch07

STEP = dict.fromkeys(ch07.STAGES, 1e-3) | {"scale": -1e-4, "whole": 9e-3}
ROWS = {"fp32": (0.3, 0.2), "fp16": (40.0, 0.1), "int8": (0.1, 0.1), "int8, int8 head": (0.1, 0.08)}
FIGURES = {
    "ratios": ch07.ratios(
        {"bf16": (3.5, float("nan")), "fp16": (0.2, 1 / 138), "int8": (3.0, 0.22)}, "Prefill", ("here", "the source")
    ),
    "stages": ch07.stage_bars({"fp32": STEP, "int8, int8 head": STEP}, "One decode step after 270 tokens"),
    "race": ch07.race(ROWS, 0.6, ["270 prompt tokens, 200 new: int8, int8 head", "1.22 times as fast as fp32"]),
}


@pytest.mark.parametrize("drawn", FIGURES.values(), ids=FIGURES)
def test_figures_are_sound(drawn: str, drawn_well: Callable[[str, int], None]) -> None:
    drawn_well(drawn, 6_000)


def test_what_is_unknown_is_not_drawn() -> None:
    assert FIGURES["ratios"].count("h0' fill='none' stroke='#b84a00'") == 4  # three formats and the legend
    assert FIGURES["ratios"].count("h0' fill='none' stroke='#525a64'") == 3  # two


def test_a_stage_below_zero_is_nothing() -> None:
    wide = [float(w) for w in re.findall(r"h([\d.]+)v15h", FIGURES["stages"])]
    assert len(wide) == 2 * (len(ch07.STAGES) - 1)
    assert sum(wide) == pytest.approx(2 * 268, abs=2)
    assert "9.0 ms" in FIGURES["stages"]


def test_the_fastest_is_marked_and_a_bar_beyond_the_axis_is_cut() -> None:
    drawn = FIGURES["race"]
    assert drawn.count("✓") == 1
    assert re.search(r"180 ms ✓", drawn)
    assert "40.10 s<" in drawn
    assert drawn.count("l6 -18") == 1
    wide = [float(w) for w in re.findall(r"h([\d.]+)v14h", drawn)]
    assert max(wide) <= 250
