"""Figures of chapter 10. Functions take digits and arrays, never round anything themselves, and return SVG text."""

from collections.abc import Mapping, Sequence
from itertools import groupby

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
    RED,
    WIDTH,
    Panel,
    canvas,
    number,
    path,
    text,
)

KINDS = {" ": "", "k": INK, "w": RED, "f": OLIVE, "r": BLUE}  # kept, wasted, filled in, of the result
BITS = {"s": MUTED, "e": ORANGE, "m": BLUE, "f": GRID}  # sign, exponent, mantissa, filled in
PITCH, FIRST = 11.4, 68.0
MONO = " font-family='ui-monospace,monospace'"


def addition(rows: Sequence[tuple[str, str, str]], point: int, end: int, lines: Sequence[str]) -> str:
    """Draw numbers written below each other, each digit in its column, and a line where the result ends.

    Parameters
    ----------
    rows : sequence of (str, str, str)
        Name, digits and the kind of each digit, one letter of `KINDS`. All have one length; blanks are columns
        without a digit. The sum is drawn under a rule that lies above the third row.
    point, end : int
        The column before which the binary point stands, and the first column past the result.
    lines : sequence of str
        What is to be said below; the last one in bold.
    """
    edge = FIRST + PITCH * (end - 0.5)
    bottom = 34 + 22 * len(rows)
    parts = [
        text(8, 18, "Binary digits, one column each", BOLD),
        f"<path d='M{number(edge)} 26H{WIDTH}V{bottom}H{number(edge)}Z' fill='{BAND}'/>",
        path(f"M{number(edge)} 26V{bottom}", MUTED, 1, " stroke-dasharray='3 3'"),
        path(f"M8 81H{WIDTH - 8}", INK),
    ]
    for i, (name, digits, kinds) in enumerate(rows):
        y = 46 + 22 * i + (4 if i > 1 else 0)
        parts.append(text(8, y, name))
        parts.append(text(number(FIRST + PITCH * (point - 0.5)), y, ".", MIDDLE + MONO))
        for kind, run in groupby(range(len(digits)), key=lambda c, k=kinds: k[c]):  # type: ignore[misc]
            if kind != " ":
                columns = list(run)
                places = " ".join(number(FIRST + PITCH * c) for c in columns)
                look = f" fill='{KINDS[kind]}'{MONO}{MIDDLE}" + (BOLD if kind == "w" else "")
                parts.append(text(places, y, "".join(digits[c] for c in columns), look))
    legend = {"read": INK, "read, but past the end": RED, "filled in": OLIVE}
    parts += _legend(bottom + 20, legend)
    parts += [text(8, bottom + 44 + 18 * i, line, BOLD if line == lines[-1] else "") for i, line in enumerate(lines)]
    return canvas(bottom + 40 + 18 * len(lines), parts)


def reads(rows: Mapping[str, str]) -> str:
    """Draw 16-bit patterns as boxes, one row each: name -> one letter of `BITS` for each bit."""
    parts, step = [text(8, 18, "What is read of the 16 bits", BOLD)], 15.4
    for i, (name, kinds) in enumerate(rows.items()):
        top = 30 + 34 * i
        parts.append(text(8, top + 17, name))
        for kind, colour in BITS.items():
            boxes = "".join(
                f"M{number(92 + step * c)} {top}h13.4v24h-13.4z" for c in range(len(kinds)) if kinds[c] == kind
            )
            parts.append(f"<path d='{boxes}' fill='{colour}'/>" if boxes else "")
    names = dict(zip(("sign", "exponent", "mantissa", "not read"), BITS.values(), strict=True))
    return canvas(46 + 34 * len(rows), [*parts, *_legend(40 + 34 * len(rows), names)])


