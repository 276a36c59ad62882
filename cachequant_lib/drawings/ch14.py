"""Figures of chapter 14: prompts that grow, one turn of a conversation with its account, and gains against finds."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cachequant_lib.drawings.canvas import (
    BOLD,
    END,
    GRID,
    INK,
    MIDDLE,
    MUTED,
    ORANGE,
    RED,
    WIDTH,
    Panel,
    canvas,
    path,
    text,
)
from cachequant_lib.drawings.canvas import number as short
from cachequant_lib.drawings.ch12 import GREEN, STATES

LEFT, RIGHT = 70.0, 266.0
OVERHEAD = ("#fbe3d2", ORANGE, 1.4, "")
PLAIN = ("#e4e8ee", MUTED, 0.8, "")
LOOKS = [(INK, ""), (GREEN, " stroke-dasharray='7 3'"), (ORANGE, " stroke-dasharray='2 3'")]


class Turn(NamedTuple):
    """One turn: tokens found and computed, milliseconds without a cache, and with one in two parts."""

    found: int
    computed: int
    plain_ms: float
    prefill_ms: float
    overhead_ms: float

    @property
    def net_ms(self) -> float:
        """Milliseconds gained; below 0 where the cache cost more than it saved."""
        return self.plain_ms - self.prefill_ms - self.overhead_ms


def growth_bars(turns: Sequence[tuple[int, int]]) -> str:
    """Draw the prompts of a conversation, (found, computed) a turn, one bar each."""
    scale = (RIGHT - LEFT) / max(found + computed for found, computed in turns)
    parts = [text(8, 18, "Tokens sent at each turn", BOLD)]
    for i, (found, computed) in enumerate(turns):
        y = 28.0 + 20 * i
        parts.append(text(8, short(y + 12), f"turn {i + 1}"))
        parts += _bar(y, [(found * scale, STATES["hit"]), (computed * scale, STATES["new"])])
        parts.append(text(WIDTH - 8, short(y + 12), f"{found} + {computed}", END))
    return canvas(28 + 20 * len(turns) + 24, [*parts, *_legend(28 + 20 * len(turns) + 6)])


def turn_frame(name: str, turns: Sequence[Turn], at: int, pays_from: float, scale: tuple[float, float]) -> str:
    """Draw one turn of a conversation: its prompt with the break-even marked, its two times, the account so far.

    Parameters
    ----------
    name : str
        Whose conversation it is.
    turns : sequence of Turn
    at : int
        Which of them is looked at, from 0.
    pays_from : float
        Tokens that this prompt must find for the cache to pay.
    scale : tuple of float
        Most tokens and most milliseconds of all conversations: the same scale in all frames.
    """
    turn, per_token, per_ms = turns[at], (RIGHT - LEFT) / scale[0], (RIGHT - LEFT) / scale[1]
    mark = LEFT + pays_from * per_token
    verdict = "it pays" if turn.found >= pays_from else "does not pay"
    parts = [
        text(8, 18, f"{name}: turn {at + 1} of {len(turns)}", BOLD),
        *(text(8, y, words) for y, words in ((43, "prompt"), (90, "no cache"), (112, "cache"))),
        *_bar(31, [(turn.found * per_token, STATES["hit"]), (turn.computed * per_token, STATES["new"])]),
        text(WIDTH - 8, 43, f"{turn.found} + {turn.computed}", END),
        path(f"M{short(mark)} 26V53", RED, 2),
        text(short(mark + 5), 63, f"break-even: {pays_from:.1f} found; {verdict}", f" fill='{RED}'"),
        *_bar(78, [(turn.plain_ms * per_ms, PLAIN)]),
        text(WIDTH - 8, 90, f"{turn.plain_ms:.0f} ms", END),
        *_bar(100, [(turn.prefill_ms * per_ms, STATES["new"]), (turn.overhead_ms * per_ms, OVERHEAD)]),
        text(WIDTH - 8, 112, f"{turn.prefill_ms + turn.overhead_ms:.0f} ms", END),
    ]
    return canvas(250, [*parts, *_account(turns, at), *_legend(236, overhead=True)])


def _account(turns: Sequence[Turn], at: int) -> list[str]:
    """Draw milliseconds gained in all, turn by turn; turns to come are pale."""
    nets = [sum(turn.net_ms for turn in turns[: i + 1]) for i in range(len(turns))]
    low, high = min(0.0, *nets), max(0.0, *nets) or 1.0
    panel = Panel(LEFT, 148, RIGHT - LEFT, 56, (-0.5, len(turns) - 0.5), (low, high + (high - low) / 50))
    return [
        text(8, 138, f"gained so far: {nets[at]:.0f} ms", BOLD),
        path(panel.bars(range(at + 1, len(turns)), nets[at + 1 :]), GRID, 14),
        path(panel.bars(range(at + 1), nets[: at + 1]), GREEN, 14),
        path(panel.grid([0]), INK),
        *(text(panel.px(i), 220, str(i + 1), MIDDLE) for i in range(len(turns))),
        text(8, 220, "turn"),
    ]


def gain_lines(gains: Mapping[int, Sequence[tuple[float, float]]], worth: Mapping[int, float]) -> str:
    """Draw milliseconds gained against tokens found, one line a prompt length, and where each crosses zero."""
    points = [point for line in gains.values() for point in line]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    panel = Panel(LEFT - 12, 34, WIDTH - LEFT - 8, 150, (0, max(xs)), (min(ys), max(ys)))
    ticks = [0, max(xs) / 2, max(xs)]
    parts = [text(8, 18, "Milliseconds gained, by tokens found", BOLD), path(panel.grid([0]), GRID)]
    for (length, line), (colour, dash) in zip(gains.items(), LOOKS, strict=True):
        parts.append(path(panel.line([x for x, _ in line], [y for _, y in line]), colour, 2.2, dash))
        parts.append(path(f"M{panel.px(worth[length])} {short(float(panel.py(0)) - 6)}v12", colour, 2))
    parts += [
        text(short(LEFT - 18), panel.py(level), f"{level:.1f}".replace("-", "−"), END)
        for level in (min(ys), 0, max(ys))
    ]
    parts += [text(panel.px(x), 202, f"{x:.0f}", END if x == max(xs) else MIDDLE) for x in ticks]
    for i, (length, (colour, dash)) in enumerate(zip(gains, LOOKS, strict=True)):
        y = 220.0 + 17 * i
        parts.append(path(f"M8 {short(y - 4)}h34", colour, 2.2, dash))
        parts.append(text(50, short(y), f"prompt of {length} tokens: from {worth[length]:.1f} found"))
    return canvas(226 + 17 * len(gains), parts)


def _bar(y: float, stretches: Sequence[tuple[float, tuple[str, str, float, str]]]) -> list[str]:
    """Stretches of a bar side by side, each (width, look)."""
    parts, x = [], LEFT
    for wide, (fill, border, thick, dash) in stretches:
        if wide > 0:
            size = f"x='{short(x)}' y='{short(y)}' width='{short(max(wide - 1, 1))}' height='16' rx='2'"
            parts.append(f"<rect {size} fill='{fill}' stroke='{border}' stroke-width='{thick}'{dash}/>")
        x += wide
    return parts


def _legend(y: float, overhead: bool = False) -> list[str]:
    """Say what the looks mean."""
    looks = [("found", STATES["hit"]), ("computed", STATES["new"])] + [("overhead", OVERHEAD)] * overhead
    parts = []
    for i, (words, (fill, border, thick, dash)) in enumerate(looks):
        x = 8 + 104 * i
        size = f"x='{x}' y='{short(y)}' width='20' height='11' rx='2'"
        parts.append(f"<rect {size} fill='{fill}' stroke='{border}' stroke-width='{thick}'{dash}/>")
        parts.append(text(x + 26, short(y + 10), words))
    return parts
