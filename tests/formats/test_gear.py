"""GEAR's three parts: outliers come back, the low-rank part never hurts, and every bit is counted."""

import numpy as np
import pytest

import cachequant_lib as cq
from cachequant_lib.formats.gear import quantize_gear
from cachequant_lib.formats.kivi import quantize_kivi


def chunk(seed=0):
    return np.random.default_rng(seed).standard_normal((64, 3, 32)).astype(np.float16).astype(np.float32)


def loss(found, x):
    return np.sqrt(((found - x) ** 2).mean())


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("bits", [2, 4, 10])
def test_each_part_helps(axis, bits):
    x = chunk()
    kivi = loss(quantize_kivi(x, bits, axis).dequantize(), x)
    with_outliers = loss(quantize_gear(x, bits, axis, rank=0).dequantize(), x)
    whole = loss(quantize_gear(x, bits, axis).dequantize(), x)
    assert whole < with_outliers < kivi
    assert kivi < 1.6 * 2.0**-bits  # ten bits are 1023 levels, not 10**2 - 1


@pytest.mark.parametrize("axis", [0, -1])
def test_outliers_are_the_extremes_of_each_vector(axis):
    x = chunk()
    t = quantize_gear(x, 2, axis, rank=0, outliers=0.1)
    vectors = np.moveaxis(x, 0, -1).reshape(96, 64) if axis == 0 else x.reshape(64, 96)
    count = round(0.05 * vectors.shape[1])
    assert t.outliers.size == 2 * count * len(vectors)
    index = np.arange(x.size).reshape(x.shape)
    index = np.moveaxis(index, 0, -1).reshape(96, 64) if axis == 0 else index.reshape(64, 96)
    wanted = np.take_along_axis(index, vectors.argsort(axis=1, kind="stable"), axis=1)
    assert set(t.places) == set(np.concatenate([wanted[:, :count], wanted[:, -count:]], axis=1).ravel())
    assert (t.dequantize().reshape(-1)[t.places] == x.reshape(-1)[t.places]).all()


def test_the_low_rank_part_is_nearly_the_best_there_is():
    x = chunk()
    x += 3 * np.random.default_rng(1).standard_normal((64, 3, 1)) * np.linspace(-1, 1, 32)
    t = quantize_gear(x, 1, -1, rank=2, outliers=0)
    missed = (x - t.backbone.dequantize()).transpose(1, 0, 2)
    best = np.sqrt((np.linalg.svd(missed, compute_uv=False)[:, 2:] ** 2).sum() / x.size)
    assert best * 0.999 < loss(t.dequantize(), x) < 1.1 * best


def test_bits_are_all_counted():
    t = quantize_gear(chunk(), 4, 0)  # 64 * 0.01 is 1 above and 1 below in each of 96 channels
    assert t.outliers.size == 192
    assert t.bits_per_value == 4 + 1 + (192 * 48 + 16 * 2 * 3 * (64 + 32)) / (64 * 96)
    assert quantize_gear(chunk(), 4, 0, rank=0, outliers=0).bits_per_value == 5


def test_the_same_every_time():
    a, b = (quantize_gear(chunk(), 2, 0).dequantize() for _ in range(2))
    assert (a == b).all()


def test_zeros_stay_zeros():
    assert (quantize_gear(np.zeros((64, 2, 32)), 4, 0).dequantize() == 0).all()


@pytest.mark.parametrize("options", [{"axis": 1}, {"axis": 0, "rank": -1}, {"axis": 0, "outliers": 1.0}])
def test_impossible_settings_are_refused(options):
    with pytest.raises(cq.FormatError):
        quantize_gear(chunk(), 4, **options)
    with pytest.raises(cq.FormatError):
        quantize_gear(np.zeros((64, 32)), 4, 0)
