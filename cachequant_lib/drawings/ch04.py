"""Drawings of chapter 4, int8 with one scale per row. They take arrays, quantise nothing, and return SVG text."""

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cachequant_lib.drawings.canvas import (
    BAND,
    BOLD,
    END,
    GRID,
    INK,
    MIDDLE,
    MUTED,
    ORANGE,
    WIDTH,
    Panel,
    canvas,
    number,
    path,
    text,
)

__all__ = ["DamageMap", "damage", "divergences", "pixels", "product"]

#: Where one colour of a map gives way to the next, as a share of the typical weight.
LIMITS = (0.003, 0.01, 0.03, 0.1, 0.3)
HEAT = ("#f7f0e6", "#f3d5aa", "#e8a05f", "#cd5d29", "#8c2611", "#2d0e0a")
GREYS = ("#f4f6f8", "#dfe4ea", "#b9c3ce", "#8794a3", "#4f5b69", "#161b22")


@dataclass(frozen=True)
class DamageMap:
    """One map below the matrix: the loss of each value under one scheme, and a line of words.

    Attributes
    ----------
    losses : array_like, shape (N, K)
    note : str
    border : int
        Width of a block, drawn as a line; 0 for none.
    """

    losses: ArrayLike
    note: str
    border: int = 0


def pixels(levels: ArrayLike, palette: Sequence[str]) -> str:
    """Return a PNG of one pixel a cell as a data address; `levels` (N, K) are places in a palette of at most 16."""
    places: NDArray[np.uint8] = np.asarray(levels, np.uint8)
    num_rows, num_columns = places.shape
    even = np.pad(places, ((0, 0), (0, num_columns % 2)))  # two pixels a byte
    packed = (even[:, ::2] << 4) | even[:, 1::2]  # (N, K) -> (N, K/2)
    raw = np.pad(packed, ((0, 0), (1, 0))).tobytes()  # each line begins with its filter, 0
    colours = bytes.fromhex("".join(colour.removeprefix("#") for colour in palette))
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", num_columns, num_rows, 4, 3, 0, 0, 0),
        b"PLTE": colours,
        b"IDAT": zlib.compress(raw, 0),  # stored, not packed: the same bytes whatever zlib
        b"IEND": b"",
    }
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts.items()
    ]
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode()


def damage(matrix: ArrayLike, mark: tuple[int, int, int, int], maps: Mapping[str, DamageMap], typical: float) -> str:
    """Draw a matrix with an outlier, and below it where each scheme does its damage.

    Parameters
    ----------
    matrix : array_like, shape (N, K)
    mark : tuple of int
        Cells to frame: first row, row after the last, first column, column after the last.
    maps : mapping of str to DamageMap
        One map a scheme, under its name.
    typical : float
        Size of a typical weight. The colours of weights and losses are shares of it.

    Returns
    -------
    str
        SVG text, about 5 kB for three maps of 12 by 64.
    """
    values = np.asarray(matrix, float)
    num_rows, num_columns = values.shape
    tall = 60
    spot = Panel(12, 26, WIDTH - 24, tall, (0, num_columns), (num_rows, 0))
    top, bottom, left, right = mark
    frame = f"M{spot.px(left)} {spot.py(top)}H{spot.px(right)}V{spot.py(bottom)}H{spot.px(left)}V{spot.py(top)}"
    parts = [
        text(12, 18, f"The weights: {num_rows} rows of {num_columns}", BOLD),
        _map(26, tall, np.abs(values) / typical / 100, GREYS),
        path(frame, ORANGE, 2),
    ]
    y = 26 + tall
    for name, one in maps.items():
        parts += [
            text(12, number(y + 22), name, BOLD),
            _map(y + 29, tall, np.abs(np.asarray(one.losses, float)) / typical, HEAT),
            text(12, number(y + tall + 43), one.note),
        ]
        if one.border:
            edges = range(one.border, num_columns, one.border)
            fence = "".join(f"M{spot.px(edge)} {number(y + 27)}v{number(tall + 4)}" for edge in edges)
            parts.append(path(fence, INK, 1.2))
        y += tall + 50
    return canvas(y + 70, [*parts, *_legend(y + 22, "Lost, in % of a typical weight")])


def _map(y: float, tall: float, shares: NDArray[np.float64], palette: Sequence[str]) -> str:
    """Place one picture of cells, coloured by the limit they have passed."""
    address = pixels(np.searchsorted(LIMITS, shares, side="right"), palette)
    place = f"x='12' y='{number(y)}' width='{WIDTH - 24}' height='{number(tall)}'"
    return f"<image {place} preserveAspectRatio='none' style='image-rendering:pixelated' href='{address}'/>"


