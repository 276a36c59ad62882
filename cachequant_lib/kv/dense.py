"""The plain cache: float32 keys and values in arrays set aside once."""

import numpy as np

from cachequant_lib.kv.base import FloatArray, KVBlock, KVCache, softmax_causal


class DenseKV(KVCache):
    """Keys and values in float32, allocated once for `capacity` positions and filled in place.

    Parameters
    ----------
    num_layers, num_kv_heads, head_dim : int
        Shape of the model's attention.
    capacity : int
        Positions to set memory aside for; the system hands it out as it is first written.
    """

    format = "dense"

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, capacity: int) -> None:
        super().__init__(num_layers, num_kv_heads, head_dim, capacity)
        shape = (num_layers, capacity, num_kv_heads, head_dim)
        self.keys = np.empty(shape, np.float32)
        self.values = np.empty(shape, np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes set aside for keys and values."""
        return self.keys.nbytes + self.values.nbytes

    def append(self, layer: int, k: FloatArray, v: FloatArray) -> None:
        """Add T positions to one layer in place; see :meth:`KVCache.append`."""
        start, stop = self.check_append(layer, k, v)
        self.keys[layer, start:stop] = k
        self.values[layer, start:stop] = v
        self._lengths[layer] = stop

    def extend(self, count: int) -> None:
        """Count in positions that a kernel has written to `keys` and `values` of all layers, and attended from."""
        stop = self._check_room(self.length, count)
        self._lengths = [stop] * self.num_layers
        self.bytes_read += stop * (self.keys[:, 0].nbytes + self.values[:, 0].nbytes)  # (L, Hkv, D) a position

    def attend(self, layer: int, q: FloatArray) -> FloatArray:
        """Causal attention in float32; see :meth:`KVCache.attend`."""
        num_positions = self.check_queries(layer, q)
        num_queries, num_heads, head_dim = q.shape
        keys, values = self.keys[layer, :num_positions], self.values[layer, :num_positions]
        self.bytes_read += keys.nbytes + values.nbytes

        heads = q.reshape(num_queries, self.num_kv_heads, -1, head_dim)  # (T, H, D) -> (T, Hkv, H/Hkv, D)
        heads = heads.transpose(1, 2, 0, 3)  # (T, Hkv, H/Hkv, D) -> (Hkv, H/Hkv, T, D)
        rows = heads.reshape(self.num_kv_heads, -1, head_dim)  # -> (Hkv, H/Hkv * T, D)
        scores = rows @ keys.transpose(1, 2, 0)  # (Hkv, H/Hkv * T, D) @ (Hkv, D, L) -> (Hkv, H/Hkv * T, L)
        scores *= np.float32(head_dim**-0.5)
        softmax_causal(scores.reshape(self.num_kv_heads, -1, num_queries, num_positions), num_queries)
        y = scores @ values.transpose(1, 0, 2)  # (Hkv, H/Hkv * T, L) @ (Hkv, L, D) -> (Hkv, H/Hkv * T, D)
        y = y.reshape(num_heads, num_queries, head_dim)  # -> (H, T, D)
        return np.ascontiguousarray(y.transpose(1, 0, 2))  # (H, T, D) -> (T, H, D)

    def read_block(self, start: int, stop: int) -> KVBlock:
        """Copy positions out of all layers; see :meth:`KVCache.read_block`."""
        self.check_range(start, stop)
        shape = (self.num_layers, 2, stop - start, self.num_kv_heads, self.head_dim)
        rows = np.moveaxis(np.empty(shape, np.float32), 2, 0)  # (L, 2, T, Hkv, D) -> (T, L, 2, Hkv, D)
        self.read_into(start, stop, rows)  # in memory one layer after the other, as here: long stretches
        return KVBlock(rows)

    def read_into(self, start: int, stop: int, rows: FloatArray) -> None:
        """Copy positions out of all layers, each once; see :meth:`KVCache.read_into`."""
        self.check_range(start, stop)
        rows[:, :, 0] = self.keys[:, start:stop].swapaxes(0, 1)  # (L, T, Hkv, D) -> (T, L, Hkv, D)
        rows[:, :, 1] = self.values[:, start:stop].swapaxes(0, 1)  # (L, T, Hkv, D) -> (T, L, Hkv, D)

    def write_block(self, block: KVBlock) -> None:
        """Copy a block in as the next positions; see :meth:`KVCache.write_block`."""
        start, stop = self.check_block(block)
        self.truncate(start)  # a layer that ran ahead of the others must not keep its extra rows
        self.keys[:, start:stop] = block.keys.swapaxes(0, 1)  # (T, L, Hkv, D) -> (L, T, Hkv, D)
        self.values[:, start:stop] = block.values.swapaxes(0, 1)  # (T, L, Hkv, D) -> (L, T, Hkv, D)
        self._lengths = [stop] * self.num_layers
