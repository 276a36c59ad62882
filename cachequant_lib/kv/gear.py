"""GEAR: KIVI's rounding with outliers kept apart and a low-rank repair, chunk by chunk."""

import numpy as np

from cachequant_lib.errors import FormatError
from cachequant_lib.formats.gear import quantize_gear
from cachequant_lib.formats.scheme import is_whole
from cachequant_lib.kv.base import FloatArray
from cachequant_lib.kv.simulated import SimulatedKV


class GearKV(SimulatedKV):
    """GEAR, simulated: chunks of `buffer` tokens, each a backbone of `bits` bits, outliers and a low-rank part.

    The source takes a prompt as one chunk of rank 4 and later tokens in chunks of rank 2. Here all chunks are alike, so
    that what is stored does not depend on how the text came in.

    Parameters
    ----------
    num_layers, num_kv_heads, head_dim, capacity : int
        As of any cache.
    bits : int, default 4
        1 to 16.
    group_size : int, default 32
        Neighbouring tokens of one channel of K, or channels of one token of V; of the whole head if that is smaller.
    buffer : int, default 64
        Tokens of a chunk; up to so many of the newest stay in fp16.
    rank : int, default 2
    outliers : float, default 0.02
        Share of the numbers that are kept apart.

    Raises
    ------
    FormatError
        For impossible settings.
    """

    format = "gear"

    def __init__(
        self, *shape: int, bits: int = 4, group_size: int = 32, buffer: int = 64, rank: int = 2, outliers: float = 0.02
    ) -> None:
        super().__init__(*shape)
        num_kv_heads, head_dim = self.num_kv_heads, self.head_dim
        if not (is_whole(group_size, 1) and is_whole(buffer, 1) and buffer % group_size == 0):
            raise FormatError(f"groups of {group_size!r} do not divide a buffer of {buffer!r}")
        self.bits, self.buffer = bits, int(buffer)
        self._settings = (rank, outliers)
        self._groups = (int(group_size), min(group_size, head_dim))
        empty = np.zeros((buffer, num_kv_heads, head_dim), np.float32)  # also checks the settings
        tensors = [quantize_gear(empty, bits, axis, self._groups[axis], *self._settings) for axis in (0, -1)]
        self.meta = (tensors[0].bits_per_value - bits, tensors[1].bits_per_value - bits)

    @property
    def variant(self) -> str:
        """The format and its settings."""
        return f"gear {self.bits} {self._groups[0]} {self.buffer} {self._settings}"

    def _ready(self, part: int, length: int) -> int:
        return length // self.buffer * self.buffer

    def _round(self, part: int, rows: FloatArray) -> FloatArray:
        settings = (self.bits, -part, self._groups[part], *self._settings)  # axis 0 for K, -1 for V
        chunks = [quantize_gear(rows[i : i + self.buffer], *settings) for i in range(0, len(rows), self.buffer)]
        return np.concatenate([chunk.dequantize() for chunk in chunks])
