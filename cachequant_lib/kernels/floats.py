"""More vector words: what attention, norms and activations need of float32 numbers. Written as those of simd.py are."""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import overload

from cachequant_lib.kernels.isa import call
from cachequant_lib.kernels.simd import I32, I64, _address, _element_bytes, _kind_of, _lanewise, _load, _pack, _unpack
from cachequant_lib.kernels.tiles import Registers, intrinsic


@intrinsic
def load_rows(typing_context: Any, tile: Any, array: Any, start: Any, stride: Any, count: Any) -> Any:
    """Read a grid (R, C): row r from ``array[start + r * stride]`` on; past row `count`, the last again. x86: vmovups.

    So a tile may hang over the end of an array: what it computes there is not used, and nothing past the end is read.
    """
    lane_elements = 4 // _element_bytes(array)
    kind = Registers(tile.isa, _kind_of(array), tile.rows, tile.vectors)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def row(r: int) -> list[Any]:
            last = builder.sub(args[4], I64(1))
            here = builder.select(builder.icmp_signed("<", last, I64(r)), last, I64(r))
            at = builder.add(args[2], builder.mul(here, args[3]))
            starts = [builder.add(at, I64(c * tile.isa.lanes * lane_elements)) for c in range(tile.vectors)]
            return [_load(builder, _address(context, builder, array, args[1], first), kind.vector) for first in starts]

        return _pack(builder, kind, [row(r) for r in range(tile.rows)])

    return kind(tile, array, types.intp, types.intp, types.intp), generate


def _fold(join: Callable[..., Any]) -> Any:
    """Make a word that joins the float32 numbers of a row (1, C) to one: the first half with the second, and so on.

    Registers are joined before lanes, so that a row of 16 numbers gives the same bits whatever a register holds.
    """

    def resolve(x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            (row,) = _unpack(builder, args[0], x)
            while len(row) > 1:
                half = len(row) // 2
                row = [join(builder, first, second) for first, second in zip(row[:half], row[half:], strict=True)]
            (register,) = row
            while register.type.count > 1:
                half, nothing = register.type.count // 2, ir.Constant(register.type, ir.Undefined)
                picks = [ir.Constant(ir.VectorType(I32, half), list(range(n, n + half))) for n in (0, half)]
                register = join(builder, *(builder.shuffle_vector(register, nothing, pick) for pick in picks))
            return builder.extract_element(register, I32(0))

        return types.float32(x), generate

    return resolve


@intrinsic
def sum_row(typing_context: Any, x: Any) -> Any:
    """Add up the float32 lanes of a row (1, C), C a power of two, in halves: a number. x86: vaddps and shuffles."""
    return _fold(lambda builder, x, y: builder.fadd(x, y))(x)


@intrinsic
def max_row(typing_context: Any, x: Any) -> Any:
    """Take the largest float32 lane of a row (1, C), C a power of two: a number. x86: vmaxps and shuffles."""
    return _fold(lambda builder, x, y: builder.select(builder.fcmp_ordered("<", x, y), y, x))(x)


@intrinsic
def where_less(typing_context: Any, x: Any, y: Any, then: Any, otherwise: Any) -> Any:
    """Take `then` in the float32 lanes where ``x < y``, `otherwise` elsewhere and at NaN. x86: vcmpps, vblendmps."""

    def emit(builder: Any, kind: Any, x: Any, y: Any, then: Any, otherwise: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", x, y), then, otherwise)

    return _lanewise(emit)(x, y, then, otherwise)


@intrinsic
def multiply_add(typing_context: Any, x: Any, y: Any, z: Any) -> Any:
    """Compute ``x * y + z`` of float32 lanes, rounded once. x86: vfmadd; without it, a call of the C library a lane."""

    def emit(builder: Any, kind: Any, x: Any, y: Any, z: Any) -> Any:
        return call(builder, f"llvm.fma.v{kind.isa.lanes}f32", kind.vector, [x, y, z])

    return _lanewise(emit)(x, y, z)


@intrinsic
def times_power(typing_context: Any, x: Any, shifted: Any) -> Any:
    """Multiply float32 lanes by ``2**n``, where `shifted` is ``1.5 * 2**23 + n``. x86: vpslld, vpaddd.

    The low bits of such a float32 are those of n, and adding n to the exponent of x multiplies it by ``2**n``. Nothing
    looks after results that leave the range.
    """

    def emit(builder: Any, kind: Any, x: Any, shifted: Any) -> Any:
        integers = ir.VectorType(I32, kind.isa.lanes)
        moved = builder.shl(builder.bitcast(shifted, integers), ir.Constant(integers, [23] * integers.count))
        return builder.bitcast(builder.add(builder.bitcast(x, integers), moved), kind.vector)

    return _lanewise(emit)(x, shifted)


@intrinsic
def transpose(typing_context: Any, x: Any) -> Any:
    """Swap rows and lanes of a square: a column (R, 1) of registers with R lanes. x86: log2(R) rounds of vperm."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes, rows = x.isa.lanes, [row[0] for row in _unpack(builder, args[0], x)]
        step = lanes // 2
        while step:  # swap the upper right with the lower left quarter of each block of 2 * step rows and lanes
            low = [lane if lane & step == 0 else lane - step + lanes for lane in range(lanes)]
            high = [lane + step if lane & step == 0 else lane + lanes for lane in range(lanes)]
            picks = [ir.Constant(ir.VectorType(I32, lanes), pick) for pick in (low, high)]
            for r in range(lanes):
                if r & step == 0:
                    pair = rows[r], rows[r + step]
                    rows[r], rows[r + step] = (builder.shuffle_vector(*pair, pick) for pick in picks)
            step //= 2
        return _pack(builder, x, [[row] for row in rows])

    return x(x), generate


@intrinsic
def _subtract(typing_context: Any, x: Any, y: Any) -> Any:
    """Subtract lanes of float32: ``x - y``. x86: vsubps."""
    return _lanewise(lambda builder, kind, x, y: builder.fsub(x, y))(x, y)


@intrinsic
def _divide(typing_context: Any, x: Any, y: Any) -> Any:
    """Divide lanes of float32: ``x / y``. x86: vdivps."""
    return _lanewise(lambda builder, kind, x, y: builder.fdiv(x, y))(x, y)


@overload(operator.sub)
def _overload_subtract(x, y):  # type: ignore[no-untyped-def]
    return (lambda x, y: _subtract(x, y)) if _are_floats(x, y) else None


@overload(operator.truediv)
def _overload_divide(x, y):  # type: ignore[no-untyped-def]
    return (lambda x, y: _divide(x, y)) if _are_floats(x, y) else None


def _are_floats(*kinds: Any) -> bool:
    """Whether all of these are grids of float32 lanes."""
    return all(isinstance(kind, Registers) and kind.dtype == types.float32 for kind in kinds)
