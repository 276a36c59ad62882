"""Words for attention kernels, and attention over plain fp16: the baseline that a compressed cache has to beat.

A kernel here works on one key-value head at a time, with the query heads that share it. Their number G and the head
size D come in as a :class:`~cachequant_lib.kernels.tiles.Tile` of G rows and D columns: so both are constants to the
compiler, which can unroll the loops over them.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import njit, types
from numpy.typing import NDArray

from cachequant_lib.kernels.isa import INSTRUCTION_SETS, call, target_features
from cachequant_lib.kernels.jit import cached_njit
from cachequant_lib.kernels.tiles import Tile, intrinsic

BLOCK = 64  # tokens that are stored together
AHEAD = 4096  # bytes between what is multiplied and what is asked for: the time a read takes
LINE_BYTES = 64  # what one prefetch brings in
SUMS = {"reassoc", "contract", "nsz"}  # sums may be added in vectors; NaN and infinity keep their meaning
FAR = np.float32(-60.0)  # a score so far below the largest weighs nothing
LOWEST = np.float32(-3.4e38)


def head_tile(group_size: int, head_dim: int) -> Tile:
    """Make the tile of one key-value head: `group_size` query heads share it, `head_dim` is a multiple of four."""
    isa = INSTRUCTION_SETS[-1]  # four lanes, the same on every CPU; the compiler picks the registers
    return Tile(isa, group_size, head_dim // isa.lanes)


# ---- Words -----------------------------------------------------------------------------------------------------------


@intrinsic
def prefetch_row(typing_context: Any, tile: Any, array: Any, start: Any) -> Any:
    """Ask for the ``tile.width`` elements from ``array[start]`` on, counted through all axes; past the end is harmless.

    Without it a core waits for memory: it reads int8 rows at 0.2 ns an element instead of 0.09.
    """
    num_bytes = tile.isa.lanes * tile.vectors * array.dtype.bitwidth // 8

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(array)(context, builder, args[1]).data
        first = builder.bitcast(builder.gep(data, [args[2]]), ir.IntType(8).as_pointer())
        hints = [ir.IntType(32)(hint) for hint in (0, 3, 1)]  # read, keep, data
        for offset in range(0, num_bytes, LINE_BYTES):
            call(builder, "llvm.prefetch.p0", ir.VoidType(), [builder.gep(first, [ir.IntType(64)(offset)]), *hints])
        return context.get_dummy_value()

    return types.void(tile, array, types.intp), generate


@intrinsic
def half_to_float(typing_context: Any, tile: Any, pattern: Any) -> Any:
    """Return the float32 value of a finite fp16 pattern, a uint16. x86: vcvtph2ps.

    A CPU without that instruction gets shifts: the exponent field moved up by 13 bits is 2**112 times too small.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if target_features() & {"f16c", "neon"}:
            return builder.fpext(builder.bitcast(args[1], ir.HalfType()), ir.FloatType())
        i32 = ir.IntType(32)
        wide = builder.zext(args[1], i32)
        sign = builder.shl(builder.and_(wide, i32(0x8000)), i32(16))
        magnitude = builder.bitcast(builder.shl(builder.and_(wide, i32(0x7FFF)), i32(13)), ir.FloatType())
        value = builder.bitcast(builder.fmul(magnitude, ir.Constant(ir.FloatType(), 2.0**112)), i32)
        return builder.bitcast(builder.or_(value, sign), ir.FloatType())

    return types.float32(tile, types.uint16), generate


@njit
def power_of_two(exponent):  # type: ignore[no-untyped-def]
    """Two to an exponent of -126 to 127, written straight into the exponent field of a float32."""
    return np.int32((np.int32(exponent) + np.int32(127)) << np.int32(23)).view(np.float32)


@njit(fastmath=SUMS)
def exp_of(x):  # type: ignore[no-untyped-def]
    """Exponential in float32 to 3e-6, exactly 1 at 0 and exactly 0 below ``FAR``. Made of what vectorises.

    2**n comes from the exponent field, the rest from a polynomial on -0.5..0.5.
    """
    z = max(x, FAR) * np.float32(1.4426950408889634)
    n = np.floor(z + np.float32(0.5))
    f = z - n
    p = np.float32(1.3333558e-3)
    p = p * f + np.float32(9.6181291e-3)
    p = p * f + np.float32(5.5504109e-2)
    p = p * f + np.float32(2.4022651e-1)
    p = p * f + np.float32(6.9314718e-1)
    p = (p * f + np.float32(1.0)) * power_of_two(n)
    return p if x >= FAR else np.float32(0)


@njit(fastmath=SUMS)
def softmax_numerators(tile, scores, peaks, length, sums):  # type: ignore[no-untyped-def]
    """Replace scores (G, L) by ``exp(score - peak)``, and write their sums (G,)."""
    for g in range(tile.rows):
        total, peak, row = np.float32(0), peaks[g], scores[g]
        for t in range(length):
            e = exp_of(row[t] - peak)
            row[t] = e
            total += e
        sums[g] = total


# ---- Plain fp16 ------------------------------------------------------------------------------------------------------


