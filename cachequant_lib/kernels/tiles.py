"""A tile: the piece of the result that stays in vector registers, and how Numba comes to know of it.

A :class:`Tile` names an instruction set, a number of rows, and a number of registers a row. It is an argument of every
packed kernel, and its *type* carries all of that: Numba compiles one version a tile, and a kernel asks ``tile.rows``
or ``tile.width`` as constants. :class:`Registers` is the type of what a kernel computes with, a small grid of
registers; the words that make and combine them are in :mod:`cachequant_lib.kernels.simd`.

The type of a tile also carries a hash of this folder's source. Numba's cache on disk follows the file of a kernel
only; with the hash in the signature, a line changed in any of these files asks for a kernel that is not there yet.
"""

import hashlib
from functools import cached_property, lru_cache
from importlib import resources
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.extending import NativeValue, models, overload_attribute, register_model, unbox
from numpy.typing import NDArray

from cachequant_lib.kernels.isa import InstructionSet

STRIP = 16  # columns of a strip, and the lanes of the widest register; a pass keeps rows in a multiple of it
intrinsic: Any = extending.intrinsic  # its annotations describe the function decorated, not the word that it becomes


@lru_cache(maxsize=1)
def source_digest() -> str:
    """Hash of every source file of this folder: what a compiled kernel was made from."""
    files = sorted(resources.files(__package__).iterdir(), key=lambda file: file.name)
    texts = [file.read_bytes() for file in files if file.name.endswith(".py")]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


class TileType(types.Type):
    """Numba's type of a :class:`Tile`: all that a kernel must know while it is compiled."""

    def __init__(self, isa: InstructionSet, rows: int, vectors: int, digest: str) -> None:
        self.isa, self.rows, self.vectors, self.digest = isa, rows, vectors, digest
        super().__init__(name=f"Tile({isa.name}, {rows}, {vectors}, {digest})")


class Tile:
    """A tile of ``rows`` x ``vectors`` registers of one instruction set.

    Attributes
    ----------
    isa : InstructionSet
    rows : int
        Rows of the result that are computed together.
    vectors, width : int
        Registers a row, and the columns they hold: ``vectors * isa.lanes``.
    half, single : Tile
        The same columns with half as many rows, and with one.
    patch, ribbon : Tile
        Tiles for products of float32: several rows of two registers, and one row of four.
    square, strip : Tile
        As many rows as a register has lanes, one register wide; one row of 16 columns.
    narrow : Tile
        The same rows and 16 columns.
    flip : int
        -128 where :func:`dot4` wants its first operand unsigned, else 0. ``code ^ flip`` is the byte to store: the
        code plus 128, since adding 128 to a byte flips its top bit.
    """

    def __init__(self, isa: InstructionSet, rows: int, vectors: int) -> None:
        self.isa, self.rows, self.vectors = isa, rows, vectors
        self.width, self.flip = vectors * isa.lanes, 0 if isa.signed else -128
        self._numba_type_ = TileType(isa, rows, vectors, source_digest())

    def __repr__(self) -> str:
        return f"Tile({self.isa.name}, {self.rows} x {self.vectors})"

    @cached_property
    def half(self) -> "Tile":
        """The tile with half the rows, at least one."""
        return Tile(self.isa, max(1, self.rows // 2), self.vectors)

    @cached_property
    def single(self) -> "Tile":
        """The tile with one row."""
        return Tile(self.isa, 1, self.vectors)

    @cached_property
    def patch(self) -> "Tile":
        """Two registers a row, and the rows that their totals leave room for."""
        return Tile(self.isa, self.isa.int8_tile[0], 2)

    @cached_property
    def ribbon(self) -> "Tile":
        """One row of four registers."""
        return Tile(self.isa, 1, 4)

    @cached_property
    def square(self) -> "Tile":
        """One register a row, and as many rows as it has lanes."""
        return Tile(self.isa, self.isa.lanes, 1)

    @cached_property
    def narrow(self) -> "Tile":
        """The same rows, 16 columns."""
        return Tile(self.isa, self.rows, STRIP // self.isa.lanes)

    @cached_property
    def strip(self) -> "Tile":
        """One row of 16 columns: sums that run over it have one order, whatever a register holds."""
        return self.single.narrow


def pack_panels(tile: Tile, codes: NDArray[np.int8]) -> NDArray[np.int8]:
    """Lay codes (N, K) out as panels (ceil(N / width), ceil(K / 4), width, 4), padded with zeros."""
    num_columns, depth = codes.shape
    padded = np.pad(codes, ((0, -num_columns % tile.width), (0, -depth % 4)))
    groups = padded.reshape(-1, tile.width, padded.shape[1] // 4, 4)  # (panels, width, K / 4, 4)
    return np.ascontiguousarray(groups.transpose(0, 2, 1, 3))  # (panels, K / 4, width, 4)


def unpack_panels(panels: NDArray[np.int8], num_columns: int, depth: int) -> NDArray[np.int8]:
    """Undo :func:`pack_panels`: codes (N, K), without the padding."""
    num_panels, num_steps, width, _ = panels.shape
    padded = panels.transpose(0, 2, 1, 3).reshape(num_panels * width, num_steps * 4)
    return np.ascontiguousarray(padded[:num_columns, :depth])


class Registers(types.Type):
    """Numba's type of a grid of registers, each of ``isa.lanes`` int32 or float32 numbers."""

    def __init__(self, isa: InstructionSet, dtype: Any, rows: int, columns: int) -> None:
        self.isa, self.dtype, self.rows, self.columns = isa, dtype, rows, columns
        self.vector = ir.VectorType(ir.FloatType() if dtype == types.float32 else ir.IntType(32), isa.lanes)
        super().__init__(name=f"Registers({isa.name}, {dtype}, {rows}, {columns})")


@register_model(TileType)
class _TileModel(models.PrimitiveModel):
    """A tile has nothing to hold at run time; one byte stands for it."""

    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, ir.IntType(8))  # type: ignore[no-untyped-call]


@register_model(Registers)
class _RegistersModel(models.PrimitiveModel):
    """An array of vectors, which LLVM takes apart into registers."""

    def __init__(self, manager: Any, fe_type: Any) -> None:
        registers = ir.ArrayType(fe_type.vector, fe_type.rows * fe_type.columns)
        super().__init__(manager, fe_type, registers)  # type: ignore[no-untyped-call]


@unbox(TileType)  # type: ignore[no-untyped-call]
def _unbox_tile(typ: Any, value: Any, c: Any) -> Any:
    return NativeValue(ir.IntType(8)(0))  # type: ignore[no-untyped-call]


def _attribute(name: str) -> None:
    """Let compiled code read a number, or a tile of another shape, from a tile while it is compiled."""

    @intrinsic
    def reshape(typing_context: Any, tile: Any) -> Any:
        other = getattr(Tile(tile.isa, tile.rows, tile.vectors), name)._numba_type_
        return other(tile), lambda context, builder, signature, args: args[0]

    def choose(tile):  # type: ignore[no-untyped-def]  # Numba compares these signatures, annotations included
        value = getattr(Tile(tile.isa, tile.rows, tile.vectors), name)
        return (lambda tile: reshape(tile)) if isinstance(value, Tile) else (lambda tile: value)

    overload_attribute(TileType, name)(choose)


for _name in (
    *("rows", "vectors", "width", "flip"),
    *("half", "single", "patch", "ribbon", "square", "narrow", "strip"),
):
    _attribute(_name)
