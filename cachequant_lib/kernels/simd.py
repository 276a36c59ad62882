"""The vector words: what a kernel may do with a grid of registers.

A CPU multiplies bytes fastest in its vector registers, and Numba has no word for one. These are the words. They obey
NumPy's broadcasting: a column of rows (R, 1) and a row of columns (1, C) make a grid (R, C). So a kernel reads like
NumPy on a tile, while LLVM sees R x C values that it keeps in registers. Each word becomes one instruction a register,
named as "x86: ..." where it is defined; all but :func:`dot4` are plain LLVM and become the like of it on any CPU.

A word is an *intrinsic*: it is given types, says what type it makes, and returns a function that writes the LLVM
instructions. Arrays must be C-contiguous, and are indexed through all their axes at once, without any check.
"""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.extending import overload

from cachequant_lib.kernels.isa import call
from cachequant_lib.kernels.tiles import Registers, intrinsic

I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
LINE_BYTES = 64  # what one prefetch brings in
Grid = list[list[Any]]


# ---- How a word is written -------------------------------------------------------------------------------------------


def _unpack(builder: Any, value: Any, kind: Registers) -> Grid:
    """Take a grid apart: rows of LLVM vectors."""
    flat = [builder.extract_value(value, n) for n in range(kind.rows * kind.columns)]
    return [flat[r * kind.columns : (r + 1) * kind.columns] for r in range(kind.rows)]


def _pack(builder: Any, kind: Registers, grid: Grid) -> Any:
    """Put a grid together."""
    value = ir.Constant(ir.ArrayType(kind.vector, kind.rows * kind.columns), ir.Undefined)
    for n, register in enumerate(register for row in grid for register in row):
        value = builder.insert_value(value, register, n)
    return value


def _spread(grid: Grid, rows: int, columns: int) -> Grid:
    """Broadcast a grid to a shape: a single row or column serves all."""
    return [[grid[r % len(grid)][c % len(grid[0])] for c in range(columns)] for r in range(rows)]


def _joint_shape(*kinds: Registers) -> tuple[int, int]:
    """Shape to which NumPy would broadcast these, or a typing error."""
    rows, columns = max(kind.rows for kind in kinds), max(kind.columns for kind in kinds)
    if any(kind.rows not in (1, rows) or kind.columns not in (1, columns) for kind in kinds):
        raise TypingError(f"cannot broadcast {kinds}")  # type: ignore[no-untyped-call]
    return rows, columns


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """Return the address of element `index` of a C-contiguous array, counted through all its axes."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


def _load(builder: Any, address: Any, kind: Any) -> Any:
    """Emit a load of any LLVM type from an address that need not be aligned."""
    value = builder.load(builder.bitcast(address, kind.as_pointer()))
    value.align = 1
    return value


def _repeat(builder: Any, element: Any, vector: Any) -> Any:
    """Emit a register with the same number in every lane."""
    nothing, lane_0 = ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(I32, vector.count), None)
    return builder.shuffle_vector(builder.insert_element(nothing, element, I32(0)), nothing, lane_0)


def _element_bytes(array: Any) -> int:
    """Bytes of an element; a word takes C-contiguous arrays of bytes, int32 or float32."""
    known = {types.int8: 1, types.uint8: 1, types.int32: 4, types.float32: 4}
    if getattr(array, "layout", None) != "C" or array.dtype not in known:
        message = f"a vector word needs a C-contiguous array of int8, uint8, int32 or float32, not {array}"
        raise TypingError(message)  # type: ignore[no-untyped-call]
    return known[array.dtype]


def _kind_of(array: Any) -> Any:
    """Type of the lanes that a register from `array` holds: four bytes count as an int32."""
    return types.float32 if array.dtype == types.float32 else types.int32


def _lanewise(emit: Callable[..., Any], result: Any = None) -> Any:
    """Make a word that does the same in every lane of grids that broadcast together."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.return_type
        grids = [_unpack(builder, value, of) for value, of in zip(args, signature.args, strict=True)]
        grids = [_spread(grid, kind.rows, kind.columns) for grid in grids]
        rows = [zip(*rows, strict=True) for rows in zip(*grids, strict=True)]
        return _pack(builder, kind, [[emit(builder, kind, *registers) for registers in row] for row in rows])

    def resolve(*kinds: Any) -> Any:
        return Registers(kinds[0].isa, result or kinds[0].dtype, *_joint_shape(*kinds))(*kinds), generate

    return resolve


# ---- The words -------------------------------------------------------------------------------------------------------


@intrinsic
def zeros(typing_context: Any, tile: Any) -> Any:
    """Make a tile (R, C) of int32 zeros. x86: vpxord."""
    kind = Registers(tile.isa, types.int32, tile.rows, tile.vectors)
    return kind(tile), lambda context, builder, signature, args: ir.Constant(context.get_value_type(kind), None)


@intrinsic
def load(typing_context: Any, tile: Any, array: Any, start: Any) -> Any:
    """Read one row (1, C): consecutive registers from ``array[start]`` on, four bytes a lane. x86: vmovups."""
    lane_elements = 4 // _element_bytes(array)
    kind = Registers(tile.isa, _kind_of(array), 1, tile.vectors)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        starts = [builder.add(args[2], I64(c * tile.isa.lanes * lane_elements)) for c in range(tile.vectors)]
        row = [_load(builder, _address(context, builder, array, args[1], at), kind.vector) for at in starts]
        return _pack(builder, kind, [row])

    return kind(tile, array, types.intp), generate


