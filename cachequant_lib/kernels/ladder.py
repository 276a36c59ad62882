"""The ladder from three plain loops to the packed kernel: each rung is the one before it and one idea.

All rungs compute the same bits, those of :func:`cachequant_lib.kernels.reference.linear_int8_ref`, on one thread. The
last rung is :func:`cachequant_lib.kernels.int8.multiply_int8`. They are here to be read and timed, one after the other.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from cachequant_lib.kernels.int8 import PackedInt8
from cachequant_lib.kernels.jit import cached_njit
from cachequant_lib.kernels.simd import broadcast, dot4, load, store, sum_lanes, to_float, zeros

CodeArray = NDArray[np.int8]
FloatArray = NDArray[np.float32]


@cached_njit()
def multiply_int8_0_naive(
    codes: CodeArray, steps: FloatArray, weight: CodeArray, scales: FloatArray, bias: FloatArray, out: FloatArray
) -> None:
    """Rung 0, the textbook: codes (M, K) times a weight stored (K, N), as mathematics writes it.

    The inner loop walks down a column of the weight: each step lands N bytes further on, in another cache line.
    """
    for i in range(codes.shape[0]):
        for j in range(weight.shape[1]):
            total = 0
            for k in range(codes.shape[1]):
                total += codes[i, k] * weight[k, j]
            out[i, j] = np.float32(total) * scales[j] * steps[i] + bias[j]


@cached_njit()
def multiply_int8_1_rows(
    codes: CodeArray, steps: FloatArray, weight: CodeArray, scales: FloatArray, bias: FloatArray, out: FloatArray
) -> None:
    """Rung 1, another layout: a weight stored (N, K), so that both operands are read from left to right.

    The total is what Numba makes of ``int8 * int8``: 64 bits, eight times as wide as the codes.
    """
    for i in range(codes.shape[0]):
        for j in range(weight.shape[0]):
            total = 0
            for k in range(codes.shape[1]):
                total += codes[i, k] * weight[j, k]
            out[i, j] = np.float32(total) * scales[j] * steps[i] + bias[j]


@cached_njit()
def multiply_int8_2_int32(
    codes: CodeArray, steps: FloatArray, weight: CodeArray, scales: FloatArray, bias: FloatArray, out: FloatArray
) -> None:
    """Rung 2, a narrower total: 32 bits hold the sum of 133,144 products, and twice as many fit in a register."""
    for i in range(codes.shape[0]):
        for j in range(weight.shape[0]):
            total = np.int32(0)
            for k in range(codes.shape[1]):
                total = np.int32(total + np.int32(codes[i, k]) * np.int32(weight[j, k]))
            out[i, j] = np.float32(total) * scales[j] * steps[i] + bias[j]


@cached_njit()
def multiply_int8_3_dot4(
    tile: Any,
    codes: CodeArray,
    steps: FloatArray,
    weight: CodeArray,
    starts: NDArray[np.int32],
    scales: FloatArray,
    bias: FloatArray,
    out: FloatArray,
) -> None:
    """Rung 3, the instruction made for it: 4 products of bytes a lane, added to 32 bits at once.

    `tile` is one register, (1, 1). Codes are stored as ``code ^ tile.flip``, and `starts` takes the 128 back:
    ``tile.flip`` times the sum of the weight's row. K must be a multiple of four times the lanes.
    """
    depth = codes.shape[1]
    for i in range(codes.shape[0]):
        for j in range(weight.shape[0]):
            totals = zeros(tile)
            for k in range(0, depth, 4 * tile.width):
                totals = dot4(totals, load(tile, codes, i * depth + k), load(tile, weight, j * depth + k))
            total = np.int32(starts[j] + sum_lanes(totals))
            out[i, j] = np.float32(total) * scales[j] * steps[i] + bias[j]


@njit
def _tile(tile, codes, steps, weight, i, j, out):  # type: ignore[no-untyped-def]
    """Compute a tile of the result at row i and column j; its totals never leave the registers."""
    depth = codes.shape[1]
    totals = zeros(tile) + load(tile, weight.starts, j)  # (R, C)
    for k in range(0, depth, 4):
        inputs = broadcast(tile, codes, i * depth + k, depth)  # (R, 1)
        totals = dot4(totals, inputs, load(tile, weight.panels, j * depth + k * tile.width))  # (R, C)
    y = to_float(totals) * load(tile, weight.scales, j) * broadcast(tile, steps, i, 1) + load(tile, weight.bias, j)
    store(out, i * out.shape[1] + j, out.shape[1], y)


@cached_njit()
def multiply_int8_4_tiles(tile: Any, codes: CodeArray, steps: FloatArray, weight: PackedInt8, out: FloatArray) -> None:
    """Rung 4, packing and tiles: each weight loaded serves ``tile.rows`` rows, each input ``tile.width`` columns.

    N must be a multiple of ``tile.width``. Rung 5, :func:`cachequant_lib.kernels.int8.multiply_int8`, asks for the
    weight ahead of time, takes any N, and shares out the panels among threads.
    """
    num_rows = codes.shape[0]
    for j in range(0, out.shape[1], tile.width):
        full = num_rows - num_rows % tile.rows
        for i in range(0, full, tile.rows):
            _tile(tile, codes, steps, weight, i, j, out)
        for i in range(full, num_rows):
            _tile(tile.single, codes, steps, weight, i, j, out)
