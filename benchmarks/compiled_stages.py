"""What lies between the products of a compiled forward pass, each part timed alone: norms, activations, attention.

The pass itself calls these row functions from within; here they stand alone, shared out among threads as it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
from numba import njit

from cachequant_lib.kernels.causal import KeptHeads, attend, room_needed
from cachequant_lib.kernels.elementwise import gate_row, gelu_row, normalize_row


@njit(parallel=True)
def _norms(tile, x, width, norms, eps, centred, lines):  # type: ignore[no-untyped-def]
    """Normalise all rows of x once for each norm (scale and shift) in `norms` (count, 2, C padded)."""
    for n in range(norms.shape[0]):
        for thread in numba.prange(lines.shape[0]):
            for i in range(thread, x.shape[0], lines.shape[0]):
                normalize_row(tile, x[i], width, norms[n, 0], norms[n, 1], eps, centred, lines[thread])


@njit(parallel=True)
def _activations(tile, h, side, gated, times, lines):  # type: ignore[no-untyped-def]
    """Activate all rows of h, `times` over, leaving h as it is."""
    for _ in range(times):
        for thread in numba.prange(lines.shape[0]):
            line = lines[thread]
            for i in range(thread, h.shape[0], lines.shape[0]):
                line[:] = h[i]
                if gated:
                    gate_row(tile, line, side)
                else:
                    gelu_row(tile, line)


@njit(parallel=True)
def _attention(tile, q, position, num_layers, num_kv_heads, head_dim, keys, values, room):  # type: ignore[no-untyped-def]
    """Attend in each layer; queries are shared out among threads."""
    count = q.shape[0] * (q.shape[1] // head_dim)
    for layer in range(num_layers):
        kept = KeptHeads(keys, values, keys.size // num_layers * layer, num_kv_heads, head_dim)
        for thread in numba.prange(room.shape[0]):
            first, last = count * thread // room.shape[0], count * (thread + 1) // room.shape[0]
            attend(tile, q, position, first, last, kept, room[thread])


def _padded(count: int) -> int:
    return -(-count // 16) * 16


def norms(tile: Any, model: Any, x: Any, num_threads: int) -> Iterator[None]:
    """All norms of a forward pass over x (T, C), again and again."""
    found = [norm for block in model.blocks for norm in (block.norm_1, block.norm_2)]
    width, centred = x.shape[1], hasattr(found[0], "bias")
    stacked = np.zeros((len(found), 2, _padded(width)), np.float32)
    for n, norm in enumerate(found):
        stacked[n, 0, :width] = norm.weight
        if centred:
            stacked[n, 1, :width] = norm.bias
    stream = np.zeros((len(x), _padded(width)), np.float32)
    stream[:, :width] = x
    lines = np.empty((num_threads, _padded(width)), np.float32)
    while True:
        _norms(tile, stream, width, stacked, np.float32(found[0].eps), centred, lines)
        yield


def activations(tile: Any, model: Any, h: Any, num_threads: int) -> Iterator[None]:
    """All activations of a forward pass over h (T, hidden), again and again."""
    padded = np.zeros((len(h), _padded(h.shape[1])), np.float32)
    padded[:, : h.shape[1]] = h
    lines, gated = np.empty((num_threads, padded.shape[1]), np.float32), model.config.architecture != "gpt2"
    while True:
        _activations(tile, padded, padded[0].copy(), gated, model.config.num_layers, lines)
        yield


def attention(tile: Any, model: Any, kv: Any, q: Any, position: int, num_threads: int) -> Iterator[None]:
    """Attention of all layers for q (T, H D), which follows `position` stored tokens, again and again."""
    c = model.config
    room = np.empty((num_threads, room_needed(tile, c.head_dim, position + len(q))), np.float32)
    keys, values = kv.keys.reshape(-1), kv.values.reshape(-1)  # (L, capacity, Hkv, D) -> flat
    while True:
        _attention(tile, q.copy(), position, c.num_layers, c.num_kv_heads, c.head_dim, keys, values, room)
        yield
