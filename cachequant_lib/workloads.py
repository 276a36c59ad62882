"""The texts and traces that the experiments run on. Data only: nothing here is timed.

Token counts are those of GPT-2's own tokenizer; other tokenizers give others. The texts are ours, their lengths and
the tokens they share are those of the source project, so that its figures can stand beside ours.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CONVERSATIONS",
    "EVALUATION_PASSAGES",
    "LONG_PROMPT",
    "PROMPT_SETS",
    "SHORT_PROMPT",
    "TRACES",
    "Conversation",
    "Script",
    "chat_trace",
    "few_shot_trace",
    "scan_trace",
]

#: Eight tokens: the short profile, almost all decode (8 prompt tokens, 50 new ones).
SHORT_PROMPT = "The dream of artificial intelligence is older than"

#: 270 tokens: the long profile, mostly prefill (this passage, then 10 new tokens).
LONG_PROMPT = (
    "The word computer once meant a person. In the offices of astronomers and insurers, rows of men and "
    "women worked through long sums by hand, checked one another's columns, and sent the totals upstairs. "
    "Charles Babbage wanted a machine to do the same work without the mistakes, and although his engine "
    "was never finished, Ada Lovelace saw that a device which handles numbers by rule could also handle "
    "anything that numbers stand for. A hundred years passed before the parts were good enough. During "
    "the war, rooms full of valves broke ciphers and traced the paths of shells, and the people who wired "
    "them learned that the hard part was not the arithmetic but the instructions. The idea of keeping the "
    "instructions in the same memory as the data turned a calculator into a general machine, and it is "
    "still the plan of every processor sold today. Then the valves became transistors, the transistors "
    "shrank until thousands of millions fitted on a thumbnail, and the clock ran faster every year until "
    "heat put an end to that. Memory did not keep up. A modern core can multiply far more quickly than it "
    "can fetch the numbers to be multiplied, so it spends much of its life waiting. Whoever wants a "
    "program to run fast now asks first how many bytes it must move, and only then how much there is to "
    "compute. The rest of this story is about"
)

_PREAMBLE = "Give a short and correct answer to each of the questions that follow. Question:"
_LONG_PREAMBLE = LONG_PROMPT + " its machines. Question:"

#: Five prompts a set, asked in this order. ``high_reuse``: 23 to 26 tokens, a preamble of 16 in common.
#: ``long_high_reuse``: 282 to 286 tokens, 275 in common. ``no_reuse``: 7 to 10 tokens; the fifth begins as the first.
PROMPT_SETS: dict[str, tuple[str, ...]] = {
    "high_reuse": (
        _PREAMBLE + " What is the capital of Norway?",
        _PREAMBLE + " What is the chemical symbol of common table salt?",
        _PREAMBLE + " Who painted the Sunflowers?",
        _PREAMBLE + " What is the distance from Earth to the Moon?",
        _PREAMBLE + " Which planet has the most known moons?",
    ),
    "long_high_reuse": (
        _LONG_PREAMBLE + " Who first wrote programs by hand?",
        _LONG_PREAMBLE + " Where did the valves come from?",
        _LONG_PREAMBLE + " What put an end to faster clocks?",
        _LONG_PREAMBLE + " What does a modern core spend waiting on?",
        _LONG_PREAMBLE + " Who saw what numbers could stand for, and when?",
    ),
    "no_reuse": (
        "The old lighthouse keeper woke to find",
        "Bread dough rises because the yeast inside it feeds",
        "My grandmother's old violin was made by",
        "When the river froze over that winter",
        "The last train to the coast leaves at noon",
    ),
}

#: The source's evaluation: three short passages of three kinds, about a hundred tokens in all. Too few to rank by.
EVALUATION_PASSAGES: dict[str, str] = {
    "news": (
        "The harbour town voted on Sunday to rebuild the old ferry terminal, which storms have closed three times "
        "since the spring. Work begins in March, and the mayor expects the first boats a year later."
    ),
    "code comment": (
        "# Walk the list from the end, because removing an item moves every later one forward; "
        "return how many were removed, so that the caller can tell an empty list from a clean one."
    ),
    "dialogue": (
        '"You kept the letters?" she asked. "All of them," he said, "except the last, which I was never brave enough '
        'to open."'
    ),
}


# ---- Conversations ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Conversation:
    """What was said so far, as the one text that a model without a memory must be sent at every turn.

    Attributes
    ----------
    transcript : str
        Begins as the system prompt.
    """

    transcript: str

    def prompt(self, line: str) -> str:
        """Return the text to send when the user says `line`: it ends where the reply begins."""
        return f"{self.transcript}\nUser: {line}\nAssistant:"

    def after(self, line: str, reply: str) -> "Conversation":
        """Return the conversation with this turn added; the space around the reply is dropped."""
        return replace(self, transcript=f"{self.prompt(line)} {reply.strip()}")


@dataclass(frozen=True)
class Script:
    """A system prompt, and what the user says turn by turn, whatever the replies are."""

    system: str
    lines: tuple[str, ...]


#: Eight turns each. With replies of 12 tokens the prompts grow from 25 to 207 tokens, 26 to 208 and 297 to 489.
CONVERSATIONS: dict[str, Script] = {
    "city": Script(
        "You are a friendly local guide who answers visitors to Lisbon very briefly.",
        (
            "Where should I start?",
            "How long does it take to walk there?",
            "Is it open on Mondays too?",
            "What can I eat close to it?",
            "Who built it, and when?",
            "Are there older ones in the city?",
            "Which of those do you like the most?",
            "How do I get back from there?",
        ),
    ),
    "language": Script(
        "You are a patient teacher who explains the programming language Rust to complete beginners.",
        (
            "What makes it special?",
            "Who owns a value in it, then?",
            "What happens when I move one?",
            "Can two parts share it at once?",
            "How does it check that so early?",
            "Does that make all my programs any slower?",
            "Which of these rules is the hardest?",
            "How would you practise it first?",
        ),
    ),
    "passage": Script(
        LONG_PROMPT + " its machines. Answer every question about this text in one short sentence.",
        (
            "Who did the sums at first?",
            "What did he want to build instead?",
            "Did she see more in it?",
            "What did the war add to all that?",
            "Why was that the hard part of the work?",
            "What happened to the clock, and why did it stop?",
            "What does it wait for most of the time?",
            "So what should I ask first about my program?",
        ),
    ),
}


# ---- Traces: prompts as token ids, for caches without a model --------------------------------------------------------

Prompt = NDArray[np.int64]
_VOCAB = 50_257


def chat_trace(num_requests: int = 600, seed: int = 0) -> Iterator[Prompt]:
    """Yield the prompts of twelve people chatting at once: each request is all that one of them said so far, and more.

    One of four system prompts of 60 tokens, then 30 tokens from the user and 50 from the assistant a turn. After eight
    turns a conversation is over and a new one takes its place.
    """
    rng = np.random.default_rng(seed)
    systems = [_tokens(rng, 60) for _ in range(4)]
    weights = 1.0 / np.arange(1, 13)  # some people answer faster than others
    talks: list[list[Prompt]] = [[] for _ in weights]
    for _ in range(num_requests):
        talk = talks[int(rng.choice(len(talks), p=weights / weights.sum()))]
        if len(talk) == 0 or len(talk) == 17:
            talk[:] = [systems[int(rng.integers(4))]]
        talk.append(_tokens(rng, 30))
        yield np.concatenate(talk)
        talk.append(_tokens(rng, 50))


def few_shot_trace(num_requests: int = 600, seed: int = 0) -> Iterator[Prompt]:
    """Yield questions of 25 tokens, each after the worked examples of one of 24 tasks: 400 tokens, some asked often."""
    rng = np.random.default_rng(seed)
    tasks = [_tokens(rng, 400) for _ in range(24)]
    weights = 1.0 / np.arange(1, len(tasks) + 1)
    for _ in range(num_requests):
        task = tasks[int(rng.choice(len(tasks), p=weights / weights.sum()))]
        yield np.concatenate([task, _tokens(rng, 25)])


def scan_trace(num_requests: int = 600, seed: int = 0) -> Iterator[Prompt]:
    """Yield two kinds of prompts in turn: a question to one of six assistants, and the next of sixty documents.

    An assistant has 300 tokens and a question 20; a document has 300, and after the last one comes the first again.
    """
    rng = np.random.default_rng(seed)
    hot = [_tokens(rng, 300) for _ in range(6)]
    documents = [_tokens(rng, 300) for _ in range(60)]
    for i in range(num_requests):
        start = documents[i // 2 % len(documents)] if i % 2 else hot[int(rng.integers(len(hot)))]
        yield np.concatenate([start, _tokens(rng, 20)])


def _tokens(rng: np.random.Generator, count: int) -> Prompt:
    return rng.integers(0, _VOCAB, count)


#: The traces by name; each takes a number of requests and a seed, and yields the same prompts every time.
TRACES = {"chat": chat_trace, "few-shot": few_shot_trace, "scan": scan_trace}
