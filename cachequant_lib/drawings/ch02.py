"""Drawings of chapter 2, Where do the bytes go?. They take numbers and return SVG text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

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

__all__ = ["COLOURS", "PARTS", "Roof", "byte_bars", "context_bytes", "roofline"]

#: One colour a format, here and in chapter 7.
COLOURS = {"fp32": INK, "bf16": OLIVE, "fp16": RED, "BFP8": BLUE, "int8": ORANGE}
#: Parts of a model: what they are called, and their colour.
PARTS = {"blocks": ("decoder blocks", "#8fa3b8"), "head": ("head", "#33475b"), "other": ("the rest", RED)}


@dataclass(frozen=True)
class Roof:
    """What limits one format, and what was measured of it.

    Attributes
    ----------
    read_bandwidth, multiply_adds_per_s : float
        Bytes and multiply-adds a second, at best.
    per_byte, rate : sequence of float
        Multiply-adds a byte that is read, and multiply-adds a second as measured; one pair for each number of rows.
    """

    read_bandwidth: float
    multiply_adds_per_s: float
    per_byte: Sequence[float]
    rate: Sequence[float]

    def attainable(self, per_byte: float) -> float:
        """Multiply-adds a second at this many a byte, at best: the lower of two limits."""
        return min(self.multiply_adds_per_s, self.read_bandwidth * per_byte)


def byte_bars(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Draw the bytes of one token as a bar a format, cut into blocks, head and the rest.

    Parameters
    ----------
    rows : mapping of str to mapping
        Format -> part (see `PARTS`) -> bytes.
    """
    step, top, left, right = 40, 48, 10, 70
    longest = max(sum(parts.values()) for parts in rows.values())
    unit = (WIDTH - left - right) / longest
    parts = [text(left, 18, "Bytes that one new token reads", BOLD)]
    x = float(left)
    for name, (words, colour) in list(PARTS.items())[:2]:
        parts += [_box(x, 28, 10, 10, colour), text(number(x + 15), 37, words)]
        x += 140 if name == "blocks" else 70
    for i, (name, sizes) in enumerate(rows.items()):
        y, x, total = top + step * i, float(left), sum(sizes.values())
        parts.append(text(left, y + 12, name))
        for part, (_, colour) in PARTS.items():
            parts.append(_box(x, y + 17, sizes[part] * unit, 15, colour))
            x += sizes[part] * unit
        share = sizes["head"] / total
        parts.append(text(number(x + 5), y + 29, f"{total / 1e6:.0f} MB"))
        parts.append(text(WIDTH - left, y + 12, f"head {share:.0%}", END + f" fill='{MUTED}'"))
    return canvas(top + step * len(rows) + 6, parts)


