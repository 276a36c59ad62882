"""Chapter 8's drawings: sound, legible, small; what cannot be told apart is grey."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from cachequant_lib.drawings import canvas, ch08

ALONE = {"float32": (0.0, -9.0, 9.0), "int8": (1.0, -30.0, 30.0)}
CHANGE = {"float32": (0.0, 0.0, 0.0), "int8": (0.1, -0.02, 0.22), "one a tensor": (3.0, 2.5, 3.5)}
KL = {"int8": (64.0, 50.0, 80.0), "one a tensor": (220.0, 190.0, 350.0)}
COUNTS = [128 * 4**i for i in range(7)]
FIGURES = {
    "pairs": ch08.pairs(np.linspace(0, 9, 64), np.linspace(-0.02, 0.02, 64), 128),
    "widths": ch08.widths(COUNTS, {"a < b": [40 / 2**i for i in range(7)], "c": [0.4 / 2**i for i in range(7)]}),
    "shrinking": ch08.shrinking("SmolLM2-135M, 4,096 tokens", ALONE, CHANGE, KL, (20, 0.5, 300)),
    "survival": ch08.survival({"int8": np.linspace(1, 0.5, 41), "bfp8": np.ones(41)}, {"int8": 0.99, "bfp8": 1.0}),
}


@pytest.mark.parametrize("drawn", FIGURES.values(), ids=FIGURES)
def test_figures_are_sound(drawn: str, drawn_well: Callable[[str, int], None]) -> None:
    drawn_well(drawn, 6_000)


def test_only_an_interval_that_misses_zero_is_blue() -> None:
    grey = ch08.shrinking("t", {}, {"int8": (0.1, -0.02, 0.22)}, {}, (1, 1, 1))
    blue = ch08.shrinking("t", {}, {"int8": (0.1, 0.02, 0.18)}, {}, (1, 1, 1))
    assert canvas.BLUE not in grey
    assert canvas.BLUE in blue


def test_float32_is_never_told_apart_from_itself() -> None:
    assert canvas.BLUE not in ch08.shrinking("t", {"float32": (4.0, 1.0, 7.0)}, {}, {}, (9, 1, 1))


def test_what_is_wider_than_the_axis_gets_arrowheads() -> None:
    inside = ch08.shrinking("t", {"int8": (0.0, -0.9, 0.9)}, {}, {}, (1, 1, 1))
    outside = ch08.shrinking("t", {"int8": (0.0, -1.1, 0.9)}, {}, {}, (1, 1, 1))
    assert outside.count("L") - inside.count("L") == 2


def test_four_times_the_tokens_halve_the_width() -> None:
    drawn = ch08.widths(COUNTS, {"c": [0.4 / 2**i for i in range(7)]})
    line = next(part for part in drawn.split("<path d='") if part.startswith("M") and part.count("L") == 6)
    points = [tuple(map(float, p.split())) for p in line.split("'")[0].removeprefix("M").split("L")]
    slopes = [(yb - ya) / (xb - xa) for (xa, ya), (xb, yb) in pairwise(points)]
    assert max(slopes) == pytest.approx(min(slopes), rel=0.02)
