"""One request: reuse what is known of the prompt, prefill the rest, decode, remember the prompt."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cachequant_lib.errors import CacheError, CapacityError, ContextLengthError, SamplingError, TokenError
from cachequant_lib.formats.scheme import is_whole
from cachequant_lib.kv.base import KVBlock, KVCache
from cachequant_lib.kv.match import PrefixMatch
from cachequant_lib.kv.prefix import PrefixCache
from cachequant_lib.kv.trie import TokenTrie
from cachequant_lib.model.base import Model
from cachequant_lib.model.tokenizer import check_token_ids

Sampler = Callable[[NDArray[np.float32], np.random.Generator], int]


def greedy(logits: NDArray[np.float32], rng: np.random.Generator) -> int:
    """Pick the most likely token; the first one, should two be equal.

    Parameters
    ----------
    logits : ndarray of float32, shape (V,)
    rng : numpy.random.Generator
        Not used; every sampler takes it.

    Returns
    -------
    int
    """
    return int(logits.argmax())


def sample(temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0) -> Sampler:
    """Return a sampler that draws from the softmax, sharpened and cut as asked.

    Parameters
    ----------
    temperature : float, default 1.0
        Logits are divided by it; below 1 the likely tokens become likelier.
    top_k : int, optional
        Keep only the k most likely tokens.
    top_p : float, default 1.0
        Keep the most likely tokens until their probabilities sum to at least this.

    Raises
    ------
    SamplingError
        If `temperature` is not positive, `top_k` no whole number of at least 1, or `top_p` outside (0, 1].
    """
    if not (temperature > 0 and 0 < top_p <= 1 and (top_k is None or is_whole(top_k, 1))):
        raise SamplingError(f"need temperature > 0, top_k >= 1, 0 < top_p <= 1; got {temperature}, {top_k}, {top_p}")

    def draw(logits: NDArray[np.float32], rng: np.random.Generator) -> int:
        order = _largest(logits, len(logits) if top_k is None else min(top_k, len(logits)))  # (V,) -> (k,)
        chosen = logits[order].astype(np.float64)
        with np.errstate(over="ignore"):  # at a very low temperature all but the likeliest go to minus infinity
            probabilities = np.exp((chosen - chosen[0]) / temperature)
        probabilities /= probabilities.sum()
        before = np.cumsum(probabilities) - probabilities
        probabilities[before >= top_p] = 0.0
        return int(rng.choice(order, p=probabilities / probabilities.sum()))

    draw.num_best = top_k  # type: ignore[attr-defined]
    return draw


def _largest(logits: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Return the places of the `count` largest logits, largest first, equal ones in their order; sorts no others."""
    least = np.partition(logits, -count)[-count]
    places = np.flatnonzero(~(logits < least))  # a NaN stays in, to be complained of where the token is drawn
    return places[np.argsort(-logits[places], kind="stable")[:count]]


def _num_best(sampler: Sampler) -> int | None:
    """Return how many of the largest logits a sampler looks at; None if that may be all, as in one from elsewhere."""
    return 1 if sampler is greedy else getattr(sampler, "num_best", None)


@dataclass(frozen=True)
class Generation:
    """What one request produced and what it cost.

    Attributes
    ----------
    token_ids : tuple of int
        New tokens only; an end-of-sequence token that stopped the request is the last of them.
    text : str
        The new tokens decoded; empty for a model that came without a tokenizer.
    prompt_tokens, cached_tokens : int
        Length of the prompt, and how much of it came from the prefix cache.
    prefill_s : float
        Seconds in the one forward over the uncached part of the prompt, which yields the first new token.
    decode_step_s : tuple of float
        Seconds of each later forward, one a new token but the first.
    overhead_s : float
        Everything else in the call: tokenising, choosing tokens, and the prefix cache's lookup, copies and insert.
    kv_bytes_read : int
        Bytes of keys and values that attention read.
    """

    token_ids: tuple[int, ...]
    text: str
    prompt_tokens: int
    cached_tokens: int
    prefill_s: float
    decode_step_s: tuple[float, ...]
    overhead_s: float
    kv_bytes_read: int

    @property
    def decode_s(self) -> float:
        """Seconds in all decode forwards together."""
        return sum(self.decode_step_s)

    @property
    def hit_rate(self) -> float:
        """Cached tokens over prompt tokens."""
        return self.cached_tokens / self.prompt_tokens