def log_lines(
    title: str,
    xs: Sequence[object],
    series: Mapping[str, Sequence[float]],
    marks: Sequence[float],
    below: str,
    dashed: Sequence[str] = (),
) -> str:
    """Draw up to three lines over evenly spaced places `xs`, on a logarithmic axis with horizontal `marks`."""
    low, high = np.log2(marks[0]), np.log2(marks[-1])
    panel = Panel(52, 34, WIDTH - 74, 170, (0, len(xs) - 1), (float(low), float(high)))
    colours = dict(zip(series, (BLUE, ORANGE, OLIVE), strict=False))
    parts = [text(8, 18, title, BOLD), path(panel.grid(np.log2(marks)), GRID)]
    parts += [text(46, float(panel.py(float(np.log2(m)))) + 4, f"{m:g}", END) for m in marks]
    parts += [text(panel.px(i), 222, str(x), MIDDLE) for i, x in enumerate(xs)]
    for name, values in series.items():
        at = [f"{panel.px(i)} {panel.py(float(np.log2(v)))}" for i, v in enumerate(values)]
        dash = " stroke-dasharray='5 4'" if name in dashed else ""
        parts.append(path("M" + "L".join(at), colours[name], 2, dash))
        if not dash:
            parts.append(path("".join(f"M{p}h0" for p in at), colours[name], 7, " stroke-linecap='round'"))
    parts.append(text(number(panel.left + panel.width / 2), 242, below, MIDDLE))
    for i, (name, colour) in enumerate(colours.items()):
        parts += _legend(264 + 18 * i, {name: colour})
    return canvas(256 + 18 * len(series), parts)


def error_bars(title: str, rows: Mapping[str, float], reach: float) -> str:
    """Draw one error bar around zero for each name, on a common scale from -`reach` to `reach`."""
    panel = Panel(150, 28, WIDTH - 166, 24.0 * len(rows), (-reach, reach), (0, 1))
    bottom = panel.top + panel.height
    parts = [text(8, 18, title, BOLD), path(panel.bars(np.linspace(-reach, reach, 5), np.ones(5)), GRID)]
    for i, (name, d) in enumerate(rows.items()):
        y = panel.top + 24 * i + 12
        parts.append(text(8, number(y + 4), name))
        ends = "".join(f"M{panel.px(e)} {number(y - 5)}v10" for e in (-d, d))
        parts.append(path(f"M{panel.px(-d)} {number(y)}H{panel.px(d)}{ends}", BLUE, 2))
    ticks = zip(np.linspace(-reach, reach, 5), (f"{t:g}" for t in np.linspace(-reach, reach, 5)), strict=True)
    parts += [text(panel.px(float(t)), number(bottom + 18), word.replace("-", "−"), MIDDLE) for t, word in ticks]
    return canvas(bottom + 28, parts)


