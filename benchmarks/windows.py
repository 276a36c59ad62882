"""The text of a sweep, cut into windows that are scored in a shuffled order: any first part of it is a fair sample."""

from __future__ import annotations

import hashlib
import os
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import scoring
from benchmarks.records import BenchmarkError, significant
from cachequant_lib.bench import pin_threads
from cachequant_lib.errors import ContextLengthError, FormatError, TokenError
from cachequant_lib.evaluate import Interval, mean_interval
from cachequant_lib.model.base import Model
from cachequant_lib.model.registry import heldout_text, load

Scores = dict[str, float]
Counts = NDArray[np.int64]

HUB_TEXT = ("ggml-org/ci", "wikitext-2-raw-v1.zip", "wikitext-2-raw/wiki.test.raw")
WIKITEXT = "WikiText-2 raw, test"
KNOWN = {"bbf94c53a05abe9ee670d3b6343608095822c85e26de37c70b24fc571964574a": WIKITEXT}
WINDOW = 512
SEED = 0
_ONE = threading.Lock()


@dataclass(frozen=True)
class Text:
    """A text as one model reads it.

    Attributes
    ----------
    name, sha256 : str
    num_bytes : int
    windows : tuple of tuple of int
        Token ids; each window after the first begins with the token that the one before it was last asked for.
    order : tuple of int
        In which windows are scored: a permutation.
    protocol : dict
        What must be known to get the same numbers again.
    """

    name: str
    sha256: str
    num_bytes: int
    windows: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    protocol: dict[str, Any]

    @property
    def num_scored(self) -> int:
        """Tokens of the whole text that are scored: all but the first."""
        return sum(len(window) - 1 for window in self.windows)


def read_text(source: str | None, model: Model, window: int | None) -> Text:
    """Read a text and cut it into windows for a model.

    Parameters
    ----------
    source : str, optional
        "heldout" (Jane Austen, comes with the library), "hub" (WikiText-2 raw, the test part, 5 MB from the Hugging
        Face hub) or a path; by default what ``CACHEQUANT_TEXT`` says, else "heldout".
    model : Model
    window : int, optional
        Tokens fed at a time; by default 512, or the model's context if that is shorter.

    Raises
    ------
    BenchmarkError
        The text cannot be read.
    TokenError, ContextLengthError, FormatError
        It has fewer than two tokens; the window is longer than the context, or no positive number.
    """
    name, text = _find(source or os.environ.get("CACHEQUANT_TEXT") or "heldout")
    context = model.config.context_length
    window = min(WINDOW, context) if window is None else window
    if window < 1:
        raise FormatError(f"a window must have at least 1 token, got {window}")
    if window > context:
        raise ContextLengthError(f"window {window} is longer than {model.name}'s context {context}")
    ids = model.tokenizer.encode(text)
    if len(ids) < 2:
        raise TokenError(f"a text of at least 2 tokens is needed to score one, {name} has {len(ids)}")
    windows = tuple(tuple(ids[first : first + window + 1]) for first in range(0, len(ids) - 1, window))
    raw = text.encode()
    sha256 = hashlib.sha256(raw).hexdigest()
    protocol = {
        "text": KNOWN.get(sha256, name),
        "text_sha256": sha256,
        "text_bytes": len(raw),
        "text_tokens": len(ids),
        "window": window,
        "stride": window,
        "bos": False,
        "scored": "every token after the text's first, once; a window's first token sees only itself",
        "num_windows": len(windows),
        "order": f"windows shuffled with seed {SEED}",
    }
    order = tuple(int(i) for i in np.random.default_rng(SEED).permutation(len(windows)))
    return Text(protocol["text"], sha256, len(raw), windows, order, protocol)


def _find(source: str) -> tuple[str, str]:
    """Name and contents of a text."""
    if source == "heldout":
        return "Jane Austen, held out", heldout_text()
    try:
        if source == "hub":
            import huggingface_hub as hub

            archive = hub.hf_hub_download(HUB_TEXT[0], HUB_TEXT[1], repo_type="dataset")
            with zipfile.ZipFile(archive) as opened:
                return WIKITEXT, opened.read(HUB_TEXT[2]).decode()
        return Path(source).stem, Path(source).expanduser().read_text("utf-8")
    except Exception as problem:  # the hub's errors share no base class
        raise BenchmarkError(
            f"cannot read the text {source!r} ({type(problem).__name__}: {problem}); "
            "give --text a UTF-8 file, 'heldout', or 'hub' where there is a network and HF_HUB_OFFLINE=0"
        ) from problem


def key(model: Model, text: Text) -> dict[str, Any]:
    """All that the numbers of a sweep depend on, whichever of its jobs they come from."""
    protocol = {name: value for name, value in text.protocol.items() if name != "text"}
    return {"layout": 1, "model": model.fingerprint, **protocol}


