"""Storing keys and values in planes: what :mod:`cachequant_lib.kernels.aligned_paper` attends to.

A number in fp16 is cut into planes of 8, 4 and 4 bits, as in :mod:`cachequant_lib.formats.bitplanes`: keys in blocks of
64 tokens, channel by channel, and values token by token, so that what is read at one width lies side by side.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from cachequant_lib.kernels.attention import BLOCK
from cachequant_lib.kernels.jit import cached_njit


class PlanesLayer(NamedTuple):
    """One layer as stored, or one head of it without the first axis. P is the capacity in whole blocks of 64.

    Attributes
    ----------
    key_high : uint8, shape (Hkv, P / 64, D, 64)
    key_middle, key_low : uint8, shape (Hkv, P / 64, D, 32)
        Planes of the keys, channel by channel.
    value_high : uint8, shape (Hkv, P, D)
    value_middle, value_low : uint8, shape (Hkv, P, D / 2)
        Planes of the values, token by token.
    key_peaks, value_peaks : uint8, shape (Hkv, D)
        Largest exponent field of each channel so far, the open block included. Never falls.
    open_keys, open_values : uint16, shape (Hkv, 64, D)
        The newest L mod 64 tokens in whole fp16 patterns.
    """

    key_high: NDArray[np.uint8]
    key_middle: NDArray[np.uint8]
    key_low: NDArray[np.uint8]
    value_high: NDArray[np.uint8]
    value_middle: NDArray[np.uint8]
    value_low: NDArray[np.uint8]
    key_peaks: NDArray[np.uint8]
    value_peaks: NDArray[np.uint8]
    open_keys: NDArray[np.uint16]
    open_values: NDArray[np.uint16]


@njit
def _split_row(row, high, middle, low):  # type: ignore[no-untyped-def]
    """Cut fp16 patterns (n,) into planes (n,), (n / 2,), (n / 2,)."""
    half = middle.size
    for j in range(row.size):
        high[j] = row[j] >> 8
    for j in range(half):
        a, b = row[j], row[j + half]
        middle[j] = ((a >> 4) & 15) | (b & 0xF0)
        low[j] = (a & 15) | ((b & 15) << 4)


@njit
def _raise_peaks(row, peaks):  # type: ignore[no-untyped-def]
    for c in range(row.size):
        peaks[c] = max(peaks[c], np.uint8((row[c] >> 10) & 31))


@cached_njit()
def append_planes(tile: Any, k: NDArray[np.uint16], v: NDArray[np.uint16], layer: PlanesLayer, start: int) -> None:
    """Store fp16 patterns of keys and values (T, Hkv, D) as tokens `start` and following; any `tile` will do."""
    num_tokens, num_heads, head_dim = k.shape
    keys = np.empty(BLOCK, np.uint16)
    for h in range(num_heads):
        for i in range(num_tokens):
            block, row = (start + i) // BLOCK, (start + i) % BLOCK
            _raise_peaks(k[i, h], layer.key_peaks[h])
            _raise_peaks(v[i, h], layer.value_peaks[h])
            for c in range(head_dim):
                layer.open_keys[h, row, c], layer.open_values[h, row, c] = k[i, h, c], v[i, h, c]
            if row < BLOCK - 1:
                continue
            for c in range(head_dim):
                for j in range(BLOCK):
                    keys[j] = layer.open_keys[h, j, c]
                _split_row(keys, layer.key_high[h, block, c], layer.key_middle[h, block, c], layer.key_low[h, block, c])
            for j in range(BLOCK):
                t, values = block * BLOCK + j, layer.open_values[h, j]
                _split_row(values, layer.value_high[h, t], layer.value_middle[h, t], layer.value_low[h, t])
