"""Every layer of a quantised model in one compiled call: GPT-2 and Llama, prefill and decode, any number of threads.

Between two calls of the interpreter lies the whole forward pass, so that a decoded token pays for it once and not for
each of a hundred small steps. Rows go through a layer in pieces that stay in cache. A layer has ten steps, and threads
take shares of each: of the rows where rows are normalised or quantised, of the columns where they are multiplied, so
that each weight is read once. They wait for each other after every step; or, with so few rows that waiting would cost
more, each thread prepares all rows for itself and they wait five times.

**A row has the same bits however it is computed**: alone, in any company, by any number of threads. Norms, activations
and attention keep one order of operations (see :mod:`elementwise` and :mod:`causal`), and the products are exact
integers, scaled one output at a time. So a prompt in one piece, in pieces, token by token, or after a prefix that was
computed before, leaves the same keys, values and residual stream, bit for bit, on one machine.
"""

from typing import Any

import numba
import numpy as np
from numba import njit

from cachequant_lib.kernels.causal import KeptHeads, attend
from cachequant_lib.kernels.either import layer_of, multiply_panel, quantize_row, rows_of
from cachequant_lib.kernels.elementwise import copy_row, gate_row, gelu_row, normalize_row, turn_row
from cachequant_lib.kernels.jit import cached_njit
from cachequant_lib.kernels.work import Room, Shape

NUM_STEPS = 10

# ---- Parts of steps --------------------------------------------------------------------------------------------------


@njit
def _normalize(tile, shape, norm, x, line, rows, first, last):  # type: ignore[no-untyped-def]
    """Normalise and quantise rows of x."""
    for i in range(first, last):
        normalize_row(tile, x[i], shape.width, norm[0], norm[1], shape.eps, shape.centred, line)
        quantize_row(tile, line[: shape.width], rows, i)


@njit
def _quantize(tile, x, width, rows, first, last):  # type: ignore[no-untyped-def]
    """Quantise the first `width` columns of rows of x."""
    for i in range(first, last):
        quantize_row(tile, x[i, :width], rows, i)


@njit
def _multiply(tile, rows, weight, first, last, out, add):  # type: ignore[no-untyped-def]
    """Multiply rows with panels of a weight; store or add."""
    for panel in range(first, last):
        multiply_panel(tile, rows, weight, panel * tile.width, out, panel * tile.width, add)


@njit
def _expand(tile, gated, rows, weight, first, last, out, side):  # type: ignore[no-untyped-def]
    """Multiply rows with panels of the first half of the MLP, and activate each while it is in cache."""
    num_rows, gap = rows.codes.shape[0], weight.panels.shape[0] // 2 * tile.width
    for j in range(first * tile.width, last * tile.width, tile.width):
        multiply_panel(tile, rows, weight, j, out, j, False)
        if gated:
            multiply_panel(tile, rows, weight, gap + j, side, 0, False)
        for i in range(num_rows):
            if gated:
                gate_row(tile, out[i, j : j + tile.width], side[i])
            else:
                gelu_row(tile, out[i, j : j + tile.width])


@njit
def _keep(tile, shape, wide, position, rope, kept, queries, first, last):  # type: ignore[no-untyped-def]
    """Put queries, keys and values of key-value heads where they belong; row i is at ``position + i``."""
    head_dim, group = shape.head_dim, shape.num_heads // shape.num_kv_heads * shape.head_dim
    for i in range(wide.shape[0]):
        row, angle = wide[i], (position + i) * shape.rotary
        cos, sin = rope[0, angle], rope[1, angle]
        column, stop = first * head_dim, last * head_dim
        at = kept.start + (position + i) * shape.num_kv_heads * head_dim
        copy_row(tile, row, shape.value_column + column, kept.values, at + column, stop - column)
        if shape.rotary:
            for k in range(column, stop, head_dim):
                turn_row(tile, row, shape.key_column + k, kept.keys, at + k, cos, sin)
            for k in range(first * group, last * group, head_dim):
                turn_row(tile, row, k, queries[i], k, cos, sin)
        else:
            copy_row(tile, row, shape.key_column + column, kept.keys, at + column, stop - column)
            copy_row(tile, row, first * group, queries[i], first * group, (last - first) * group)


# ---- One thread's share of a step ------------------------------------------------------------------------------------


@njit
def _share(count, thread, num_threads):  # type: ignore[no-untyped-def]
    """First and last of a thread's share of so many things."""
    return count * thread // num_threads, count * (thread + 1) // num_threads


