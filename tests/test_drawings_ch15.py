"""Chapter 15's figures: what they draw is what they are given, on one scale, within the sheet."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from cachequant_lib.drawings.ch15 import Request, all_totals, combination, equal_answers

REQUESTS = [Request(0, 282, 180.0, 9.0), Request(276, 8, 40.0, 2.5), Request(276, 6, 39.0, 2.0)]
PLAIN = [180.0, 182.0, 181.0]


def widths(drawn: str, height: int) -> list[float]:
    return [float(w) for w in re.findall(rf"width='([0-9.]+)' height='{height}'", drawn)]


def test_combination(drawn_well: Callable[[str, int], None]) -> None:
    drawn = combination("275 tokens shared: int8, cache", REQUESTS, PLAIN, 1000.0)
    drawn_well(drawn, 5_000)
    assert "276 + 8" in drawn
    assert "all five: 272 ms" in drawn
    assert f"{sum(PLAIN) / 272.5:.2f} times" in drawn
    assert widths(drawn, 20) == pytest.approx([214 * ms / 1000 - 1 for ms in PLAIN], abs=0.1)
    assert widths(drawn, 10)[::2] == pytest.approx([214 * r.forward_ms / 1000 - 1 for r in REQUESTS], abs=0.1)


def test_a_request_without_overhead_has_one_stretch() -> None:
    drawn = combination("x", [Request(0, 7, 30.0, 0.0)], [30.0], 30.0)
    assert len(widths(drawn, 10)) == 1


def test_all_totals(drawn_well: Callable[[str, int], None]) -> None:
    formats = {"fp32": (0.898, 0.342), "BFP8": (7.361, 1.871), "int8": (0.754, 0.338)}
    drawn = all_totals({"16 tokens shared": formats, "nothing shared": dict.fromkeys(formats, (0.2, 0.21))})
    drawn_well(drawn, 6_000)
    assert "7361 → 1871 ms" in drawn
    bars = widths(drawn, 10)
    assert len(bars) == 12
    assert bars[2] == max(bars)  # each set has a scale of its own
    assert (bars[3] + 1) / (bars[2] + 1) == pytest.approx(1.871 / 7.361, abs=0.01)
    assert bars[7] == bars[2]


def test_equal_answers(drawn_well: Callable[[str, int], None]) -> None:
    drawn = equal_answers([("int8", 1, 6, 14), ("int8, one pass", 14, 14, 14), ("odd", 3, 2, 14)])
    drawn_well(drawn, 3_000)
    assert [w + 1 for w in widths(drawn, 17)] == pytest.approx([136 / 14 * n for n in (1, 5, 8, 14, 3, 11)], abs=0.1)
    assert "14/14" in drawn
