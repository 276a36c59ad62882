"""The vector words, one by one, on every instruction set of this CPU: what they compute, and what they become."""

import re

import numba
import numpy as np
import pytest
from numba import njit

from cachequant_lib.kernels import int8, simd
from cachequant_lib.kernels.isa import usable_instruction_sets
from cachequant_lib.kernels.tiles import Tile, pack_panels, source_digest, unpack_panels

pytestmark = pytest.mark.compiled

EACH = pytest.mark.parametrize("isa", usable_instruction_sets(), ids=lambda isa: isa.name)


@njit
def run_dot4(tile, a, b, totals, out):
    """Write ``totals + a . b`` for a column of rows `a` and a row of columns `b`."""
    products = simd.dot4(simd.zeros(tile), simd.broadcast(tile, a, 0, 4), simd.load(tile, b, 0))
    simd.store(out, 0, tile.width, simd.load(tile, totals, 0) + products)


@EACH
def test_dot4_is_exact_at_the_ends_of_the_range(isa):
    # 255 * 127 twice, or 255 * -128 twice, is what a saturating instruction gets wrong
    tile = Tile(isa, 2, 2)
    ends = [-128, -127, -1, 0, 1, 127]
    rng = np.random.default_rng(0)
    for a_value in ends:
        for b_value in ends:
            a = np.full((2, 4), a_value, np.int8)
            b = np.full((tile.width, 4), b_value, np.int8)
            a[1], b[::3] = rng.choice(ends, 4), rng.choice(ends, b[::3].shape)
            totals = rng.integers(-(2**31), 2**31, tile.width).astype(np.int32)
            out = np.empty((2, tile.width), np.int32)
            run_dot4(tile, a, b.reshape(-1), totals, out)
            first = a.astype(np.int64) if isa.signed else a.view(np.uint8).astype(np.int64)
            assert (out == (totals + first @ b.T.astype(np.int64)).astype(np.int32)).all()


@njit
def run_floats(tile, column, row, out):
    x, y = simd.broadcast(tile, column, 1, 3), simd.load(tile, row, 2)
    simd.store(out, 5, tile.width + 1, x * y + y + x * simd.splat(tile, np.float32(0.5)))


@EACH
@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (4, 3)])
def test_grids_broadcast_as_arrays_do(isa, shape):
    tile = Tile(isa, *shape)
    rng = np.random.default_rng(0)
    column, row = rng.standard_normal(16).astype(np.float32), rng.standard_normal(64).astype(np.float32)
    out = np.zeros(5 + tile.rows * (tile.width + 1), np.float32)
    run_floats(tile, column, row, out)
    x, y = column[1::3][: tile.rows, None], row[2 : 2 + tile.width]
    expected = np.zeros((tile.rows, tile.width + 1), np.float32)
    expected[:, :-1] = x * y + y + x * np.float32(0.5)  # each operation rounded: nothing is fused
    assert (out[:5] == 0).all()
    assert (out[5:].reshape(expected.shape) == expected).all()


@njit
def run_conversions(tile, integers, fields, as_floats, powers):
    simd.store(as_floats, 0, 0, simd.to_float(simd.load(tile, integers, 0)))
    simd.store(powers, 0, 0, simd.load_powers(tile, fields, 0))


@EACH
def test_conversions(isa):
    tile = Tile(isa, 1, 1)
    rng = np.random.default_rng(0)
    for field in range(1, 255):
        integers = rng.integers(-(2**31), 2**31, isa.lanes).astype(np.int32)
        fields = np.full(isa.lanes, field, np.uint8)
        as_floats, powers = np.empty((2, isa.lanes), np.float32)
        run_conversions(tile, integers, fields, as_floats, powers)
        assert (as_floats == integers.astype(np.float32)).all()
        assert (powers == np.ldexp(np.float32(1), field - 127)).all()


@njit
def run_shape(tile, out):
    out[0], out[1], out[2], out[3] = tile.rows, tile.vectors, tile.width, tile.flip
    out[4], out[5] = tile.half.rows, tile.single.rows


