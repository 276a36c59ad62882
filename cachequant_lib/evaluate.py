"""Is it still the same model? Perplexity with an error bar, and distances between two models on the same text."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cachequant_lib.errors import CacheError, ContextLengthError, FormatError, TokenError
from cachequant_lib.kv.base import KVCache
from cachequant_lib.model.base import Model

BLOCK_TOKENS = 128  # neighbouring tokens are hard or easy together, so the bootstrap draws whole stretches
MIN_BLOCKS = 8  # a shorter text is drawn in shorter stretches, and its interval is too narrow rather than none
NUM_RESAMPLES = 1000
CHUNK_ROWS = 64  # float64 log-probabilities of GPT-2's whole window would be 0.4 GB

NewKV = Callable[[Model], KVCache]


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Perplexity:
    """How surprised a model is by a text.

    Attributes
    ----------
    value : float
        ``exp`` of the mean negative log-likelihood of a token.
    low, high : float
        95 % interval of `value` by block bootstrap: where it would lie for other texts of this kind and length. Too
        narrow below about 1,000 tokens; a single token has none, and both are `value`.
    bits_per_byte : float
        The surprise of all scored tokens in bits, over all bytes of the text (those of the first token, which is not
        scored, included). The one to compare across tokenizers.
    num_tokens : int
        Tokens scored: all but the first.
    protocol : str
        What must be known to get the same number again.
    """

    value: float
    low: float
    high: float
    bits_per_byte: float
    num_tokens: int
    protocol: str


@dataclass(frozen=True)
class Comparison:
    """How far a model's predictions are from a reference's, position by position.

    Attributes
    ----------
    kl_mean, kl_max : float
        Kullback-Leibler divergence of the model from the reference, in nats: 0 for equal predictions.
    top1_agreement : float
        Share of positions at which both find the same token most likely.
    first_divergence : int or None
        First position at which they do not; None if there is none.
    num_positions : int
    perplexity_ratio : Interval
        Perplexity of the model over the reference's. Both met the same tokens, and what is hard for one is hard for
        the other: the interval of the ratio is many times narrower than those of the two perplexities, and tells
        models apart that they cannot.
    """

    kl_mean: float
    kl_max: float
    top1_agreement: float
    first_divergence: int | None
    num_positions: int
    perplexity_ratio: Interval


def perplexity(
    model: Model, text: str, window: int = 1024, stride: int | None = None, kv: str | NewKV | None = None
) -> Perplexity:
    """Score every token of a text after the first, each exactly once.

    The text is fed in windows. A window's first token has no context but itself. With a `stride` below `window`,
    windows overlap and only tokens not scored yet count: all but the early ones then have at least ``window - stride``
    tokens of context, at ``window / stride`` times the cost. No beginning-of-text token is added.

    Parameters
    ----------
    model : Model
    text : str
    window : int, default 1024
        Tokens fed at a time, at most the model's context.
    stride : int, optional
        Tokens from one window to the next; `window` if not given.
    kv : str or callable, optional
        Score token by token through a cache of this format, as decoding does: the only way in which a compressed
        cache is read at all. A callable makes the cache from the model.

    Returns
    -------
    Perplexity
        Costs one forward over the text for each ``window / stride``.

    Raises
    ------
    TokenError
        If the text has fewer than two tokens.
    ContextLengthError
        If `window` is longer than the model's context.
    FormatError
        If not ``1 <= stride <= window``, the model has no head, or it predicts NaN or infinity.
    CacheError
        If `kv` makes a cache that is not empty.
    """
    stride = window if stride is None else stride
    ids = model.tokenizer.encode(text)
    nll = np.concatenate([score for score, _ in _score(model, ids, window, stride, kv)])
    low, high = _bootstrap(nll)
    how = "one forward a window" if kv is None else f"token by token through {kv if isinstance(kv, str) else 'a'} KV"
    return Perplexity(
        value=float(np.exp(nll.mean())),
        low=low,
        high=high,
        bits_per_byte=float(nll.sum() / np.log(2) / len(text.encode())),
        num_tokens=len(nll),
        protocol=f"{model.name} {model.weight_format}, window {window}, stride {stride}, no BOS, {how}",
    )


def compare(model: Model, reference: Model, text: str, window: int = 1024, kv: str | NewKV | None = None) -> Comparison:
    """Compare a model's predictions with a reference's at every position of a text.

    Parameters
    ----------
    model, reference : Model
        With the same tokenizer.
    text : str
    window : int, default 1024
        Tokens fed at a time.
    kv : str or callable, optional
        Run `model` token by token through such a cache; `reference` always takes one forward a window.

    Returns
    -------
    Comparison
        Costs one forward of each model over the text.

    Raises
    ------
    TokenError
        If the text has fewer than two tokens, or the models' vocabularies differ.
    ContextLengthError
        If `window` is longer than either context.
    FormatError
        If a model has no head, or predicts NaN or infinity.
    """
    if model.config.vocab_size != reference.config.vocab_size:
        sizes = (model.config.vocab_size, reference.config.vocab_size)
        raise TokenError(f"expected one vocabulary, got sizes {sizes[0]} and {sizes[1]}")
    ids = model.tokenizer.encode(text)
    divergences, agreements, gaps = [], [], []
    pairs = zip(_score(model, ids, window, window, kv), _score(reference, ids, window, window, None), strict=True)
    for (nll_q, log_q), (nll_p, log_p) in pairs:
        gaps.append(nll_q - nll_p)
        divergences.append((np.exp(log_p) * (log_p - log_q)).sum(axis=-1))  # (R, V) -> (R,)
        agreements.append(log_p.argmax(axis=-1) == log_q.argmax(axis=-1))  # (R, V) -> (R,)
    kl, same, gap = np.concatenate(divergences), np.concatenate(agreements), np.concatenate(gaps)
    return Comparison(
        kl_mean=float(kl.mean()),
        kl_max=float(kl.max()),
        top1_agreement=float(same.mean()),
        first_divergence=None if same.all() else int(same.argmin()),
        num_positions=len(kl),
        perplexity_ratio=Interval(float(np.exp(gap.mean())), *_bootstrap(gap)),
    )


def _score(
    model: Model, ids: list[int], window: int, stride: int, kv: str | NewKV | None
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield the negative log-likelihoods (R,) and log-probabilities (R, V) of the new positions, a few at a time."""
    if not callable(model.head):
        raise FormatError(f"{model.name} has no head: without predictions there is nothing to score")
    if len(ids) < 2:
        raise TokenError(f"a text of at least 2 tokens is needed to score one, got {len(ids)}")
    if window > model.config.context_length:
        raise ContextLengthError(f"window {window} is longer than {model.name}'s context {model.config.context_length}")
    if not 1 <= stride <= window:
        raise FormatError(f"need 1 <= stride <= window, got stride {stride} and window {window}")
    scored = 0
    for begin in range(0, len(ids) - 1, stride):
        end = min(begin + window, len(ids) - 1)  # the last token is predicted, never fed
        if end == scored:
            return
        logits = _logits(model, ids[begin:end], kv)[scored - begin :]  # (W, V) -> (T, V)
        targets = np.array(ids[scored + 1 : end + 1])
        for first in range(0, len(logits), CHUNK_ROWS):
            rows = slice(first, first + CHUNK_ROWS)
            log_p = _log_softmax(logits[rows])
            if not np.isfinite(log_p).all():
                raise FormatError(f"{model.name} predicts NaN or infinity in tokens {begin} to {end}")
            yield -log_p[np.arange(len(log_p)), targets[rows]], log_p  # (R, V) -> (R,)
        scored = end


