"""The KVCache contract: what a model may ask of whatever keeps its keys and values.

The model calls :meth:`KVCache.attend` and never sees the stored keys and values. So each cache brings the kernel that
suits its storage, and a compressed cache is never forced to unpack what it was made to keep small.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cachequant_lib.errors import CapacityError, FormatError
from cachequant_lib.formats.scheme import is_whole

FloatArray = NDArray[np.float32]

PIECE = 16
"""Positions unpacked at once by :meth:`KVCache.read_into`: 1.2 MB of GPT-2 small stay in the processor's cache."""


@dataclass(frozen=True)
class KVBlock:
    """Keys and values of consecutive positions, one row a token.

    Attributes
    ----------
    rows : ndarray of float32, shape (T, L, 2, Hkv, D)
        For each token, each layer's key and value. GPT-2 small: 12 * 2 * 12 * 64 * 4 bytes = 73,728 bytes a token.
    """

    rows: FloatArray

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def keys(self) -> FloatArray:
        """View of the keys, shape (T, L, Hkv, D)."""
        return self.rows[:, :, 0]

    @property
    def values(self) -> FloatArray:
        """View of the values, shape (T, L, Hkv, D)."""
        return self.rows[:, :, 1]


class KVCache(ABC):
    """Keys and values of one request, layer by layer.

    Parameters
    ----------
    num_layers, num_kv_heads, head_dim : int
        Shape of the model's attention.
    capacity : int
        Positions there is room for.
    """

    format: ClassVar[str]

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, capacity: int) -> None:
        if min(num_layers, num_kv_heads, head_dim, capacity) < 1:
            shape = (num_layers, num_kv_heads, head_dim, capacity)
            raise FormatError(f"layers, heads, head size and capacity must all be at least 1, got {shape}")
        self.num_layers, self.num_kv_heads, self.head_dim = num_layers, num_kv_heads, head_dim
        self.capacity = capacity
        self.bytes_read = 0
        self._lengths = [0] * num_layers

    @property
    def length(self) -> int:
        """Positions that are complete in every layer."""
        return min(self._lengths)

    @property
    def variant(self) -> str:
        """The format and all options that change what is stored; rows of different variants are never reused."""
        return self.format

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes set aside for keys and values."""

    @abstractmethod
    def append(self, layer: int, k: FloatArray, v: FloatArray) -> None:
        """Add the keys and values of T new positions to one layer; changes the cache.

        Parameters
        ----------
        layer : int
        k, v : ndarray of float32, shape (T, Hkv, D)

        Raises
        ------
        CapacityError
            If there is no room for T more positions. Nothing is stored then.
        FormatError
            If the shapes are not those of this cache.
        """

    @abstractmethod
    def attend(self, layer: int, q: FloatArray) -> FloatArray:
        """Attend from the T newest positions of a layer to all its positions so far, causally.

        Parameters
        ----------
        layer : int
        q : ndarray of float32, shape (T, H, D)
            H is a multiple of Hkv: with grouped-query attention, H / Hkv query heads share a key-value head.

        Returns
        -------
        ndarray of float32, shape (T, H, D)
            ``softmax(q k^T / sqrt(D)) v``. Position ``i`` sees positions ``0..i`` only. Adds the bytes of keys and
            values it read to ``bytes_read``. Costs 4 T H L D operations for L stored positions.
        """

    def truncate(self, length: int) -> None:
        """Forget all positions from `length` on; changes the cache.

        Raises
        ------
        CapacityError
            If `length` is no whole number, negative, or more than is stored.
        """
        if not is_whole(length) or length > self.length:
            raise CapacityError(f"cannot truncate a cache of {self.length} positions to {length}")
        self._lengths = [int(length)] * self.num_layers

    @abstractmethod
    def read_block(self, start: int, stop: int) -> KVBlock:
        """Copy positions ``start:stop`` out, all layers: a block that later changes here cannot reach.

        Raises
        ------
        CapacityError
            If the range is not within what is stored.
        """

    def read_into(self, start: int, stop: int, rows: FloatArray) -> None:
        """Copy positions ``start:stop`` into `rows`, shape (stop - start, L, 2, Hkv, D), all layers.

        Raises
        ------
        CapacityError
            If the range is not within what is stored.
        """
        for at in range(start, stop, PIECE):
            end = min(at + PIECE, stop)
            rows[at - start : end - start] = self.read_block(at, end).rows

    @abstractmethod
    def write_block(self, block: KVBlock) -> None:
        """Copy the rows of a block in as the next positions of all layers; changes the cache.

        Raises
        ------
        CapacityError
            If there is no room.
        FormatError
            If the rows are another model's.
        """

    def check_append(self, layer: int, k: FloatArray, v: FloatArray) -> tuple[int, int]:
        """Return the positions ``(start, stop)`` that `k` and `v` will take, or raise."""
        expected = (self.num_kv_heads, self.head_dim)
        if k.shape != v.shape or k.ndim != 3 or k.shape[1:] != expected:
            raise FormatError(f"expected k and v of shape (T, {expected[0]}, {expected[1]}), got {k.shape}, {v.shape}")
        start = self._lengths[layer]
        return start, self._check_room(start, len(k))

    def check_block(self, block: KVBlock) -> tuple[int, int]:
        """Return the positions ``(start, stop)`` that a block will take, or raise."""
        expected = (self.num_layers, 2, self.num_kv_heads, self.head_dim)
        if block.rows.shape[1:] != expected:
            raise FormatError(f"expected rows of shape (T, *{expected}), got {block.rows.shape}")
        return self.length, self._check_room(self.length, len(block))

    def check_range(self, start: int, stop: int) -> None:
        """Raise unless ``start:stop`` lies within the stored positions."""
        if not 0 <= start <= stop <= self.length:
            raise CapacityError(f"positions {start}:{stop} are not within the {self.length} stored")

    def check_queries(self, layer: int, q: FloatArray) -> int:
        """Return how many positions the layer holds, or raise if `q` cannot be its newest ones."""
        if q.ndim != 3 or q.shape[2] != self.head_dim or q.shape[1] % self.num_kv_heads:
            raise FormatError(f"expected q (T, n * {self.num_kv_heads}, {self.head_dim}), got {q.shape}")
        if not 1 <= len(q) <= self._lengths[layer]:
            raise CapacityError(f"{len(q)} queries for a layer that holds {self._lengths[layer]} positions")
        return self._lengths[layer]

    def _check_room(self, start: int, count: int) -> int:
        if start + count > self.capacity:
            raise CapacityError(f"no room for {count} more positions: {start} of {self.capacity} are taken")
        return start + count


def softmax_causal(scores: NDArray[Any], num_queries: int) -> None:
    """Softmax over the last axis in place, after hiding from each query the positions that follow it.

    `scores` has shape (..., T, L), the T queries being the last T of L positions. Scores more than 80 below the
    maximum become exact zeros: their exponentials would be denormal numbers, which are slow and add nothing.
    """
    num_positions = scores.shape[-1]
    if num_queries > 1:
        future = np.arange(num_positions) > np.arange(num_positions - num_queries, num_positions)[:, None]
        scores[..., future] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    scores[scores < -80] = -np.inf
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
