"""Chapter 13's figures: well-formed, legible, small, and each stretch of tokens in the state it should have."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest

from cachequant_lib.drawings import ch13

SVG = "{http://www.w3.org/2000/svg}"
PIECES = [ch13.Piece(0, 0, hit=8), ch13.Piece(0, 8, new=2), ch13.Piece(1, 0, gone=8), ch13.Piece(2, 8, old=6, gone=2)]
RATES = {"lru": [10.0, 50.0, 80.0], "lfu": [20.0, 50.0, 80.0], "size": [0.0, 50.0, 80.0]}


def replay(pieces: list[ch13.Piece], fill: float = 1.0) -> str:
    says = ["10 of 10 tokens reused, 10 evicted", "32 of 32 stored. Hit rate so far: 100 %"]
    return ch13.replay_frame("Request 12: A4", says, ["A asks", "docs 1, 2", "doc 5"], pieces, fill)


FIGURES = {
    "runs": ch13.run_bars([(0, 0, 20, "You are the housekeep... (20)"), (1, 20, 8, "library? & <x> (8)")], "2 runs"),
    "load": ch13.load_lines({"PrefixCache, a limit in bytes": [0.1, 0.8], "TokenTrie, a soft limit": [0.1, 1.2]}, 0.8),
    "replay": replay(PIECES),
    "empty replay": replay([], 0.0),
    "rates": ch13.rate_panels({"Few-shot": ([64, 128, 1024], RATES)}, {"Few-shot": 88.0}),
    "guesses": ch13.guess_bars(["Anne", "Charlotte"], {"One namespace: tokens computed": [11, 1], "Two": [19, 19]}),
}


@pytest.mark.parametrize("text", FIGURES.values(), ids=FIGURES)
def test_figures_are_sound(text: str, drawn_well: Callable[[str, int], None]) -> None:
    drawn_well(text, 5_000)


def count(text: str, look: tuple[str, str, float, str]) -> int:
    """Boxes drawn in one look, that of the legend left out."""
    fill, border = look[:2]
    drawn = [p for p in ET.fromstring(text).iter(f"{SVG}path") if (p.get("fill"), p.get("stroke")) == (fill, border)]
    return sum(p.attrib["d"].count("z") for p in drawn) - 1


def test_each_stretch_has_its_state() -> None:
    counted = {
        state: count(replay(PIECES), ch13.GONE if state == "gone" else ch13.STATES[state]) for state in ch13.NAMES
    }
    assert counted == {"hit": 1, "new": 1, "old": 1, "gone": 2}
    assert count(replay([]), ch13.GONE) == 0


def test_only_a_guess_that_stands_out_is_marked() -> None:
    found, blind = ch13.guess_bars(["a", "b"], {"x": [11, 1]}), ch13.guess_bars(["a", "b"], {"x": [1, 1]})
    assert found.count(ch13.GREEN) == 1
    assert ch13.GREEN not in blind
