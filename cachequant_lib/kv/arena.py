"""Where a prefix cache keeps its rows: slabs of equal rows, handed out and taken back one row at a time.

A row is the keys and values of one token in all layers. Slabs are made when they are first needed and together never
exceed the capacity, so the cap holds for the memory set aside, not only for the rows in use.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cachequant_lib.errors import CacheError
from cachequant_lib.kv.base import KVBlock, KVCache

Rows = NDArray[Any]
RowIds = NDArray[np.int64]
Reader = Callable[[int, int, Rows], None]
Source = KVCache | KVBlock | Rows

SLAB_BYTES = 8 << 20
"""Most bytes set aside at once: 113 rows of GPT-2 small. From 4 MiB on NumPy asks Linux for huge pages, or the first
use of a slab would take several times as long as the copy into it."""

SLABS = 16
"""A small capacity is set aside in about this many parts, so that it can go to more than one row shape."""


class RowPool:
    """The slabs of one row shape; row ``i`` is row ``i % slab_rows`` of slab ``i // slab_rows``.

    A slab is laid out like a KV cache, one layer after the other, and looked at as rows. So rows that lie side by side
    go into a KV cache in long stretches, one a layer, and a hit is about as fast as one plain copy of its bytes.

    Parameters
    ----------
    shape : tuple of int
        Shape of a row, for a model's keys and values (L, 2, Hkv, D).
    dtype : dtype
    slab_bytes : int
        Most bytes to set aside at once, or one row if that is more.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, slab_bytes: int) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.row_bytes = prod(shape) * self.dtype.itemsize
        self.slab_rows = min(max(1, slab_bytes // self.row_bytes), 4096)
        self.slabs: dict[int, Rows] = {}
        self.free: list[int] = []  # the last row goes out first, while its memory is warm

    def add_slab(self, num_rows: int) -> int:
        """Set aside up to one slab of at most `num_rows` rows; return its bytes."""
        index = len(self.slabs)
        if index in self.slabs:  # an earlier one was let go
            index = next(i for i in range(index) if i not in self.slabs)
        first, count = index * self.slab_rows, min(num_rows, self.slab_rows)
        outer, inner = self.shape[:-2], self.shape[-2:]  # (L, 2) and (Hkv, D)
        slab = np.empty((*outer, count, *inner), self.dtype)  # (L, 2, T, Hkv, D): a KV cache's own order
        self.slabs[index] = np.moveaxis(slab, len(outer), 0)  # -> (T, L, 2, Hkv, D)
        self.free.extend(range(first + count - 1, first - 1, -1))
        return count * self.row_bytes

    def drop_empty_slabs(self) -> int:
        """Let go of slabs without a row in use; return their bytes. Costs one step a free row."""
        free = np.bincount(np.array(self.free, np.int64) // self.slab_rows, minlength=1)
        empty = {i for i, slab in self.slabs.items() if i < len(free) and free[i] == len(slab)}
        self.free = [row for row in self.free if row // self.slab_rows not in empty]
        return sum(len(self.slabs.pop(i)) for i in empty) * self.row_bytes

    def pieces(self, rows: RowIds) -> Iterator[tuple[int, Rows]]:
        """Yield views of the longest stretches of `rows` that lie side by side, each with its place in `rows`."""
        if not len(rows):
            return
        breaks = (np.diff(rows) != 1) | (rows[1:] % self.slab_rows == 0)
        cuts = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(rows)]
        for start, stop in pairwise(cuts):
            slab, offset = divmod(int(rows[start]), self.slab_rows)
            yield start, self.slabs[slab][offset : offset + stop - start]

    def fill(self, rows: RowIds, read: Reader, first: int) -> None:
        """Have the rows of tokens ``first : first + len(rows)`` written into `rows`, one stretch after the other."""
        for at, piece in self.pieces(rows):
            read(first + at, first + at + len(piece), piece)

    def gather(self, rows: RowIds) -> Rows:
        """Copy rows out; shape (len(rows), *shape)."""
        out = np.empty((len(rows), *self.shape), self.dtype)
        for at, piece in self.pieces(rows):
            out[at : at + len(piece)] = piece
        return out


class RowArena:
    """All rows of a cache under one cap, whatever their shapes.

    Parameters
    ----------
    capacity_bytes : int
        Neither ``bytes_used`` nor ``bytes_reserved`` ever exceeds it.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.bytes_used = 0
        self.bytes_reserved = 0
        self._pools: dict[tuple[tuple[int, ...], np.dtype[Any]], RowPool] = {}

    def pool(self, shape: tuple[int, ...], dtype: DTypeLike) -> RowPool:
        """Return the pool of a row shape, a new one if need be."""
        slab_bytes = min(SLAB_BYTES, self.capacity_bytes // SLABS)
        return self._pools.setdefault((shape, np.dtype(dtype)), RowPool(shape, dtype, slab_bytes))

    def missing(self, pool: RowPool, num_rows: int) -> int:
        """How many of `num_rows` rows could not be handed out now; 0 if all could."""
        short = num_rows - len(pool.free) - (self.capacity_bytes - self.bytes_reserved) // pool.row_bytes
        if short > 0 and len(self._pools) > 1:  # memory that other shapes no longer use
            released = sum(other.drop_empty_slabs() for other in self._pools.values() if other is not pool)
            self.bytes_reserved -= released
            short = num_rows - len(pool.free) - (self.capacity_bytes - self.bytes_reserved) // pool.row_bytes
        return max(0, short)

    def take(self, pool: RowPool, num_rows: int) -> RowIds:
        """Hand out rows, ascending; :meth:`missing` must have said 0."""
        while len(pool.free) < num_rows:
            self.bytes_reserved += pool.add_slab((self.capacity_bytes - self.bytes_reserved) // pool.row_bytes)
        taken = np.array(pool.free[len(pool.free) - num_rows :], np.int64)
        del pool.free[len(pool.free) - num_rows :]
        self.bytes_used += num_rows * pool.row_bytes
        taken.sort()
        return taken

    def give_back(self, pool: RowPool, rows: RowIds) -> None:
        """Take rows back; their memory is used again, lowest row first."""
        pool.free.extend(rows[::-1].tolist())
        self.bytes_used -= len(rows) * pool.row_bytes

    def check(self, stored: list[tuple[RowPool, RowIds]]) -> None:
        """Raise ``AssertionError`` unless every row is either free or stored once, and the bytes add up."""
        in_use: dict[RowPool, list[int]] = {}
        for pool, rows in stored:
            in_use.setdefault(pool, []).extend(rows.tolist())
        for pool in self._pools.values():
            every = [i * pool.slab_rows + row for i, slab in pool.slabs.items() for row in range(len(slab))]
            assert sorted(in_use.get(pool, []) + pool.free) == sorted(every), (pool.shape, pool.dtype)
        used = sum(len(rows) * pool.row_bytes for pool, rows in in_use.items())
        reserved = sum(slab.nbytes for pool in self._pools.values() for slab in pool.slabs.values())
        assert self.bytes_used == used, (self.bytes_used, used)
        assert used <= self.bytes_reserved <= self.capacity_bytes, (used, self.bytes_reserved, self.capacity_bytes)
        assert self.bytes_reserved == reserved, (self.bytes_reserved, reserved)


def row_source(kv: Source, num_tokens: int, start: int) -> tuple[tuple[int, ...], np.dtype[Any], Reader]:
    """Shape and type of the rows somebody offers for a prompt, and how to copy those of tokens ``a:b`` out.

    Raises
    ------
    CacheError
        If they are not the rows of tokens ``start:num_tokens``, or cannot be stored.
    """
    if not 0 <= start <= num_tokens:
        raise CacheError(f"start must lie in 0..{num_tokens}, got {start}")
    if isinstance(kv, KVCache):
        if kv.length < num_tokens:
            raise CacheError(f"the prompt has {num_tokens} tokens, but the KV cache holds {kv.length} positions")
        shape = (kv.num_layers, 2, kv.num_kv_heads, kv.head_dim)
        return shape, np.dtype(np.float32), kv.read_into
    rows = kv.rows if isinstance(kv, KVBlock) else np.asarray(kv)
    if rows.ndim < 1 or len(rows) != num_tokens - start:
        expected = f"{num_tokens - start} rows for tokens {start}..{num_tokens}"
        raise CacheError(f"expected {expected}, got an array of shape {rows.shape}")
    if 0 in rows.shape[1:] or rows.dtype.hasobject:
        raise CacheError(f"rows of shape {rows.shape[1:]} and type {rows.dtype} cannot be stored")
    return rows.shape[1:], rows.dtype, lambda a, b, out: np.copyto(out, rows[a - start : b - start])
