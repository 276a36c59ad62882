"""What every compressed cache does alike: exact prefill, counted decode, and rows that come back as float32.

A step with one query is decode, and reads the compressed rows. A step with several is prefill: it attends to its own
rows as they came, and to earlier ones as they can best be restored, without any approximation of its own.
"""

from abc import abstractmethod
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from cachequant_lib.errors import FormatError
from cachequant_lib.formats.scheme import is_whole
from cachequant_lib.kv.base import FloatArray, KVBlock, KVCache
from cachequant_lib.kv.dense import DenseKV

WORTH_SHARING = 1 << 17  # with fewer numbers than this, one thread is done before a second has woken up


@dataclass
class Reads:
    """What decode has read so far, counted where it is read.

    Attributes
    ----------
    num_values : int
        Numbers of K in reach of the queries, and as many of V: positions times heads times head size, over all steps.
    key_bits, value_bits : int
        Bits of keys and of values that were read.
    meta_bits : int
        Bits of exponents, scales, column maxima: whatever it takes to make sense of the others.
    """

    num_values: int = 0
    key_bits: int = 0
    value_bits: int = 0
    meta_bits: int = 0

    @property
    def bits_per_key(self) -> float:
        """Average width at which a number of K was read."""
        return self.key_bits / max(self.num_values, 1)

    @property
    def bits_per_value(self) -> float:
        """Average width at which a number of V was read."""
        return self.value_bits / max(self.num_values, 1)

    @property
    def bits_per_number(self) -> float:
        """Average over both, with the metadata."""
        return (self.key_bits + self.value_bits + self.meta_bits) / max(2 * self.num_values, 1)


class CompressedKV(KVCache):
    """Base of the compressed caches.

    Attributes
    ----------
    reads : Reads
        Counters of decode; ``bytes_read`` counts prefill as well.
    """

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, capacity: int) -> None:
        super().__init__(num_layers, num_kv_heads, head_dim, capacity)
        self.reads = Reads()
        self._fresh: tuple[int, int, FloatArray, FloatArray] | None = None  # layer, start, k, v of the last append

    @abstractmethod
    def _store(self, layer: int, start: int, k: FloatArray, v: FloatArray) -> None:
        """Compress the rows (T, Hkv, D) of positions `start` and following."""

    @abstractmethod
    def _restore(self, layer: int, start: int, stop: int) -> tuple[FloatArray, FloatArray]:
        """Return positions ``start:stop`` of a layer, k and v (T, Hkv, D), from all the bits that are stored."""

    @abstractmethod
    def _decode(self, layer: int, q: FloatArray) -> FloatArray:
        """Attend from one query (H, D) to all positions of a layer: (H, D). Adds to `reads`."""

    @abstractmethod
    def bits_map(self, layer: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return how many bits the last decode step of a layer read of each number of K and V, each (L, Hkv, D)."""

    def _reopen(self, layer: int, length: int) -> None:
        """Prepare a layer to lose its positions from `length` on, while they are still there."""

    def append(self, layer: int, k: FloatArray, v: FloatArray) -> None:
        """Compress T positions into one layer; see :meth:`KVCache.append`.

        Raises FormatError as well if a value is not finite or too large for the format. Nothing is stored then.
        """
        start, stop = self.check_append(layer, k, v)
        k, v = np.ascontiguousarray(k, np.float32), np.ascontiguousarray(v, np.float32)
        self._store(layer, start, k, v)
        self._lengths[layer] = stop
        self._fresh = (layer, start, k.copy(), v.copy()) if len(k) > 1 else None

    def attend(self, layer: int, q: FloatArray) -> FloatArray:
        """Attend causally, reading compressed rows if there is one query; see :meth:`KVCache.attend`."""
        length = self.check_queries(layer, q)
        if len(q) == 1:
            before = self.reads.key_bits + self.reads.value_bits + self.reads.meta_bits
            y = self._decode(layer, q[0])
            self.bytes_read += (self.reads.key_bits + self.reads.value_bits + self.reads.meta_bits - before) // 8
            return y[None]  # (H, D) -> (1, H, D)
        k, v = self._restore(layer, 0, length)
        self.bytes_read += self.nbytes * length // (self.num_layers * self.capacity)
        if self._fresh is not None and self._fresh[0] == layer and self._fresh[1] + len(self._fresh[2]) == length:
            k[self._fresh[1] :], v[self._fresh[1] :] = self._fresh[2:]
        dense = DenseKV(1, self.num_kv_heads, self.head_dim, length)
        dense.append(0, k, v)
        return dense.attend(0, q)

    def truncate(self, length: int) -> None:
        """Forget all positions from `length` on; see :meth:`KVCache.truncate`."""
        if is_whole(length) and length <= self.length:
            for layer in range(self.num_layers):
                self._reopen(layer, int(length))
            self._fresh = None
        super().truncate(length)

    def read_block(self, start: int, stop: int) -> KVBlock:
        """Restore positions of all layers to float32; see :meth:`KVCache.read_block`.

        Written into a cache of the same format, at the same positions, they compress to the same bits if whole
        blocks are copied, and to within half a unit of the last bit otherwise.
        """
        self.check_range(start, stop)
        block = KVBlock(np.empty((stop - start, self.num_layers, 2, self.num_kv_heads, self.head_dim), np.float32))
        for layer in range(self.num_layers):
            block.keys[:, layer], block.values[:, layer] = self._restore(layer, start, stop)
        return block

    def write_block(self, block: KVBlock) -> None:
        """Compress the rows of a block as the next positions; see :meth:`KVCache.write_block`."""
        start, stop = self.check_block(block)
        self.truncate(start)  # a layer that ran ahead of the others must not keep its extra rows
        if len(block):
            for layer in range(self.num_layers):
                k, v = np.ascontiguousarray(block.rows[:, layer].swapaxes(0, 1))  # (T, 2, Hkv, D) -> (2, T, Hkv, D)
                self._store(layer, start, k, v)
        self._lengths = [stop] * self.num_layers


def check_finite(largest: float, *rows: FloatArray) -> None:
    """Raise unless every number is at most `largest` in magnitude; NaN is not."""
    for row in rows:
        if row.size and not np.abs(row).max() <= largest:
            raise FormatError(f"keys and values must be finite and at most {largest:g}, got {np.abs(row).max():g}")


def workers_for(num_values: int, num_heads: int) -> int:
    """Return how many threads should share so many heads with so many numbers together."""
    threads: int = numba.get_num_threads()  # type: ignore[no-untyped-call]
    return min(threads, num_heads) if num_values >= WORTH_SHARING else 1
