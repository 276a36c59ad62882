"""AlignedKV as this book recommends it: fixed-point digits, read to a tolerance of the output."""

import numpy as np
from numpy.typing import NDArray

from cachequant_lib.errors import FormatError
from cachequant_lib.kernels.aligned import attend_aligned
from cachequant_lib.kernels.attention import BLOCK, head_tile
from cachequant_lib.kernels.digits import AlignedLayer, append_aligned
from cachequant_lib.kernels.jit import PARALLEL
from cachequant_lib.kv.base import FloatArray, KVCache
from cachequant_lib.kv.compressed import CompressedKV, check_finite, workers_for
from cachequant_lib.kv.paper import PaperKV

LARGEST = 2.0**64


class AlignedKV(CompressedKV):
    """Keys and values as two digits each, of which attention reads as many as the output can feel.

    Parameters
    ----------
    num_layers, num_kv_heads, head_dim : int
        Shape of the model's attention; the head size must be a multiple of four.
    capacity : int
        Positions to set memory aside for.
    tolerance : float, default 2**-8
        Error of a head's output that is aimed at, relative to its size: typical, not a bound. 0 reads all digits.
    control : bool, default False
        Read all digits whatever the tolerance: the same code, for comparisons.

    Attributes
    ----------
    layers : tuple of AlignedLayer
        What is stored.

    Raises
    ------
    FormatError
        If the tolerance is not in 0..1, or the head size no multiple of four.

    Notes
    -----
    A number takes 16 bits and its share of an exponent: 8 bits for 64 keys of a channel, 8 for the value of a token.
    The newest L mod 64 keys stay in float32. Numbers up to 2**64 in magnitude are stored, those below 2**-40 as 0; -0.0
    comes back as 0.0. See :mod:`cachequant_lib.kernels.aligned` for what is read.
    """

    format = "aligned"

    def __init__(self, *shape: int, tolerance: float = 2.0**-8, control: bool = False) -> None:
        super().__init__(*shape)
        num_layers, num_kv_heads, head_dim, capacity = shape
        if not 0 <= tolerance <= 1:
            raise FormatError(f"tolerance must lie in 0..1, got {tolerance!r}")
        if head_dim % 4:
            raise FormatError(f"the head size must be a multiple of four, got {head_dim}")
        self.tolerance, self.control = float(tolerance), bool(control)
        room = (capacity // BLOCK + 1) * BLOCK  # one token more at least: the kernel pads with it
        planes, blocks = (num_kv_heads, room, head_dim), (num_kv_heads, room // BLOCK, head_dim)
        self.layers = tuple(
            AlignedLayer(
                key_high=np.empty(planes, np.int8),
                key_low=np.empty(planes, np.int8),
                key_exponents=np.zeros(blocks, np.int8),
                open_keys=np.zeros((num_kv_heads, BLOCK, head_dim), np.float32),
                value_high=np.empty(planes, np.int8),
                value_low=np.empty(planes, np.int8),
                value_exponents=np.zeros(planes[:2], np.int8),
            )
            for _ in range(num_layers)
        )
        self._bits = np.zeros((num_layers, num_kv_heads, 2, room), np.uint8)

    @property
    def variant(self) -> str:
        """The design and its tolerance: rows of new tokens were computed with what decode had read."""
        return f"aligned d2 {0.0 if self.control else self.tolerance}"

    @property
    def nbytes(self) -> int:
        """Bytes set aside for digits, exponents and open blocks."""
        return sum(part.nbytes for layer in self.layers for part in layer)

    def _store(self, layer: int, start: int, k: FloatArray, v: FloatArray) -> None:
        if not append_aligned(head_tile(1, 4), k, v, self.layers[layer], start):
            check_finite(LARGEST, k, v)

    def _restore(self, layer: int, start: int, stop: int) -> tuple[FloatArray, FloatArray]:
        kv, sealed = self.layers[layer], self._lengths[layer] // BLOCK * BLOCK
        steps = np.ldexp(np.float32(1), kv.value_exponents[:, start:stop])[..., None]  # (Hkv, T, 1)
        v = (kv.value_high[:, start:stop] * np.float32(256) + kv.value_low[:, start:stop]) * steps
        blocks = np.arange(start, min(stop, sealed)) // BLOCK
        steps = np.ldexp(np.float32(1), kv.key_exponents[:, blocks])  # (Hkv, T, D)
        span = slice(start, start + len(blocks))
        k = (kv.key_high[:, span] * np.float32(256) + kv.key_low[:, span]) * steps
        k = np.concatenate([k, kv.open_keys[:, max(start - sealed, 0) : max(stop - sealed, 0)]], axis=1)
        return k.transpose(1, 0, 2), v.transpose(1, 0, 2)  # (Hkv, T, D) -> (T, Hkv, D)

    def _reopen(self, layer: int, length: int) -> None:
        first = length // BLOCK * BLOCK
        if self._lengths[layer] // BLOCK * BLOCK > first:
            k, _ = self._restore(layer, first, length)
            self.layers[layer].open_keys[:, : length - first] = k.transpose(1, 0, 2)  # (T, Hkv, D) -> (Hkv, T, D)

    def _decode(self, layer: int, q: FloatArray) -> FloatArray:
        length, heads, dim = self._lengths[layer], self.num_kv_heads, self.head_dim
        grouped = (q * np.float32(dim**-0.5)).reshape(heads, -1, dim)  # (H, D) -> (Hkv, G, D)
        out, bits, counts = np.empty_like(grouped), self._bits[layer], np.empty((heads, 2), np.int64)
        tile = head_tile(grouped.shape[1], dim)
        tolerance = np.float32(0 if self.control else self.tolerance)
        with PARALLEL:
            workers = workers_for(length * heads * dim, heads)
            attend_aligned(tile, grouped, self.layers[layer], length, tolerance, out, bits, counts, workers)
        self.reads.num_values += length * heads * dim
        self.reads.key_bits += int(counts[:, 0].sum()) * dim
        self.reads.value_bits += int(counts[:, 1].sum()) * dim
        self.reads.meta_bits += 8 * heads * (length // BLOCK * dim + length)
        return out.reshape(q.shape)  # (Hkv, G, D) -> (H, D)

    def bits_map(self, layer: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return how many bits the last decode step of a layer read of each number of K and V, each (L, Hkv, D)."""
        bits = self._bits[layer, :, :, : self._lengths[layer], None]
        shape = (self._lengths[layer], self.num_kv_heads, self.head_dim)
        keys, values = (np.broadcast_to(bits[:, i].transpose(1, 0, 2), shape) for i in (0, 1))
        return keys, values


def aligned_kv(
    *shape: int,
    design: str = "d2",
    tolerance: float = 2.0**-8,
    thresholds: tuple[int, int] = (4, 8),
    control: bool = False,
) -> KVCache:
    """Make an :class:`AlignedKV` (``design="d2"``), or a :class:`PaperKV` (``design="paper"``)."""
    if design == "d2":
        return AlignedKV(*shape, tolerance=tolerance, control=control)
    if design == "paper":
        return PaperKV(*shape, thresholds=thresholds, control=control)
    raise FormatError(f'design must be "d2" or "paper", got {design!r}')