def stacked(
    title: str,
    xs: Sequence[object],
    shares: Mapping[str, Sequence[float]],
    seen: tuple[str, Sequence[float]],
    marks: Sequence[float],
    below: str,
) -> str:
    """Draw bars of two or three `shares` on top of each other, and a black mark for what was `seen`."""
    panel = Panel(46, 34, WIDTH - 58, 170, (-0.6, len(xs) - 0.4), (marks[0], marks[-1]))
    places, base = np.arange(len(xs)), np.zeros(len(xs))
    parts = [text(8, 18, title, BOLD), path(panel.grid(marks), GRID)]
    parts += [text(40, float(panel.py(m)) + 4, f"{m:g}", END) for m in marks]
    colours = dict(zip(shares, (BLUE, ORANGE, OLIVE), strict=False))
    for name, values in shares.items():
        top = base + np.asarray(values)
        columns = zip(places.tolist(), base.tolist(), top.tolist(), strict=True)
        parts.append(
            path("".join(f"M{panel.px(x)} {panel.py(a)}V{panel.py(b)}" for x, a, b in columns), colours[name], 24)
        )
        base = top
    crosses = zip(places.tolist(), seen[1], strict=True)
    parts.append(path("".join(f"M{panel.px(x - 0.4)} {panel.py(y)}H{panel.px(x + 0.4)}" for x, y in crosses), INK, 2))
    parts += [text(panel.px(i), 222, str(x), MIDDLE) for i, x in enumerate(xs)]
    parts.append(text(WIDTH // 2, 242, below, MIDDLE))
    for i, (name, colour) in enumerate({**colours, seen[0]: INK}.items()):
        parts += _legend(264 + 18 * i, {name: colour})
    return canvas(274 + 18 * len(shares), parts)


def fill_errors(errors: Mapping[str, ArrayLike], reach: int) -> str:
    """Draw a histogram of whole-number errors for each fill: name -> the errors, at most `reach` in size."""
    parts = [text(8, 18, "Error in last places; black mark: the mean", BOLD)]
    for i, (name, values) in enumerate(errors.items()):
        whole = np.asarray(values, dtype=int)
        counts = np.bincount(whole + reach, minlength=2 * reach + 1)
        panel = Panel(52, 28 + 52 * i, WIDTH - 60, 38, (-reach - 0.5, reach + 0.5), (0, 1.4 * float(counts.max())))
        used = np.flatnonzero(counts)
        parts += [
            text(8, 54 + 52 * i, name, MONO),
            path(panel.grid([0]), GRID),
            path(panel.bars([0], [counts.max()]), GRID, 1, " stroke-dasharray='3 3'"),
            path(panel.bars(used - reach, counts[used]), BLUE, 6),
            path(panel.bars([float(whole.mean())], [1.4 * counts.max()]), INK, 3),
        ]
        ticks = (-reach, -reach // 2, 0, reach // 2 + 1, reach)
        if i == len(errors) - 1:
            parts += [text(panel.px(t), 44 + 52 * (i + 1), f"{t}".replace("-", "−"), MIDDLE) for t in ticks]
    return canvas(54 + 52 * len(errors), parts)


def cube() -> str:
    """Draw a product of two matrices as a cube: its three faces, and the addends of one result along the depth."""
    x, y, side, count, dx, dy = 60.0, 112.0, 27.0, 5, 17.0, 13.0
    across = side * count

    def quad(a: tuple[float, float], u: tuple[float, float], v: tuple[float, float], fill: str) -> str:
        moves = f"M{number(a[0])} {number(a[1])}l{number(u[0])} {number(u[1])}l{number(v[0])} {number(v[1])}"
        return f"<path d='{moves}l{number(-u[0])} {number(-u[1])}z' fill='{fill}' stroke='#fff' stroke-width='1'/>"

    def grid(
        a: tuple[float, float], u: tuple[float, float], v: tuple[float, float], lit: int, strong: str
    ) -> list[str]:
        """One face of cells from corner `a`; the cells whose first index is `lit` are the ones in use."""
        cells = ((i, j) for i in range(count) for j in range(count))
        return [
            quad((a[0] + i * u[0] + j * v[0], a[1] + i * u[1] + j * v[1]), u, v, strong if i == lit else BAND)
            for i, j in cells
        ]

    front = grid((x, y), (side, 0), (0, side), -1, BLUE)
    column, row = 1, 3
    front.append(quad((x + column * side, y + row * side), (side, 0), (0, side), BLUE))
    top = grid((x, y), (side, 0), (dx, -dy), column, ORANGE)
    right = grid((x + across, y), (0, side), (dx, -dy), row, OLIVE)
    rod = "".join(
        f"M{number(x + (column + 0.5) * side + k * dx)} {number(y + (row + 0.5) * side - k * dy)}h0"
        for k in range(1, count + 1)
    )
    depth = f"M{number(x + (column + 0.5) * side)} {number(y + (row + 0.5) * side)}l{number(count * dx)} {-count * dy}"
    return canvas(
        312,
        [
            text(8, 18, "A matrix product is a cube of products", BOLD),
            text(number(x + 52), 42, "right matrix (K, N)", f" fill='{ORANGE}'"),
            text(296, 122, "left", f" fill='{OLIVE}'"),
            text(296, 138, "(M, K)", f" fill='{OLIVE}'"),
            *front,
            *top,
            *right,
            path(depth, INK, 1.2, " stroke-dasharray='3 3'"),
            path(rod, RED, 8, " stroke-linecap='round'"),
            text(number(x), 268, "result (M, N) on the front face", f" fill='{BLUE}'"),
            text(8, 290, "Red: the K addends of one result, in depth.", f" fill='{RED}'"),
            text(8, 306, "They are what must be aligned with each other."),
        ],
    )


def _legend(y: float, names: Mapping[str, str]) -> list[str]:
    parts, x = [], 8.0
    for name, colour in names.items():
        parts += [path(f"M{number(x)} {number(y - 4)}h10", colour, 10), text(number(x + 15), number(y), name)]
        x += 29 + 6.6 * len(name)
    return parts
