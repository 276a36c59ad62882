"""Checkers for chapter 12, A trie grows. Each prints one sentence about the answer it is given."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np

from cachequant_lib.exercises.answers import checker, number, outcome, words
from cachequant_lib.kv.trie import TokenTrie

__all__ = ["EX5_PARTS", "EX5_REQUESTS", "check_ex1", "check_ex2", "check_ex3", "check_ex4", "check_ex5"]

# Four requests of two days: the same instructions always, the date of the day, a question of one's own.
EX5_PARTS = {
    "instructions": ["You are a helpful clerk . Answer briefly ."] * 4,
    "date": ["Today is Monday ."] * 2 + ["Today is Tuesday ."] * 2,
    "question": ["Where is Bath ?", "Who is Emma ?", "Why not now ?", "How far is London ?"],
}
EX5_REQUESTS = 4


@checker
def check_ex1(answer: object) -> None:
    """Check (reused, computed, nodes added) of two requests to a cache that holds A, B and C."""
    try:
        first, second = (tuple(int(v) for v in row) for row in answer)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        first = second = ()
    if len(first) != 3 or len(second) != 3:
        print("Give two rows of three whole numbers, like [[0, 0, 0], [0, 0, 0]].")
    elif first[0] + first[1] != 6 or second[0] + second[1] != 6:
        print("Each of the two prompts has 6 tokens, and each token is either reused or computed.")
    elif first == (5, 1, 1):
        print("There is an 'a' in the tree, but it follows 'near'. Below 'on' there is only 'the'.")
    elif first == (3, 3, 3):
        print("Walk one step further: 'sat' does have a child 'on'.")
    elif first != (4, 2, 2):
        print("First prompt: walk down from the root and stop at the first word that is not a child.")
    elif second == (6, 0, 0):
        print("Second prompt: the last token is never looked up, so at most 5 of 6 can be reused.")
    elif second == (5, 1, 1):
        print("Second prompt: 'mat' is computed again, but its node is there already.")
    elif second != (5, 1, 0):
        print("Second prompt: all its nodes exist. Which token is computed nevertheless?")
    else:
        print("Right. The first branches off below 'on'; the second computes 'mat' again and stores nothing.")


def _total(prompts: Sequence[Sequence[int]]) -> int:
    trie, total = TokenTrie(10_000), 0
    for prompt in prompts:
        total += trie.lookup(prompt[:-1])[0]
        trie.insert(prompt)
    return total


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@checker
def check_ex2(answer: object) -> None:
    """Check a function of a list of prompts that returns how many tokens come from an empty, roomy cache."""
    rng = np.random.default_rng(12)
    random = [rng.integers(0, 3, size=int(rng.integers(1, 9))).tolist() for _ in range(60)]
    alike = [[1, 2, 3], [1, 2, 4], [1, 2, 5]]
    for prompts in ([[1, 2, 3]], alike[:2], [alike[0], [9], alike[1]], alike, [[1, 2], [1, 2]], random):
        got, want = number(outcome(answer, [list(prompt) for prompt in prompts])), _total(prompts)
        pairs = [(prompts[i], prompts[:i]) for i in range(len(prompts))]
        if got == want:
            continue
        if got == sum(max((_common(p, q) for q in before), default=0) for p, before in pairs):
            print("Nearly: the last token of a prompt is never reused, so at most N - 1 of N count.")
        elif got == sum(_common(p, q) for p, before in pairs for q in before):
            print("That adds up all earlier prompts. A request is served by the one that shares the most.")
        elif got == sum(min(_common(p, before[-1]), len(p) - 1) for p, before in pairs if before):
            print("That looks at the previous prompt only. The tree remembers all of them.")
        elif len(prompts) == 1:
            print(f"A single prompt finds an empty cache: 0 tokens reused, not {got:g}.")
        else:
            shown = prompts if len(prompts) < 5 else "60 random prompts"
            print(f"For {shown} it gives {got:g}, the cache {want}. Compare with each earlier prompt, token by token.")
        return
    print("Right. A trie finds the longest beginning shared with any earlier prompt, without comparing them all.")


@checker
def check_ex3(answer: object) -> None:
    """Check a function of (num_layers, num_kv_heads, head_dim) that returns the bytes of one token in float32."""
    for shape in ((12, 12, 64), (6, 4, 64), (30, 3, 64)):
        layers, heads, dim = shape
        got, want = number(outcome(answer, *shape)), layers * 2 * heads * dim * 4
        slips = {
            want // 2: "That is the keys alone. Each token has a value beside each key.",
            want // 4: "Those are the numbers. Each takes 4 bytes in float32.",
            want * 2: "That is 8 bytes a number. float32 has 32 bits, which is 4 bytes.",
            want // layers: "That is one layer. Every layer keeps keys and values of its own.",
            want // 8: "That is the keys alone, counted in numbers, not in bytes.",
        }
        if got != want:
            general = f"For {layers} layers, {heads} heads of {dim} it gives {got:g} bytes. Count the numbers first."
            print(slips.get(int(got), general))
            return
    print("Right. 73,728 bytes for GPT-2 small; SmolLM2-135M, with 3 key-value heads in 30 layers, needs 46,080.")


@checker
def check_ex4(answer: object) -> None:
    """Check the order in which words are evicted after A, B, C and B again."""
    order = words(answer)
    if len(order) != 3:
        print("Give three words in a list, in the order in which they go.")
    elif order == ["lake", "a", "near"]:
        print("Right. Request B was used last, so C's own branch goes, from its end: only a leaf may go.")
    elif order == ["near", "a", "lake"]:
        print("Those three, but not in this order: without 'near' nobody could reach 'a' and 'lake'. Leaves go first.")
    elif order[0] in ("mat", "the", "on"):
        print("B was asked again at the end, which marks its path as just used. Whose branch is older now?")
    elif order[0] in ("The", "cat", "sat"):
        print("That node is the oldest, but it has children, and every request so far walked through it.")
    else:
        print("The tree has two leaves. Start with the one that was used longer ago, then look at its parent.")


@checker
def check_ex5(answer: object) -> None:
    """Check an order of the three parts of `EX5_PARTS`, by the tokens that four requests then reuse."""
    order = tuple(words(answer))
    if sorted(order) != sorted(EX5_PARTS):
        print(f"Give the three names in an order, each once: {', '.join(EX5_PARTS)}.")
        return
    reused = {names: _reused(names) for names in permutations(EX5_PARTS)}
    got, best = reused[order], max(reused.values())
    if got == best:
        print(f"Right: {got} tokens reused in {EX5_REQUESTS} requests. What changes least goes first.")
    elif order[0] == "question":
        print(f"{got} tokens reused. A prompt that begins with what is always new shares nothing.")
    elif order[0] == "date":
        print(f"{got} tokens reused. Each new day makes the instructions after the date new as well.")
    else:
        print(f"{got} tokens reused. The instructions are well placed. What changes least among the other two?")


def _reused(order: Sequence[str]) -> int:
    numbers: dict[str, int] = {}
    texts = [" ".join(EX5_PARTS[name][i] for name in order).split() for i in range(EX5_REQUESTS)]
    return _total([[numbers.setdefault(word, len(numbers)) for word in text] for text in texts])
