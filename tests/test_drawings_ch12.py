"""Chapter 12's figures: well-formed and legible, each token in the state it should have, the tree read back whole."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import pairwise

import pytest

from cachequant_lib.drawings import canvas, ch12
from cachequant_lib.kv.trie import TokenTrie

WORDS = ["The", "cat", "sat", "on", "the", "mat", "near", "a", "lake", "'tis", "─ x"]
A, B, C = [0, 1, 2], [0, 1, 2, 3, 4, 5], [0, 1, 2, 6, 7, 8]
SVG = "{http://www.w3.org/2000/svg}"


def rendered(*prompts: list[int]) -> str:
    trie = TokenTrie()
    for prompt in prompts:
        trie.insert(prompt)
    return trie.render(lambda ids: WORDS[ids[0]])


def step_of_c(step: int) -> str:
    tree = rendered(A, B, C) if step == 3 else rendered(A, B)
    return ch12.request_frame([WORDS[i] for i in C], 3, step, tree, "Request C: 3 of 6 tokens reused")


FIGURES = {
    "empty": ch12.request_frame(["The", "cat"], 0, 1, rendered(), "Request A"),
    "look up": step_of_c(1),
    "compute": step_of_c(2),
    "store": step_of_c(3),
    "pressure": ch12.pressure_frame(10, [("A", 3, 0, 0), ("B", 6, 3, 12)], rendered(A, B, C)),
    "layers": ch12.layer_bars({"Same beginning, longer prompt": [0.0] * 6, "Other": [0.0, 25, 16, 11, 12, 12]}),
    "node": ch12.node_strips(12, 12, 64),
    "scan": ch12.scan_line(range(24, 49), [0.0] * 12 + [87.5] * 13, 40),
}


@pytest.mark.parametrize("text", FIGURES.values(), ids=FIGURES)
def test_figures_are_sound(text: str, drawn_well: Callable[[str, int], None]) -> None:
    drawn_well(text, 8_000)
    for box in ET.fromstring(text).iter(f"{SVG}rect"):
        assert float(box.attrib["x"]) + float(box.attrib["width"]) <= canvas.WIDTH


def boxes(text: str) -> list[tuple[str, str]]:
    """Return (word, border colour) of each token, in the order drawn."""
    ink = list(ET.fromstring(text))[1]
    parts = list(ink)
    pairs = pairwise(parts)
    return [(b.text or "", a.attrib["stroke"]) for a, b in pairs if a.tag == f"{SVG}rect" and b.tag == f"{SVG}text"]


def test_states_of_request_c() -> None:
    green, dashed = ch12.STATES["hit"][1], ch12.STATES["new"][1]
    asked, tree = boxes(step_of_c(1))[:6], boxes(step_of_c(1))[6:-3]
    assert [word for word, colour in asked if colour == green] == ["The", "cat", "sat"]
    assert [word for word, colour in asked if colour == canvas.RED] == ["near"]
    assert [word for word, colour in tree if colour == canvas.RED] == ["near?"]
    assert [word for word, colour in tree if colour == green] == ["The", "cat", "sat"]
    stored = boxes(step_of_c(3))[6:-3]
    assert [word for word, colour in stored if colour == dashed] == ["near", "a", "lake"]
    assert [word for word, colour in stored if colour == canvas.MUTED] == ["root", "on", "the", "mat"]
    assert canvas.RED not in step_of_c(2) + step_of_c(3)


def test_reading_a_tree_back() -> None:
    words = [[WORDS[i] for i in prompt] for prompt in (A, B, C)]
    want = {tuple(w[: n + 1]) for w in words for n in range(len(w))}
    found = ch12.read_tree(rendered(A, B, C))
    assert set(found) == want
    assert len(found) == len(want)
    assert all(path[:-1] in found[:i] or len(path) == 1 for i, path in enumerate(found))
    assert ch12.read_tree(rendered()) == []
    assert ch12.read_tree(rendered([9, 10])) == [("'tis",), ("'tis", "─ x")]


def test_text_is_escaped() -> None:
    assert ch12.as_text(["<b>", "a & b"]) == "<pre>&lt;b&gt;\na &amp; b</pre>"
