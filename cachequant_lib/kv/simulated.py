"""Rivals for comparison: caches whose numbers are rounded as their format has it, but held in float32.

What they lose is exactly what the format loses, and bits are counted as the format packs them. Memory and time are
those of a plain cache: *simulated*.
"""

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from cachequant_lib.formats.bitplanes import LARGEST_HALF
from cachequant_lib.kv.base import FloatArray
from cachequant_lib.kv.compressed import CompressedKV, check_finite
from cachequant_lib.kv.dense import DenseKV


class SimulatedKV(CompressedKV):
    """Base of the rivals: new rows stay in fp16 for a while, then are rounded for good.

    Attributes
    ----------
    bits : int
        Bits of a code.
    meta : (float, float)
        More bits for each number of K and of V, whatever they are for.
    """

    bits: int
    meta: tuple[float, float]

    def __init__(self, *shape: int) -> None:
        super().__init__(*shape)
        self._dense = DenseKV(*shape)
        self._rounded = [[0, 0] for _ in range(self.num_layers)]  # positions of K and of V, for each layer

    @abstractmethod
    def _ready(self, part: int, length: int) -> int:
        """How many positions of K (0) or V (1) are rounded once there are `length`."""

    @abstractmethod
    def _round(self, part: int, rows: FloatArray) -> FloatArray:
        """Round rows (T, Hkv, D) of K (0) or V (1)."""

    @property
    def nbytes(self) -> int:
        """Bytes that the format would take, packed, with all positions rounded."""
        numbers = self.num_layers * self.capacity * self.num_kv_heads * self.head_dim
        return round(numbers * (2 * self.bits + sum(self.meta)) / 8)

    def _store(self, layer: int, start: int, k: FloatArray, v: FloatArray) -> None:
        check_finite(LARGEST_HALF, k, v)
        rounded, stop = self._rounded[layer], start + len(k)
        for part, (kept, new) in enumerate(((self._dense.keys[layer], k), (self._dense.values[layer], v))):
            kept[start:stop] = new.astype(np.float16)
            done, ready = rounded[part], max(self._ready(part, stop), rounded[part])
            if ready > done:
                kept[done:ready] = self._round(part, kept[done:ready])
                rounded[part] = ready

    def _restore(self, layer: int, start: int, stop: int) -> tuple[FloatArray, FloatArray]:
        return self._dense.keys[layer, start:stop].copy(), self._dense.values[layer, start:stop].copy()

    def _reopen(self, layer: int, length: int) -> None:
        self._rounded[layer] = [min(n, self._ready(part, length)) for part, n in enumerate(self._rounded[layer])]

    def _decode(self, layer: int, q: FloatArray) -> FloatArray:
        length, row = self._lengths[layer], self.num_kv_heads * self.head_dim
        self._dense._lengths[layer] = length
        keys, values = self._rounded[layer]
        self.reads.num_values += length * row
        self.reads.key_bits += row * (keys * self.bits + 16 * (length - keys))
        self.reads.value_bits += row * (values * self.bits + 16 * (length - values))
        self.reads.meta_bits += round(row * (keys * self.meta[0] + values * self.meta[1]))
        y: FloatArray = self._dense.attend(layer, q[None])[0]  # (1, H, D) -> (H, D)
        return y

    def bits_map(self, layer: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return how many bits the last decode step of a layer read of each number of K and V, each (L, Hkv, D)."""
        maps = np.full((2, self._lengths[layer], self.num_kv_heads, self.head_dim), 16, np.uint8)
        for part, rounded in enumerate(self._rounded[layer]):
            maps[part, :rounded] = self.bits
        return maps[0], maps[1]
