"""Causal attention in float32 over keys and values where they lie, each query row in one fixed order.

A score adds the products over d from 0 to D; the softmax runs over positions in strips of 16; a result adds weighted
values over positions from the first to the last, one multiply-add after the other. Tiles differ in how many rows and
positions they hold at a time, not in that order, and hidden positions add an exact zero. So a query's result depends
on its own position, the keys and the values, and on nothing else: not on the rows it is computed with.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from cachequant_lib.kernels.elementwise import copy_row, softmax_row
from cachequant_lib.kernels.floats import load_rows, multiply_add, transpose
from cachequant_lib.kernels.simd import broadcast, load, prefetch, store, to_float, zeros
from cachequant_lib.kernels.tiles import STRIP, Tile

PANEL = 64  # positions of a panel of keys
AHEAD = 12  # positions between the values that are read and those that are asked for
WORTH_COPYING = 16  # query rows for which values are laid close together first


class KeptHeads(NamedTuple):
    """Keys and values of one layer.

    Attributes
    ----------
    keys, values : float32, flat
        Position t of head h lies from ``start + (t * num_heads + h) * head_dim`` on.
    start, num_heads, head_dim : int
    """

    keys: NDArray[np.float32]
    values: NDArray[np.float32]
    start: int
    num_heads: int
    head_dim: int


class Desk(NamedTuple):
    """Room for one thread, each a flat array of float32.

    Attributes
    ----------
    queries : (R, D)
        R is ``tile.patch.rows``.
    out : (R, D rounded up to 16)
    sums : (R,)
    scores : (R, positions rounded up to 64)
    keys : (positions rounded up to 64, D)
        In panels [positions / 64][D][64].
    values : (positions rounded up to 64, D rounded up to 16)
    """

    queries: NDArray[np.float32]
    out: NDArray[np.float32]
    sums: NDArray[np.float32]
    scores: NDArray[np.float32]
    keys: NDArray[np.float32]
    values: NDArray[np.float32]


def room_needed(tile: Tile, head_dim: int, num_positions: int) -> int:
    """Numbers of float32 that :func:`attend` needs for itself."""
    rows, width, padded = tile.patch.rows, -(-head_dim // STRIP) * STRIP, -(-num_positions // PANEL) * PANEL
    return rows * (head_dim + width + 1 + padded) + padded * (head_dim + width)


@njit
def _clear_desk(tile, room, head_dim, num_positions):  # type: ignore[no-untyped-def]
    """Cut a flat array up; see :func:`room_needed`."""
    rows, width, padded = tile.patch.rows, (head_dim + 15) // 16 * 16, (num_positions + 63) // 64 * 64
    a = rows * head_dim
    b = a + rows * width
    c = b + rows
    d = c + rows * padded
    e = d + padded * head_dim
    return Desk(room[:a], room[a:b], room[b:c], room[c:d], room[d:e], room[e : e + padded * width])


@njit
def _transpose_keys(tile, keys, at, stride, count, head_dim, panels):  # type: ignore[no-untyped-def]
    """Lay keys ``keys[at + t * stride]``, D numbers each, out as panels [count / 64][D][64]."""
    lanes = tile.square.rows
    whole = head_dim - head_dim % lanes
    for t in range(0, count, lanes):
        place, row = t // PANEL * PANEL * head_dim + t % PANEL, at + t * stride
        for lane in range(lanes):
            prefetch(tile.ribbon, keys, row + (lanes + lane) * stride)
        for d in range(0, whole, lanes):
            square = load_rows(tile.square, keys, row + d, stride, count - t)
            store(panels, place + d * PANEL, PANEL, transpose(square))
        for d in range(whole, head_dim):
            for lane in range(min(lanes, count - t)):
                panels[place + d * PANEL + lane] = keys[row + lane * stride + d]


@njit
def _score_tile(tile, queries, head_dim, panels, at, scores, start, stride):  # type: ignore[no-untyped-def]
    """Store the products of ``tile.rows`` queries with ``tile.width`` keys."""
    total = to_float(zeros(tile))
    for d in range(head_dim):
        total = multiply_add(broadcast(tile, queries, d, head_dim), load(tile, panels, at + d * PANEL), total)
    store(scores, start, stride, total)


@njit
def _mix_tile(tile, scores, stride, count, values, at, step, sums, out, start, width):  # type: ignore[no-untyped-def]
    """Store ``tile.width`` columns of the mix of `count` values for ``tile.rows`` rows."""
    total = to_float(zeros(tile))
    for t in range(count):
        prefetch(tile, values, at + (t + AHEAD) * step)
        total = multiply_add(broadcast(tile, scores, t, stride), load(tile, values, at + t * step), total)
    store(out, start, width, total / broadcast(tile, sums, 0, 1))


@njit
def _attend_rows(tile, q, row, first, head, group, head_dim, values, at, step, desk):  # type: ignore[no-untyped-def]
    """Replace ``tile.rows`` queries of the heads that share `head` by what they attend to; row = token * group + g."""
    for r in range(tile.rows):
        i, column = (row + r) // group, (head * group + (row + r) % group) * head_dim
        copy_row(tile, q[i], column, desk.queries, r * head_dim, head_dim)
    count = first + (row + tile.rows - 1) // group + 1
    stride, width = -(-count // PANEL) * PANEL, -(-head_dim // STRIP) * STRIP
    for t in range(0, count, tile.width):
        place = t // PANEL * PANEL * head_dim + t % PANEL
        _score_tile(tile, desk.queries, head_dim, desk.keys, place, desk.scores, t, stride)
    factor = np.float32(1) / np.sqrt(np.float32(head_dim))
    for r in range(tile.rows):
        visible = first + (row + r) // group + 1
        desk.sums[r] = softmax_row(tile, desk.scores, r * stride, visible, count, factor)
    c = 0
    while c + tile.width <= width:
        _mix_tile(tile, desk.scores, stride, count, values, at + c, step, desk.sums, desk.out, c, width)
        c += tile.width
    while c < width:
        _mix_tile(tile.narrow, desk.scores, stride, count, values, at + c, step, desk.sums, desk.out, c, width)
        c += tile.narrow.width
    for r in range(tile.rows):
        i, column = (row + r) // group, (head * group + (row + r) % group) * head_dim
        copy_row(tile, desk.out, r * width, q[i], column, head_dim)


@njit
def attend(tile, q, position, first, last, kept, room):  # type: ignore[no-untyped-def]
    """Replace queries (T, H D) at positions `position`, ... by what they attend to: the `first` to the `last` of them.

    Counted are the queries of the first key-value head, token by token, then those of the next. `kept` holds at least
    ``position + T`` positions, and `room` what :func:`room_needed` says.
    """
    head_dim, group = kept.head_dim, q.shape[1] // (kept.num_heads * kept.head_dim)
    per_head, num_positions, stride = q.shape[0] * group, position + q.shape[0], kept.num_heads * head_dim
    width, desk = (head_dim + 15) // 16 * 16, _clear_desk(tile, room, head_dim, num_positions)
    for head in range(first // per_head, (last + per_head - 1) // per_head):
        row, stop = max(first - head * per_head, 0), min(last - head * per_head, per_head)
        base = kept.start + head * head_dim
        _transpose_keys(tile, kept.keys, base, stride, num_positions, head_dim, desk.keys)
        values, origin, step = kept.values, base, stride
        if width != head_dim or stop - row >= WORTH_COPYING:
            values, origin, step = desk.values, 0, width
            for t in range(num_positions):
                prefetch(tile.ribbon, kept.values, base + (t + AHEAD) * stride)
                copy_row(tile, kept.values, base + t * stride, values, t * width, head_dim)
                values[t * width + head_dim : (t + 1) * width] = 0
        while row + tile.patch.rows <= stop:
            _attend_rows(tile.patch, q, row, position, head, group, head_dim, values, origin, step, desk)
            row += tile.patch.rows
        while row < stop:
            _attend_rows(tile.ribbon, q, row, position, head, group, head_dim, values, origin, step, desk)
            row += 1
