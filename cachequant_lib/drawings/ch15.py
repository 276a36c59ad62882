"""Figures of chapter 15: five requests under one combination, all combinations at once, and which answers are equal."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cachequant_lib.drawings.canvas import BOLD, END, GRID, INK, MUTED, ORANGE, RED, WIDTH, canvas, number, path, text
from cachequant_lib.drawings.ch12 import GREEN

LEFT, RIGHT = 72.0, 286.0
Look = tuple[str, str]
FORWARD, OVERHEAD, PLAIN = ("#bfe3d5", GREEN), ("#fbd9bd", ORANGE), ("#e4e8ee", MUTED)
EQUAL, TEXT, OTHER = ("#bfe3d5", GREEN), ("#fff", MUTED), ("#f6c6bf", RED)


class Request(NamedTuple):
    """One prompt: tokens found and computed, milliseconds of the forward pass and of all else."""

    found: int
    computed: int
    forward_ms: float
    overhead_ms: float

    @property
    def total_ms(self) -> float:
        """Milliseconds to the first token."""
        return self.forward_ms + self.overhead_ms


def combination(title: str, requests: Sequence[Request], plain_ms: Sequence[float], most_ms: float) -> str:
    """Draw the requests of a set: a bar each, forward pass and overhead stacked, before a grey one.

    Parameters
    ----------
    title : str
    requests : sequence of Request
    plain_ms : sequence of float
        What each request takes in fp32 without a cache: the grey bar.
    most_ms : float
        The longest bar of this set under any combination: the same scale in all of its frames.
    """
    scale = (RIGHT - LEFT) / most_ms
    parts = [text(8, 18, title, BOLD), text(8, 38, "found + new", f" fill='{MUTED}'")]
    for i, (request, plain) in enumerate(zip(requests, plain_ms, strict=True)):
        y = 46.0 + 26 * i
        parts.append(text(8, number(y + 14), f"{request.found} + {request.computed}"))
        parts += _bar(y, 20, [(plain * scale, PLAIN)])
        parts += _bar(y + 5, 10, [(request.forward_ms * scale, FORWARD), (request.overhead_ms * scale, OVERHEAD)])
        parts.append(text(WIDTH - 8, number(y + 14), f"{request.total_ms:.0f} ms", END))
    y = 46.0 + 26 * len(requests)
    total, plain = sum(request.total_ms for request in requests), sum(plain_ms)
    parts.append(path(f"M8 {number(y)}H{WIDTH - 8}", GRID))
    parts.append(text(8, number(y + 18), f"all five: {total:.0f} ms", BOLD))
    parts.append(text(8, number(y + 36), f"fp32, no cache: {plain:.0f} ms, {plain / total:.2f} times that"))
    parts += _legend(y + 50, [("forward", FORWARD), ("overhead", OVERHEAD), ("fp32, no cache", PLAIN)])
    return canvas(y + 70, parts)


def all_totals(sets: Mapping[str, Mapping[str, tuple[float, float]]]) -> str:
    """Draw seconds without and with a cache, (plain, cached) of each format, each set on a scale of its own."""
    parts, y = [], 18.0
    for name, formats in sets.items():
        scale = (RIGHT - LEFT - 50) / max(max(pair) for pair in formats.values())
        parts.append(text(8, number(y), name, BOLD))
        for i, (label, (plain, cached)) in enumerate(formats.items()):
            top = y + 8 + 28 * i
            parts.append(text(8, number(top + 14), label))
            parts += _bar(top, 10, [(plain * scale, PLAIN)]) + _bar(top + 10, 10, [(cached * scale, FORWARD)])
            words = f"{plain * 1e3:.0f} → {cached * 1e3:.0f} ms"
            parts.append(text(WIDTH - 8, number(top + 14), words, END))
        y += 8 + 28 * len(formats) + 22
    parts += _legend(y - 12, [("no cache", PLAIN), ("with a cache", FORWARD)])
    return canvas(y + 8, parts)


def equal_answers(rows: Sequence[tuple[str, int, int, int]]) -> str:
    """Draw of how many prompts the cached answer is the cold one: (label, equal bits, equal texts, prompts) a row."""
    left, parts = 150.0, [text(8, 18, "Cold and cached answers", BOLD)]
    for i, (label, bits, texts, prompts) in enumerate(rows):
        y, scale = 28.0 + 24 * i, (RIGHT - left) / prompts
        alike = max(texts, bits)
        parts.append(text(8, number(y + 13), label))
        stretches = [(bits * scale, EQUAL), ((alike - bits) * scale, TEXT), ((prompts - alike) * scale, OTHER)]
        parts += _bar(y, 17, stretches, left)
        parts.append(text(WIDTH - 8, number(y + 13), f"{bits}/{prompts}", END))
    y = 28.0 + 24 * len(rows) + 6
    parts += _legend(y, [("equal bits", EQUAL), ("equal text", TEXT), ("another text", OTHER)])
    return canvas(y + 20, parts)


def _bar(y: float, height: float, stretches: Sequence[tuple[float, Look]], left: float = LEFT) -> list[str]:
    """Stretches of a bar side by side, each (width, look); those of no width are left out."""
    parts, x = [], left
    for wide, (fill, border) in stretches:
        if wide > 0:
            size = f"x='{number(x)}' y='{number(y)}' width='{number(max(wide - 1, 1))}' height='{number(height)}'"
            parts.append(f"<rect {size} rx='2' fill='{fill}' stroke='{border}'/>")
        x += wide
    return parts


def _legend(y: float, looks: Sequence[tuple[str, Look]]) -> list[str]:
    """Say what the looks mean."""
    parts, x = [], 8.0
    for words, (fill, border) in looks:
        size = f"x='{number(x)}' y='{number(y)}' width='18' height='11' rx='2'"
        parts.append(f"<rect {size} fill='{fill}' stroke='{border}'/>")
        parts.append(text(number(x + 23), number(y + 10), words, f" fill='{INK}'"))
        x += 38 + 7.0 * len(words)
    return parts