def _legend(y: float, title: str) -> list[str]:
    wide = (WIDTH - 24) / len(HEAT)
    parts = [text(12, number(y), title, BOLD)]
    for i, colour in enumerate(HEAT):
        box = f"x='{number(12 + i * wide)}' y='{number(y + 8)}' width='{number(wide)}' height='12'"
        parts.append(f"<rect {box} fill='{colour}'/>")
    ticks = [text(number(12 + (i + 1) * wide), number(y + 36), f"{100 * v:g}", MIDDLE) for i, v in enumerate(LIMITS)]
    return [*parts, *ticks]


def product() -> str:
    """Draw x (M, K) times W (N, K): scales beside the rows of both, one sum of K codes, one scaling at its end."""
    x_top, w_top, left, cell, num_k = 40, 128, 70, 12, 12
    parts = [
        text(8, 18, "Scales lie beside the rows, outside the sum", BOLD),
        *_grid(left, x_top, 2, num_k, cell, 1),
        *_grid(left, w_top, 5, num_k, cell, 2),
        text(8, x_top + 16, "x (M, K)"),
        text(8, w_top + 34, "W (N, K)"),
        text(left + num_k * cell / 2, x_top - 6, "K codes a row →", MIDDLE),
        text(left + num_k * cell + 30, x_top + 10, "one scale", f" fill='{ORANGE}'"),
        text(left + num_k * cell + 30, x_top + 25, "a token", f" fill='{ORANGE}'"),
        text(left + num_k * cell + 30, w_top + 25, "one scale", f" fill='{ORANGE}'"),
        text(left + num_k * cell + 30, w_top + 40, "an output", f" fill='{ORANGE}'"),
        text(left, 98, "one output: the codes of two rows,", f" fill='{MUTED}'"),
        text(left, 114, "multiplied pairwise and summed", f" fill='{MUTED}'"),
        text(8, 216, "y = (sum of K products of codes)", BOLD),
        text(30, 234, "× scale of the token × scale of the output", ""),
        text(30, 252, "/ (127 × 127)", ""),
    ]
    return canvas(264, parts)


def _grid(x: float, y: float, rows: int, columns: int, cell: float, chosen: int) -> list[str]:
    """Draw a matrix of empty cells, one row filled, and a column of scales beside it."""
    lines = "".join(f"M{x} {number(y + i * cell)}h{number(columns * cell)}" for i in range(rows + 1))
    lines += "".join(f"M{number(x + j * cell)} {y}v{number(rows * cell)}" for j in range(columns + 1))
    row = f"x='{x}' y='{number(y + chosen * cell)}' width='{number(columns * cell)}' height='{cell}'"
    scales = "".join(f"M{number(x + columns * cell + 8)} {number(y + (i + 0.5) * cell)}h12" for i in range(rows))
    return [
        f"<rect {row} fill='{BAND}'/>",
        path(lines, GRID),
        path(f"M{x} {number(y + (chosen + 0.5) * cell)}h{number(columns * cell)}", INK, 3, " stroke-dasharray='6 6'"),
        path(scales, ORANGE, cell - 3),
    ]


def divergences(rows: Mapping[str, tuple[float, float]], labels: tuple[str, str]) -> str:
    """Draw two values for each name as dots on a logarithmic axis.

    Parameters
    ----------
    rows : mapping of str to pair of float
        Name of a scheme -> its two values, in 1e-5..1e-1.
    labels : pair of str
        What the first and the second dot are.
    """
    step, top, colours = 40, 62, (MUTED, ORANGE)
    axis = Panel(16, top, WIDTH - 32, step * len(rows), (-5, -1), (0, 1))
    bottom = top + step * len(rows)
    grid = "".join(f"M{axis.px(power)} {top}V{bottom}" for power in range(-5, 0))
    parts = [text(8, 18, "Distance from float32, ten times a line", BOLD), path(grid, GRID)]
    for x, colour, label in zip((12, 150), colours, labels, strict=True):
        parts += [path(f"M{x + 4} 38h0", colour, 9, " stroke-linecap='round'"), text(x + 14, 42, label)]
    for i, (name, pair) in enumerate(rows.items()):
        y = top + step * i + 28
        first, second = (axis.px(float(np.log10(value))) for value in pair)
        parts.append(text(16, y - 12, name))
        parts.append(path(f"M{first} {y}H{second}", MUTED, 1.5))
        dots = zip((first, second), colours, strict=True)
        parts += [path(f"M{px} {y}h0", colour, 9, " stroke-linecap='round'") for px, colour in dots]
    ticks = {-4: "0.0001", -3: "0.001", -2: "0.01", -1: "0.1"}
    parts += [text(axis.px(p), bottom + 18, word, END if p == -1 else MIDDLE) for p, word in ticks.items()]
    return canvas(bottom + 28, parts)
