"""BFP8 linear layers at the speed of the machine: the tile of int8, emptied every 32 values.

A block of 32 values of k has its own power of two on either side, so the integer totals of a tile are scaled and added
to float32 totals after every block. Both sets live in registers, so the tile has half the rows of that of int8. The
exponents of a weight are packed as its codes are: one byte a column, a register's worth at a time.

The arithmetic is the same for every instruction set, number of threads and number of rows. In float32, with the blocks
in order and each operation rounded::

    total = total + float32(sum of mantissas) * weight_power * input_power          for each block
    y = total * (1 / 127**2) + bias

The sum is below 2**19 and exact, and so are the two products with powers of two (unless one leaves the range of
float32): what rounds is adding up K / 32 blocks. :func:`reference.linear_bfp8_ref` says it in NumPy.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
from numba import njit
from numpy.typing import NDArray

from cachequant_lib.kernels.floats import load_rows
from cachequant_lib.kernels.jit import cached_njit, start_threads
from cachequant_lib.kernels.quantize import quantize_rows_bfp8
from cachequant_lib.kernels.simd import broadcast, dot4, load, load_powers, prefetch, splat, store, to_float, zeros
from cachequant_lib.kernels.tiles import Tile, pack_panels, unpack_panels

AHEAD = 4096  # bytes of the weight between what is multiplied and what is asked for: the time a read takes
BLOCK = 32
BIAS = 127  # float32 stores an exponent plus this
UNIT = np.float32(1.0 / (127 * 127))


class PackedBFP8(NamedTuple):
    """A BFP8 weight as the kernel reads it, its N columns padded with zeros to whole panels.

    Attributes
    ----------
    panels : int8, shape (panels, K / 4, width, 4)
        Mantissas, each as ``mantissa ^ tile.flip``: here the weight is the unsigned operand.
    exponents : uint8, shape (panels, K / 32, width)
        Exponents plus 127.
    bias : float32, shape (N padded,)
    """

    panels: NDArray[np.int8]
    exponents: NDArray[np.uint8]
    bias: NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        """Bytes held, padding included."""
        return sum(part.nbytes for part in self)


def pack_bfp8(
    tile: Tile, mantissas: NDArray[np.int8], exponents: NDArray[np.int32], bias: NDArray[np.float32]
) -> PackedBFP8:
    """Pack a weight of mantissas (N, K), exponents (N, K / 32) and bias (N,) for a tile. Costs a copy."""
    start_threads()  # whoever multiplies has packed before
    panels = pack_panels(tile, mantissas)
    padding = (0, panels.shape[0] * tile.width - len(mantissas))
    fields = np.pad((exponents + BIAS).astype(np.uint8), (padding, (0, 0)))  # (N padded, K / 32)
    fields = fields.reshape(-1, tile.width, fields.shape[1]).transpose(0, 2, 1)  # (panels, K / 32, width)
    return PackedBFP8(panels ^ np.int8(tile.flip), np.ascontiguousarray(fields), np.pad(bias, padding))


def unpack_bfp8(
    tile: Tile, weight: PackedBFP8, num_columns: int, depth: int
) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Return the mantissas (N, K) and exponents (N, K / 32) that were packed."""
    fields = weight.exponents.transpose(0, 2, 1).reshape(-1, weight.exponents.shape[1])  # (N padded, K / 32)
    mantissas = unpack_panels(weight.panels ^ np.int8(tile.flip), num_columns, depth)
    return mantissas, fields[:num_columns].astype(np.int32) - BIAS


