"""Score one window of text fast: the same numbers as :func:`cachequant_lib.perplexity` to float32's last digits.

A sweep scores the same windows with dozens of models, so the parts that all of them share are made lean here:
attention forgets its scores tile by tile, and the logits of a few rows at a time are turned into what is kept of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cachequant_lib.kv.dense import DenseKV
from cachequant_lib.model.base import Model
from cachequant_lib.model.linear import Float32Linear
from cachequant_lib.model.ops import FloatArray

TILE = 128  # queries whose scores are held at once
ROWS = 128  # positions whose logits are computed at once
FEW = 16  # positions whose logits stay in the cache from one pass to the next


class WindowKV(DenseKV):
    """A dense cache for one whole window in one forward: each tile of queries multiplies only the keys it may see."""

    def attend(self, layer: int, q: FloatArray) -> FloatArray:
        """Causal attention in float32; see :meth:`cachequant_lib.kv.base.KVCache.attend`."""
        stop = self.check_queries(layer, q)
        if stop != len(q):
            raise ValueError(f"a window is fed in one forward; {stop - len(q)} positions are stored already")
        keys = np.ascontiguousarray(self.keys[layer, :stop].transpose(1, 2, 0))  # (L, Hkv, D) -> (Hkv, D, L)
        values = np.ascontiguousarray(self.values[layer, :stop].transpose(1, 0, 2))  # (L, Hkv, D) -> (Hkv, L, D)
        heads = q.reshape(stop, self.num_kv_heads, -1, q.shape[2])  # (T, H, D) -> (T, Hkv, g, D)
        heads = np.ascontiguousarray(heads.transpose(1, 2, 0, 3))  # -> (Hkv, g, T, D)
        heads *= np.float32(q.shape[2] ** -0.5)
        out = np.empty((stop, *heads.shape[:2], q.shape[2]), np.float32)  # (T, Hkv, g, D)
        for first in range(0, stop, TILE):
            last = min(first + TILE, stop)
            tile = heads[:, :, first:last]  # (Hkv, g, R, D)
            rows = tile.reshape(self.num_kv_heads, -1, q.shape[2])  # -> (Hkv, g R, D)
            scores = (rows @ keys[:, :, :last]).reshape(*tile.shape[:3], last)  # -> (Hkv, g, R, S)
            _softmax_tile(scores, first)
            y = scores.reshape(self.num_kv_heads, -1, last) @ values[:, :last]  # -> (Hkv, g R, D)
            out[first:last] = y.reshape(tile.shape).transpose(2, 0, 1, 3)  # -> (R, Hkv, g, D)
        return out.reshape(q.shape)  # (T, Hkv, g, D) -> (T, H, D)


def _softmax_tile(scores: FloatArray, first: int) -> None:
    """Softmax in place of scores (..., R, S) whose last R columns are the tile's own positions."""
    square = np.tri(scores.shape[-2], dtype=np.float32)  # 1 where a query may look
    own = scores[..., first:]
    own += np.where(square, np.float32(0), np.float32(-np.inf))
    scores -= scores.max(axis=-1, keepdims=True)
    np.maximum(scores, np.float32(-80), out=scores)  # below, exponentials would be denormal and slow
    np.exp(scores, out=scores)
    own *= square
    scores /= scores.sum(axis=-1, keepdims=True)


def hidden(model: Model, ids: Sequence[int]) -> FloatArray:
    """What the head will see, for each position of a window: (T, C)."""
    config, token_ids = model.config, np.asarray(ids, np.int64)
    kind = WindowKV if model.whole_pass is None else DenseKV  # the compiled pass has its own attention
    kv = kind(config.num_layers, config.num_kv_heads, config.head_dim, len(token_ids))
    x: FloatArray = model.final_norm(model.hidden_states(token_ids, kv))
    return x


def logits(model: Model, x: FloatArray) -> Iterator[tuple[slice, FloatArray]]:
    """Yield the logits of a few positions at a time, in one buffer that is used again."""
    buffer = np.empty((min(ROWS, len(x)), model.head.out_features), np.float32)
    for first in range(0, len(x), ROWS):
        rows = slice(first, min(first + ROWS, len(x)))
        if isinstance(model.head, Float32Linear):
            found = np.matmul(x[rows], model.head.weight.T, out=buffer[: rows.stop - first])  # (R, C) -> (R, V)
        else:
            found = model.head(x[rows])
        yield rows, found


def log_sums(found: FloatArray) -> NDArray[np.float64]:
    """Logarithm of the sum of exponentials of each row of logits (R, V): float32 exponentials, float64 at the end."""
    out = np.empty(len(found))
    for first in range(0, len(found), FEW):
        part = found[first : first + FEW]
        top = part.max(axis=1, keepdims=True)
        out[first : first + FEW] = top[:, 0] + np.log(np.exp(part - top).sum(axis=1, dtype=np.float64))
    return out


@dataclass(frozen=True)
class Base:
    """What the reference predicts in one window, kept to compare others with.

    Attributes
    ----------
    targets : ndarray of int64, shape (T,)
    logits : ndarray of float32, shape (T, V)
    sums : ndarray of float64, shape (T,)
        Logarithms of the sums of exponentials of the rows.
    """

    targets: NDArray[np.int64]
    logits: FloatArray
    sums: NDArray[np.float64]


def base(model: Model, ids: Sequence[int]) -> Base:
    """Run the reference over a window of T + 1 ids; holds T V float32, 100 MB for 512 tokens of GPT-2's vocabulary."""
    x = hidden(model, ids[:-1])
    kept, sums = np.empty((len(x), model.head.out_features), np.float32), np.empty(len(x))
    for rows, found in logits(model, x):
        kept[rows], sums[rows] = found, log_sums(found)
    return Base(np.asarray(ids[1:], np.int64), kept, sums)


def surprise(found: Base) -> NDArray[np.float64]:
    """Negative log-likelihood of each token, nats: (T,)."""
    return found.sums - found.logits[np.arange(len(found.targets)), found.targets]


@dataclass(frozen=True)
class Distance:
    """A model beside the reference in one window, position by position.

    Attributes
    ----------
    nll : ndarray of float64, shape (T,)
        Negative log-likelihood of each token, nats.
    kl : ndarray of float64, shape (T,)
        Divergence of the model's prediction from the reference's, nats.
    same : ndarray of bool, shape (T,)
        Whether both find the same token most likely.
    """

    nll: NDArray[np.float64]
    kl: NDArray[np.float64]
    same: NDArray[np.bool_]


def beside(reference: Base, model: Model, ids: Sequence[int]) -> Distance:
    """Run a model over the reference's window and measure how far its predictions are."""
    count = len(reference.targets)
    out = Distance(np.empty(count), np.empty(count), np.empty(count, bool))
    for rows, found in logits(model, hidden(model, ids[:-1])):
        sums = log_sums(found)
        out.nll[rows] = sums - found[np.arange(len(found)), reference.targets[rows]]
        for first in range(0, len(found), FEW):
            part = slice(rows.start + first, min(rows.start + first + FEW, rows.stop))
            ours, theirs = found[first : first + FEW], reference.logits[part]
            out.same[part] = ours.argmax(axis=1) == theirs.argmax(axis=1)
            chance = theirs - reference.sums[part, None].astype(np.float32)
            np.exp(chance, out=chance)  # (R, V)
            mean_gap = np.einsum("rv,rv->r", chance, theirs - ours)  # sum of p (x_p - x_q): (R,)
            out.kl[part] = mean_gap + sums[first : first + FEW] - reference.sums[part]
    return out