def _logits(model: Model, ids: list[int], kv: str | NewKV | None) -> NDArray[np.float32]:
    """Logits (T, V) of one window, in one forward or token by token."""
    if kv is None:
        return model.forward(ids, model.new_kv(capacity=len(ids)))
    cache = model.new_kv(kv, capacity=len(ids)) if isinstance(kv, str) else kv(model)
    if cache.length:
        raise CacheError(f"kv must make an empty cache each time, this one holds {cache.length} positions")
    return np.concatenate([model.forward([token], cache) for token in ids])  # T of (1, V) -> (T, V)


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log-probabilities over the last axis, in float64."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    log_p: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return log_p


def mean_interval(sums: NDArray[np.float64], counts: NDArray[np.int64]) -> Interval:
    """Mean per token over units of text, with its 95 % interval when units are drawn again with replacement.

    Parameters
    ----------
    sums : ndarray of float64, shape (U,)
        Of each unit (a stretch, a window, a passage): the sum of what its tokens scored. For a paired comparison, the
        difference of two models' sums.
    counts : ndarray of int, shape (U,)
        Tokens of each unit.

    Raises
    ------
    TokenError
        If there are no tokens, or not as many sums as counts.
    """
    sums, counts = np.asarray(sums, np.float64), np.asarray(counts)
    if sums.shape != counts.shape or sums.ndim != 1 or counts.sum() < 1:
        raise TokenError(f"expected a sum and a count for each unit, got shapes {sums.shape} and {counts.shape}")
    draws = np.random.default_rng(0).integers(0, len(sums), (NUM_RESAMPLES, len(sums)))
    means = sums[draws].sum(axis=1) / counts[draws].sum(axis=1)  # (R, U) -> (R,)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(sums.sum() / counts.sum()), float(low), float(high))


def _bootstrap(nll: NDArray[np.float64]) -> tuple[float, float]:
    """95 % interval of ``exp(mean)`` when stretches of tokens are drawn again with replacement."""
    starts = np.arange(0, len(nll), max(1, min(BLOCK_TOKENS, len(nll) // MIN_BLOCKS)))
    found = mean_interval(np.add.reduceat(nll, starts), np.diff(np.append(starts, len(nll))))
    return float(np.exp(found.low)), float(np.exp(found.high))
