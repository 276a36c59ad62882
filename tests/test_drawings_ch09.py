"""Chapter 9's drawings: sound, legible, small; and the cells that carry a cross are the wrong ones."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from cachequant_lib.drawings import canvas, ch09

TOKENS = ["Elizabeth", " was", " <not>", *[" to"] * 11]
LAST = ch09.Step(TOKENS, 1, 14, [100, *[0] * 13], 172_032, 5_800_000, 62_900_000, 62_900_000)
FIGURES = {
    "prefill": ch09.step_frame(ch09.Step(TOKENS, 3, 3, [3, 85, 12], 36_864, 15, 15, 63), 6, "Step 0", "Attention"),
    "decode": ch09.step_frame(LAST, 6, "Step 11: decode, one token", "Attention of “to” in layer 4, head 2, in %"),
    "mask": ch09.mask_frame([9, 9, 9, 9], 9, "Rule: only if empty", ["Crosses: wrong, and no error is raised."]),
    "empty": ch09.mask_frame([1, 2], 2, "Rule", ["Right."]),
    "copies": ch09.copies_frame(10),
    "sharing": ch09.sharing(9, 3),
    "overtake": ch09.overtake_lines({"tiny": ([1, 1024], [0.2, 208.0]), "SmolLM2-135M": ([1, 8192], [0.03, 281.0])}),
}
TEXT = "{http://www.w3.org/2000/svg}text"


@pytest.mark.parametrize("drawn", FIGURES.values(), ids=FIGURES)
def test_figures_are_sound(drawn: str, drawn_well: Callable[[str, int], None]) -> None:
    drawn_well(drawn, 8_000)


def cells(drawn: str, colour: str, length: float) -> int:
    """Count the cells of one colour and length."""
    strokes = re.findall(rf"<path d='([^']*)' fill='none' stroke='{colour}'", drawn)
    return sum(stroke.count(f"h{canvas.number(length)}") for stroke in strokes if stroke.count("M") > 1)


@pytest.mark.parametrize(("new", "stored"), [(3, 3), (1, 4), (1, 13)])
def test_a_key_and_a_value_a_layer_for_every_position(new: int, stored: int) -> None:
    drawn = ch09.step_frame(ch09.Step(TOKENS, new, stored, [1] * stored, 1, 1, 1, 2), 6, "Step", "Attention")
    wide = (ch09.RIGHT - ch09.LEFT) / len(TOKENS) - 2
    assert cells(drawn, ch09.ORANGE, wide) == 12 * new
    assert cells(drawn, ch09.STORED, wide) == 12 * (stored - new)
    assert cells(drawn, ch09.EMPTY, wide) == 12 * (len(TOKENS) - stored)


@pytest.mark.parametrize(
    ("seen", "stored", "wrong"),
    [([6, 7, 8, 9], 9, 0), ([9, 9, 9, 9], 9, 6), ([1, 2, 3, 4], 9, 20), ([1, 2], 2, 0), ([1], 6, 5)],
)
def test_crosses_mark_the_wrong_cells(seen: list[int], stored: int, wrong: int) -> None:
    assert ch09.mask_frame(seen, stored, "Rule", [""]).count("l12 12") == wrong


def test_copies_count_their_rows() -> None:
    assert "55 rows in all" in FIGURES["copies"]
    assert "10 rows in all" in FIGURES["copies"]


def test_each_query_head_reads_its_own_share() -> None:
    ends = re.findall(r"M[\d.]+ 50L([\d.]+) 100", FIGURES["sharing"])
    assert [ends.count(end) for end in dict.fromkeys(ends)] == [3, 3, 3]