def generate(
    model: Model,
    prompt: str | Sequence[int],
    max_new_tokens: int = 50,
    *,
    kv: str | KVCache = "dense",
    prefix_cache: TokenTrie | PrefixCache | None = None,
    namespace: str = "",
    keep_reply: bool = False,
    sampler: Sampler = greedy,
    seed: int = 0,
    stop_at_eos: bool = True,
) -> Generation:
    """Continue a prompt, with prefill and decode timed apart.

    Parameters
    ----------
    model : Model
    prompt : str or sequence of int
        Text, or token ids.
    max_new_tokens : int, default 50
        With 0 the prompt is only prefilled, which warms a prefix cache.
    kv : str or KVCache, default "dense"
        Name of a KV format, or an empty cache from ``model.new_kv(...)``.
    prefix_cache : TokenTrie or PrefixCache, optional
        Keys and values of earlier prompts. The longest stored beginning of the prompt is reused, its last token never:
        the next token's logits need a forward there. The prompt's own rows are stored afterwards.
    namespace : str, default ""
        Whose prompts these are. A PrefixCache keeps them apart, by model, weight format and KV format with its options
        as well; a TokenTrie serves one model and one namespace, and refuses any other.
    keep_reply : bool, default False
        Store the rows of the new tokens too, but for the last one's, which are never computed. They serve the next turn
        of a conversation, if its text is cut into the same tokens again.
    sampler : callable, default greedy
        Takes logits (V,) and a random generator, returns a token id. A certified head spares `greedy` and
        ``sample(top_k=...)`` most of its work; any other sampler gets all logits.
    seed : int, default 0
        Seed of that generator.
    stop_at_eos : bool, default True
        Stop after the model's end-of-sequence token.

    Returns
    -------
    Generation

    Raises
    ------
    TokenError
        For an empty prompt, ids outside the vocabulary, or a negative `max_new_tokens`.
    ContextLengthError
        If prompt and new tokens do not fit the model's context; nothing has been computed then.
    CapacityError
        If `kv` is a cache with too little room; nothing has been computed then.
    CacheError
        If a TokenTrie holds rows of another model or namespace, or `kv` is not empty.
    """
    started = time.perf_counter()
    prompt_ids = model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    ids: list[int] = check_token_ids(prompt_ids, model.config.vocab_size).tolist()
    cache = _empty_cache(model, kv, _check_length(model, len(ids), max_new_tokens))
    rng = np.random.default_rng(seed)
    matched, match = _restore_prefix(model, ids, cache, prefix_cache, namespace)
    bytes_before, num_best = cache.bytes_read, _num_best(sampler)

    clock = time.perf_counter()
    logits = model.forward(ids[matched:], cache, last_only=True, num_best=num_best)[-1]  # (1, V) -> (V,)
    prefill_s = time.perf_counter() - clock
    if match is not None:
        match.report(prefill_s)

    new_ids: list[int] = []
    step_s: list[float] = []
    while len(new_ids) < max_new_tokens:
        new_ids.append(sampler(logits, rng))
        if len(new_ids) == max_new_tokens or (stop_at_eos and new_ids[-1] == model.config.eos_token_id):
            break
        clock = time.perf_counter()
        logits = model.forward(new_ids[-1:], cache, last_only=True, num_best=num_best)[-1]  # (1, V) -> (V,)
        step_s.append(time.perf_counter() - clock)

    known = ids + new_ids[: cache.length - len(ids)] if keep_reply else ids
    _store_prefix(model, known, cache, prefix_cache, namespace, matched)
    text = model.tokenizer.decode(new_ids) if model.tokenizer.has_text else ""
    overhead_s = time.perf_counter() - started - prefill_s - sum(step_s)
    kv_bytes_read = cache.bytes_read - bytes_before
    return Generation(tuple(new_ids), text, len(ids), matched, prefill_s, tuple(step_s), overhead_s, kv_bytes_read)


def _check_length(model: Model, prompt_tokens: int, max_new_tokens: int) -> int:
    """Return how many positions will be computed, or raise if the context has no place for them.

    The last new token is chosen but never fed, so it needs none.
    """
    if not is_whole(max_new_tokens):
        raise TokenError(f"max_new_tokens must be a whole number of at least 0, got {max_new_tokens!r}")
    positions = prompt_tokens + max(max_new_tokens - 1, 0)
    if positions > model.config.context_length:
        raise ContextLengthError(
            f"{prompt_tokens} prompt tokens and {max_new_tokens} new ones need {positions} positions;"
            f" {model.name} has {model.config.context_length}"
        )
    return positions


def _empty_cache(model: Model, kv: str | KVCache, num_positions: int) -> KVCache:
    """Return an empty cache with room for so many positions, or raise."""
    cache = kv if isinstance(kv, KVCache) else model.new_kv(kv, capacity=num_positions)
    if cache.length:
        raise CacheError(f"kv must be empty, it holds {cache.length} positions")
    if cache.capacity < num_positions:
        raise CapacityError(f"{num_positions} positions are needed, kv has room for {cache.capacity}")
    return cache


def _owner(model: Model, cache: KVCache, namespace: str) -> tuple[str, ...]:
    """Everything that must be equal for keys and values to be reusable, and who may reuse them."""
    return model.fingerprint, model.weight_format, cache.variant, namespace


def _restore_prefix(
    model: Model, ids: list[int], cache: KVCache, prefix_cache: TokenTrie | PrefixCache | None, namespace: str
) -> tuple[int, PrefixMatch | None]:
    """Copy the longest known beginning of the prompt into an empty cache; return its length, and who wants a report."""
    if prefix_cache is None:
        return 0, None
    if isinstance(prefix_cache, PrefixCache):
        with prefix_cache.match(ids, _owner(model, cache, namespace)) as match:
            return match.copy_into(cache), match
    owner = (model.fingerprint, namespace)
    if prefix_cache.owner not in (None, owner):
        raise CacheError(f"this prefix cache holds rows of another model or namespace than {model.name}, {namespace!r}")
    matched, rows = prefix_cache.lookup(ids[:-1])
    if rows is None:
        return 0, None
    cache.write_block(KVBlock(rows))
    return matched, None


def _store_prefix(
    model: Model,
    known: list[int],
    cache: KVCache,
    prefix_cache: TokenTrie | PrefixCache | None,
    namespace: str,
    matched: int,
) -> None:
    """Remember the rows of these tokens, with which the KV cache begins."""
    if isinstance(prefix_cache, PrefixCache):
        prefix_cache.insert(known, cache, _owner(model, cache, namespace))
    elif prefix_cache is not None:
        start = min(matched, prefix_cache.match_length(known))  # another request may have evicted what was found
        prefix_cache.insert(known, cache.read_block(start, len(known)).rows, start=start)
        prefix_cache.owner = (model.fingerprint, namespace)
