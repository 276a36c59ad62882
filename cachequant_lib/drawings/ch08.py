"""Drawings of chapter 8, is it still the same model? They take numbers, score nothing, and return SVG text."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from cachequant_lib.drawings.canvas import (
    BAND,
    BLUE,
    BOLD,
    END,
    GRID,
    INK,
    MIDDLE,
    MUTED,
    OLIVE,
    ORANGE,
    WIDTH,
    Panel,
    canvas,
    number,
    path,
    text,
)

__all__ = ["pairs", "shrinking", "survival", "widths"]

Interval = tuple[float, float, float]  # value, low, high
COLOURS = (BLUE, ORANGE, OLIVE, "#7a3e9d", INK)
DOTS = " stroke-linecap='round'"


def pairs(surprise: ArrayLike, change: ArrayLike, times: int) -> str:
    """Draw the surprise of each token, and below it how much of it a second model changed.

    Parameters
    ----------
    surprise, change : array_like, shape (T,)
        In nats.
    times : int
        How much larger the lower panel is drawn.
    """
    tall, small = np.asarray(surprise, float), np.asarray(change, float)
    top = float(np.ceil(tall.max()))
    upper = Panel(30, 28, WIDTH - 38, 110, (0, tall.size), (0, top))
    reach = top / times / 2
    lower = Panel(30, 172, WIDTH - 38, 110, (0, small.size), (-reach, reach))
    middle = np.arange(tall.size) + 0.5
    fine = f"{reach:.3g}"
    return canvas(
        292,
        [
            text(8, 18, "Surprise of each token in float32, nats", BOLD),
            path(upper.grid([0, top / 2, top]), GRID),
            *[text(26, float(upper.py(v)) + 4, f"{v:g}", END) for v in (0, top)],
            path(upper.bars(middle, tall), MUTED, 3),
            text(8, 162, f"int8 minus float32, {times} times larger", BOLD),
            path(lower.grid([-reach, 0, reach]), GRID),
            text(8, float(lower.py(reach)) + 12, f"+{fine}"),
            text(8, float(lower.py(-reach)) - 4, f"−{fine}"),
            path(lower.bars(middle, np.clip(small, -reach, reach)), BLUE, 3),
        ],
    )


def widths(counts: Sequence[int], series: Mapping[str, Sequence[float]]) -> str:
    """Draw half-widths of intervals against the number of tokens, both logarithmic.

    Parameters
    ----------
    counts : sequence of int
    series : mapping of str to sequence of float
        Half-widths in percent, one for each count.
    """
    every = [v for values in series.values() for v in values]
    y = float(np.floor(np.log10(min(every)))), float(np.ceil(np.log10(max(every))))
    x = float(np.log2(counts[0] * 0.8)), float(np.log2(counts[-1] * 1.25))
    panel = Panel(52, 34, WIDTH - 66, 200, x, y)
    parts = [text(8, 18, "Half of the 95 % interval, in %", BOLD)]
    tens = [float(p) for p in np.arange(y[0], y[1] + 1)]
    parts += [path(panel.grid(tens), GRID)]
    parts += [text(46, float(panel.py(p)) + 4, f"{10**p:g}", END) for p in tens]
    shown = [n for i, n in enumerate(counts) if i % 2 == 0]
    parts += [text(panel.px(float(np.log2(n))), 252, _count(n), MIDDLE) for n in shown]
    for i, (name, values) in enumerate(series.items()):
        line = panel.line(np.log2(counts), np.log10(values))
        parts.append(path(line, COLOURS[i], 2, " stroke-linejoin='round'"))
        parts += [path(f"M12 {272 + 18 * i}h14", COLOURS[i], 8), text(34, 276 + 18 * i, name)]
    return canvas(276 + 18 * len(series), [*parts, text(WIDTH - 8, 18, "tokens →", END)])


def _count(n: int) -> str:
    return f"{n / 1000:.0f}k" if n >= 1000 else str(n)


def shrinking(
    title: str,
    alone: Mapping[str, Interval],
    change: Mapping[str, Interval],
    divergence: Mapping[str, Interval],
    limits: tuple[float, float, float],
) -> str:
    """Draw what n tokens tell: each format's perplexity by itself, its paired change, and its KL divergence.

    Parameters
    ----------
    title : str
    alone : mapping of str to (value, low, high)
        Perplexity of each format in percent of that of float32 on the whole text, minus 100.
    change : mapping of str to (value, low, high)
        Paired change in percent.
    divergence : mapping of str to (value, low, high)
        KL divergence from float32 in millionths.
    limits : three floats
        Ends of the axes; the first two run from minus to plus, the third from 0. What lies beyond is drawn to the edge.
    """
    parts = [text(8, 18, title, BOLD)]
    y = 44.0
    for words, rows, low_end, limit in (
        (f"Each by itself (axis to ±{limits[0]:g} %)", alone, -limits[0], limits[0]),
        (f"The change, token by token (to ±{limits[1]:g} %)", change, -limits[1], limits[1]),
        (f"KL divergence (to {limits[2]:g} millionths)", divergence, 0.0, limits[2]),
    ):
        panel = Panel(96, y + 8, WIDTH - 108, 22 * len(rows), (low_end, limit), (0, 1))
        bottom = panel.top + panel.height
        parts += [text(8, number(y), words)]
        parts.append(f"<path d='M96 {number(panel.top)}H{WIDTH - 12}V{number(bottom)}H96Z' fill='{BAND}'/>")
        parts.append(path(f"M{panel.px(0)} {number(panel.top)}V{number(bottom)}", INK, 1))
        for i, (name, (value, low, high)) in enumerate(rows.items()):
            level = panel.top + 22 * i + 11
            clear = low > 0 or high < 0
            colour = BLUE if clear and name != "float32" else MUTED
            ends = np.clip([low, high, value], low_end, limit)
            parts.append(text(90, number(level + 4), name, END))
            parts.append(path(f"M{panel.px(ends[0])} {number(level)}H{panel.px(ends[1])}", colour, 5))
            parts.append(_arrows(panel, level, (low < low_end, high > limit), colour))
            if low_end <= value <= limit:
                parts.append(path(f"M{panel.px(ends[2])} {number(level - 7)}v14", colour, 2))
        y = bottom + 26
    foot = "blue: told apart from float32; grey: not"
    return canvas(y - 4, [*parts, text(8, number(y - 12), foot, f" fill='{MUTED}'")])


def _arrows(panel: Panel, y: float, beyond: tuple[bool, bool], colour: str) -> str:
    data = ""
    for is_beyond, end, way in zip(beyond, panel.x, (1, -1), strict=True):
        if is_beyond:
            edge, back = panel.px(end), number(float(panel.px(end)) + 9 * way)
            data += f"M{back} {number(y - 6)}L{edge} {number(y)}L{back} {number(y + 6)}"
    return path(data, colour, 2)


def survival(curves: Mapping[str, ArrayLike], guesses: Mapping[str, float]) -> str:
    """Draw the share of texts that are still the same after t tokens, and ``agreement ** t`` beside each.

    Parameters
    ----------
    curves : mapping of str to array_like, shape (T + 1,)
        Share after 0, 1, ... T tokens.
    guesses : mapping of str to float
        Top-1 agreement of each.
    """
    longest = max(np.asarray(c).size for c in curves.values()) - 1
    panel = Panel(42, 30, WIDTH - 54, 180, (0, longest), (0, 1))
    parts = [text(8, 18, "Texts still the same, in %", BOLD), path(panel.grid([0, 0.25, 0.5, 0.75, 1]), GRID)]
    parts += [text(38, float(panel.py(v)) + 4, f"{100 * v:g}", END) for v in (0, 0.5, 1)]
    parts += [text(panel.px(t), 228, f"{t:g}", MIDDLE) for t in np.linspace(0, longest, 5)[:-1]]
    for i, (name, curve) in enumerate(curves.items()):
        share = np.asarray(curve, float)
        parts.append(path(panel.line(np.arange(share.size), share), COLOURS[i], 2))
        guess = guesses[name] ** np.arange(longest + 1)
        parts.append(path(panel.line(np.arange(longest + 1), guess), COLOURS[i], 1, " stroke-dasharray='3 3'"))
        parts += [path(f"M12 {246 + 18 * i}h14", COLOURS[i], 8), text(34, 250 + 18 * i, name)]
    bottom = 250 + 18 * len(curves)
    words = "dashed: if each token fell alone"
    return canvas(
        bottom + 12,
        [*parts, text(8, bottom + 4, words, f" fill='{MUTED}'"), text(WIDTH - 8, 228, f"{longest} tokens", END)],
    )
