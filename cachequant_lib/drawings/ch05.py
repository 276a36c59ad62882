"""Drawings of chapter 5, two axes. They take numbers, quantise nothing, and return SVG text."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
from cachequant_lib.drawings.ch04 import HEAT, pixels

__all__ = ["Interval", "cell_frame", "effects", "law", "worth"]

Point = tuple[str, float, float]  # a label, bits a value, error in percent
Interval = tuple[float, float, float]  # value, low, high

RULES = {"pow2": BLUE, "snapped": "#7a3e9d", "fp16": ORANGE, "exact": OLIVE}
STEPS = ("#f2f6fb", "#cfdff0", "#a3c3e2", "#6f9fce", "#3f78b5", "#1d5490", "#0b3263")
DOTS = " stroke-linecap='round'"
ERRORS = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8)


def cell_frame(
    lines: Sequence[str],
    steps: ArrayLike,
    losses: ArrayLike,
    limits: tuple[Sequence[float], Sequence[float]],
    points: Sequence[tuple[float, float]],
    chosen: int,
) -> str:
    """Draw one cell of the grid: the step of each weight, what each lost, and where the cell lies among all.

    Parameters
    ----------
    lines : sequence of str
        Words on top, the first in bold.
    steps, losses : array_like, shape (N, K)
        In units of a typical weight.
    limits : pair of sequences of float
        Where one colour gives way to the next, for the steps (6 limits) and for the losses (5).
    points : sequence of (bits, error)
        All cells, error in percent.
    chosen : int
        Which of them this is.
    """
    parts = [text(12, 18 + 17 * i, line, "" if i else BOLD) for i, line in enumerate(lines)]
    y = 24.0 + 17 * len(lines)
    for title, values, bounds, palette in (
        ("The step each weight is measured in", steps, limits[0], STEPS),
        ("What each weight lost", losses, limits[1], HEAT),
    ):
        parts += [text(12, number(y), title, BOLD), _map(y + 7, np.asarray(values, float), bounds, palette)]
        parts += _legend(y + 89, bounds, palette)
        y += 124
    panel = Panel(46, y + 10, WIDTH - 58, 110, (7.95, 9.08), _high())
    parts += [text(12, number(y), "Error in % against bits, all 24 cells", BOLD), *_axes(panel)]
    parts.append(path(_dots(panel, points), MUTED, 5, DOTS))
    parts.append(path(_dots(panel, [points[chosen]]), ORANGE, 12, DOTS))
    return canvas(y + 146, parts)


def _map(y: float, values: NDArray[np.float64], limits: Sequence[float], palette: Sequence[str]) -> str:
    address = pixels(np.searchsorted(limits, values, side="right"), palette)
    place = f"x='12' y='{number(y)}' width='{WIDTH - 24}' height='64'"
    return f"<image {place} preserveAspectRatio='none' style='image-rendering:pixelated' href='{address}'/>"


def _legend(y: float, limits: Sequence[float], palette: Sequence[str]) -> list[str]:
    wide = (WIDTH - 24) / len(palette)
    boxes = [
        f"<rect x='{number(12 + i * wide)}' y='{number(y - 12)}' width='{number(wide)}' height='9' fill='{colour}'/>"
        for i, colour in enumerate(palette)
    ]
    ticks = [text(number(12 + (i + 1) * wide), number(y + 10), f"{100 * v:g}", MIDDLE) for i, v in enumerate(limits)]
    return [*boxes, *ticks, text(WIDTH - 12, number(y + 10), "%", END)]


def _high() -> tuple[float, float]:
    return float(np.log2(ERRORS[0] * 0.94)), float(np.log2(ERRORS[-1] * 0.98))


def _dots(panel: Panel, points: Sequence[tuple[float, float]]) -> str:
    return "".join(f"M{panel.px(bits)} {panel.py(float(np.log2(error)))}h0" for bits, error in points)


def _axes(panel: Panel) -> list[str]:
    marks = [e for e in ERRORS if panel.y[0] <= np.log2(e) <= panel.y[1]]
    bottom = number(panel.top + panel.height + 17)
    return [
        path(panel.grid([float(np.log2(e)) for e in marks]), GRID),
        *[text(panel.left - 5, float(panel.py(float(np.log2(e)))) + 4, f"{e:.1f}", END) for e in marks],
        *[text(panel.px(b), bottom, f"{b:g}", MIDDLE) for b in (8, 8.25, 8.5, 8.75, 9)],
    ]


def worth(series: Mapping[str, Sequence[Point]]) -> str:
    """Draw error against bits, one line a scale rule, over lines along which a bit buys half the error.

    Parameters
    ----------
    series : mapping of str to sequence of (label, bits, error in percent)
    """
    panel = Panel(46, 34, WIDTH - 58, 230, (7.95, 9.08), _high())
    parts = [text(8, 18, "Error in % against bits per value", BOLD), *_axes(panel)]
    even = ""
    for start in np.arange(6.5, 11.0, 0.5):  # log2(error) + bits is the same all along a line
        ends = [(bits, float(start - bits + 1)) for bits in panel.x]
        inside = [(b, e) for b, e in _clipped(ends, panel.y)]
        if len(inside) == 2:
            even += panel.line([b for b, _ in inside], [e for _, e in inside])
    parts.append(path(even, MUTED, 1, " stroke-dasharray='2 4'"))
    for rule, points in series.items():
        at = [(bits, error) for _, bits, error in points]
        parts.append(path(panel.line([b for b, _ in at], np.log2([e for _, e in at])), RULES[rule], 1.5))
        parts.append(path(_dots(panel, at), RULES[rule], 7, DOTS))
        for label, bits, err in points if rule in ("pow2", "exact") else ():
            place = number(float(panel.px(bits)) + 6), number(float(panel.py(float(np.log2(err)))) - 5)
            if bits > 8.1 or rule == "pow2":
                parts.append(text(*place, label, f" fill='{RULES[rule]}'"))
    x = 8.0
    for rule in series:
        parts += [path(f"M{number(x)} 300h12", RULES[rule], 8), text(number(x + 16), 304, rule)]
        x += 34 + 7.4 * len(rule)
    words = "dotted: lines of equal worth, half a bit apart"
    return canvas(330, [*parts, text(8, 322, words, f" fill='{MUTED}'")])


def _clipped(ends: list[tuple[float, float]], y: tuple[float, float]) -> list[tuple[float, float]]:
    """Cut a falling line of slope -1 to the height of a panel."""
    (x_left, top), (x_right, bottom) = ends
    if top < y[0] or bottom > y[1]:
        return []
    if top > y[1]:
        x_left, top = x_left + top - y[1], y[1]
    if bottom < y[0]:
        x_right, bottom = x_right - (y[0] - bottom), y[0]
    return [(x_left, top), (x_right, bottom)] if x_right > x_left else []


def law(points: Mapping[str, Sequence[tuple[float, float]]], constant: float) -> str:
    """Draw KL divergence against error, both logarithmic, and the parabola ``constant * error ** 2``.

    Parameters
    ----------
    points : mapping of str to sequence of (error in percent, KL)
        One series a scale rule.
    constant : float
    """
    every = [p for series in points.values() for p in series]
    x = float(np.log2(min(e for e, _ in every) * 0.93)), float(np.log2(max(e for e, _ in every) * 1.08))
    y = tuple(float(np.log10(constant * 4.0**side)) + pad for side, pad in zip(x, (-0.12, 0.12), strict=True))
    panel = Panel(58, 34, WIDTH - 70, 200, x, (y[0], y[1]))
    powers = np.arange(np.floor(y[0]), np.ceil(y[1]) + 1)
    levels = [float(m * 10**p) for p in powers for m in (1, 3) if y[0] <= p + np.log10(m) <= y[1]]
    marks = [e for e in ERRORS if x[0] <= np.log2(e) <= x[1]]
    parts = [
        text(8, 18, "KL divergence in millionths, against error in %", BOLD),
        path(panel.grid(np.log10(levels).tolist()), GRID),
        *[text(54, float(panel.py(float(np.log10(v)))) + 4, f"{1e6 * v:.0f}", END) for v in levels],
        *[text(panel.px(float(np.log2(e))), 252, f"{e:.1f}", MIDDLE) for e in marks],
        path(panel.line(x, [np.log10(constant * 4.0**side) for side in x]), INK, 1.2, " stroke-dasharray='5 4'"),
    ]
    left = 8.0
    for rule, series in points.items():
        at = "".join(f"M{panel.px(float(np.log2(e)))} {panel.py(float(np.log10(kl)))}h0" for e, kl in series)
        parts += [path(at, RULES[rule], 7, DOTS), path(f"M{number(left)} 272h12", RULES[rule], 8)]
        parts.append(text(number(left + 16), 276, rule))
        left += 34 + 7.4 * len(rule)
    return canvas(288, parts)


def effects(rows: Mapping[str, Mapping[str, Interval]], limit: float, chosen: tuple[str, str] | None = None) -> str:
    """Draw a change of perplexity in percent with its interval, one line a granularity, one mark a scale rule.

    Parameters
    ----------
    rows : mapping of str to mapping of str to (value, low, high)
        Granularity -> scale rule -> change in percent.
    limit : float
        The axis ends here on the right; what lies beyond is drawn as an arrow, with its value.
    chosen : (granularity, rule), optional
        The one to point at.
    """
    lowest = min(low for row in rows.values() for _, low, _ in row.values())
    step, top = 58, 44
    axis = Panel(62, top, WIDTH - 74, step * len(rows), (min(lowest, -0.05 * limit) * 1.1, limit), (0, 1))
    bottom = top + step * len(rows)
    parts = [text(8, 18, "Change of perplexity in %", BOLD)]
    parts.append(path(f"M{axis.px(0)} {top}V{bottom}", INK, 1))
    for i, (name, row) in enumerate(rows.items()):
        if i % 2 == 0:
            parts.append(f"<path d='M0 {top + step * i}H{WIDTH}v{step}H0Z' fill='{BAND}'/>")
            parts.append(path(f"M{axis.px(0)} {top + step * i}v{step}", INK, 1))
        parts.append(text(8, top + step * i + step / 2 + 4, name))
        for j, (rule, interval) in enumerate(row.items()):
            parts += _effect(axis, top + step * i + 10 + 12.5 * j, interval, RULES[rule], (name, rule) == chosen)
    ticks = [t for t in _round_ticks(limit) if axis.x[0] <= t <= limit]
    parts += [text(axis.px(t), bottom + 17, f"{t:g}".replace("-", "−"), MIDDLE) for t in ticks]
    x = 8.0
    for rule in next(iter(rows.values())):
        parts += [path(f"M{number(x)} 32h12", RULES[rule], 8), text(number(x + 16), 36, rule)]
        x += 34 + 7.4 * len(rule)
    return canvas(bottom + 26, parts)


def _effect(axis: Panel, y: float, interval: Interval, colour: str, chosen: bool) -> list[str]:
    value, low, high = interval
    limit = axis.x[1]
    if value > limit:
        edge = float(axis.px(limit))
        arrow = f"M{number(edge - 8)} {number(y - 3)}L{number(edge)} {number(y)}L{number(edge - 8)} {number(y + 3)}"
        return [path(arrow, colour, 2), text(number(edge - 12), number(y + 4), f"{value:+.2f}", END)]
    reach = f"M{axis.px(low)} {number(y)}H{axis.px(min(high, limit))}"
    dot = path(f"M{axis.px(value)} {number(y)}h0", colour, 12 if chosen else 7, DOTS)
    return [path(reach, colour, 2), dot]


def _round_ticks(limit: float) -> list[float]:
    step = float(10 ** np.floor(np.log10(limit / 2)))
    step *= next(m for m in (1, 2, 5, 10) if limit / (step * m) <= 6)
    return [round(step * k, 6) for k in range(-6, 7)]