@intrinsic
def broadcast(typing_context: Any, tile: Any, array: Any, start: Any, stride: Any) -> Any:
    """Read a column (R, 1): ``array[start + r * stride]`` in all lanes of row r; of bytes, four. x86: vpbroadcastd."""
    _element_bytes(array)
    kind = Registers(tile.isa, _kind_of(array), tile.rows, 1)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def register(r: int) -> Any:
            at = builder.add(args[2], builder.mul(args[3], I64(r)))
            element = _load(builder, _address(context, builder, array, args[1], at), kind.vector.element)
            return _repeat(builder, element, kind.vector)

        return _pack(builder, kind, [[register(r)] for r in range(tile.rows)])

    return kind(tile, array, types.intp, types.intp), generate


@intrinsic
def splat(typing_context: Any, tile: Any, value: Any) -> Any:
    """Make one register (1, 1) with a float32 in every lane. x86: vbroadcastss."""
    kind = Registers(tile.isa, types.float32, 1, 1)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _pack(builder, kind, [[_repeat(builder, args[1], kind.vector)]])

    return kind(tile, types.float32), generate


@intrinsic
def load_powers(typing_context: Any, tile: Any, array: Any, start: Any) -> Any:
    """Read one row (1, C) of powers of two: byte e becomes ``2.0 ** (e - 127)``. x86: vpmovzxbd, vpslld.

    A float32 is a sign bit, eight bits of exponent plus 127, and 23 bits of fraction: the byte is the exponent.
    """
    lanes, kind = tile.isa.lanes, Registers(tile.isa, types.float32, 1, tile.vectors)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def register(c: int) -> Any:
            at = _address(context, builder, array, args[1], builder.add(args[2], I64(c * lanes)))
            wide = builder.zext(_load(builder, at, ir.VectorType(I8, lanes)), ir.VectorType(I32, lanes))
            return builder.bitcast(builder.shl(wide, ir.Constant(wide.type, [23] * lanes)), kind.vector)

        return _pack(builder, kind, [[register(c) for c in range(tile.vectors)]])

    return kind(tile, array, types.intp), generate


@intrinsic
def store(typing_context: Any, array: Any, start: Any, stride: Any, registers: Any) -> Any:
    """Write a grid (R, C): row r from ``array[start + r * stride]`` on. x86: vmovups."""
    if _element_bytes(array) != 4 or _kind_of(array) != registers.dtype:
        raise TypingError(f"cannot store {registers} in {array}")  # type: ignore[no-untyped-call]

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        for r, row in enumerate(_unpack(builder, args[3], registers)):
            for c, register in enumerate(row):
                at = builder.add(args[1], builder.add(builder.mul(args[2], I64(r)), I64(c * registers.isa.lanes)))
                pointer = _address(context, builder, array, args[0], at)
                builder.store(register, builder.bitcast(pointer, register.type.as_pointer())).align = 1
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, registers), generate


@intrinsic
def prefetch(typing_context: Any, tile: Any, array: Any, start: Any) -> Any:
    """Ask for the bytes that ``load(tile, array, start)`` will read; past the end is harmless. x86: prefetcht0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first = builder.bitcast(_address(context, builder, array, args[1], args[2]), I8.as_pointer())
        for offset in range(0, 4 * tile.isa.lanes * tile.vectors, LINE_BYTES):
            address = builder.gep(first, [I64(offset)])
            call(builder, "llvm.prefetch.p0", ir.VoidType(), [address, I32(0), I32(3), I32(1)])  # read, keep, data
        return context.get_dummy_value()

    return types.void(tile, array, types.intp), generate


@intrinsic
def dot4(typing_context: Any, total: Any, a: Any, b: Any) -> Any:
    """Add the four products of bytes in each lane to `total`, exactly, modulo 2**32. x86: vpdpbusd, or see the table.

    `a` is unsigned and `b` signed unless ``isa.signed``: see ``tile.flip``.
    """
    return _lanewise(lambda builder, kind, *registers: kind.isa.dot4(builder, *registers))(total, a, b)


@intrinsic
def to_float(typing_context: Any, x: Any) -> Any:
    """Convert int32 lanes to float32, rounded to nearest. x86: vcvtdq2ps."""
    return _lanewise(lambda builder, kind, x: builder.sitofp(x, kind.vector), types.float32)(x)


@intrinsic
def sum_lanes(typing_context: Any, x: Any) -> Any:
    """Add up the int32 lanes of one register (1, 1): a number. x86: a vextract, vpshufd and vpaddd for each halving."""
    _joint_shape(x, Registers(x.isa, x.dtype, 1, 1))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        ((register,),) = _unpack(builder, args[0], x)
        return call(builder, f"llvm.vector.reduce.add.v{x.isa.lanes}i32", I32, [register])

    return types.int32(x), generate


@intrinsic
def _add(typing_context: Any, x: Any, y: Any) -> Any:
    """Add lanes: ``x + y``. x86: vpaddd, vaddps."""
    method = "fadd" if x.dtype == types.float32 else "add"
    return _lanewise(lambda builder, kind, x, y: getattr(builder, method)(x, y))(x, y)


@intrinsic
def _multiply(typing_context: Any, x: Any, y: Any) -> Any:
    """Multiply lanes of float32: ``x * y``. x86: vmulps."""
    return _lanewise(lambda builder, kind, x, y: builder.fmul(x, y))(x, y)


@overload(operator.add)
def _overload_add(x, y):  # type: ignore[no-untyped-def]
    if isinstance(x, Registers) and isinstance(y, Registers) and x.dtype == y.dtype:
        return lambda x, y: _add(x, y)
    return None


@overload(operator.mul)
def _overload_multiply(x, y):  # type: ignore[no-untyped-def]
    if isinstance(x, Registers) and isinstance(y, Registers) and x.dtype == y.dtype == types.float32:
        return lambda x, y: _multiply(x, y)
    return None
