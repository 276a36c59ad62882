"""KIVI: keys in few bits by channel, values by token, the newest tokens in fp16."""

from cachequant_lib.errors import FormatError
from cachequant_lib.formats.kivi import quantize_kivi
from cachequant_lib.formats.scheme import is_whole
from cachequant_lib.kv.base import FloatArray
from cachequant_lib.kv.simulated import SimulatedKV


class KiviKV(SimulatedKV):
    """KIVI, simulated: codes of `bits` bits, with a scale and a zero point for `group_size` numbers.

    Parameters
    ----------
    num_layers, num_kv_heads, head_dim, capacity : int
        As of any cache.
    bits : int, default 4
        1 to 16.
    group_size : int, default 32
        Neighbouring tokens of one channel of K, or channels of one token of V; of the whole head if that is smaller.
    residual : int, default 128
        Newest tokens that stay in fp16: up to so many keys, which are rounded together, and always as many values.

    Raises
    ------
    FormatError
        For impossible settings.
    """

    format = "kivi"

    def __init__(self, *shape: int, bits: int = 4, group_size: int = 32, residual: int = 128) -> None:
        super().__init__(*shape)
        head_dim = self.head_dim
        if not (is_whole(bits, 1) and bits <= 16 and is_whole(group_size, 1) and is_whole(residual, 1)):
            raise FormatError(
                f"need 1 to 16 bits, a group size, a residual; got {bits!r}, {group_size!r}, {residual!r}"
            )
        self.bits, self.residual, self._groups = int(bits), int(residual), (int(group_size), min(group_size, head_dim))
        if residual % group_size or head_dim % self._groups[1]:
            raise FormatError(f"groups of {group_size} do not divide a residual of {residual} or a head of {head_dim}")
        self.meta = (32 / self._groups[0], 32 / self._groups[1])

    @property
    def variant(self) -> str:
        """The format and its settings."""
        return f"kivi {self.bits} {self._groups[0]} {self.residual}"

    def _ready(self, part: int, length: int) -> int:
        return max(length - self.residual, 0) if part else length // self.residual * self.residual

    def _round(self, part: int, rows: FloatArray) -> FloatArray:
        return quantize_kivi(rows, self.bits, -1 if part else 0, self._groups[part]).dequantize()