def roofline(roofs: Mapping[str, Roof], chosen: str, at: int, lines: Sequence[str]) -> str:
    """Draw the roof of each format on logarithmic axes, the chosen one with what was measured under it.

    Parameters
    ----------
    roofs : mapping of str to Roof
        By the names of `COLOURS`.
    chosen : str
    at : int
        Place of the number of rows that is marked.
    lines : sequence of str
        What to say above the picture; the first line is the heading.
    """
    head = 24 + 17 * (len(lines) - 1)
    panel = Panel(40, head + 8, WIDTH - 52, 200, (-2.0, 9.0), (9.6, 12.0))
    floor = head + 208
    ticks = [0.25, 1, 4, 16, 64, 256]
    levels = {10.0: "10", 11.0: "100", 12.0: "1000"}
    grid = "".join(f"M{panel.px(np.log2(t))} {number(panel.top)}V{number(floor)}" for t in ticks)
    parts = [text(8, 18 + 17 * i if i else 18, line, BOLD if not i else "") for i, line in enumerate(lines)]
    parts += [path(grid + panel.grid(levels), GRID)]
    order = [name for name in roofs if name != chosen] + [chosen]
    for name in order:
        parts.append(
            _roof(panel, roofs[name], COLOURS[name] if name == chosen else "#b9c3ce", 2.4 if name == chosen else 1.2)
        )
    roof, colour = roofs[chosen], COLOURS[chosen]
    places = [
        (panel.px(np.log2(p)), panel.py(max(9.6, np.log10(r)))) for p, r in zip(roof.per_byte, roof.rate, strict=True)
    ]
    dots = "".join(f"M{x} {y}h0" for x, y in places)
    parts.append(path(dots, colour, 6, " stroke-linecap='round'"))
    x, y = places[at]
    limit = panel.py(np.log10(roof.attainable(roof.per_byte[at])))
    parts += [path(f"M{x} {y}V{limit}", colour, 1.2, " stroke-dasharray='3 3'")]
    parts += [
        path(f"M{x} {y}h0", colour, 13, " stroke-linecap='round'"),
        path(f"M{x} {y}h0", "#fff", 6, " stroke-linecap='round'"),
    ]
    parts += [text(panel.px(np.log2(t)), number(floor + 16), f"{t:g}", MIDDLE) for t in ticks]
    parts += [text(35, number(float(panel.py(level)) + 4), word, END) for level, word in levels.items()]
    parts.append(text(WIDTH - 10, number(floor + 33), "multiply-adds for each byte read", END))
    parts.append(text(46, number(panel.top + 14), "thousand million multiply-adds a second", f" fill='{MUTED}'"))
    return canvas(floor + 42, parts)


def _roof(panel: Panel, roof: Roof, colour: str, width: float) -> str:
    """Draw a slope that bends into a level where the two limits meet."""
    low, high = panel.x
    bend = float(np.log2(roof.multiply_adds_per_s / roof.read_bandwidth))
    start = max(low, float(np.log2(10 ** panel.y[0] / roof.read_bandwidth)))
    xs = [start, min(max(bend, low), high), high]
    return path(panel.line(xs, [float(np.log10(roof.attainable(2**x))) for x in xs]), colour, width)


def context_bytes(weights: Mapping[str, float], per_token: float, longest: int) -> str:
    """Draw the bytes of keys and values against the tokens before the new one, and the weights of formats as levels.

    Parameters
    ----------
    weights : mapping of str to float
        Format -> bytes of all weights of a token.
    per_token : float
        Bytes of keys and values for each token before.
    longest : int
        Last context drawn.
    """
    top = 1.08 * max(weights.values()) / 1e6
    panel = Panel(44, 34, WIDTH - 58, 190, (0, longest), (0, top))
    levels = [level for level in range(0, 1000, 100) if level <= top]
    parts = [text(8, 18, "Megabytes that one new token reads", BOLD), path(panel.grid(levels), GRID)]
    parts += [text(38, number(float(panel.py(level)) + 4), f"{level}", END) for level in levels]
    wedge = f"M{panel.px(0)} {panel.py(0)}L{panel.px(longest)} {panel.py(per_token * longest / 1e6)}V{panel.py(0)}Z"
    parts.append(f"<path d='{wedge}' fill='{BAND}'/>")
    parts.append(path(panel.line([0, longest], [0, per_token * longest / 1e6]), INK, 2))
    parts.append(text(panel.px(longest), number(float(panel.py(0)) - 6), "keys and values", END))
    for name, size in weights.items():
        colour = COLOURS[name.split(",")[0].split()[0]]
        parts.append(path(panel.grid([size / 1e6]), colour, 2))
        parts.append(text(48, number(float(panel.py(size / 1e6)) - 5), f"weights in {name}", f" fill='{colour}'"))
    ticks = range(0, longest + 1, 256)
    parts += [text(panel.px(t), 241, f"{t}", END if t == longest else MIDDLE) for t in ticks]
    return canvas(266, [*parts, text(WIDTH - 10, 259, "tokens before the new one", END)])


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f"<path d='M{number(x)} {number(y)}h{number(width)}v{number(height)}h{number(-width)}Z' fill='{colour}'/>"
