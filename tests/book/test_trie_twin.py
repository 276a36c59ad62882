"""The tree on the page of chapter 12 and the library's TokenTrie: the same answers to one set of requests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from playwright.sync_api import Page

from cachequant_lib.kv.trie import TokenTrie, TrieNode

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "book" / "_static" / "trie.js"
VECTORS = json.loads(Path(__file__).with_name("trie_vectors.json").read_text("utf-8"))
CHAPTER = "notebooks/12-a-trie-grows.html"
AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")
each = pytest.mark.parametrize("vector", VECTORS, ids=[v["name"] for v in VECTORS])
LOOKS = [(1280, "light"), (1280, "dark"), (375, "light"), (375, "dark")]


class Words:
    """Word <-> id, in order of first use."""

    def __init__(self) -> None:
        self.known: list[str] = []

    def ids(self, text: str) -> list[int]:
        """Return the ids of the words of a prompt."""
        words = text.split()
        self.known += [w for w in dict.fromkeys(words) if w not in self.known]
        return [self.known.index(w) for w in words]

    def path(self, node: TrieNode) -> list[str]:
        """Return the words from the root to a node."""
        return [*(self.path(node.parent) if node.parent and node.parent.parent else []), self.known[node.token_id]]


def replay(vector: dict[str, Any]) -> dict[str, Any]:
    """Ask the library's trie what the page asks its own."""
    trie, words, steps = TokenTrie(vector["cap"]), Words(), []
    for prompt in vector["prompts"]:
        ids = words.ids(prompt)
        matched, _ = trie.lookup(ids[:-1])
        before = {tuple(words.path(node)) for node in trie._nodes()}
        added = trie.insert(ids)
        gone = before - {tuple(words.path(node)) for node in trie._nodes()}
        told = {"matched": matched, "computed": len(ids) - matched, "added": added, "stored": trie.num_tokens}
        steps.append({"tokens": prompt.split(), **told, "evicted": sorted(map(list, gone))})
    trie.check_invariants()
    return {"steps": steps, "paths": sorted(words.path(node) for node in trie._nodes())}


def expected(vector: dict[str, Any]) -> dict[str, Any]:
    """Return what a vector says should happen."""
    return {"steps": vector["steps"], "paths": vector["paths"]}


def test_vectors_cover_what_can_happen() -> None:
    steps = [(v["cap"], s) for v in VECTORS for s in v["steps"]]
    assert len(steps) > 150
    assert sum(bool(s["evicted"]) for _, s in steps) > 30
    assert any(s["stored"] > cap for cap, s in steps), "the cap is soft"
    assert any(s["added"] < s["computed"] for _, s in steps), "the last token, computed again"
    assert all(s["matched"] <= len(s["tokens"]) - 1 for _, s in steps)


@each
def test_library(vector: dict[str, Any]) -> None:
    assert replay(vector) == expected(vector)


@pytest.fixture(scope="module")
def blank(new_tab: Callable[..., Any]) -> Page:
    """Return an empty tab that has run the script, and nothing else."""
    page: Page = new_tab().page
    page.add_script_tag(path=SCRIPT)
    return page


@pytest.mark.browser
@each
def test_page_script(blank: Page, vector: dict[str, Any]) -> None:
    got = blank.evaluate(
        "v => { const { steps, paths } = CacheQuantTrie.replay(v.prompts, v.cap); return { steps, paths }; }", vector
    )
    for step in got["steps"]:
        step["evicted"].sort()
    assert {"steps": got["steps"], "paths": sorted(got["paths"])} == expected(vector)


def tree_words(page: Page) -> list[str]:
    """Return the tokens that the drawn tree shows, in order."""
    texts = page.locator(".trie-tree .trie-token").evaluate_all("e => e.map(t => t.firstChild.textContent)")
    return list(map(str, texts))


def ask(page: Page, text: str) -> str:
    """Type a prompt, press Enter, and return what is announced."""
    page.get_by_label("Your prompt").fill(text)
    page.keyboard.press("Enter")
    return page.locator(".trie-twin [role=status]").inner_text()


@pytest.mark.browser
def test_request_c_grows_a_branch(tab: Any, base: str) -> None:
    page = tab.open(base + CHAPTER)
    assert tree_words(page) == ["root", "The", "cat", "sat", "on", "the", "mat"]
    page.locator(".trie-twin").get_by_role("button", name="Ask").click()  # request C is waiting in the field
    assert tree_words(page) == ["root", "The", "cat", "sat", "on", "the", "mat", "near", "a", "lake"]
    said = page.locator(".trie-twin [role=status]").inner_text()
    assert said.startswith("6 tokens: 3 reused, 3 computed. Hit rate 50 %; at most 83 %")
    assert page.locator(".trie-tree .trie-hit").count() == 3
    assert page.locator(".trie-tree .trie-new").count() == 3
    assert tab.foreign == tab.faults == []


@pytest.mark.browser
def test_typing_and_the_room(tab: Any, base: str) -> None:
    page = tab.open(base + CHAPTER)
    page.get_by_role("button", name="Start over").click()
    assert tree_words(page) == ["root"]
    assert "at least one word" in ask(page, "   ")
    assert tree_words(page) == ["root"]
    assert "1 token: 0 reused, 1 computed. Hit rate 0 %; at most 0 %" in ask(page, "Hello")
    assert "0 reused" in ask(page, "__proto__ constructor <b>bold</b>")
    assert page.locator(".trie-twin b").count() == 0, "what is typed is text, not HTML"
    assert "3 tokens: 2 reused, 1 computed" in ask(page, "__proto__ constructor toString")
    assert page.locator(".trie-tree .trie-again").count() == 0
    ask(page, "Hello")
    assert page.locator(".trie-tree .trie-again").inner_text().startswith("Hello")
    room = page.get_by_label("Room in the cache")
    room.focus()
    page.keyboard.press("Home")
    said = page.locator(".trie-twin [role=status]").inner_text()
    assert "room for 3" in said
    assert re.search(r"evicted", page.locator(".trie-list").inner_text())
    assert tab.faults == []


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_readable_by_all(new_tab: Callable[..., Any], base: str, width: int, scheme: str) -> None:
    seen = new_tab(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = seen.open(base + CHAPTER)
    for text in (
        "The cat sat near a lake",
        "The cat sat near a lake",
        "Dogs run",
        "w" * 60,
        "a b c d e f g h i j k l m n",
    ):
        ask(page, text)
    assert seen.foreign == seen.faults == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.add_script_tag(path=AXE)
    found = page.evaluate("axe.run('.trie-twin', {resultTypes: ['violations']})")["violations"]
    assert [(v["id"], v["nodes"][0]["html"][:200]) for v in found] == []
