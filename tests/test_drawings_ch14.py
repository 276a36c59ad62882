"""Chapter 14's figures: what they draw is what they are given, on one scale, within the sheet."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from cachequant_lib.drawings.ch14 import Turn, gain_lines, growth_bars, turn_frame

TURNS = [Turn(0, 297, 250.0, 252.0, 9.0), Turn(297, 26, 280.0, 52.0, 2.0), Turn(323, 26, 300.0, 51.0, 2.5)]


def widths(drawn: str) -> list[float]:
    return [float(w) for w in re.findall(r"width='([0-9.]+)' height='16'", drawn)]


def test_growth_bars(drawn_well: Callable[[str, int], None]) -> None:
    drawn = growth_bars([(0, 41), (41, 31), (72, 32)])
    drawn_well(drawn, 3_000)
    assert "41 + 31" in drawn
    assert len(widths(drawn)) == 5  # nothing is found at first
    assert widths(drawn)[0] == pytest.approx((266 - 70) * 41 / 104 - 1, abs=0.1)


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("name", ["Passage", "Language"])
def test_turn_frame(at: int, name: str, drawn_well: Callable[[str, int], None]) -> None:
    drawn = turn_frame(name, TURNS, at, 4.7, (349, 305.0))
    drawn_well(drawn, 4_500)
    net = sum(turn.net_ms for turn in TURNS[: at + 1])
    assert f"{name}: turn {at + 1} of 3" in drawn
    assert f"gained so far: {net:.0f} ms" in drawn
    assert ("does not pay" in drawn) == (at == 0)


def test_turns_are_drawn_on_one_scale() -> None:
    first, second = (widths(turn_frame("x", TURNS, at, 5, (349, 305.0))) for at in (1, 2))
    assert first[2] / second[2] == pytest.approx(280 / 300, abs=0.01)


def test_a_conversation_that_only_loses_is_drawn_too(drawn_well: Callable[[str, int], None]) -> None:
    drawn_well(turn_frame("x", [Turn(0, 20, 40.0, 41.0, 1.0)], 0, 0.3, (20, 42.0)), 4_500)


def test_gain_lines(drawn_well: Callable[[str, int], None]) -> None:
    gains = {n: [(m, 0.8 * m - n / 300) for m in (0, 3, 6, 9, 12)] for n in (50, 250, 1000)}
    drawn = gain_lines(gains, {n: n / 240 for n in gains})
    drawn_well(drawn, 4_000)
    assert "prompt of 1000 tokens: from 4.2 found" in drawn
