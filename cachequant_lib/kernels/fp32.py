"""float32 linear layers for a few rows: the weight read once, where it lies, and every output in one order.

A BLAS packs both operands before it multiplies, a price that it can share out over many rows but not over eight. Here
nothing is packed. Rows of the input and rows of the weight are read side by side along k, 16 numbers at a time, and
each pair of rows has 16 totals of its own in registers::

    total[l] = x[k + l] * weight[k + l] + total[l]       rounded once, for k = 0, 16, ...
    y = sum of the totals, in halves; then the products of what K leaves past a multiple of 16, one by one; then bias

The order is the same whatever a register holds and however rows and columns are cut, so a row's result does not depend
on the rows it comes with. :func:`cachequant_lib.kernels.float_reference.linear_fp32_ref` says it in NumPy.
"""

from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import njit
from numpy.typing import NDArray

from cachequant_lib.kernels.floats import load_rows
from cachequant_lib.kernels.isa import InstructionSet, call, target_features
from cachequant_lib.kernels.jit import cached_njit
from cachequant_lib.kernels.simd import I32, _pack, _unpack, prefetch, store, to_float, zeros
from cachequant_lib.kernels.tiles import STRIP, Registers, Tile, intrinsic

FloatArray = NDArray[np.float32]
FEW_ROWS = 32
"""Most rows for which the kernel is used. Measured on the layers of GPT-2 with one thread, in turns with OpenBLAS 0.3
(AMD Zen 5, weights from memory): 3 to 4 times as fast at 2 rows, 2.4 or more at 8, 1.4 or more at 28 and at 32. One row
gains nothing: both wait for the weight.
"""
MANY_WEIGHTS = 2**16  # with fewer, waking the threads costs more than a BLAS does


@intrinsic
def add_products(typing_context: Any, total: Any, x: Any, weight: Any) -> Any:
    """Add ``x[r] * weight[c]``, rows of 16 lanes, to the 16 lanes of pair (r, c) of `total` (R, C). x86: vfmadd."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        totals, inputs, weights = (_unpack(builder, value, of) for value, of in zip(args, signature.args, strict=True))
        name, flat = f"llvm.fma.v{x.isa.lanes}f32", [b for row in weights for b in row]
        rows = [zip(a * len(weights), flat, sums, strict=True) for a, sums in zip(inputs, totals, strict=True)]
        return _pack(builder, total, [[call(builder, name, b.type, [a, b, c]) for a, b, c in row] for row in rows])

    return total(total, x, weight), generate


@intrinsic
def sum_pairs(typing_context: Any, total: Any) -> Any:
    """Add up the 16 lanes of each pair of rows, in halves: the sums side by side, the last lanes filled up anyhow.

    Two registers are halved at once, into one. x86: vshufps or vpermt2ps, vaddps.
    """
    lanes, per_pair = total.isa.lanes, STRIP // total.isa.lanes
    kind = Registers(total.isa, total.dtype, 1, -(-total.rows * total.columns // STRIP))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        flat = [register for row in _unpack(builder, args[0], total) for register in row]
        pairs, part = [flat[n : n + per_pair] for n in range(0, len(flat), per_pair)], lanes
        while (half := len(pairs[0]) // 2) > 0:
            pairs = [[builder.fadd(*two) for two in zip(pair[:half], pair[half:], strict=True)] for pair in pairs]
        row = [register for (register,) in pairs]
        while part > 1:
            part //= 2
            low = [lane for lane in range(2 * lanes) if lane & part == 0]
            picks = [ir.Constant(ir.VectorType(I32, lanes), [lane + shift for lane in low]) for shift in (0, part)]
            twos = zip(row[::2], [*row[1::2], row[-1]], strict=False)
            row = [builder.fadd(*(builder.shuffle_vector(*two, pick) for pick in picks)) for two in twos]
        return _pack(builder, kind, [row])

    return kind(total), generate


@cache
def pays(isa: InstructionSet) -> bool:
    """Whether the CPU has what the kernel is made for: one instruction that multiplies and adds, and wide registers."""
    compiled = not numba.config.DISABLE_JIT  # type: ignore[attr-defined]
    return isa.name != "generic" and compiled and bool({"fma", "dotprod"} & target_features())


@cache
def tiles_fp32(isa: InstructionSet) -> tuple[Tile, Tile]:
    """Return the tile of totals, and the tile of weight rows that goes with it."""
    (rows, columns), registers = (4, 6) if isa.lanes == STRIP else (2, 3), STRIP // isa.lanes
    return Tile(isa, rows, columns * registers), Tile(isa, columns, registers)


@njit
def _tile_fp32(tile, group, x, i, weight, bias, j, ahead, sums, out):  # type: ignore[no-untyped-def]
    """Compute rows i, i + 1, ... of the group of columns that begins at j, and ask for the weights `ahead`, if any.

    A tile that hangs over the last row or column computes the last again, and does not write it.
    """
    depth, num_rows, num_columns = weight.shape[1], x.shape[0] - i, weight.shape[0] - j
    whole, total = depth - depth % STRIP, to_float(zeros(tile))
    for k in range(0, whole, STRIP):
        if ahead:
            for c in range(group.rows):
                prefetch(tile.strip, weight, (j + c) * depth + k + ahead)
        inputs = load_rows(tile.narrow, x, i * depth + k, depth, num_rows)
        total = add_products(total, inputs, load_rows(group, weight, j * depth + k, depth, num_columns))
    store(sums, 0, 0, sum_pairs(total))
    for r in range(min(tile.rows, num_rows)):
        for c in range(min(group.rows, num_columns)):
            y = sums[r * group.rows + c]
            for k in range(whole, depth):
                y += x[i + r, k] * weight[j + c, k]
            out[i + r, j + c] = y + bias[j + c]


@cached_njit(parallel=True)
def multiply_fp32(
    tile: Any, group: Any, x: FloatArray, weight: FloatArray, bias: FloatArray, out: FloatArray, shares: int
) -> None:
    """Write ``x @ weight.T + bias`` into `out`.

    Parameters
    ----------
    tile, group : Tile
        As :func:`tiles_fp32` makes them.
    x : float32, shape (M, K), C-contiguous
    weight : float32, shape (N, K), C-contiguous
    bias : float32, shape (N,)
    out : float32, shape (M, N), C-contiguous
    shares : int
        Into how many the columns are cut: the number of threads.

    Notes
    -----
    M N K multiply-adds; the weight is read once from memory, and M / 4 times from a cache. While the first rows are
    multiplied with a group of weight rows, the next group is asked for.
    """
    num_rows, depth = x.shape
    num_groups = (weight.shape[0] + group.rows - 1) // group.rows
    for share in numba.prange(shares):  # type: ignore[no-untyped-call,attr-defined]
        sums = np.empty(tile.rows * group.rows + STRIP, np.float32)
        for g in range(share * num_groups // shares, (share + 1) * num_groups // shares):
            j, ahead = g * group.rows, group.rows * depth
            for i in range(0, num_rows, tile.rows):
                if i + 1 == num_rows:
                    _tile_fp32(tile.single, group, x, i, weight, bias, j, ahead, sums, out)
                else:
                    _tile_fp32(tile, group, x, i, weight, bias, j, ahead, sums, out)
                ahead = 0