@lru_cache(maxsize=1)
def known_model(name: str, fingerprint: str) -> Model:
    """Load a model in a worker, once, and see that it is the one the sweep is about.

    Raises
    ------
    BenchmarkError
        This computer has another model of that name.
    """
    model = load(name)
    if model.fingerprint != fingerprint:
        raise BenchmarkError(f"{name} is another model here: {model.fingerprint} instead of {fingerprint}")
    return model


def alone(do: Callable[[Any], Any], job: Any) -> Any:
    """Do a job with one thread, and only one job at a time in this process: what jobs share is overwritten.

    With one thread, sums of products come out the same on every worker of one kind.
    """
    with _ONE, pin_threads(1):
        return do(job)


@lru_cache(maxsize=1)
def known_base(name: str, fingerprint: str, ids: tuple[int, ...]) -> scoring.Base:
    """What the unquantised model predicts in a window; kept until another window comes."""
    return scoring.base(known_model(name, fingerprint), ids)


def score(name: str, fingerprint: str, ids: tuple[int, ...], model: Model | None) -> Scores:
    """Score a window with a model made of the named one, or with that itself if None is given.

    Returns
    -------
    dict
        ``nll`` and, for another model, ``kl``: sums over the window's tokens, nats; ``kl_max``; and ``same``, at how
        many positions both models find the same token likeliest.
    """
    base = known_base(name, fingerprint, ids)
    if model is None:
        return {"nll": round(float(scoring.surprise(base).sum()), 4)}
    far = scoring.beside(base, model, ids)
    return {
        "nll": round(float(far.nll.sum()), 4),
        "kl": float(f"{far.kl.sum():.6g}"),
        "kl_max": float(f"{far.kl.max():.4g}"),
        "same": int(far.same.sum()),
    }


def interval(found: Interval, digits: int = 7) -> dict[str, float]:
    """An interval as it is stored."""
    return {name: significant(getattr(found, name), digits) for name in ("value", "low", "high")}


def exp_interval(sums: NDArray[np.float64], counts: NDArray[np.int64]) -> dict[str, float]:
    """``exp`` of a mean per token and its 95 % interval, windows drawn again: a perplexity, or a ratio of two."""
    found = mean_interval(sums, counts)
    return interval(Interval(*(float(np.exp(v)) for v in (found.value, found.low, found.high))))


def measures(scores: dict[str, NDArray[Any]], base: NDArray[Any] | None, counts: Counts, text: Text) -> dict[str, Any]:
    """Perplexity and bits per byte of one cell, and its distances from the base, from the sums of each window."""
    nll = scores["nll"]
    bits = float(nll.sum() / counts.sum()) / np.log(2) * text.num_scored / text.num_bytes
    out: dict[str, Any] = {"perplexity": exp_interval(nll, counts), "bits_per_byte": significant(bits, 7)}
    if base is not None:
        out |= {
            "ratio": exp_interval(nll - base, counts),
            "kl_mean": interval(mean_interval(scores["kl"], counts)),
            "kl_max": float(scores["kl_max"].max()),
            "top1_agreement": interval(mean_interval(scores["same"], counts)),
        }
    return out


def complete(found: Mapping[str, Any], text: Text, names: Sequence[str]) -> list[int]:
    """Numbers of the windows for which the job of every cell is done, ``NAME/WINDOW``, in the order of the sweep."""
    return [number for number in text.order if all(f"{name}/{number}" in found for name in names)]


def tabulate(found: Mapping[str, Any], names: Sequence[str], base: str, text: Text) -> dict[str, Any]:
    """The part of a record that a sweep over cells gives, from the windows that every cell has scored.

    Raises
    ------
    BenchmarkError
        There is none yet.
    """
    numbers = complete(found, text, names)
    if not numbers:
        raise BenchmarkError("no window is finished for every cell yet; run the same command again")
    counts = np.array([len(text.windows[number]) - 1 for number in numbers], np.int64)
    sums: dict[str, dict[str, NDArray[Any]]] = {}
    for name in names:
        rows = [found[f"{name}/{number}"] for number in numbers]
        sums[name] = {kind: np.array([row[kind] for row in rows]) for kind in rows[0]}
    measured = {n: measures(s, None if n == base else sums[base]["nll"], counts, text) for n, s in sums.items()}
    whole = len(numbers) == len(text.windows)
    words = "the whole text" if whole else f"{len(numbers)} of {len(text.windows)} windows, drawn at random"
    return {
        "protocol": text.protocol,
        "scored": {"windows": len(numbers), "tokens": int(counts.sum()), "whole_text": whole, "in_words": words},
        "interval": "95 %, bootstrap over windows; a ratio is paired: the same windows for both models",
        "measured": measured,
        "windows": {"numbers": numbers, "tokens": counts.tolist()},
    }
