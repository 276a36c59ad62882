"""Figures of chapter 3. Functions take arrays, never quantise anything themselves, and return SVG text."""

from collections.abc import Mapping, Sequence
from typing import Any

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
    RED,
    WIDTH,
    Panel,
    canvas,
    number,
    path,
    text,
)

LOSS_LIMITS = (1e-4, 4.0)  # of the logarithmic error axis in block_frame


def block_frame(
    x: ArrayLike, scales: ArrayLike, wanted: ArrayLike, codes: ArrayLike, back: ArrayLike, sums: Sequence[str]
) -> str:
    """Draw one row being quantised in blocks: the sum for its first value, the ruler, the row and the errors.

    Parameters
    ----------
    x, wanted, codes, back : array_like, shape (K,)
        The values; their codes before rounding and clipping; the stored codes; the values that come back.
    scales : array_like, shape (num_blocks,)
        One scale a block; K is a multiple of their number.
    sums : sequence of str
        Lines of arithmetic written on top.

    Returns
    -------
    str
        SVG text, about 4 kB for K = 32.
    """
    values, scale, before = np.asarray(x, float), np.asarray(scales, float), np.asarray(wanted, float)
    size = values.size // scale.size
    lost = np.abs(np.asarray(back, float) - values)
    clipped = np.abs(before) > np.abs(np.asarray(codes)) + 0.5000001
    lines = [text(8, 18 + 17 * i, line, BOLD if i == 1 else "") for i, line in enumerate(sums)]
    top = 18 + 17 * len(sums)
    parts = [*lines, *_ruler(top, before[:size], np.asarray(codes)[:size])]
    parts += _row(top + 86, values, scale, clipped)
    parts += _losses(top + 202, lost, scale, clipped)
    return canvas(top + 322, parts)


def _ruler(top: float, wanted: NDArray[Any], codes: NDArray[Any]) -> list[str]:
    """Show where the codes of one block land, and the part of the line that eight bits cannot name."""
    line = Panel(8, top + 22, WIDTH - 16, 26, (-275, 275), (0, 1))
    over = np.abs(wanted) > 127.5
    arrows = "".join(
        f"M{line.px(w)} {line.py(0.75)}L{line.px(c)} {line.py(0.15)}"
        for w, c in zip(wanted[over].tolist(), codes[over].tolist(), strict=True)
    )
    outside = "".join(f"M{line.px(a)} {line.py(0.5)}H{line.px(b)}" for a, b in ((-275, -127), (127, 275)))
    ticks = [text(line.px(t), top + 66, f"{t}".replace("-", "−"), MIDDLE) for t in (-254, -127, 0, 64, 127, 254)]
    return [
        text(8, top + 12, "Where the codes of the first block land", BOLD),
        f"<path d='M{line.px(-127)} {line.py(0)}H{line.px(127)}V{line.py(1)}H{line.px(-127)}Z' fill='{BAND}'/>",
        path(outside, GRID, 2, " stroke-dasharray='3 3'"),
        path(line.bars((-127, -64, 0, 64, 127), np.ones(5)), GRID),
        path(line.bars(codes[1:], np.full(codes.size - 1, 0.6)), BLUE, 2),
        path(line.bars(codes[:1], [1.0]), ORANGE, 4),
        path(arrows, RED, 1.5),
        *ticks,
    ]


def _bands(panel: Panel, num_blocks: int) -> str:
    edges = np.linspace(*panel.x, num_blocks + 1)
    shade = "".join(
        f"M{panel.px(a)} {number(panel.top)}H{panel.px(b)}v{number(panel.height)}H{panel.px(a)}Z"
        for a, b in zip(edges[:-1:2], edges[1::2], strict=True)
    )
    return f"<path d='{shade}' fill='{BAND}'/>"


def _row(top: float, values: NDArray[Any], scales: NDArray[Any], clipped: NDArray[Any]) -> list[str]:
    """Show the values and, around them, what each block's scale can reach."""
    panel = Panel(46, top + 22, WIDTH - 54, 78, (0, values.size), (-4.2, 4.2))
    middle, edges = np.arange(values.size) + 0.5, np.linspace(0, values.size, scales.size + 1)
    reach = panel.steps(edges, scales) + panel.steps(edges, -scales)
    return [
        text(8, top + 12, "The row, and how far each scale reaches", BOLD),
        _bands(panel, scales.size),
        path(panel.grid([0]), GRID),
        path(panel.bars(middle[~clipped], values[~clipped]), BLUE, 5),
        path(panel.bars(middle[clipped], values[clipped]), RED, 5),
        path(reach, INK, 1.5),
        *[text(42, panel.py(v - 0.45), str(v).replace("-", "−"), END) for v in (-4, 0, 4)],
    ]


def _losses(top: float, lost: NDArray[Any], scales: NDArray[Any], clipped: NDArray[Any]) -> list[str]:
    """Show each value's error on a logarithmic axis, and half a step of each block."""
    low, high = (float(np.log10(limit)) for limit in LOSS_LIMITS)
    panel = Panel(46, top + 20, WIDTH - 54, 92, (0, lost.size), (low, high))
    middle, edges = np.arange(lost.size) + 0.5, np.linspace(0, lost.size, scales.size + 1)
    heights = np.clip(np.log10(np.maximum(lost, LOSS_LIMITS[0])), low, high)
    half = np.log10(scales / 254)
    return [
        text(8, top + 12, "What each value lost (black line: half a step)", BOLD),
        _bands(panel, scales.size),
        path(panel.grid((-3, -2, -1, 0)), GRID),
        path(panel.bars(middle[~clipped], heights[~clipped], low), BLUE, 5),
        path(panel.bars(middle[clipped], heights[clipped], low), RED, 5),
        path(panel.steps(edges, half), INK, 1.5),
        *[text(42, float(panel.py(p)) + 4, f"{10.0**p:g}", END) for p in (-3, -2, -1, 0)],
    ]


