"""Figures of chapter 13: runs of a radix tree, a load and its limit, a replay, hit rates, and what a guess shows."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from cachequant_lib.drawings.canvas import (
    BOLD,
    END,
    GRID,
    INK,
    MIDDLE,
    MUTED,
    ORANGE,
    RED,
    WIDTH,
    Panel,
    canvas,
    number,
    path,
    text,
)
from cachequant_lib.drawings.ch12 import GREEN, STATES

LOOKS = {
    "lru": (INK, 2.2, ""),
    "lfu": (GREEN, 2.2, " stroke-dasharray='7 3'"),
    "size": (ORANGE, 2.2, " stroke-dasharray='2 3'"),
}
GONE = ("#fff", RED, 1.4, " stroke-dasharray='1.5 2.5'")
NAMES = {"hit": "reused", "new": "computed", "old": "stored before", "gone": "evicted now"}


class Piece(NamedTuple):
    """A stretch of tokens in a replay: where it is drawn, and how much of it is in which state."""

    row: int
    start: int
    old: int = 0
    hit: int = 0
    new: int = 0
    gone: int = 0


def run_bars(nodes: Sequence[tuple[int, int, int, str]], title: str) -> str:
    """Draw a radix tree, one bar a node: (row, first token, tokens, words). Words stand in the bar or left of it."""
    longest = max(start + tokens for _, start, tokens, _ in nodes)
    scale, parts = (WIDTH - 16) / longest, [text(8, 18, title, BOLD)]
    for row, start, tokens, words in nodes:
        x, y, wide = 8 + scale * start, 30 + 27 * row, scale * tokens
        parts.append(_boxes([(x, y, wide - 2, 20)], *STATES["old"]))
        inside = 6.6 * len(words) < wide
        parts.append(text(number(x + 5 if inside else x - 5), y + 14.5, words, "" if inside else END))
    return canvas(34 + 27 * (max(row for row, *_ in nodes) + 1), parts)


def load_lines(series: Mapping[str, ArrayLike], cap: float) -> str:
    """Draw bytes in use, in MB, after each request, and the limit; the last series is dashed."""
    arrays = {name: np.asarray(values, float) for name, values in series.items()}
    steps, top = len(next(iter(arrays.values()))), max(float(values.max()) for values in arrays.values())
    panel = Panel(36, 30, WIDTH - 48, 140, (1, steps), (0, 1.12 * top))
    parts = [
        text(8, 18, "MB of rows in use, after each request", BOLD),
        path(panel.grid([0]), GRID),
        path(panel.grid([cap]), INK, 1.4, " stroke-dasharray='1.5 3'"),
        text(32, float(panel.py(cap)) + 4, f"{cap:.1f}", END),
        text(32, float(panel.py(0)) + 4, "0", END),
        text(40, 188, "request 1"),
        text(WIDTH - 8, 188, f"{steps}", END),
    ]
    looks = (LOOKS["lfu"][0], 2.6, ""), (LOOKS["size"][0], 1.8, LOOKS["lfu"][2])
    for i, ((name, values), look) in enumerate(zip(arrays.items(), looks, strict=True)):
        y = 206 + 19 * i
        parts += [
            path(panel.line(range(1, steps + 1), values), *look),
            path(f"M8 {y - 4}h26", *look),
            text(42, y, name),
        ]
    limit = [path("M8 240h26", INK, 1.4, " stroke-dasharray='1.5 3'"), text(42, 244, "the limit")]
    return canvas(254, [*parts, *limit])


def replay_frame(title: str, says: Sequence[str], rows: Sequence[str], pieces: Sequence[Piece], fill: float) -> str:
    """Draw one request of a replay: what is stored, what it reused, and what went.

    Parameters
    ----------
    title, says : str, sequence of str
        Heading, and two lines below it.
    rows : sequence of str
        Names of the rows.
    pieces : sequence of Piece
        Stretches of tokens, drawn at 16 units a token.
    fill : float
        How full the cache is, from 0 to 1.

    Returns
    -------
    str
        SVG text, about 3 kB.
    """
    boxes: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in NAMES}
    for piece in pieces:
        x, y = 76 + 16.0 * piece.start, 92 + 21.0 * piece.row
        for state in ("hit", "new", "old", "gone"):
            if tokens := getattr(piece, state):
                boxes[state].append((x + 1, y, 16.0 * tokens - 2, 14))
                x += 16 * tokens
    full, bottom = (WIDTH - 16) * fill, 92 + 21 * len(rows)
    parts = [text(8, 18, title, BOLD), *[text(8, 37 + 18 * i, line) for i, line in enumerate(says)]]
    parts += [path(f"M8 70H{WIDTH - 8}", GRID, 8), path(f"M8 70h{number(full)}" if fill else "", MUTED, 8)]
    parts += [text(8, number(103 + 21 * i), name) for i, name in enumerate(rows)]
    parts += [_boxes(places, *(GONE if state == "gone" else STATES[state])) for state, places in boxes.items()]
    for (state, words), (x, y) in zip(NAMES.items(), ((8, 12), (104, 12), (8, 32), (144, 32)), strict=True):
        look = GONE if state == "gone" else STATES[state]
        parts += [_boxes([(x, bottom + y - 8, 18, 11)], *look), text(x + 25, number(bottom + y + 2), words)]
    return canvas(bottom + 44, parts)


def rate_panels(traces: Mapping[str, tuple[ArrayLike, Mapping[str, ArrayLike]]], marks: Mapping[str, float]) -> str:
    """Draw hit rate in percent against room in tokens, a panel a trace and a line a policy; `marks` is all it could."""
    parts, y = [text(8, 18, "Hit rate in %, against the room for tokens", BOLD)], 24.0
    for i, (name, words) in enumerate((("lru", "LRU"), ("lfu", "LFU"), ("size", "size-aware"))):
        parts += [path(f"M{8 + 82 * i} 34h26", *LOOKS[name]), text(40 + 82 * i, 38, words)]
    for name, (rooms, lines) in traces.items():
        xs = np.asarray(rooms, float)
        panel = Panel(36, y + 54, WIDTH - 50, 90, (float(xs.min()), float(xs.max())), (0, 100))
        most = f"most possible: {marks[name]:.0f} %"
        parts += [
            text(8, number(y + 36), name, BOLD),
            text(WIDTH - 8, number(y + 36), most, END),
            path(panel.grid((0, 50, 100)), GRID),
            path(panel.grid([marks[name]]), MUTED, 1, " stroke-dasharray='1 3'"),
            *[path(panel.line(xs, rates), *LOOKS[policy]) for policy, rates in lines.items()],
            *[text(32, float(panel.py(level)) + 4, f"{level}", END) for level in (0, 50, 100)],
            text(36, number(y + 160), f"{xs.min():g}", MIDDLE),
            text(WIDTH - 14, number(y + 160), f"{xs.max():g} tokens", END),
        ]
        y += 148
    return canvas(y + 24, parts)


def guess_bars(guesses: Sequence[str], series: Mapping[str, Sequence[int]]) -> str:
    """Draw tokens computed for each guess, one block of bars a series; the shortest of a block is green if alone."""
    longest, y, parts = max(max(values) for values in series.values()), 0.0, []
    for name, values in series.items():
        parts.append(text(8, number(y + 18), name, BOLD))
        for guess, value in zip(guesses, values, strict=True):
            alone = value == min(values) and values.count(value) == 1
            wide = (WIDTH - 128) * value / longest
            parts += [
                text(8, number(y + 38), guess),
                _boxes([(92, y + 27, wide, 14)], *STATES["hit" if alone else "old"]),
                text(number(98 + wide), number(y + 38), f"{value}", BOLD if alone else ""),
            ]
            y += 20
        y += 34
    return canvas(y, parts)


def _boxes(places: Sequence[tuple[float, float, float, float]], fill: str, border: str, thick: float, dash: str) -> str:
    """Draw all boxes of one look as one path; each is (left, top, width, height)."""
    data = "".join(f"M{number(x)} {number(y)}h{number(w)}v{number(h)}h-{number(w)}z" for x, y, w, h in places)
    return f"<path d='{data}' fill='{fill}' stroke='{border}' stroke-width='{thick}'{dash}/>" if data else ""
