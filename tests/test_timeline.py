"""The timeline of chapter 1: bars to scale, words that agree with them, small enough for a slider."""

import re
import xml.etree.ElementTree as ET

import pytest

from cachequant_lib.drawings.canvas import WIDTH
from cachequant_lib.drawings.ch01 import PHASES, timeline

FRAMES = {
    "short": (0.05, [0.016] * 49, 8, 2.0),
    "long": (1.0, [0.02] * 9, 512, 2.0),
    "one step": (0.001, [0.5], 1, 0.6),
    "minutes": (100.0, [1.0] * 20, 1000, 130.0),
}


def bars(svg: str) -> dict[str, float]:
    """Widths of the two bars; those of the legend are 10 wide and lie lower."""
    rects = [r.attrib for r in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}rect")]
    return {r["fill"]: float(r["width"]) for r in rects if r["height"] != "10"}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_bars_are_to_scale(frame: tuple) -> None:
    prefill_s, steps, _, span_s = frame
    found, unit = bars(timeline(*frame)), (WIDTH - 24) / span_s
    assert found[PHASES["prefill"]] == pytest.approx(prefill_s * unit, abs=0.06)
    assert found[PHASES["decode"]] == pytest.approx(sum(steps) * unit, abs=0.06)


def test_the_words_say_what_the_bars_show() -> None:
    svg = timeline(*FRAMES["short"])
    for words in (
        "8 prompt tokens, 50 new ones: 0.83 s",
        "prefill 50 ms: 6.25 ms a prompt token",
        "decode 784 ms: 16.00 ms a new token",
        "6% of the time is prefill",
    ):
        assert words in svg
    assert svg.count("v40") == 48  # a gap between each two of 49 steps


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_frames_are_small_and_stay_on_the_sheet(frame: tuple) -> None:
    svg = timeline(*frame)
    assert len(svg) < 4_000
    for word in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        share = 0.5 if word.attrib.get("text-anchor") == "middle" else 0.0
        left = float(word.attrib["x"]) - share * 7.2 * len(word.text or "")
        assert left >= -8
        assert left + 7.2 * len(word.text or "") <= WIDTH + 8
    assert not re.search(r"\b(nan|inf)\b", svg)
