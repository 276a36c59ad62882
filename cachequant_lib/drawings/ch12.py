"""Figures of chapter 12. Trees are read from the text that ``TokenTrie.render`` writes; nothing is looked up here."""

import html
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from cachequant_lib.drawings.canvas import (
    BOLD,
    END,
    GRID,
    INK,
    MIDDLE,
    MUTED,
    RED,
    WIDTH,
    Panel,
    canvas,
    number,
    path,
    text,
)

Path = tuple[str, ...]

GREEN, PALE = "#00704f", "#9aa4b1"
# What a token is to the request at hand: fill, border, its width and dashes. Never told by colour alone.
STATES = {
    "hit": ("#ddf1ea", GREEN, 2.4, ""),
    "new": ("#fff", INK, 1.5, " stroke-dasharray='4 2.5'"),
    "old": ("#f3f5f8", MUTED, 0.8, ""),
    "miss": ("#fff", RED, 1.6, " stroke-dasharray='1.5 2.5'"),
    "wait": ("#fff", GRID, 0.8, ""),
}
LEGEND = {"hit": "reused", "new": "computed", "old": "stored before"}
BOX, TALL = 39.0, 22.0
TYPE_HERE = (
    '<div class="trie-twin"><p>On the book\'s page a tree grows here from the prompts you type. In JupyterLab, run '
    "this cell: it then shows a field for prompts.</p></div>"
)


def read_tree(rendered: str) -> list[Path]:
    """Return the path of every node, parents first, from the text of ``TokenTrie.render(decode)``."""
    found: list[Path] = []
    above: list[str] = []
    for line in rendered.splitlines()[1:]:
        depth = line.index("─ ") // 3  # three characters a level
        above = [*above[:depth], line[3 * depth + 4 : -1]]  # the label is quoted
        found.append(tuple(above))
    return found


def request_frame(words: Sequence[str], matched: int, step: int, rendered: str, name: str) -> str:
    """Draw one request at one of its steps: 1 looked up, 2 computed, 3 stored.

    Parameters
    ----------
    words : sequence of str
        The tokens of the prompt.
    matched : int
        How many of them the lookup found.
    step : int
        1, 2 or 3.
    rendered : str
        The tree as it stood *before* this request for steps 1 and 2, and after it for step 3.
    name : str
        Heading.

    Returns
    -------
    str
        SVG text, about 4 kB.
    """
    asked = ["hit"] * matched + ["new"] * (len(words) - matched)
    if step == 1:
        rest = len(words) - matched
        asked = ["hit"] * matched + ["miss", *["wait"] * rest][:rest]
    marks = {tuple(words[: i + 1]): ("hit" if i < matched else "new") for i in range(len(words))}
    nodes = read_tree(rendered)
    if step == 1 and matched < len(words) - 1:  # where the walk stopped
        nodes.append(tuple(words[: matched + 1]))
        marks[nodes[-1]] = "miss"
    says = (
        "1. Look up every token but the last",
        "2. Compute what was not found",
        "3. Store one node for each computed token",
    )
    return canvas(
        204,
        [
            text(8, 18, name, BOLD),
            text(8, 36, says[step - 1]),
            *_strip(46, words, asked),
            text(8, 96, "The tree " + ("after this request" if step == 3 else "as it was found"), BOLD),
            *_tree(104, nodes, marks),
            *_legend(194),
        ],
    )


def pressure_frame(room: int, requests: Sequence[tuple[str, int, int, int]], rendered: str) -> str:
    """Draw a row of requests, each (name, tokens, matched, evicted), and the tree that is left in the end."""
    parts = [text(8, 18, f"Room for {room} tokens", BOLD)]
    for i, (name, tokens, matched, evicted) in enumerate(requests):
        y = 28.0 + 19 * i
        squares = ["hit"] * matched + ["new"] * (tokens - matched)
        parts.append(text(8, number(y + 12), name))
        parts += [_box(26 + 18.0 * k, y, 14, 14, state) for k, state in enumerate(squares)]
        says = f"{matched} of {tokens} reused" + (f", {evicted} evicted" if evicted else "")
        parts.append(text(142, number(y + 12), says))
    top = 28.0 + 19 * len(requests)
    nodes = read_tree(rendered)
    parts += [
        text(8, number(top + 18), f"Stored in the end: {len(nodes)} tokens", BOLD),
        *_tree(top + 28, nodes, {}),
        *_legend(top + 124),
    ]
    return canvas(top + 136, parts)


def _box(x: float, y: float, width: float, height: float, state: str) -> str:
    fill, border, thick, dash = STATES[state]
    size = f"x='{number(x)}' y='{number(y)}' width='{number(width)}' height='{number(height)}' rx='3'"
    return f"<rect {size} fill='{fill}' stroke='{border}' stroke-width='{thick}'{dash}/>"


def _token(x: float, y: float, word: str, state: str) -> list[str]:
    colour = {"wait": MUTED, "miss": RED}.get(state, INK)
    label = text(number(x + BOX / 2), number(y + 15), word, MIDDLE + f" fill='{colour}'")
    return [_box(x, y, BOX, TALL, state), label]