@njit
def _tile_bfp8(tile, codes, powers, starts, weight, i, j, out, column, add):  # type: ignore[no-untyped-def]
    """Compute rows i, i + 1, ... of the panel that begins at column j; store them from `column` on, or add there."""
    depth, num_blocks = codes.shape[1], powers.shape[1]
    total = to_float(zeros(tile))  # (R, C)
    at = j * depth
    for b in range(num_blocks):
        sums = zeros(tile) + broadcast(tile, starts, i * num_blocks + b, num_blocks)  # (R, C) + (R, 1)
        for k in range(b * BLOCK, (b + 1) * BLOCK, 4):
            prefetch(tile, weight.panels, at + AHEAD)
            inputs = broadcast(tile, codes, i * depth + k, depth)  # (R, 1)
            sums = dot4(sums, load(tile, weight.panels, at), inputs)  # (R, C) += (1, C) . (R, 1)
            at += 4 * tile.width
        weight_powers = load_powers(tile, weight.exponents, j * num_blocks + b * tile.width)  # (1, C)
        input_powers = broadcast(tile, powers, i * num_blocks + b, num_blocks)  # (R, 1)
        total = total + to_float(sums) * weight_powers * input_powers
    y = total * splat(tile, UNIT) + load(tile, weight.bias, j)
    start, stride = i * out.shape[1] + column, out.shape[1]
    if add:
        store(out, start, stride, y + load_rows(tile, out, start, stride, tile.rows))
    else:
        store(out, start, stride, y)


@njit
def panel_bfp8(tile, codes, powers, starts, weight, j, out, column, add):  # type: ignore[no-untyped-def]
    """Compute every row of a panel, so that its weights are read from memory once: tall tiles, then what is left."""
    i, num_rows = 0, codes.shape[0]
    while i + tile.rows <= num_rows:
        _tile_bfp8(tile, codes, powers, starts, weight, i, j, out, column, add)
        i += tile.rows
    while i + tile.half.rows <= num_rows:
        _tile_bfp8(tile.half, codes, powers, starts, weight, i, j, out, column, add)
        i += tile.half.rows
    while i < num_rows:
        _tile_bfp8(tile.single, codes, powers, starts, weight, i, j, out, column, add)
        i += 1


@cached_njit(parallel=True)
def multiply_bfp8(
    tile: Any,
    codes: NDArray[np.int8],
    powers: NDArray[np.float32],
    starts: NDArray[np.int32],
    weight: PackedBFP8,
    out: NDArray[np.float32],
) -> None:
    """Multiply quantised rows with a packed weight and add its bias, into `out`.

    Parameters
    ----------
    tile : Tile
        The one that `weight` was packed for.
    codes : int8, shape (M, K)
    powers : float32, shape (M, K / 32)
    starts : int32, shape (M, K / 32)
        As :func:`quantize_rows_bfp8` writes the three.
    weight : PackedBFP8
    out : float32, shape (M, N), C-contiguous

    Notes
    -----
    M N K multiply-adds; for each block of each output one conversion, two multiplications and one addition. The weight
    is read once. Threads share out the panels. The last one is computed beside `out` if it is not whole.
    """
    num_rows, num_columns = out.shape
    last = np.empty((num_rows, tile.width), np.float32)
    for panel in numba.prange(weight.panels.shape[0]):  # type: ignore[no-untyped-call,attr-defined]
        j = panel * tile.width
        if j + tile.width <= num_columns:
            panel_bfp8(tile, codes, powers, starts, weight, j, out, j, False)
        else:
            panel_bfp8(tile, codes, powers, starts, weight, j, last, 0, False)
            out[:, j:] = last[:, : num_columns - j]


@cached_njit()
def linear_bfp8(tile: Any, x: NDArray[np.float32], weight: PackedBFP8, out: NDArray[np.float32]) -> int:
    """Write ``x @ weight.T + bias`` for float32 x (M, K): quantise its rows in blocks, then multiply integers.

    Returns the bit pattern of the largest magnitude in `x`, as :func:`quantize_rows_bfp8` does: above ``LARGEST_POWER``
    no exponent fits and `out` means nothing.
    """
    num_rows, num_blocks = x.shape[0], x.shape[1] // BLOCK
    codes = np.empty(x.shape, np.int8)
    powers = np.empty((num_rows, num_blocks), np.float32)
    starts = np.empty((num_rows, num_blocks), np.int32)
    peak = quantize_rows_bfp8(tile, x, codes, powers, starts)
    multiply_bfp8(tile, codes, powers, starts, weight, out)
    return peak