def bit_columns(block_size: int = 32) -> str:
    """Draw the bits of a block, one column a value: float32 above, BFP8 below, the exponents in orange."""
    left, pitch, bit = 8, (WIDTH - 32) / block_size, 4.0
    middle = [left + pitch * (i + 0.5) for i in range(block_size)]

    def stack(base: float, layers: Sequence[tuple[float, str]], columns: Sequence[float]) -> list[str]:
        made = []
        for bits, colour in layers:
            data = "".join(f"M{number(c)} {number(base)}v{number(-bits * bit)}" for c in columns)
            made.append(path(data, colour, pitch * 0.72))
            base -= bits * bit
        return made

    float_base, block_base = 156.0, 226.0
    total = 8 * block_size + 8
    return canvas(
        262,
        [
            text(8, 18, f"{block_size} values in float32: {32 * block_size} bits", BOLD),
            *stack(float_base, ((23, BLUE), (8, ORANGE), (1, MUTED)), middle),
            text(8, 186, f"The same {block_size} in BFP8: {total} bits", BOLD),
            *stack(block_base, ((7, BLUE), (1, MUTED)), middle),
            *stack(block_base, ((8, ORANGE),), [WIDTH - 14]),
            *_legend(250, {"sign": MUTED, "exponent": ORANGE, "digits": BLUE}),
        ],
    )


def _legend(y: float, names: Mapping[str, str]) -> list[str]:
    parts, x = [], 8.0
    for name, colour in names.items():
        parts += [path(f"M{number(x)} {number(y - 4)}h12", colour, 10), text(number(x + 17), number(y), name)]
        x += 36 + 7 * len(name)
    return parts


def code_histogram(counts: ArrayLike, title: str) -> str:
    """Draw how often each code magnitude 0..127 occurs, `counts` of shape (128,)."""
    tall = np.asarray(counts, float)
    panel = Panel(8, 28, WIDTH - 16, 96, (-0.5, 127.5), (0, float(tall.max())))
    used = np.flatnonzero(tall)
    return canvas(
        150,
        [
            text(8, 18, title, BOLD),
            f"<path d='M{panel.px(-0.5)} {panel.py(0)}H{panel.px(63.5)}V28H{panel.px(-0.5)}Z' fill='{BAND}'/>",
            path(panel.bars(used, tall[used]), BLUE, 2),
            text(panel.px(31.5), 80, "never used by a maximum", MIDDLE),
            *[
                text(panel.px(t), 142, str(t), MIDDLE if 0 < t < 127 else END if t else "")
                for t in (0, 32, 64, 96, 127)
            ],
        ],
    )


def error_strips(strips: Mapping[str, ArrayLike], block_size: int) -> str:
    """Draw the error of every value of one row under several formats, on one common scale."""
    arrays = {name: np.abs(np.asarray(strip, float)) for name, strip in strips.items()}
    top = max(float(strip.max()) for strip in arrays.values())
    parts, y = [], 0
    for name, strip in arrays.items():
        panel = Panel(8, y + 26, WIDTH - 16, 74, (0, strip.size), (0, top))
        parts += [
            text(8, y + 18, name, BOLD),
            _bands(panel, strip.size // block_size),
            path(panel.bars(np.arange(strip.size) + 0.5, strip), BLUE, 1.2),
        ]
        y += 110
    return canvas(y + 24, [*parts, text(8, y + 12, f"Each strip is {top:.2g} high.")])


def trade_off(
    series: Mapping[str, Sequence[tuple[str, float, float]]], x: tuple[float, float], y: tuple[float, float]
) -> str:
    """Draw error against bits: one line a series of (label, bits, error in percent), limits `x` and `y`."""
    panel = Panel(34, 36, WIDTH - 46, 200, x, y)
    colours = dict(zip(series, (BLUE, ORANGE, OLIVE), strict=False))
    parts = [text(8, 18, "Error in %, against bits per value", BOLD)]
    marks = np.arange(np.ceil(y[0] * 5) / 5, y[1] + 1e-9, 0.2)
    parts.append(path(panel.grid(marks), GRID))
    parts += [text(30, float(panel.py(float(m))) + 4, f"{m:.1f}", END) for m in marks]
    parts += [text(panel.px(b), 252, f"{b:g}", MIDDLE) for b in np.arange(x[0], x[1] + 1e-9, 0.25) if b * 2 % 1 == 0]
    for name, points in series.items():
        at = [(panel.px(bits), panel.py(error), label) for label, bits, error in points]
        parts.append(path("M" + "L".join(f"{px} {py}" for px, py, _ in at), colours[name], 1.5))
        parts.append(path("".join(f"M{px} {py}h0" for px, py, _ in at), colours[name], 7, " stroke-linecap='round'"))
        below = colours[name] == OLIVE  # the third line lies lowest, so its labels go under it
        look = f" fill='{colours[name]}'"
        for px, py, label in at:
            x_text, y_text = float(px) + (-5 if below else 6), float(py) + (15 if below else -5)
            parts.append(text(number(x_text), number(y_text), label, look + (END if below else "")))
    return canvas(290, [*parts, *_legend(278, colours)])
