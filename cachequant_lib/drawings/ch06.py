"""Drawings of chapter 6, How fast can Python multiply 8-bit numbers?. They return SVG text."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cachequant_lib.checkup import MULTIPLY
from cachequant_lib.drawings.canvas import (
    BAND,
    BLUE,
    BOLD,
    END,
    GRID,
    INK,
    MIDDLE,
    MUTED,
    ORANGE,
    WIDTH,
    canvas,
    number,
    path,
    text,
)

__all__ = ["RUNGS", "Touched", "climb", "listing", "memory", "products", "touched"]

#: Rung -> what it adds.
RUNGS = {
    0: "the textbook",
    1: "rows by rows",
    2: "32-bit totals",
    3: "one instruction",
    4: "packed tiles",
    5: "asked ahead",
}
#: The toy product of the stepper: inputs (4, 32) times 8 columns, on a processor with registers of 16 bytes.
NUM_ROWS, NUM_COLUMNS, DEPTH = 4, 8, 32
PRODUCTS = {0: 1, 1: 1, 2: 8, 3: 16, 4: 32, 5: 32}
TILE_ROWS, TILE_WIDTH, AHEAD = 2, 4, 64
#: Bytes of a register, and bytes that one product takes in it; what is not named here multiplies one pair of numbers.
REGISTER_BYTES = {"z": 64, "y": 32, "x": 16}
BYTES_A_PRODUCT = {"vpmuldq": 8, "vpmaddwd": 2, "pmaddwd": 2, "vpdpwssd": 2, "vpdpbusd": 1}


class Touched(NamedTuple):
    """What one step touches: places in memory, counted from 0, of the input, the weight and the result."""

    inputs: tuple[int, ...]
    weights: tuple[int, ...]
    results: tuple[int, ...]
    ahead: tuple[int, ...] = ()


def touched(rung: int, step: int) -> Touched:
    """Return what step `step`, counted from 0, of a rung of the toy product touches."""
    many = PRODUCTS[rung]
    if rung < 4:
        pair, part = divmod(step, DEPTH // many)
        i, j = divmod(pair, NUM_COLUMNS)
        span = range(part * many, (part + 1) * many)
        weights = tuple(k * NUM_COLUMNS + j if rung == 0 else j * DEPTH + k for k in span)
        return Touched(tuple(i * DEPTH + k for k in span), weights, (i * NUM_COLUMNS + j,))
    panel_tile, part = divmod(step, DEPTH // 4)
    panel, tile = divmod(panel_tile, NUM_ROWS // TILE_ROWS)
    rows = range(tile * TILE_ROWS, (tile + 1) * TILE_ROWS)
    start = panel * TILE_WIDTH * DEPTH + part * TILE_WIDTH * 4
    span = range(start, start + TILE_WIDTH * 4)
    ahead = tuple(at + AHEAD for at in span if at + AHEAD < NUM_COLUMNS * DEPTH) if rung == 5 and tile == 0 else ()
    return Touched(
        tuple(i * DEPTH + 4 * part + k for i in rows for k in range(4)),
        tuple(span),
        tuple(i * NUM_COLUMNS + panel * TILE_WIDTH + c for i in rows for c in range(TILE_WIDTH)),
        ahead,
    )


def memory(rung: int, step: int) -> str:
    """Draw the memory of the toy product at a step counted from 1: what is touched now, and what was before."""
    now, before = touched(rung, step - 1), [touched(rung, s) for s in range(step - 1)]
    total = NUM_ROWS * NUM_COLUMNS * DEPTH // PRODUCTS[rung]
    lines = len({at // DEPTH for t in [*before, now] for at in t.weights})
    parts = [
        text(12, 18, f"Rung {rung}, {RUNGS[rung]}: step {step} of {total:,}", BOLD),
        text(12, 35, f"{step * PRODUCTS[rung]:,} of 1,024 products; weight: {lines} of 8 lines"),
    ]
    names = ("Input: 4 rows of 32 bytes", "Weight: 256 bytes as they lie in memory", "Result: 4 rows of 8 numbers")
    y, wide, ahead = 60, (DEPTH, DEPTH, NUM_COLUMNS), [at for t in [*before, now] for at in t.ahead]
    for part, (name, columns, rows) in enumerate(zip(names, wide, (NUM_ROWS, 8, NUM_ROWS), strict=True)):
        parts.append(text(12, y, name))
        old = {at for t in before for at in t[part]}
        parts.append(_cells(old, columns, y + 6, "#c3d5e8"))
        if part == 1:
            parts.append(_cells(set(ahead) - old, columns, y + 6, "#f3d9a0"))
        parts.append(_cells(now[part], columns, y + 6, ORANGE))
        grid = "".join(f"M12 {y + 6 + 10 * r}h{10 * columns}" for r in range(rows + 1))
        grid += "".join(f"M{12 + 10 * c} {y + 6}v{10 * rows}" for c in range(columns + 1))
        parts.append(path(grid, GRID, 0.6))
        y += 10 * rows + 28
    for i, (colour, words) in enumerate(((ORANGE, "now"), ("#c3d5e8", "before"), ("#f3d9a0", "asked for ahead"))):
        parts += [_box(128, y - 62 + 17 * i, 11, 11, colour), text(146, y - 52 + 17 * i, words)]
    return canvas(y - 12, parts)


def products(line: str) -> int:
    """Count the products that one instruction of x86 makes."""
    found, register = MULTIPLY.match(line), re.search("%([xyz])mm", line)
    if not found:
        return 0
    wide = BYTES_A_PRODUCT.get(found[0])
    return REGISTER_BYTES[register[1]] // wide if wide and register else 1


def listing(loop: Sequence[str], heading: str, lines: Iterable[str], most: int = 20) -> str:
    """Draw the instructions of a loop, multiplications marked; a long one without its middle and its addresses.

    Parameters
    ----------
    loop : sequence of str
        Instructions, one a line.
    heading : str
    lines : iterable of str
        What to say below.
    most : int
        Lines to show.
    """
    shown = list(loop)
    if len(shown) > most:
        kept = [line for line in loop if MULTIPLY.match(line) or not line.startswith(("lea", "add"))]
        gone = len(loop) - (most - 1)
        shown = [*kept[: most - 3], f"⋮ {gone} more", *kept[-2:]]
    parts, y = [text(12, 18, heading, BOLD)], 38
    for line in shown:
        marked = bool(MULTIPLY.match(line))
        if marked:
            parts += [_box(10, y - 11, WIDTH - 20, 15, "#ffe9d6"), _box(10, y - 11, 3, 15, ORANGE)]
        mono = " font-family='ui-monospace,monospace' font-size='12'" + (BOLD if marked else "")
        parts.append(text(18, y, line.replace("\t", " "), mono))
        y += 15
    for line in lines:
        y += 17
        parts.append(text(12, y - 8, line))
    return canvas(y, parts)


def climb(rates: Mapping[str, float], limits: Mapping[str, float], heading: str) -> str:
    """Draw multiply-adds a second as a bar a rung on a logarithmic axis, and limits as lines across.

    Parameters
    ----------
    rates : mapping of str to float
        Name -> multiply-adds a second; what is not a number is said to be missing.
    limits : mapping of str to float
        Name -> multiply-adds a second.
    heading : str
    """
    left, right, step, top = 12, 46, 34, 32 + 17 * len(limits)
    low, high = 0.5e9, 1.2e12
    unit = (WIDTH - left - right) / math.log(high / low)
    bottom = top + step * len(rates)

    def at(rate: float) -> float:
        return left + unit * math.log(max(rate, low) / low)

    ticks = {10.0**n: name for n, name in ((9, "1"), (10, "10"), (11, "100"), (12, "1,000"))}
    grid = "".join(f"M{number(at(t))} {top}V{bottom}" for t in ticks)
    parts = [text(left, 18, heading, BOLD), path(grid, GRID)]
    colours = (INK, BLUE, MUTED)
    for n, (name, rate) in enumerate(limits.items()):
        y, colour, dashes = 36 + 17 * n, colours[n % 3], f" stroke-dasharray='{('none', '5 3', '2 3')[n % 3]}'"
        parts.append(path(f"M{number(at(rate))} {top - 2}V{bottom}M{left} {y - 4}h24", colour, 1.6, dashes))
        parts.append(text(left + 32, y, f"{name}: {rate / 1e9:.0f}"))
    for i, (name, rate) in enumerate(rates.items()):
        y = top + step * i
        parts.append(text(left, y + 13, name))
        if rate == rate:
            parts.append(_box(left, y + 17, max(1.0, at(rate) - left), 12, ORANGE))
            parts.append(text(number(at(rate) + 4), y + 28, f"{rate / 1e9:.{0 if rate >= 1e10 else 1}f}", BOLD))
        else:
            parts.append(text(left + 4, y + 28, "not measured"))
    parts += [text(number(at(t)), bottom + 16, name, MIDDLE) for t, name in ticks.items()]
    return canvas(bottom + 38, [*parts, text(WIDTH - 10, bottom + 32, "billion multiply-adds a second", END)])


def _cells(places: Iterable[int], columns: int, top: float, colour: str) -> str:
    """Fill cells of a grid; neighbours in a row become one rectangle."""
    data, run = "", list[int]()
    for place in [*sorted(places), -1]:
        if run and (place != run[-1] + 1 or place % columns == 0):
            y, x = divmod(run[0], columns)
            data += f"M{12 + 10 * x} {number(top + 10 * y)}h{10 * len(run)}v10h-{10 * len(run)}Z"
            run = []
        run.append(place)
    return f"<path d='{data}' fill='{colour}'/>" if data else ""


def _box(x: float, y: float, width: float, height: float, colour: str = BAND) -> str:
    return f"<path d='M{number(x)} {number(y)}h{number(width)}v{number(height)}h{number(-width)}Z' fill='{colour}'/>"