class HalfLayer(NamedTuple):
    """Keys and values of one layer in fp16 patterns, laid out as the kernel reads them.

    Attributes
    ----------
    keys : uint16, shape (Hkv, ceil(P / 64), D, 64)
        Blocks of 64 tokens, channel by channel.
    values : uint16, shape (Hkv, P, D)
    """

    keys: NDArray[np.uint16]
    values: NDArray[np.uint16]


def pack_half(keys: NDArray[np.float32], values: NDArray[np.float32]) -> HalfLayer:
    """Round keys and values (P, Hkv, D) to fp16 and lay them out for :func:`attend_half`."""
    num_tokens, num_heads, head_dim = keys.shape
    padded = np.pad(keys, ((0, -num_tokens % BLOCK), (0, 0), (0, 0))).astype(np.float16).view(np.uint16)
    blocks = padded.reshape(-1, BLOCK, num_heads, head_dim)  # (P, Hkv, D) -> (P / 64, 64, Hkv, D)
    rows = values.astype(np.float16).view(np.uint16).transpose(1, 0, 2)  # (P, Hkv, D) -> (Hkv, P, D)
    return HalfLayer(np.ascontiguousarray(blocks.transpose(2, 0, 3, 1)), np.ascontiguousarray(rows))


@njit(fastmath=SUMS)
def _score_half(tile, q, keys, num_blocks, scores):  # type: ignore[no-untyped-def]
    """Write the scores of whole blocks, four channels at a time."""
    for b in range(num_blocks):
        for g in range(tile.rows):
            for t in range(b * BLOCK, (b + 1) * BLOCK):
                scores[g, t] = np.float32(0)
        for c in range(0, tile.width, 4):
            for ahead in range(0, 4 * BLOCK, tile.width):
                prefetch_row(tile, keys, (b * tile.width + c) * BLOCK + ahead + AHEAD // 2)
            k0, k1, k2, k3 = keys[b, c], keys[b, c + 1], keys[b, c + 2], keys[b, c + 3]
            for g in range(tile.rows):
                q0, q1, q2, q3 = q[g, c], q[g, c + 1], q[g, c + 2], q[g, c + 3]
                row = scores[g, b * BLOCK : (b + 1) * BLOCK]
                for t in range(BLOCK):
                    low = q0 * half_to_float(tile, k0[t]) + q1 * half_to_float(tile, k1[t])
                    row[t] += low + (q2 * half_to_float(tile, k2[t]) + q3 * half_to_float(tile, k3[t]))


@njit(fastmath=SUMS)
def _add_half(tile, values, scores, length, out):  # type: ignore[no-untyped-def]
    """Add the values (L, D), weighted with scores (G, L), to `out` (G, D), four tokens at a time."""
    whole = length // 4 * 4
    for t in range(0, whole, 4):
        for j in range(4):
            prefetch_row(tile, values, (t + j + 8) * tile.width)
        v0, v1, v2, v3 = values[t], values[t + 1], values[t + 2], values[t + 3]
        for g in range(tile.rows):
            p0, p1, p2, p3, row = scores[g, t], scores[g, t + 1], scores[g, t + 2], scores[g, t + 3], out[g]
            for c in range(tile.width):
                low = p0 * half_to_float(tile, v0[c]) + p1 * half_to_float(tile, v1[c])
                row[c] += low + (p2 * half_to_float(tile, v2[c]) + p3 * half_to_float(tile, v3[c]))
    for t in range(whole, length):
        for g in range(tile.rows):
            for c in range(tile.width):
                out[g, c] += scores[g, t] * half_to_float(tile, values[t, c])


@njit(fastmath=SUMS)
def _head_half(tile, q, keys, values, length, out, scores, peaks, sums):  # type: ignore[no-untyped-def]
    _score_half(tile, q, keys, (length + BLOCK - 1) // BLOCK, scores)
    for g in range(tile.rows):
        peaks[g] = LOWEST
        for t in range(length):
            peaks[g] = max(peaks[g], scores[g, t])
    softmax_numerators(tile, scores, peaks, length, sums)
    for g in range(tile.rows):
        for c in range(tile.width):
            out[g, c] = np.float32(0)
    _add_half(tile, values, scores, length, out)
    for g in range(tile.rows):
        for c in range(tile.width):
            out[g, c] /= sums[g]


@cached_njit(parallel=True)
def attend_half(tile: Any, q: NDArray[np.float32], layer: HalfLayer, length: int, out: Any, workers: int) -> None:
    """Attend from one query to the first `length` tokens of a layer in fp16, with sums in float32.

    Parameters
    ----------
    tile : Tile
        From :func:`head_tile`.
    q : float32, shape (Hkv, G, D)
        Already divided by the root of D.
    layer : HalfLayer
    length : int
    out : float32, shape (Hkv, G, D)
        Written.
    workers : int
        Threads that share out the heads; the result is the same for every number.
    """
    num_heads = layer.keys.shape[0]
    for worker in numba.prange(workers):  # type: ignore[no-untyped-call,attr-defined]
        scores = np.empty((tile.rows, layer.keys.shape[1] * BLOCK), np.float32)
        peaks, sums = np.empty(tile.rows, np.float32), np.empty(tile.rows, np.float32)
        for h in range(worker, num_heads, workers):
            _head_half(tile, q[h], layer.keys[h], layer.values[h], length, out[h], scores, peaks, sums)
