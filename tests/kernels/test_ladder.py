"""Every rung of the ladder gives the bits of the oracle, and so those of the packed kernel at its top."""

import numpy as np
import pytest

from cachequant_lib.kernels import ladder
from cachequant_lib.kernels.int8 import pack_int8
from cachequant_lib.kernels.reference import linear_int8_ref
from cachequant_lib.kernels.tiles import Tile


@pytest.fixture(params=[(1, 48, 64), (2, 96, 192), (9, 48, 768), (17, 144, 64)], ids=str)
def case(request):
    m, n, k = request.param
    rng = np.random.default_rng(0)
    codes, weight = (rng.integers(-127, 128, (rows, k)).astype(np.int8) for rows in (m, n))
    a_scales, scales = rng.random(m).astype(np.float32), rng.random(n).astype(np.float32)
    bias = rng.standard_normal(n).astype(np.float32)
    steps = (a_scales.astype(np.float64) / 127**2).astype(np.float32)
    return codes, steps, weight, scales, bias, linear_int8_ref(codes, a_scales, weight, scales, bias)


@pytest.mark.compiled
@pytest.mark.parametrize(
    "rung", [ladder.multiply_int8_0_naive, ladder.multiply_int8_1_rows, ladder.multiply_int8_2_int32]
)
def test_plain_loops(rung, case, guarded):
    codes, steps, weight, scales, bias, expected = case
    if rung is ladder.multiply_int8_0_naive:
        weight = np.ascontiguousarray(weight.T)
    out = guarded(expected.shape, np.float32)
    rung(codes, steps, weight, scales, bias, out)
    assert (out == expected).all()


@pytest.mark.compiled
def test_one_instruction(isa, case, guarded):
    codes, steps, weight, scales, bias, expected = case
    tile, out = Tile(isa, 1, 1), guarded(expected.shape, np.float32)
    starts = weight.sum(axis=1, dtype=np.int32) * np.int32(tile.flip)
    ladder.multiply_int8_3_dot4(tile, codes ^ np.int8(tile.flip), steps, weight, starts, scales, bias, out)
    assert (out == expected).all()


@pytest.mark.compiled
def test_tiles(isa, case, guarded):
    codes, steps, weight, scales, bias, expected = case
    tile, out = Tile(isa, *isa.int8_tile), guarded(expected.shape, np.float32)
    packed = pack_int8(tile, weight, scales, bias)
    ladder.multiply_int8_4_tiles(tile, codes ^ np.int8(tile.flip), steps, packed, out)
    assert (out == expected).all()
