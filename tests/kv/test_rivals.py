"""KIVI and GEAR as caches: what is rounded when, with which groups, and how many bits that makes."""

import numpy as np
import pytest

import cachequant_lib as cq
from cachequant_lib.formats.gear import quantize_gear
from cachequant_lib.formats.kivi import quantize_kivi
from cachequant_lib.kv.fixture import load_kv_fixture
from cachequant_lib.kv.gear import GearKV
from cachequant_lib.kv.kivi import KiviKV

LENGTH = 300


@pytest.fixture(scope="module")
def real():
    fixture = load_kv_fixture()[15]
    return fixture.q[-1:], fixture.k[:LENGTH], fixture.v[:LENGTH]


def test_kivi_rounds_keys_by_the_residual_and_values_all_but_the_newest(real):
    q, k, v = real
    kv = KiviKV(1, 3, 64, LENGTH, bits=2)
    for start in range(0, LENGTH, 7):
        kv.append(0, k[start : start + 7], v[start : start + 7])
    block = kv.read_block(0, LENGTH)
    assert (block.keys[:256, 0] == quantize_kivi(k[:256], 2, 0).dequantize()).all()
    assert (block.values[:172, 0] == quantize_kivi(v[:172], 2, -1).dequantize()).all()
    assert (block.keys[256:, 0] == k[256:]).all()
    assert (block.values[172:, 0] == v[172:]).all()
    kv.attend(0, q)
    row = 3 * 64
    assert kv.reads.key_bits == row * (256 * 2 + 44 * 16)
    assert kv.reads.value_bits == row * (172 * 2 + 128 * 16)
    assert kv.reads.meta_bits == row * (256 + 172)  # one bit more each: 32 for a group of 32
    assert [bits.sum(dtype=int) for bits in kv.bits_map(0)] == [kv.reads.key_bits, kv.reads.value_bits]


def test_gear_rounds_chunk_by_chunk(real):
    q, k, v = real
    kv = GearKV(1, 3, 64, LENGTH, bits=4)
    kv.append(0, k, v)
    block = kv.read_block(0, LENGTH)
    for start in range(0, 256, 64):
        span = slice(start, start + 64)
        assert (block.keys[span, 0] == quantize_gear(k[span], 4, 0).dequantize()).all()
        assert (block.values[span, 0] == quantize_gear(v[span], 4, -1).dequantize()).all()
    assert (block.keys[256:, 0] == k[256:]).all()
    kv.attend(0, q)
    per_number = quantize_gear(k[:64], 4, 0).bits_per_value + quantize_gear(v[:64], 4, -1).bits_per_value
    whole = kv.reads.key_bits + kv.reads.value_bits + kv.reads.meta_bits
    assert whole == pytest.approx(3 * 64 * (256 * per_number + 44 * 32), abs=1)


@pytest.mark.parametrize("cls", [KiviKV, GearKV])
def test_more_bits_lose_less(cls, real):
    q, k, v = real
    plain = cq.DenseKV(1, 3, 64, LENGTH)
    plain.append(0, k, v)
    losses = []
    for bits in (2, 4, 8, 10):
        kv = cls(1, 3, 64, LENGTH, bits=bits)
        kv.append(0, k, v)
        losses.append(np.abs(kv.attend(0, q) - plain.attend(0, q)).mean())
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("cls", [KiviKV, GearKV])
def test_memory_is_that_of_the_format(cls):
    kv = cls(2, 3, 64, 1024, bits=4)
    assert kv.nbytes == round(2 * 3 * 64 * 1024 * (8 + sum(kv.meta)) / 8)


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (KiviKV, {"bits": 0}),
        (KiviKV, {"residual": 100}),
        (KiviKV, {"group_size": 24, "residual": 48}),
        (GearKV, {"bits": 17}),
        (GearKV, {"buffer": 48}),
        (GearKV, {"rank": 1.5}),
    ],
)
def test_impossible_settings_are_refused(cls, options):
    with pytest.raises(cq.FormatError):
        cls(1, 1, 64, 100, **options)


def test_variants_differ_by_their_settings():
    settings = [{}, {"bits": 2}, {"group_size": 16}]
    assert len({cls(1, 1, 64, 100, **s).variant for cls in (KiviKV, GearKV) for s in settings}) == 6
