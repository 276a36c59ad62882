"""Figures of chapter 9, the KV cache. They take counts and names, compute no attention, and return SVG text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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

__all__ = ["Step", "copies_frame", "mask_frame", "overtake_lines", "sharing", "step_frame"]

STORED, EMPTY = "#7fb2d6", "#e3e9f0"
LEFT, RIGHT = 56.0, 340.0
#: Colour and dashes of the lines of a chart, so that none is told by colour alone.
LINES = ((BLUE, ""), (ORANGE, "6 3"), (OLIVE, "2 3"), (RED, "9 3 2 3"))


@dataclass(frozen=True)
class Step:
    """One forward of a generation, counted.

    Attributes
    ----------
    tokens : sequence of str
        All tokens of the finished generation.
    new, stored : int
        Tokens that went through the model in this step, and positions in the cache after it.
    weights : sequence of int
        Attention of the newest token to each stored position, in whole percent.
    bytes_read : int
        Bytes of keys and values that attention read.
    with_cache, without_cache, most : int
        Multiply-adds of this step with and without a cache, and the length of a full bar.
    """

    tokens: Sequence[str]
    new: int
    stored: int
    weights: Sequence[int]
    bytes_read: int
    with_cache: int
    without_cache: int
    most: int


def step_frame(step: Step, num_layers: int, heading: str, head: str) -> str:
    """Draw one step: the rows of the cache by layer, one head's attention, the bytes and the work.

    Parameters
    ----------
    step : Step
    num_layers : int
    heading, head : str
        What the step is, and whose attention is shown.

    Returns
    -------
    str
        SVG text, 4 to 7 kB.
    """
    pitch = (RIGHT - LEFT) / len(step.tokens)
    top, tall, high = 116.0, 27.0, 11.0
    bottom = top + num_layers * tall
    old = step.stored - step.new
    return canvas(
        bottom + 226,
        [
            text(8, 18, heading, BOLD),
            *_columns(step, pitch, top - 6),
            *[
                text(LEFT - 6, number(top + layer * tall + 15), f"layer {layer + 1}", END)
                for layer in range(num_layers)
            ],
            _cells(range(step.stored, len(step.tokens)), num_layers, pitch, top, EMPTY),
            _cells(range(old), num_layers, pitch, top, STORED),
            _cells(range(old, step.stored), num_layers, pitch, top, ORANGE),
            *_key(bottom + 12, high),
            *_attention(step, pitch, bottom + 42, head),
            *_costs(step, bottom + 142),
        ],
    )


def _columns(step: Step, pitch: float, y: float) -> list[str]:
    """Write the tokens upwards, each above its column; the newest in bold, those to come not at all."""
    parts = []
    for i, token in enumerate(step.tokens[: step.stored]):
        place = f"{number(LEFT + (i + 0.5) * pitch + 4)} {number(y)}"
        more = BOLD if i >= step.stored - step.new else ""
        parts.append(text(0, 0, token.strip(), f" transform='translate({place})rotate(-90)'{more}"))
    return parts


def _cells(columns: range, num_layers: int, pitch: float, top: float, colour: str) -> str:
    """Draw the key (upper) and the value (lower) of some positions in every layer, as one thick stroke."""
    rows = [top + layer * 27 + half * 12 + 5.5 for layer in range(num_layers) for half in (0, 1)]
    starts = [number(LEFT + i * pitch + 1) for i in columns]
    return path("".join(f"M{x} {number(y)}h{number(pitch - 2)}" for y in rows for x in starts), colour, 11)


def _key(y: float, high: float) -> list[str]:
    """Explain the colours of the cells."""
    parts = []
    for x, colour, words in ((8, STORED, "read"), (62, ORANGE, "written, then read"), (204, EMPTY, "room")):
        parts += [path(f"M{x} {number(y)}h14", colour, high), text(x + 19, number(y + 4.5), words)]
    return [*parts, text(WIDTH - 6, number(y + 4.5), "K over V", END + f" fill='{MUTED}'")]


def _attention(step: Step, pitch: float, y: float, head: str) -> list[str]:
    """Draw one bar a position, with its percent above it."""
    panel = Panel(LEFT, y + 24, RIGHT - LEFT, 52, (0, len(step.tokens)), (0, 100))
    middles = np.arange(step.stored) + 0.5
    words = zip(middles.tolist(), step.weights, strict=True)
    return [
        text(8, number(y), head, BOLD),
        path(f"M{LEFT} {panel.py(0)}H{RIGHT}", GRID),
        path(panel.bars(middles, step.weights), BLUE, 0.6 * pitch),
        *[text(panel.px(x), number(float(panel.py(share)) - 3), f"{share}", MIDDLE) for x, share in words],
    ]


def _costs(step: Step, y: float) -> list[str]:
    """Write the bytes, and draw the work with and without a cache to one scale."""
    parts = [
        text(8, number(y), "K and V read in this step", BOLD),
        text(WIDTH - 6, number(y), f"{step.bytes_read:,} bytes", END),
        text(8, number(y + 24), "Multiply-adds in this step", BOLD),
    ]
    pairs = (("with", step.with_cache, BLUE), ("without", step.without_cache, RED))
    for row, (name, work, colour) in enumerate(pairs):
        line = y + 40 + 20 * row
        parts += [
            text(LEFT - 6, number(line + 4.5), name, END),
            path(f"M{LEFT} {number(line)}h{number(work / step.most * 210)}", colour, 13),
            text(WIDTH - 6, number(line + 4.5), f"{work / 1e6:.1f} M", END),
        ]
    return parts


def mask_frame(seen: Sequence[int], num_stored: int, heading: str, notes: Sequence[str]) -> str:
    """Draw which positions each new token sees; those that it sees wrongly, or misses, carry a cross.

    Parameters
    ----------
    seen : sequence of int
        For each of the T newest tokens, how many positions from the start it sees. The sheet has room for T = 4.
    num_stored : int
        Positions after these tokens were stored.
    heading : str
    notes : sequence of str
        Lines below the picture.
    """
    size, left, top = 26.0, 104.0, 58.0
    old = num_stored - len(seen)
    views, crosses = "", ""
    for i, reach in enumerate(seen):
        y = top + (i + 0.5) * size
        views += "".join(f"M{number(left + j * size + 1)} {number(y)}h{number(size - 2)}" for j in range(reach))
        for j in range(min(reach, old + i + 1), max(reach, old + i + 1)):
            x = left + (j + 0.5) * size
            crosses += f"M{number(x - 6)} {number(y - 6)}l12 12m0-12l-12 12"
    edge, bottom = left + old * size, top + len(seen) * size
    whole = "".join(
        f"M{number(left + 1)} {number(top + (i + 0.5) * size)}h{number(num_stored * size - 2)}"
        for i in range(len(seen))
    )
    return canvas(
        top + 4 * size + 14 + 18 * len(notes),
        [
            text(8, 18, heading, BOLD),
            text(number(edge - 5), 38, "cached" if old else "nothing cached", END),
            text(number(edge + 5), 38, "new"),
            *[text(number(left + (j + 0.5) * size), 53, f"{j + 1}", MIDDLE) for j in range(num_stored)],
            path(whole, EMPTY, size - 2),
            path(views, STORED, size - 2),
            path(crosses, RED, 2.4),
            path(f"M{number(edge)} 28V{number(bottom)}", INK, 1.2, " stroke-dasharray='4 3'"),
            *[text(left - 6, number(top + i * size + 18), f"token {old + i + 1}", END) for i in range(len(seen))],
            *[text(8, number(bottom + 20 + 18 * i), line) for i, line in enumerate(notes)],
        ],
    )


def copies_frame(num_tokens: int) -> str:
    """Draw the rows that are written at each token: by concatenating on the left, into set-aside room on the right."""
    size = 12.0
    parts = [text(8, 18, "Rows written at each token", BOLD)]
    for x, name, grows in ((30.0, "concatenate", True), (206.0, "set aside", False)):
        again, fresh, room = "", "", ""
        for i in range(num_tokens):
            y = 52 + (i + 0.5) * size
            old = "".join(f"M{number(x + j * size + 1)} {number(y)}h{number(size - 2)}" for j in range(i))
            again, room = (again + old, room) if grows else (again, room + old)
            fresh += f"M{number(x + i * size + 1)} {number(y)}h{number(size - 2)}"
        total = num_tokens * (num_tokens + 1) // 2 if grows else num_tokens
        parts += [
            text(number(x), 40, name),
            path(room, EMPTY, size - 2),
            path(again, STORED, size - 2),
            path(fresh, ORANGE, size - 2),
            text(number(x), number(52 + num_tokens * size + 20), f"{total} rows in all", BOLD),
        ]
    y = 52 + num_tokens * size + 42
    for x, colour, words in ((8, ORANGE, "new"), (66, STORED, "copied again"), (176, EMPTY, "stays where it is")):
        parts += [path(f"M{x} {number(y)}h14", colour, 11), text(x + 19, number(y + 4.5), words)]
    return canvas(y + 16, parts)


def sharing(num_heads: int, num_kv_heads: int) -> str:
    """Draw which key-value head each query head reads."""
    share = num_heads // num_kv_heads
    step = (WIDTH - 60) / num_heads
    xs = [30 + (head + 0.5) * step for head in range(num_heads)]
    centres = [sum(xs[kv * share : (kv + 1) * share]) / share for kv in range(num_kv_heads)]
    links = "".join(f"M{number(x)} 50L{number(centres[head // share])} 100" for head, x in enumerate(xs))
    return canvas(
        152,
        [
            text(8, 18, f"{num_heads} query heads read {num_kv_heads} key-value heads", BOLD),
            path(links, MUTED, 1.4),
            path("".join(f"M{number(x - 11)} 42h22" for x in xs), EMPTY, 20),
            path("".join(f"M{number(x - 24)} 110h48" for x in centres), STORED, 22),
            *[text(number(x), 47, f"q{head + 1}", MIDDLE) for head, x in enumerate(xs)],
            *[text(number(x), 115, f"kv {kv + 1}", MIDDLE) for kv, x in enumerate(centres)],
            text(WIDTH / 2, 142, "only the lower row is kept", MIDDLE + f" fill='{MUTED}'"),
        ],
    )


def overtake_lines(lines: Mapping[str, tuple[Sequence[int], Sequence[float]]]) -> str:
    """Draw bytes of K and V as a percent of the weights against the context; both axes grow tenfold or twofold a line.

    Parameters
    ----------
    lines : mapping of str to (contexts, percents)
        A model's line ends where its context ends.
    """
    panel = Panel(44, 34, WIDTH - 60, 196, (0, 13), (-2, 3))
    parts = [
        text(8, 18, "K and V, in % of the int8 weights", BOLD),
        path(panel.grid(range(-2, 4)), GRID),
        path(panel.grid([2]), INK, 1.6),
        *[text(40, float(panel.py(level)) + 4.5, f"{10.0**level:g}", END) for level in range(-2, 4)],
        *[text(panel.px(power), 248, f"{2**power:,}", MIDDLE) for power in (0, 3, 6, 9)],
        text(panel.px(12.4), 248, "8,192", MIDDLE),
        text(panel.px(6.5), 266, "tokens in the cache", MIDDLE),
    ]
    for row, (name, (contexts, percents)) in enumerate(lines.items()):
        colour, dashes = LINES[row]
        more = f" stroke-dasharray='{dashes}'" if dashes else ""
        x, y = 12 + 172 * (row % 2), 288 + 20 * (row // 2)
        parts += [
            path(panel.line(np.log2(contexts), np.log10(percents)), colour, 2.4, more),
            path(f"M{x} {y - 4}h34", colour, 2.4, more),
            text(x + 40, y, name),
        ]
    return canvas(318, parts)
