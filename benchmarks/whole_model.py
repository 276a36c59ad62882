"""What the speed experiment asks of every engine, ours or another project's.

Only NumPy and the standard library are used here, because the other projects' engines run in an environment of their
own (see :mod:`benchmarks.peers`), which has nothing else of this project.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

KIBI = 1024


class WholeModel(ABC):
    """One model in one process: what it computes, how long that takes, and how much memory it needs."""

    vocab_size: int
    empty_bytes = 0  # of the process when its packages were imported and no weight was there yet

    @abstractmethod
    def generate(self, prompt: Sequence[int], new_tokens: int) -> dict[str, Any]:
        """Greedy decoding from an empty cache; end-of-text does not stop it.

        Returns ``token_ids``, ``first_s`` (seconds from the prompt's ids to the first new token) and ``rest_s``
        (seconds for all later ones). Choosing the tokens is within both.
        """

    @abstractmethod
    def logits(self, token_ids: Sequence[int], first: int) -> Any:
        """Scores after ``first`` tokens, after one more, and so on to the last: shape (T - first + 1, V)."""

    def filler(self, num_tokens: int) -> list[int]:
        """Token ids without meaning: dense arithmetic takes the same time whatever they are."""
        return np.random.default_rng(num_tokens).integers(0, self.vocab_size, num_tokens).tolist()

    def time_first_token(self, num_tokens: int, min_sample_s: float) -> float:
        """Seconds from a prompt's ids to the first new token: the prefill, and the choice."""
        prompt, spent, calls = self.filler(num_tokens), 0.0, 0
        while spent < min_sample_s or calls == 0:
            spent += self.generate(prompt, 1)["first_s"]
            calls += 1
        return spent / calls

    def time_decode_tokens(self, context: int, new_tokens: int) -> float:
        """Seconds for each of ``new_tokens`` tokens after the first, with ``context`` prompt tokens behind them."""
        return float(self.generate(self.filler(context), new_tokens + 1)["rest_s"]) / new_tokens

    def check(self, reference: str) -> dict[str, Any]:
        """Compare with the scores in a file: how long is the difference, how often is the winner the same?"""
        with np.load(reference) as stored:
            ids, expected = stored["ids"].tolist(), stored["logits"]  # (T,), (rows, V)
            tokens = stored["tokens"].tolist()
        found = np.asarray(self.logits(ids, len(ids) - len(expected) + 1), np.float32)  # (rows, V)
        new = self.generate(ids, len(tokens))["token_ids"]
        return {
            "relative_error": float(np.linalg.norm(found - expected) / np.linalg.norm(expected)),
            "same_winner": float((found.argmax(axis=1) == expected.argmax(axis=1)).mean()),
            "rows": len(expected),
            "same_tokens": next((n for n, (a, b) in enumerate(zip(new, tokens, strict=True)) if a != b), len(tokens)),
            "tokens": len(tokens),
        }

    def memory(self, reset: bool = False) -> dict[str, int]:
        """Bytes of this process in memory now, and at most since the last reset. Empty where Linux does not tell.

        A reset first gives back to the system what was freed: the fp32 weights that a quantised model was made from
        are gone, but the C library would keep their pages for later.
        """
        try:
            if reset:
                with contextlib.suppress(AttributeError):  # not every C library has it
                    ctypes.CDLL(None).malloc_trim(0)
                Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from what is held now
            text = Path("/proc/self/status").read_text()
        except OSError:
            return {}
        found = {line.split(":")[0]: int(line.split()[1]) * KIBI for line in text.splitlines() if line.startswith("Vm")}
        return {"empty": self.empty_bytes, "now": found["VmRSS"], "peak": found["VmHWM"]}

    def note_empty(self) -> None:
        """Remember the memory of the process so far: an engine calls it when it has imported what it needs."""
        self.empty_bytes = self.memory().get("now", 0)

    def versions(self) -> dict[str, str]:
        """Packages that do the work, by name."""
        return {}


class Stepwise(WholeModel):
    """An engine that is fed tokens pass by pass, and keeps a position."""

    @abstractmethod
    def forward(self, token_ids: Sequence[int]) -> Any:
        """Append tokens and return the logits; this call is what the clock sees."""

    @abstractmethod
    def truncate(self, length: int) -> None:
        """Forget everything after the first ``length`` tokens."""

    def best(self, logits: Any) -> int:
        """The id with the highest logit in the last row."""
        return int(logits[-1].argmax())

    def generate(self, prompt: Sequence[int], new_tokens: int) -> dict[str, Any]:
        """As :class:`WholeModel` says."""
        self.truncate(0)
        start = time.perf_counter()
        tokens = [self.best(self.forward(prompt))]
        first_s = time.perf_counter() - start
        start = time.perf_counter()
        for _ in range(new_tokens - 1):
            tokens.append(self.best(self.forward(tokens[-1:])))
        return {"token_ids": tokens, "first_s": first_s, "rest_s": time.perf_counter() - start}

    def logits(self, token_ids: Sequence[int], first: int) -> Any:
        """One pass over the first tokens, then one token a pass: both ways of computing are seen."""
        self.truncate(0)
        passes = [token_ids[:first], *([token] for token in token_ids[first:])]
        return np.stack([np.array(self.forward(ids)[-1], np.float32) for ids in passes])  # (rows, V)