@njit
def _step(tile, shape, qkv, out, up, down, rows, room, start, layer, i, step, thread, few):  # type: ignore[no-untyped-def]
    """Do a thread's share of one step of a layer, for the piece of rows that begins at row i.

    Even steps prepare what odd ones multiply: all rows for itself if there are `few`, else its share for all.
    """
    num_threads, num_rows = room.worst.size, min(room.wide.shape[0], room.x.shape[0] - i)
    x, wide, queries = room.x[i : i + num_rows], room.wide[:num_rows], room.queries[i : i + num_rows]
    owner, line = thread if few else 0, room.private[thread, : room.norms.shape[3]]
    first, last = (0, num_rows) if few else _share(num_rows, thread, num_threads)
    depth = queries.shape[1] if step in (4, 5) else shape.hidden_width if step in (8, 9) else shape.width
    mine = rows_of(rows, owner, num_rows, depth)
    num_heads, at = shape.num_kv_heads, room.keys.size // shape.num_layers * layer
    kept = KeptHeads(room.keys, room.values, at, num_heads, shape.head_dim)
    if step == 0:
        _normalize(tile, shape, room.norms[layer, 0], x, line, mine, first, last)
    elif step == 1:
        first, last = _share(qkv.panels.shape[1], thread, num_threads)
        _multiply(tile, mine, layer_of(qkv, layer), first, last, wide, False)
    elif step == 2:
        first, last = _share(num_heads, thread, num_threads)
        _keep(tile, shape, wide, start + i, room.rope, kept, queries, first, last)
    elif step == 3:
        per_head = num_rows * (shape.num_heads // num_heads)
        if few:  # then a thread has kept nothing but its own heads so far
            first, last = _share(num_heads, thread, num_threads)
            first, last = first * per_head, last * per_head
        else:
            first, last = _share(num_heads * per_head, thread, num_threads)
        attend(tile, queries, start + i, first, last, kept, room.private[thread])
    elif step == 4:
        _quantize(tile, queries, depth, mine, first, last)
    elif step == 5:
        first, last = _share(out.panels.shape[1], thread, num_threads)
        _multiply(tile, mine, layer_of(out, layer), first, last, x, True)
    elif step == 6:
        _normalize(tile, shape, room.norms[layer, 1], x, line, mine, first, last)
    elif step == 7:
        first, last = _share(up.panels.shape[1] // (1 + shape.gated), thread, num_threads)
        _expand(tile, shape.gated, mine, layer_of(up, layer), first, last, wide, room.side[thread])
    elif step == 8:
        _quantize(tile, wide, depth, mine, first, last)
    else:
        first, last = _share(down.panels.shape[1], thread, num_threads)
        _multiply(tile, mine, layer_of(down, layer), first, last, x, True)
    if step in (0, 4, 6, 8):
        for r in range(first, last):
            room.worst[thread] = max(room.worst[thread], mine.peaks[r])


# ---- The whole pass --------------------------------------------------------------------------------------------------


@cached_njit()
def forward_alone(
    tile: Any, shape: Shape, qkv: Any, out: Any, up: Any, down: Any, rows: Any, room: Room, start: int
) -> None:
    """Run all layers on one thread; see :class:`Work` for the arguments, and `room.worst` for how it went."""
    for layer in range(shape.num_layers):
        for i in range(0, room.x.shape[0], room.wide.shape[0]):
            for step in range(NUM_STEPS):
                _step(tile, shape, qkv, out, up, down, rows, room, start, layer, i, step, 0, False)


@cached_njit(parallel=True)
def forward_shared(
    tile: Any, shape: Shape, qkv: Any, out: Any, up: Any, down: Any, rows: Any, room: Room, start: int, few: bool
) -> None:
    """Run all layers on as many threads as `room` is for; the same bits as :func:`forward_alone`."""
    for layer in range(shape.num_layers):
        for i in range(0, room.x.shape[0], room.wide.shape[0]):
            for region in range(5 if few else NUM_STEPS):
                first, last = (2 * region, 2 * region + 2) if few else (region, region + 1)
                for thread in numba.prange(room.worst.size):  # type: ignore[no-untyped-call,attr-defined]
                    for step in range(first, last):
                        _step(tile, shape, qkv, out, up, down, rows, room, start, layer, i, step, np.intp(thread), few)
