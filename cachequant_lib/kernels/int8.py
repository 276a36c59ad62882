"""int8 linear layers at the speed of the machine: packed weights, a tile of registers, and exact integers.

The result is cut into tiles of a few rows and columns that stay in registers while k runs from 0 to K. A step of four
values of k reads one row of registers of the weight and four bytes of each row of the input, and multiplies every pair.
So the weight is *packed* to be read in that very order: panels of ``tile.width`` columns, and within a panel the four
bytes of one column side by side, the columns in order, then the next four.

The arithmetic is the same for every instruction set, number of threads and number of rows::

    y = float32(sum of codes) * weight_scale * step + bias          each operation rounded to float32

with ``step = input_scale / 127**2`` and the sum exact in int32. :func:`reference.linear_int8_ref` says it in NumPy.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
from numba import njit
from numpy.typing import NDArray

from cachequant_lib.kernels.floats import load_rows
from cachequant_lib.kernels.jit import cached_njit, start_threads
from cachequant_lib.kernels.quantize import quantize_rows_int8
from cachequant_lib.kernels.simd import broadcast, dot4, load, prefetch, store, to_float, zeros
from cachequant_lib.kernels.tiles import Tile, pack_panels, unpack_panels

AHEAD = 4096  # bytes of the weight between what is multiplied and what is asked for: the time a read takes


class PackedInt8(NamedTuple):
    """An int8 weight as the kernel reads it, its N columns padded with zeros to whole panels.

    Attributes
    ----------
    panels : int8, shape (panels, K / 4, width, 4)
        Codes; K is padded with zeros to a multiple of four.
    starts : int32, shape (N padded,)
        ``tile.flip`` times the sum of the column's codes: where its sum of products begins. It takes back the 128
        added to every input code where the instruction wants them unsigned.
    scales, bias : float32, shape (N padded,)
    """

    panels: NDArray[np.int8]
    starts: NDArray[np.int32]
    scales: NDArray[np.float32]
    bias: NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        """Bytes held, padding included."""
        return sum(part.nbytes for part in self)


def pack_int8(
    tile: Tile, codes: NDArray[np.int8], scales: NDArray[np.float32], bias: NDArray[np.float32]
) -> PackedInt8:
    """Pack a weight of codes (N, K), scales (N,) and bias (N,) for a tile. Costs a copy."""
    start_threads()  # whoever multiplies has packed before
    panels = pack_panels(tile, codes)
    padding = (0, panels.shape[0] * tile.width - len(codes))
    sums = codes.sum(axis=1, dtype=np.int64)  # (N, K) -> (N,)
    starts = np.pad(sums * tile.flip, padding).astype(np.int32)  # wraps, and so does the sum that it begins
    return PackedInt8(panels, starts, np.pad(scales, padding), np.pad(bias, padding))


def unpack_int8(weight: PackedInt8, num_columns: int, depth: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return the codes (N, K) and scales (N,) that were packed."""
    return unpack_panels(weight.panels, num_columns, depth), weight.scales[:num_columns].copy()


@njit
def _tile_int8(tile, codes, steps, weight, i, j, out, column, add):  # type: ignore[no-untyped-def]
    """Compute rows i, i + 1, ... of the panel that begins at column j; store them from `column` on, or add there."""
    depth = codes.shape[1]
    total = zeros(tile) + load(tile, weight.starts, j)  # (R, C)
    at = j * depth
    for k in range(0, depth, 4):
        prefetch(tile, weight.panels, at + AHEAD)
        inputs = broadcast(tile, codes, i * depth + k, depth)  # (R, 1)
        total = dot4(total, inputs, load(tile, weight.panels, at))  # (R, C) += (R, 1) . (1, C)
        at += 4 * tile.width
    y = to_float(total) * load(tile, weight.scales, j) * broadcast(tile, steps, i, 1) + load(tile, weight.bias, j)
    at, stride = i * out.shape[1] + column, out.shape[1]
    if add:
        store(out, at, stride, y + load_rows(tile, out, at, stride, tile.rows))
    else:
        store(out, at, stride, y)


@njit
def panel_int8(tile, codes, steps, weight, j, out, column, add):  # type: ignore[no-untyped-def]
    """Compute every row of a panel, so that its weights are read from memory once: tall tiles, then what is left."""
    i, num_rows = 0, codes.shape[0]
    while i + tile.rows <= num_rows:
        _tile_int8(tile, codes, steps, weight, i, j, out, column, add)
        i += tile.rows
    while i + tile.half.rows <= num_rows:
        _tile_int8(tile.half, codes, steps, weight, i, j, out, column, add)
        i += tile.half.rows
    while i < num_rows:
        _tile_int8(tile.single, codes, steps, weight, i, j, out, column, add)
        i += 1


@cached_njit(parallel=True)
def multiply_int8(
    tile: Any, codes: NDArray[np.int8], steps: NDArray[np.float32], weight: PackedInt8, out: NDArray[np.float32]
) -> None:
    """Write ``(codes @ weight.T) * scales * steps + bias`` into `out`.

    Parameters
    ----------
    tile : Tile
        The one that `weight` was packed for.
    codes : int8, shape (M, K rounded up to 4)
    steps : float32, shape (M,)
        As :func:`quantize_rows_int8` writes both.
    weight : PackedInt8
    out : float32, shape (M, N), C-contiguous

    Notes
    -----
    M N K multiply-adds, one conversion, two multiplications and one addition an output; the weight is read once.
    Threads share out the panels. The last one is computed beside `out` if it is not whole.
    """
    num_rows, num_columns = out.shape
    last = np.empty((num_rows, tile.width), np.float32)
    for panel in numba.prange(weight.panels.shape[0]):  # type: ignore[no-untyped-call,attr-defined]
        j = panel * tile.width
        if j + tile.width <= num_columns:
            panel_int8(tile, codes, steps, weight, j, out, j, False)
        else:
            panel_int8(tile, codes, steps, weight, j, last, 0, False)
            out[:, j:] = last[:, : num_columns - j]


@cached_njit()
def linear_int8(tile: Any, x: NDArray[np.float32], weight: PackedInt8, out: NDArray[np.float32]) -> int:
    """Write ``x @ weight.T + bias`` for float32 x (M, K): quantise its rows, then multiply integers.

    Returns the bit pattern of the largest magnitude in `x`, as :func:`quantize_rows_int8` does: from ``NOT_FINITE`` on
    the input was not finite and `out` means nothing.
    """
    codes = np.empty((x.shape[0], 4 * weight.panels.shape[1]), np.int8)
    steps = np.empty(x.shape[0], np.float32)
    peak = quantize_rows_int8(tile, x, codes, steps)
    multiply_int8(tile, codes, steps, weight, out)
    return peak
