"""Chapter 5's drawings: sound, legible, small; dots lie where their numbers are."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from cachequant_lib.drawings import canvas, ch05

RULES = ("pow2", "snapped", "fp16", "exact")
LIMITS = ((0.015, 0.02, 0.025, 0.03, 0.04, 0.06), (0.002, 0.004, 0.006, 0.009, 0.014))
CELLS = [(8.25, 0.8), (8.0, 2.4), (9.0, 0.56)]
SMALL = np.linspace(0, 0.1, 16 * 256).reshape(16, 256)
ROWS = {g: dict.fromkeys(RULES, (0.1, 0.05, 0.15)) for g in ("32", "a row", "tensor")}
FIGURES = {
    "cell_frame": ch05.cell_frame(["Groups of 32, pow2", "8.250 bits"], SMALL, SMALL, LIMITS, CELLS, 1),
    "worth": ch05.worth({r: [("32", 8.25, 0.8), ("64", 8.125, 0.9), ("tensor", 8.0, 2.4)] for r in RULES}),
    "law": ch05.law({r: [(0.5, 2e-5), (1.0, 9e-5), (2.0, 4e-4)] for r in RULES}, 9e-5),
    "effects": ch05.effects(ROWS, 0.3),
}


@pytest.mark.parametrize("drawn", FIGURES.values(), ids=FIGURES)
def test_figures_are_sound(drawn: str, drawn_well: Callable[[str, int], None]) -> None:
    drawn_well(drawn, 11_000)


def test_the_chosen_cell_is_the_large_dot() -> None:
    large = re.findall(rf"<path d='M([\d.]+) ([\d.]+)h0' fill='none' stroke='{canvas.ORANGE}'", FIGURES["cell_frame"])
    every = re.findall(r"M([\d.]+) ([\d.]+)h0", FIGURES["cell_frame"])
    assert large == [every[1]]


def test_a_coarser_format_lies_higher_and_a_dearer_one_further_right() -> None:
    dots = [tuple(map(float, d)) for d in re.findall(r"M([\d.]+) ([\d.]+)h0", FIGURES["cell_frame"])[:3]]
    (x_mid, y_mid), (x_cheap, y_coarse), (x_dear, y_fine) = dots
    assert x_cheap < x_mid < x_dear
    assert y_coarse < y_mid < y_fine  # heights are counted from the top


def test_lines_of_equal_worth_fall_a_factor_of_two_a_bit() -> None:
    dashed = re.search(r"<path d='([^']*)'[^>]*stroke-dasharray", FIGURES["worth"])
    assert dashed is not None
    panel = canvas.Panel(46, 34, canvas.WIDTH - 58, 230, (7.95, 9.08), ch05._high())
    slope = panel.height / (panel.y[1] - panel.y[0]) * (panel.x[1] - panel.x[0]) / panel.width
    for line in dashed[1].split("M")[1:]:
        (xa, ya), (xb, yb) = (tuple(map(float, point.split())) for point in line.split("L"))
        assert (yb - ya) / (xb - xa) == pytest.approx(slope, rel=0.02)


def test_a_change_beyond_the_axis_is_an_arrow_with_its_number() -> None:
    rows = {"tensor": {"pow2": (68.6, 60.0, 77.0), "exact": (0.1, 0.0, 0.2)}}
    drawn = ch05.effects(rows, 0.3)
    assert "+68.60" in drawn
    assert "+0.10" not in drawn
