"""What CPUs differ in: the one instruction that multiplies bytes, the width of a register, and how many there are.

The vector words in :mod:`cachequant_lib.kernels.simd` are the same on every CPU but for one, ``dot4``: four products
of bytes added to an int32, in every lane. This table holds it for each instruction set, best first.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from llvmlite import ir
from numba.core.registry import cpu_target

from cachequant_lib.errors import InstructionSetError

VARIABLE = "CACHEQUANT_ISA"
"""Environment variable that names the instruction set to use instead of the best one."""

I8, I16, I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)


def call(builder: Any, name: str, result: Any, operands: list[Any]) -> Any:
    """Emit a call of an LLVM intrinsic: a function that LLVM knows by `name` and replaces by an instruction."""
    kind = ir.FunctionType(result, [operand.type for operand in operands])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, operands)


# ---- dot4, five times: total[l] += a[4l] b[4l] + a[4l+1] b[4l+1] + a[4l+2] b[4l+2] + a[4l+3] b[4l+3] -----------------


def _dot4_vnni512(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """Emit vpdpbusd on a 512-bit register: 64 multiply-adds. `a` unsigned, `b` signed."""
    return call(builder, "llvm.x86.avx512.vpdpbusd.512", total.type, _as_bytes(builder, total, a, b))


def _dot4_vnni256(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """Emit vpdpbusd on a 256-bit register: 32 multiply-adds. `a` unsigned, `b` signed."""
    return call(builder, "llvm.x86.avx512.vpdpbusd.256", total.type, _as_bytes(builder, total, a, b))


def _dot4_avx2(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """Emit two vpmaddwd, on the even and on the odd bytes, each widened to 16 bits. `a` unsigned, `b` signed.

    AVX2 has an instruction for bytes, vpmaddubsw, but it adds pairs into 16 bits and clips: 2 * 255 * 127 does not
    fit. Here pairs add into 32 bits, so every product of bytes is exact.
    """
    for a_words, b_words in zip(_split_unsigned(builder, a), _split_signed(builder, b), strict=True):
        total = builder.add(total, call(builder, "llvm.x86.avx2.pmadd.wd", total.type, [a_words, b_words]))
    return total


def _dot4_neon(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """Emit sdot on a 128-bit register: 16 multiply-adds. Both signed."""
    return call(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", total.type, _as_bytes(builder, total, a, b))


def _dot4_generic(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """Emit widening multiplies and adds that name no CPU; on x86 they become pmaddwd. Both signed."""
    lanes = total.type.count
    for a_words, b_words in zip(_split_signed(builder, a), _split_signed(builder, b), strict=True):
        for first in (0, 1):
            pick = ir.Constant(ir.VectorType(I32, lanes), list(range(first, 2 * lanes, 2)))
            nothing = ir.Constant(a_words.type, ir.Undefined)
            x, y = (builder.sext(builder.shuffle_vector(w, nothing, pick), total.type) for w in (a_words, b_words))
            total = builder.add(total, builder.mul(x, y))
    return total


def _as_bytes(builder: Any, total: Any, a: Any, b: Any) -> list[Any]:
    """See the operands as vectors of bytes, four for each lane of the total."""
    bytes_type = ir.VectorType(I8, 4 * total.type.count)
    return [total, builder.bitcast(a, bytes_type), builder.bitcast(b, bytes_type)]


def _split_signed(builder: Any, register: Any) -> tuple[Any, Any]:
    """Widen the even and the odd bytes to 16 bits with their sign: an arithmetic shift drags the sign along."""
    words_type = ir.VectorType(I16, 2 * register.type.count)
    words, eight = builder.bitcast(register, words_type), ir.Constant(words_type, [8] * words_type.count)
    return builder.ashr(builder.shl(words, eight), eight), builder.ashr(words, eight)


def _split_unsigned(builder: Any, register: Any) -> tuple[Any, Any]:
    """Widen the even and the odd bytes to 16 bits without a sign."""
    words_type = ir.VectorType(I16, 2 * register.type.count)
    words, eight = builder.bitcast(register, words_type), ir.Constant(words_type, [8] * words_type.count)
    return builder.and_(words, ir.Constant(words_type, [255] * words_type.count)), builder.lshr(words, eight)


# ---- The table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InstructionSet:
    """One row of the table.

    Attributes
    ----------
    name : str
    needs : tuple of str
        LLVM's names of the CPU features that must be there.
    lanes : int
        int32 or float32 numbers in a register.
    signed : bool
        Whether both operands of ``dot4`` are signed. If not, the first must be shifted into 0..255.
    int8_tile, bfp8_tile : tuple of (int, int)
        Rows and registers a row of the tile. The totals of a tile, one row of weights and one broadcast input must
        fit in the registers (32 with AVX-512 and NEON, 16 otherwise); BFP8 needs a second, float32, set of totals.
    instruction : str
        What ``dot4`` becomes, as an assembler writes it.
    dot4 : callable
        Emits it: ``dot4(builder, total, a, b)``.
    """

    name: str
    needs: tuple[str, ...]
    lanes: int
    signed: bool
    int8_tile: tuple[int, int]
    bfp8_tile: tuple[int, int]
    instruction: str
    dot4: Callable[[Any, Any, Any, Any], Any] = field(repr=False)


INSTRUCTION_SETS = (
    InstructionSet("avx512vnni", ("avx512vnni", "avx512bw"), 16, False, (8, 3), (4, 3), "vpdpbusd", _dot4_vnni512),
    InstructionSet("avxvnni", ("avxvnni",), 8, False, (6, 2), (3, 2), "vpdpbusd", _dot4_vnni256),
    InstructionSet("avx2", ("avx2",), 8, False, (4, 2), (2, 2), "vpmaddwd", _dot4_avx2),
    InstructionSet("neon", ("dotprod",), 4, True, (8, 3), (4, 3), "sdot", _dot4_neon),
    InstructionSet("generic", (), 4, True, (4, 2), (2, 2), "pmaddwd", _dot4_generic),
)


def target_features() -> frozenset[str]:
    """Return the CPU features that Numba compiles for: this CPU's, or those of ``NUMBA_CPU_FEATURES``."""
    _triple, _cpu, features = cpu_target.target_context.codegen().magic_tuple()
    return frozenset(feature[1:] for feature in features.split(",") if feature.startswith("+"))


def usable_instruction_sets() -> tuple[InstructionSet, ...]:
    """Return the rows of the table that this process may use, best first; the last is always "generic"."""
    features = target_features()
    return tuple(isa for isa in INSTRUCTION_SETS if features.issuperset(isa.needs))


@lru_cache(maxsize=1)
def best_instruction_set() -> InstructionSet:
    """Return the one to use: the best, or the one that the environment variable names. Decided once a process.

    Raises
    ------
    InstructionSetError
        If the variable names one that is unknown, or that Numba does not compile for here.
    """
    usable = {isa.name: isa for isa in usable_instruction_sets()}
    wanted = os.environ.get(VARIABLE, "") or next(iter(usable))
    if wanted not in usable:
        raise InstructionSetError(f"{VARIABLE}={wanted!r} cannot be used here; choose one of {', '.join(usable)}")
    return usable[wanted]
