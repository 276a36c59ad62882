"""Figures of chapter 11. Functions take widths, counts and times, compute none of them, and return SVG text."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

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

WIDTHS = {0: "#ffffff", 8: "#b9d9ec", 12: "#4f9bc9", 16: "#00436b", 32: "#9aa3ad"}  # bits read -> colour
NAMES = {0: "not read", 8: "8 bits", 12: "12", 16: "16", 32: "32, newest"}
LOOKS = (
    (BLUE, ""),
    (ORANGE, ""),
    (OLIVE, ""),
    (RED, ""),
    (MUTED, " stroke-dasharray='6 3'"),
    (INK, "2 3"),
    (BLUE, "2 3"),
)
LEFT = 40.0


def widths_map(keys: ArrayLike, values: ArrayLike, title: str, lines: Sequence[str]) -> str:
    """Draw how many bits were read of each number of K and V of one head.

    Parameters
    ----------
    keys : array_like of int, shape (L, D)
        Tokens go across, channels down.
    values : array_like of int, shape (L,)
        A token's values are read alike.
    title : str
    lines : sequence of str
        What is to be said below; the last one in bold.
    """
    k, v = np.asarray(keys), np.asarray(values)
    step, tall = (WIDTH - LEFT - 8) / len(k), 2.0
    top, deep = 30.0, tall * k.shape[1]
    low = top + deep + 12
    parts = [text(8, 18, title, BOLD), text(8, top + deep / 2 + 4, "K"), text(8, low + 17, "V")]
    parts += _boxes(k, LEFT, top, step, tall) + _boxes(v[:, None], LEFT, low, step, 24)
    frame = "".join(f"M{LEFT} {y}H{WIDTH - 8}v{h}H{LEFT}z" for y, h in ((top, deep), (low, 24)))
    parts.append(path(frame, MUTED, 0.6))
    parts += [text(LEFT, low + 40, "oldest token"), text(WIDTH - 8, low + 40, "newest", END)]
    used = sorted(set(np.unique(k).tolist()) | set(np.unique(v).tolist()))
    x = 8.0
    for width in used:
        parts.append(f"<path d='M{number(x)} {low + 52}h12v12h-12z' fill='{WIDTHS[width]}' stroke='{MUTED}'/>")
        parts.append(text(number(x + 17), low + 63, NAMES[width]))
        x += 30 + 7.2 * len(NAMES[width])
    bottom = low + 86
    parts += [text(8, bottom + 18 * i, line, BOLD if line == lines[-1] else "") for i, line in enumerate(lines)]
    return canvas(bottom + 18 * len(lines) - 6, parts)


def _boxes(bits: NDArray[np.int_], left: float, top: float, step: float, tall: float) -> list[str]:
    """Rectangles of equal widths in a map (L, D), along whichever axis takes fewer of them."""
    along = (np.diff(bits, axis=0) != 0).sum() + bits.shape[1] > (np.diff(bits, axis=1) != 0).sum() + len(bits)
    found: dict[int, list[str]] = {}
    for line, row in enumerate(bits if along else bits.T):
        for start, stop, width in _runs(row):
            x, y, w, h = (line, start, 1, stop - start) if along else (start, line, stop - start, 1)
            place = (
                f"M{left + x * step:.2f} {number(top + y * tall)}h{w * step:.2f}v{number(h * tall)}h-{w * step:.2f}z"
            )
            found.setdefault(width, []).append(place)
    return [f"<path d='{''.join(boxes)}' fill='{WIDTHS[w]}'/>" for w, boxes in sorted(found.items()) if w]


def _runs(row: NDArray[np.int_]) -> Iterator[tuple[int, int, int]]:
    edges = [0, *(np.flatnonzero(np.diff(row)) + 1).tolist(), len(row)]
    for start, stop in pairwise(edges):
        yield start, stop, int(row[start])


def exponents(counts: Mapping[str, Sequence[float]], first: int, title: str) -> str:
    """Draw histograms below each other: name -> share of numbers with exponent `first`, `first` + 1, ..."""
    parts, tall = [text(8, 18, title, BOLD)], 62.0
    for i, (name, shares) in enumerate(counts.items()):
        last = first + len(shares) - 1
        panel = Panel(14, 44 + (tall + 20) * i, WIDTH - 28, tall, (first - 0.6, last + 0.6), (0, float(max(shares))))
        used = [(first + j, share) for j, share in enumerate(shares) if share > 0]
        parts += [
            text(14, panel.top - 6, name),
            path(panel.grid([0]), GRID),
            path(panel.bars([x for x, _ in used], [y for _, y in used]), BLUE, 0.8 * (WIDTH - 28) / len(shares)),
        ]
    base = 44 + (tall + 20) * len(counts)
    ticks = [e for e in range(first, first + len(shares)) if e % 4 == 0]
    parts += [text(panel.px(e), base - 4, f"2{_raised(e)}", MIDDLE) for e in ticks]
    return canvas(base + 8, parts)


def _raised(exponent: int) -> str:
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def curves(
    title: str,
    xs: Sequence[int],
    series: Mapping[str, Sequence[float | None]],
    marks: Sequence[float],
    below: str = "tokens in the context",
) -> str:
    """Draw up to seven lines over lengths; both scales are logarithmic.

    Parameters
    ----------
    title : str
    xs : sequence of int
    series : mapping
        Name -> a value at each length, or None.
    marks : sequence of float
        Horizontal lines, the lowest and the highest of them the ends of the scale.
    below : str
        What the lengths are.
    """
    low, high = float(np.log2(marks[0])), float(np.log2(marks[-1]))
    ends = float(np.log2(xs[0])), float(np.log2(xs[-1]))
    panel = Panel(52, 34, WIDTH - 78, 190, ends, (low, high))
    parts = [text(8, 18, title, BOLD), path(panel.grid(np.log2(marks).tolist()), GRID)]
    parts += [text(46, float(panel.py(float(np.log2(m)))) + 4, f"{m:g}", END) for m in marks]
    parts += [text(panel.px(float(np.log2(x))), 242, f"{x:,}" if x < 1000 else f"{x / 1024:g}k", MIDDLE) for x in xs]
    parts.append(text(number(panel.left + panel.width / 2), 262, below, MIDDLE))
    for i, ((name, values), (colour, dash)) in enumerate(zip(series.items(), LOOKS, strict=False)):
        known = [(float(np.log2(x)), float(np.log2(y))) for x, y in zip(xs, values, strict=True) if y is not None]
        dashes = f" stroke-dasharray='{dash}'" if dash[:1].isdigit() else dash
        y = 286 + 18 * i
        parts += [
            path(panel.line([x for x, _ in known], [y for _, y in known]), colour, 2.2, dashes),
            path(f"M8 {y - 4}h22", colour, 2.4, dashes),
            text(36, y, name),
        ]
    return canvas(280 + 18 * len(series), parts)


def classes(rows: Mapping[str, Sequence[float]], title: str, names: Sequence[str]) -> str:
    """Draw a bar of 100 % for each row, cut into classes of error, from dark (none) to red (large)."""
    shades = ("#00436b", "#2f7fb0", "#8fc1de", "#f0c9a8", "#dd8a4e", RED)
    left, parts = 8.0, [text(8, 18, title, BOLD)]
    for i, (name, shares) in enumerate(rows.items()):
        y, x = 34.0 + 40 * i, left
        parts.append(text(8, number(y + 8), name))
        for share, shade in zip(shares, shades, strict=True):
            wide = share / 100 * (WIDTH - 16)
            parts.append(f"<path d='M{x:.2f} {number(y + 13)}h{wide:.2f}v14h-{wide:.2f}z' fill='{shade}'/>")
            x += wide
    base = 34.0 + 40 * len(rows) + 8
    for i, (name, shade) in enumerate(zip(names, shades, strict=True)):
        x, y = 8 + 100 * (i % 3), base + 20 * (i // 3)
        parts.append(f"<path d='M{number(x)} {number(y)}h12v12h-12z' fill='{shade}'/>")
        parts.append(text(number(x + 17), number(y + 11), name))
    return canvas(base + 46, parts)
