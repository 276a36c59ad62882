"""Drawings of chapter 7, Where does it win, where does it lose?. They take numbers and return SVG text."""

from collections.abc import Mapping, Sequence

import numpy as np

from cachequant_lib.drawings.canvas import (
    BLUE,
    BOLD,
    END,
    GRID,
    INK,
    MIDDLE,
    MUTED,
    OLIVE,
    ORANGE,
    RED,
    WIDTH,
    Panel,
    canvas,
    number,
    path,
    text,
)
from cachequant_lib.drawings.ch01 import PHASES
from cachequant_lib.drawings.ch02 import COLOURS

__all__ = ["STAGES", "race", "ratios", "stage_bars"]

#: Stages of a forward pass: what they are called, and their colour.
STAGES = {
    "multiply": ("multiply", "#33475b"),
    "scale": ("scale the sums", BLUE),
    "quantize": ("quantise the input", ORANGE),
    "call": ("call a layer", "#b9c3ce"),
    "head": ("head", "#7b8ea3"),
    "attention": ("attention", OLIVE),
    "activation": ("GELU", RED),
    "norm": ("norms", "#d9a441"),
    "residual": ("residuals", "#8c2611"),
    "rest": ("between them", "#dfe4ea"),
}


def ratios(rows: Mapping[str, tuple[float, float]], heading: str, marks: tuple[str, str]) -> str:
    """Draw two speed-ups a row as dots on a logarithmic axis around 1, "as fast as fp32".

    Parameters
    ----------
    rows : mapping of str to pair of float
        Name -> the two ratios, each above 1 if faster than fp32. A NaN is not drawn.
    heading : str
    marks : pair of str
        What the first and the second dot are.
    """
    step, top, colours = 34, 62, (ORANGE, MUTED)
    low, high = np.log2(1 / 160), np.log2(16)
    axis = Panel(14, top, WIDTH - 28, step * len(rows), (low, high), (0, 1))
    bottom = top + step * len(rows)
    ticks = {1 / 64: "1/64", 1 / 16: "1/16", 1 / 4: "1/4", 1.0: "1", 4.0: "4", 16.0: "16"}
    grid = "".join(f"M{axis.px(np.log2(t))} {top}V{bottom}" for t in ticks)
    parts = [text(8, 18, heading, BOLD), path(grid, GRID), path(f"M{axis.px(0)} {top}V{bottom}", INK, 1.6)]
    for x, colour, word in zip((12, 140), colours, marks, strict=True):
        parts += [path(f"M{x + 4} 38h0", colour, 9, " stroke-linecap='round'"), text(x + 14, 42, word)]
    for i, (name, pair) in enumerate(rows.items()):
        y = top + step * i + 25
        parts.append(text(14, y - 9, name))
        for value, colour, place in zip(pair, colours, (y - 2, y + 3), strict=True):
            if not np.isnan(value):
                at = axis.px(float(np.clip(np.log2(value), low, high)))
                parts.append(path(f"M{axis.px(0)} {place}H{at}", colour, 1.4))
                parts.append(path(f"M{at} {place}h0", colour, 9, " stroke-linecap='round'"))
    parts += [text(axis.px(np.log2(t)), bottom + 16, word, END if t == 16 else MIDDLE) for t, word in ticks.items()]
    return canvas(bottom + 38, [*parts, text(WIDTH - 10, bottom + 32, "times as fast as fp32", END)])


def stage_bars(rows: Mapping[str, Mapping[str, float]], heading: str) -> str:
    """Draw the stages of one forward pass as a bar a format, and a legend with the milliseconds of the last one.

    Parameters
    ----------
    rows : mapping of str to mapping
        Format -> stage (see `STAGES`) -> seconds. A stage that came out below zero is drawn as nothing.
    heading : str
    """
    step, top, left, right = 38, 28, 10, 66
    drawn = {name: {s: max(0.0, parts.get(s, 0.0)) for s in STAGES} for name, parts in rows.items()}
    unit = (WIDTH - left - right) / max(sum(parts.values()) for parts in drawn.values())
    parts = [text(8, 18, heading, BOLD)]
    for i, (name, stages) in enumerate(drawn.items()):
        y, x = top + step * i, float(left)
        parts.append(text(left, y + 12, name))
        for stage, (_, colour) in STAGES.items():
            wide = stages[stage] * unit
            if wide >= 0.05:
                parts.append(_box(x, y + 16, wide, 15, colour))
            x += wide
        parts.append(text(number(x + 5), y + 28, f"{sum(stages.values()) * 1e3:.1f} ms"))
    y = top + step * len(rows) + 20
    for i, (words, colour) in enumerate(STAGES.values()):
        x, row = left + (i % 2) * 165, y + 19 * (i // 2)
        parts += [_box(x, row - 10, 11, 11, colour), text(x + 17, row, words)]
    return canvas(y + 19 * ((len(STAGES) + 1) // 2), parts)


def race(rows: Mapping[str, tuple[float, float]], span_s: float, lines: Sequence[str]) -> str:
    """Draw one request in each format as a bar of prefill and decode, the fastest marked.

    Parameters
    ----------
    rows : mapping of str to pair of float
        Format -> seconds of prefill and of decode. Names begin as those of chapter 2's colours do.
    span_s : float
        Seconds the axis covers; a longer bar is cut, and says so.
    lines : sequence of str
        What to say above the picture; the first line is the heading.
    """
    head, step, left, right = 12 + 17 * len(lines), 36, 10, 84
    unit, best = (WIDTH - left - right) / span_s, min(rows, key=lambda name: sum(rows[name]))
    parts = [text(8, 18 + 17 * i, line, "" if i else BOLD) for i, line in enumerate(lines)]
    for i, (name, (prefill_s, decode_s)) in enumerate(rows.items()):
        y, total = head + step * i, prefill_s + decode_s
        edge = min(prefill_s, span_s) * unit
        stop = min(total, span_s) * unit
        parts.append(text(left, y + 12, name, BOLD if name == best else ""))
        parts.append(_box(left, y + 16, edge, 14, PHASES["prefill"]))
        parts.append(_box(left + edge, y + 16, stop - edge, 14, PHASES["decode"]))
        parts.append(path(f"M{left - 4} {y + 15}v16", COLOURS[name.split(",")[0].split()[0]], 3))
        if total > span_s:
            parts.append(path(f"M{number(left + stop - 8)} {y + 32}l6 -18", "#fff", 2.5))
        parts.append(text(number(left + stop + 5), y + 28, f"{_seconds(total)}{' ✓' if name == best else ''}"))
    y = head + step * len(rows) + 16
    for x, name in ((left, "prefill"), (left + 90, "decode")):
        parts += [_box(x, y - 10, 11, 11, PHASES[name]), text(x + 17, y, name)]
    return canvas(y + 10, parts)


def _seconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.2f} s"


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f"<path d='M{number(x)} {number(y)}h{number(width)}v{number(height)}h{number(-width)}Z' fill='{colour}'/>"