def _strip(y: float, words: Sequence[str], states: Sequence[str]) -> list[str]:
    parts = []
    for i, (word, state) in enumerate(zip(words, states, strict=True)):
        parts += _token(8 + 48.0 * (i + 1), y, word, state)
    return [text(8, number(y + 15), "asked"), *parts]


def _tree(top: float, nodes: Sequence[Path], marks: Mapping[Path, str]) -> list[str]:
    """Draw one column a position and one row a branch."""
    places: dict[Path, tuple[float, float]] = {(): (8.0, top)}
    parts, row = [_box(8, top, BOX, TALL, "old"), text(number(8 + BOX / 2), number(top + 15), "root", MIDDLE)], -1
    for i, node in enumerate(nodes):
        if i == 0 or nodes[i - 1] != node[:-1]:
            row += 1
        x, y = 8 + 48.0 * len(node), top + 38.0 * row
        left, above = places[node[:-1]]
        state = marks.get(node, "old")
        turn = f"V{number(y + TALL / 2)}" if y > above else ""
        start = f"M{number(left + BOX)} {number(above + TALL / 2)}h4.5{turn}H{number(x)}"
        parts.append(path(start, STATES[state][1], STATES[state][2], STATES[state][3]))
        parts += _token(x, y, node[-1] + ("?" if state == "miss" else ""), state)
        places[node] = (x, y)
    return parts


def _legend(y: float) -> list[str]:
    parts, x = [], 8.0
    for state, words in LEGEND.items():
        parts += [_box(x, y - 10, 14, 12, state), text(number(x + 20), number(y), words)]
        x += 40 + 7.2 * len(words)
    return parts


def layer_bars(series: Mapping[str, ArrayLike]) -> str:
    """Draw, for each series, one bar a layer: how far a key is from the reference, in percent of its length."""
    arrays = {name: np.asarray(values, float) for name, values in series.items()}
    top = max(float(values.max()) for values in arrays.values())
    parts, y = [], 0.0
    for name, values in arrays.items():
        panel = Panel(8, y + 40, WIDTH - 16, 56, (-0.5, values.size - 0.5), (0, top))
        layers = range(values.size)
        parts += [
            text(8, number(y + 18), name, BOLD),
            path(panel.grid([0]), GRID),
            path(panel.bars(layers, values), MUTED, 30),
            *[text(panel.px(i), float(panel.py(v)) - 5, f"{v:.0f} %", MIDDLE) for i, v in enumerate(values)],
            *[text(panel.px(i), number(y + 111), f"layer {i}", MIDDLE) for i in layers],
        ]
        y += 124
    return canvas(y, parts)


def node_strips(num_layers: int, num_heads: int, head_dim: int) -> str:
    """Draw one token's keys and values twice: as two small arrays a layer, and as one row."""
    width = (WIDTH - 16) / (2 * num_layers)
    values = num_heads * head_dim
    parts = [
        text(8, 18, f"The source: {2 * num_layers} small tensors a node", BOLD),
        text(8, 78, "This library: the same numbers in one row", BOLD),
        text(8, 138, f"dark K, light V: {num_heads} heads × {head_dim} numbers"),
        text(8, 156, f"{num_layers} layers × 2 × {values} × 4 bytes = {num_layers * 2 * values * 4:,} bytes"),
    ]
    for kind, colour in enumerate((MUTED, PALE)):
        middles = [8 + width * (2 * layer + kind + 0.5) for layer in range(num_layers)]
        for y, share in ((28, 0.62), (88, 1.0)):
            data = "".join(f"M{number(x)} {y}v30" for x in middles)
            parts.append(path(data, colour, width * share))
    return canvas(166, parts)


def scan_line(rooms: ArrayLike, rates: ArrayLike, need: int) -> str:
    """Draw hit rate in percent against room, and a line where everything fits."""
    x, y = np.asarray(rooms, float), np.asarray(rates, float)
    panel = Panel(36, 30, WIDTH - 50, 130, (float(x.min()), float(x.max())), (0, 100))
    return canvas(
        202,
        [
            text(8, 18, "Hit rate in %, against the room for tokens", BOLD),
            path(panel.grid((0, 50, 100)), GRID),
            path(f"M{panel.px(need)} 30v130", MUTED, 1, " stroke-dasharray='4 3'"),
            text(float(panel.px(need)) + 5, 110, "all five fit"),
            path(panel.line(x, y), GREEN, 2.4),
            *[text(32, float(panel.py(level)) + 4, f"{level}", END) for level in (0, 50, 100)],
            *[text(panel.px(v), 178, f"{v:g}", MIDDLE) for v in x.tolist() if v % 8 == 0],
            text(WIDTH / 2, 196, "tokens", MIDDLE),
        ],
    )


def as_text(lines: Sequence[str]) -> str:
    """Return lines as HTML that keeps their spacing."""
    return f"<pre>{html.escape(chr(10).join(lines))}</pre>"