@EACH
def test_compiled_code_reads_the_tile(isa):
    for rows, half in ((8, 4), (6, 3), (3, 1), (1, 1)):
        tile, out = Tile(isa, rows, 2), np.empty(6, np.int64)
        run_shape(tile, out)
        assert out.tolist() == [rows, 2, 2 * isa.lanes, tile.flip, half, 1]
        assert (tile.half.rows, tile.single.rows) == (half, 1)


@njit
def load_one(tile, array):
    return simd.load(tile, array, 0)


@EACH
@pytest.mark.parametrize("array", [np.zeros(99), np.zeros(99, np.int64), np.zeros((99, 99), np.float32).T])
def test_other_arrays_do_not_compile(isa, array):
    with pytest.raises(numba.TypingError, match="needs a C-contiguous array of int8, uint8, int32 or float32"):
        load_one(Tile(isa, 1, 1), array)


@njit
def store_into(tile, array):
    simd.store(array, 0, 0, simd.zeros(tile))


@EACH
def test_lanes_are_not_stored_as_something_else(isa):
    store_into(Tile(isa, 1, 1), np.zeros(99, np.int32))
    for array in (np.zeros(99, np.float32), np.zeros(999, np.int8)):
        with pytest.raises(numba.TypingError, match="cannot store Registers"):
            store_into(Tile(isa, 1, 1), array)


@EACH
def test_the_kernel_holds_the_instruction_and_keeps_its_tile_in_registers(isa):
    tile = Tile(isa, *isa.int8_tile)
    codes, ones = np.ones((tile.rows, 64), np.int8), np.ones(tile.width, np.float32)
    weight = int8.pack_int8(tile, np.ones((tile.width, 64), np.int8), ones, ones)
    out = np.empty((tile.rows, tile.width), np.float32)
    int8._tile_int8(tile, codes, ones[: tile.rows].copy(), weight, 0, 0, out, 0, False)
    signature = next(s for s in int8._tile_int8.signatures if s[0].isa == isa and s[0].rows == tile.rows)
    assembly = int8._tile_int8.inspect_asm(signature)
    # LLVM joins vpmaddwd and the addition after it where the CPU has an instruction for both; "generic" may become any
    any_multiply = r"v?pm(?:add|ul)\w+|vpdp\w+|[su]ml?al\w*|[su]?mull?\w*|[su]dot"
    instruction = {"avx2": "vpmaddwd|vpdpwssd", "generic": any_multiply}.get(isa.name, isa.instruction)
    loops = [block for block in re.split(r"^\S+:$", assembly, flags=re.M) if re.search(rf"\b({instruction})\b", block)]
    assert sum(len(re.findall(rf"\b({instruction})\b", block)) for block in loops) >= tile.rows * tile.vectors
    if isa.name != "generic":
        assert not re.search(r"mm\d+, -?\d*\(%[er]?[sb]p\)", "".join(loops))  # no register is put aside on the stack


def test_panels_are_packed_and_unpacked():
    rng = np.random.default_rng(0)
    for isa in usable_instruction_sets():
        tile = Tile(isa, 1, 3)
        for num_columns, depth in ((1, 1), (5, 3), (tile.width, 4), (tile.width + 1, 31), (3 * tile.width - 1, 66)):
            codes = rng.integers(-128, 128, (num_columns, depth)).astype(np.int8)
            panels = pack_panels(tile, codes)
            assert panels.shape == (-(-num_columns // tile.width), -(-depth // 4), tile.width, 4)
            last = ((num_columns - 1) // tile.width, (depth - 1) // 4, (num_columns - 1) % tile.width, (depth - 1) % 4)
            assert panels[last] == codes[-1, -1]
            assert (unpack_panels(panels, num_columns, depth) == codes).all()
            assert panels.astype(np.int64).sum() == codes.astype(np.int64).sum()  # the padding is zero


def test_types_of_tiles_differ_by_all_that_matters():
    isas = usable_instruction_sets()
    kinds = {Tile(isa, rows, vectors)._numba_type_ for isa in isas for rows in (1, 2) for vectors in (1, 2)}
    assert len(kinds) == 4 * len(isas)
    assert all(source_digest() in kind.name for kind in kinds)
    assert Tile(isas[0], 1, 1)._numba_type_ == Tile(isas[0], 1, 1)._numba_type_
