"""AlignedKV as its paper has it: fp16 in planes of 8, 4 and 4 bits."""

import numpy as np
from numpy.typing import NDArray

from cachequant_lib.errors import FormatError
from cachequant_lib.formats.bitplanes import LARGEST_HALF, BitPlanes
from cachequant_lib.formats.scheme import is_whole
from cachequant_lib.kernels.aligned_paper import attend_planes
from cachequant_lib.kernels.attention import BLOCK, head_tile
from cachequant_lib.kernels.jit import PARALLEL
from cachequant_lib.kernels.planes import PlanesLayer, append_planes
from cachequant_lib.kv.base import FloatArray
from cachequant_lib.kv.compressed import CompressedKV, check_finite, workers_for

RELEASED = (1, 2)
"""Thresholds for values in the code released with the paper, which do not follow from its text."""


class PaperKV(CompressedKV):
    """Keys and values in fp16, cut into planes, of which attention reads 8, 12 or 16 bits.

    Parameters
    ----------
    num_layers, num_kv_heads, head_dim : int
        Shape of the model's attention; the head size must be a multiple of four.
    capacity : int
        Positions to set memory aside for.
    thresholds : (int, int), default (4, 8)
        Spare binades from which 12 and 8 bits are read of a *value*; (4, 8) follows from the text of the paper, and
        holds for keys always. ``RELEASED`` is what its published code tests.
    control : bool, default False
        Read 16 bits of everything: the same code, for comparisons.

    Attributes
    ----------
    layers : tuple of PlanesLayer
        What is stored.

    Raises
    ------
    FormatError
        If the thresholds are not two growing whole numbers, or the head size is no multiple of four.

    Notes
    -----
    The newest L mod 64 tokens stay whole. Numbers are rounded to fp16: beyond 65504 they are refused, zeros keep their
    sign, the smallest is 2**-24. Read at 8 or 12 bits a zero becomes a small number, as in the paper. Column maxima
    never fall, not even when positions are forgotten: they stay bounds.
    See :mod:`cachequant_lib.kernels.aligned_paper` for what is read.
    """

    format = "aligned"

    def __init__(self, *shape: int, thresholds: tuple[int, int] = (4, 8), control: bool = False) -> None:
        super().__init__(*shape)
        num_layers, num_kv_heads, head_dim, capacity = shape
        whole = [value for value in thresholds if is_whole(value)]
        if len(whole) != 2 or len(thresholds) != 2 or not whole[0] <= whole[1] <= 100:  # type: ignore[redundant-expr]
            raise FormatError(f"thresholds must be two whole numbers, the second not smaller, got {thresholds!r}")
        if head_dim % 4:
            raise FormatError(f"the head size must be a multiple of four, got {head_dim}")
        self.thresholds, self.control = (int(thresholds[0]), int(thresholds[1])), bool(control)
        num_blocks = -(-capacity // BLOCK)
        keys, values = (num_kv_heads, num_blocks, head_dim), (num_kv_heads, num_blocks * BLOCK)
        self.layers = tuple(
            PlanesLayer(
                key_high=np.empty((*keys, BLOCK), np.uint8),
                key_middle=np.empty((*keys, BLOCK // 2), np.uint8),
                key_low=np.empty((*keys, BLOCK // 2), np.uint8),
                value_high=np.empty((*values, head_dim), np.uint8),
                value_middle=np.empty((*values, head_dim // 2), np.uint8),
                value_low=np.empty((*values, head_dim // 2), np.uint8),
                key_peaks=np.zeros((num_kv_heads, head_dim), np.uint8),
                value_peaks=np.zeros((num_kv_heads, head_dim), np.uint8),
                open_keys=np.zeros((num_kv_heads, BLOCK, head_dim), np.uint16),
                open_values=np.zeros((num_kv_heads, BLOCK, head_dim), np.uint16),
            )
            for _ in range(num_layers)
        )
        self._key_bits = np.zeros((num_layers, num_kv_heads, head_dim), np.uint8)
        self._value_bits = np.zeros((num_layers, *values), np.uint8)

    @property
    def variant(self) -> str:
        """The design and its thresholds: rows of new tokens were computed with what decode had read."""
        return f"aligned paper {'control' if self.control else self.thresholds}"

    @property
    def nbytes(self) -> int:
        """Bytes set aside for planes, column maxima and open blocks."""
        return sum(part.nbytes for layer in self.layers for part in layer)

    def _store(self, layer: int, start: int, k: FloatArray, v: FloatArray) -> None:
        check_finite(LARGEST_HALF, k, v)
        keys, values = (rows.astype(np.float16).view(np.uint16) for rows in (k, v))
        append_planes(head_tile(1, 4), keys, values, self.layers[layer], start)

    def _restore(self, layer: int, start: int, stop: int) -> tuple[FloatArray, FloatArray]:
        kv, sealed = self.layers[layer], self._lengths[layer] // BLOCK * BLOCK
        end = max(min(stop, sealed), start)
        first, last = start // BLOCK, -(-end // BLOCK)
        keys = BitPlanes(kv.key_high[:, first:last], kv.key_middle[:, first:last], kv.key_low[:, first:last])
        k = keys.dequantize().transpose(0, 1, 3, 2)  # (Hkv, blocks, D, 64) -> (Hkv, blocks, 64, D)
        k = k.reshape(self.num_kv_heads, -1, self.head_dim)[:, start - first * BLOCK :][:, : end - start]
        span = slice(start, end)
        v = BitPlanes(kv.value_high[:, span], kv.value_middle[:, span], kv.value_low[:, span]).dequantize()
        newest = slice(max(start - sealed, 0), max(stop - sealed, 0))
        rest = (part[:, newest].view(np.float16).astype(np.float32) for part in (kv.open_keys, kv.open_values))
        k, v = (np.concatenate(parts, axis=1) for parts in zip((k, v), rest, strict=True))
        return k.transpose(1, 0, 2), v.transpose(1, 0, 2)  # (Hkv, T, D) -> (T, Hkv, D)

    def _reopen(self, layer: int, length: int) -> None:
        first = length // BLOCK * BLOCK
        if self._lengths[layer] // BLOCK * BLOCK > first:
            kv, rows = self.layers[layer], self._restore(layer, first, length)
            for part, restored in zip((kv.open_keys, kv.open_values), rows, strict=True):
                halves = restored.transpose(1, 0, 2).astype(np.float16)  # (T, Hkv, D) -> (Hkv, T, D)
                part[:, : length - first] = np.ascontiguousarray(halves).view(np.uint16)

    def _decode(self, layer: int, q: FloatArray) -> FloatArray:
        length, heads, dim = self._lengths[layer], self.num_kv_heads, self.head_dim
        grouped = (q * np.float32(dim**-0.5)).reshape(heads, -1, dim)  # (H, D) -> (Hkv, G, D)
        out, key_bits, value_bits = np.empty_like(grouped), self._key_bits[layer], self._value_bits[layer]
        tile = head_tile(grouped.shape[1], dim)
        thresholds = (1000,) * 4 if self.control else (4, 8, *self.thresholds)
        with PARALLEL:
            workers = workers_for(length * heads * dim, heads)
            attend_planes(tile, grouped, self.layers[layer], length, thresholds, out, key_bits, value_bits, workers)
        sealed = length // BLOCK * BLOCK
        self.reads.num_values += length * heads * dim
        self.reads.key_bits += int(key_bits.sum()) * sealed + 16 * (length - sealed) * heads * dim
        self.reads.value_bits += int(value_bits[:, :length].sum()) * dim
        if not self.control:  # column maxima, and 32 values at 8 bits for the estimate
            self.reads.meta_bits += 8 * heads * dim * (2 + (32 if sealed else 0))
        return out.reshape(q.shape)  # (Hkv, G, D) -> (H, D)

    def bits_map(self, layer: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return how many bits the last decode step of a layer read of each number of K and V, each (L, Hkv, D)."""
        length = self._lengths[layer]
        shape = (length, self.num_kv_heads, self.head_dim)
        keys = np.broadcast_to(self._key_bits[layer], shape).copy()
        keys[length // BLOCK * BLOCK :] = 16
        values = np.broadcast_to(self._value_bits[layer, :, :length].T[:, :, None], shape)
        return keys, values
