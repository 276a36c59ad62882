"""The attention kernels against their rules written out in NumPy: digits and planes exactly, outputs in float64."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cachequant_lib.formats.bitplanes import split_planes
from cachequant_lib.formats.fixedpoint import quantize_fixedpoint
from cachequant_lib.kernels.aligned_paper import read_row
from cachequant_lib.kernels.attention import attend_half, exp_of, half_to_float, head_tile, pack_half
from cachequant_lib.kv.aligned import AlignedKV
from cachequant_lib.kv.fixture import LAYERS, load_kv_fixture
from cachequant_lib.kv.paper import RELEASED, PaperKV

pytestmark = pytest.mark.compiled

ROOT = Path(__file__).resolve().parents[2]
HEADS, GROUP, DIM, LENGTH = 3, 3, 64, 500  # 7 blocks of 64, and 52 tokens in the open one
PATTERNS = np.arange(2**16).astype(np.uint16)
FINITE = PATTERNS[(PATTERNS & 0x7C00) != 0x7C00]


def softmax(scores):
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def exact(q, k, v):
    """Attention of one query (H, D) in float64."""
    grouped = q.reshape(k.shape[1], -1, q.shape[-1]).astype(float)  # (H, D) -> (Hkv, G, D)
    p = softmax(np.einsum("hgd,thd->hgt", grouped, k.astype(float)) / np.sqrt(q.shape[-1]))
    return np.einsum("hgt,thd->hgd", p, v.astype(float)).reshape(q.shape)


def decoded(cls, q, k, v, **options):
    """Fill a cache of one layer and answer one query; return the answer and the cache."""
    kv = cls(1, k.shape[1], k.shape[2], len(k), **options)
    kv.append(0, k, v)
    return kv.attend(0, q[None])[0], kv


def error(y, wanted):
    return np.sqrt(((y - wanted) ** 2).mean() / (wanted**2).mean())


@pytest.fixture(scope="module", params=LAYERS)
def real(request):
    """A query at position 499 of a real layer, and the keys and values up to there."""
    fixture = load_kv_fixture()[request.param]
    return fixture.q[LENGTH - 449], fixture.k[:LENGTH], fixture.v[:LENGTH]


# ---- Words -----------------------------------------------------------------------------------------------------------


def test_every_finite_half_becomes_its_float():
    from numba import njit

    @njit
    def convert(tile, patterns, out):
        for i in range(patterns.size):
            out[i] = half_to_float(tile, patterns[i])

    out = np.empty(FINITE.size, np.float32)
    convert(head_tile(1, 4), FINITE, out)
    assert (out.view(np.uint32) == FINITE.view(np.float16).astype(np.float32).view(np.uint32)).all()


def test_exp_is_one_at_zero_and_zero_far_below():
    x = np.linspace(-60, 0, 10_001).astype(np.float32)
    y = np.array([exp_of(a) for a in x])
    np.testing.assert_allclose(y, np.exp(x.astype(float)), rtol=1e-5)
    assert exp_of(np.float32(0)) == 1
    assert exp_of(np.float32(-60.5)) == exp_of(np.float32(-3e38)) == 0
    assert exp_of(np.float32(10)) == pytest.approx(np.exp(10), rel=1e-5)


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_partial_reads_are_masked_halves_bit_for_bit(bits):
    planes = split_planes(FINITE)
    row = np.empty(FINITE.size, np.float32)
    read_row(head_tile(1, 4), planes.high, planes.middle, planes.low, bits, row)
    tail = 1 << (15 - bits) if bits < 16 else 0
    masked = (FINITE >> (16 - bits) << (16 - bits) | tail).astype(np.uint16)
    assert (row.view(np.uint32) == masked.view(np.float16).astype(np.float32).view(np.uint32)).all()


def test_plain_fp16_attention(real):
    q, k, v = real
    out = np.empty((HEADS, GROUP, DIM), np.float32)
    grouped = (q / np.float32(8)).reshape(out.shape)
    attend_half(head_tile(GROUP, DIM), grouped, pack_half(k, v), LENGTH, out, 1)
    np.testing.assert_allclose(out.reshape(q.shape), exact(q, k, v), rtol=1e-4, atol=1e-5)


# ---- Digits ----------------------------------------------------------------------------------------------------------


def test_the_stored_digits_are_those_of_the_format(real):
    q, k, v = real
    _, kv = decoded(AlignedKV, q, k, v)
    layer, sealed = kv.layers[0], 448
    values = quantize_fixedpoint(v.transpose(1, 0, 2))  # (T, Hkv, D) -> (Hkv, T, D)
    assert (layer.value_high[:, :LENGTH] == values.high).all()
    assert (layer.value_low[:, :LENGTH] == values.low).all()
    assert (layer.value_exponents[:, :LENGTH] == values.exponents[..., 0]).all()
    blocks = k[:sealed].reshape(7, 64, HEADS, DIM).transpose(2, 0, 1, 3)  # (T, Hkv, D) -> (Hkv, blocks, 64, D)
    keys = quantize_fixedpoint(blocks, axis=2)
    assert (layer.key_high[:, :sealed].reshape(blocks.shape) == keys.high).all()
    assert (layer.key_low[:, :sealed].reshape(blocks.shape) == keys.low).all()
    assert (layer.key_exponents[:, :7] == keys.exponents[:, :, 0]).all()
    assert (layer.open_keys[:, : LENGTH - sealed] == k[sealed:].transpose(1, 0, 2)).all()


def aligned_rule(q, kv, tolerance):
    """The rule of the recommended design in float64: bits of each key and value, (Hkv, T), and margins of doubt."""
    layer, sealed = kv.layers[0], LENGTH // 64 * 64
    q = q.reshape(HEADS, GROUP, DIM).astype(float) / 8
    high = np.zeros((HEADS, LENGTH, DIM))
    steps = np.repeat(np.ldexp(256.0, layer.key_exponents[:, : sealed // 64].astype(int)), 64, axis=1)
    high[:, :sealed] = layer.key_high[:, :sealed] * steps
    high[:, sealed:] = layer.open_keys[:, : LENGTH - sealed]
    sigma = np.zeros((HEADS, GROUP, LENGTH))
    sigma[..., :sealed] = np.sqrt(np.einsum("hgd,htd->hgt", q**2, steps**2) / 12)
    sigma = sigma.max(axis=1)
    p = softmax(np.einsum("hgd,htd->hgt", q, high)).max(axis=1)  # (Hkv, G, T) -> (Hkv, T)
    shares = p * np.ldexp(1.0, layer.value_exponents[:, :LENGTH].astype(int))
    whole = shares.sum(axis=-1, keepdims=True)
    limit = tolerance * whole / np.sqrt(LENGTH)
    keys = np.where(shares * sigma >= 0.4 * limit, 16, 8)
    keys[:, sealed:] = 32
    values = np.zeros(shares.shape, int)
    for h in range(HEADS):
        budget, low = tolerance * whole[h, 0] / 6, tolerance * whole[h, 0] / 6 / LENGTH
        for _ in range(6):
            if shares[h][shares[h] < 2.5 * low].sum() > budget:
                break
            low *= 2.5
        values[h] = 8 * (shares[h] >= low) + 8 * (shares[h] >= 71 * limit[h])
        assert shares[h][values[h] == 0].sum() <= budget  # what is skipped stays within its budget
    return keys, values


@pytest.mark.parametrize("tolerance", [2.0**-11, 2.0**-8, 2.0**-5])
def test_digits_are_read_by_the_rule(real, tolerance):
    q, k, v = real
    _, kv = decoded(AlignedKV, q, k, v, tolerance=tolerance)
    found = [bits[:, :, 0].T for bits in kv.bits_map(0)]  # (T, Hkv, D) -> (Hkv, T)
    for bits, wanted in zip(found, aligned_rule(q, kv, tolerance), strict=True):
        assert (bits != wanted).mean() < 0.002  # float32 against float64: a share may sit on the fence
    assert kv.reads.key_bits == found[0].sum(dtype=int) * DIM
    assert kv.reads.value_bits == found[1].sum(dtype=int) * DIM
    assert kv.reads.meta_bits == 8 * HEADS * (7 * DIM + LENGTH)
    assert kv.reads.num_values == LENGTH * HEADS * DIM
    assert kv.bytes_read == sum((kv.reads.key_bits, kv.reads.value_bits, kv.reads.meta_bits)) // 8


@pytest.mark.parametrize("tolerance", [2.0**-11, 2.0**-8, 2.0**-5])
def test_the_error_follows_the_tolerance(real, tolerance):
    q, k, v = real
    y, _ = decoded(AlignedKV, q, k, v, tolerance=tolerance)
    assert error(y, exact(q, k, v)) < 2 * tolerance


def test_a_score_errs_by_less_than_its_bound(real):
    q, k, _ = real
    keys = k[:448].reshape(7, 64, HEADS, DIM)
    t = quantize_fixedpoint(keys, axis=1)
    unit = np.ldexp(256.0, t.exponents.astype(int))
    grouped = q.reshape(HEADS, GROUP, DIM).astype(float) / 8
    off = np.einsum("hgd,bthd->bthg", grouped, t.dequantize(1) - keys.astype(float))
    bound = np.einsum("hgd,bthd->bthg", np.abs(grouped), np.broadcast_to(unit * 128.5 / 256, keys.shape))
    assert (np.abs(off) <= bound).all()
    sigma = np.sqrt(np.einsum("hgd,bthd->bthg", grouped**2, np.broadcast_to(unit, keys.shape) ** 2) / 12)
    assert 0.8 < np.sqrt(((off / sigma) ** 2).mean()) < 1.25


def test_control_reads_everything_and_is_tolerance_zero(real):
    q, k, v = real
    y, kv = decoded(AlignedKV, q, k, v, control=True)
    zero, other = decoded(AlignedKV, q, k, v, tolerance=0)
    assert (y == zero).all()
    assert kv.reads == other.reads
    keys, values = kv.bits_map(0)
    assert (keys[:448] == 16).all()
    assert (keys[448:] == 32).all()
    assert (values == 16).all()
    assert error(y, exact(q, k, v)) < 2e-4
    restored = kv.read_block(0, LENGTH)
    assert error(y, exact(q, restored.keys[:, 0], restored.values[:, 0])) < 1e-5


# ---- Planes ----------------------------------------------------------------------------------------------------------


def field(x):
    """Exponent field of fp16 numbers."""
    return (np.asarray(x, np.float16).view(np.uint16) >> 10).astype(int) & 31


def paper_rule(q, k, v, thresholds):
    """The rules of the paper: bits of each channel of K (Hkv, D) and of each stored token of V (Hkv, T)."""
    q = q.reshape(HEADS, GROUP, DIM) / np.float32(8)
    sizes = np.frexp(np.abs(q))[1] + field(k).max(axis=0)[:, None]  # (Hkv, G, D)
    spare = (sizes.max(axis=-1, keepdims=True) - sizes).min(axis=1)
    keys = np.where(spare < 4, 16, np.where(spare < 8, 12, 8))
    sealed = LENGTH // 64 * 64
    read = masked(k, keys, sealed)
    p = softmax(np.einsum("hgd,thd->hgt", q.astype(float), read))
    peaks = field(v).max(axis=0)  # (Hkv, D)
    needed = np.zeros((HEADS, sealed))
    for h in range(HEADS):
        for g in range(GROUP):
            s = p[h, g, :sealed]
            likely = s.reshape(-1, 32).argmax(axis=0) * 32 + np.arange(32)
            small = masked(v[:sealed, h : h + 1], np.full((1, DIM), 8), sealed)[:, 0]
            estimate = s[likely] @ np.abs(small[likely])
            ratio = np.ldexp(1.0, (np.frexp(estimate)[1] - 2 - (peaks[h] - 15)).min())
            needed[h] = np.maximum(needed[h], s / ratio)
    return keys, np.where(needed > 2.0 ** -thresholds[0], 16, np.where(needed > 2.0 ** -thresholds[1], 12, 8))


def masked(x, bits, sealed):
    """Numbers (T, Hkv, D) in fp16, of which `bits` (Hkv, D) were read before position `sealed`, as float64."""
    patterns = x.astype(np.float16).view(np.uint16)
    lost = 16 - np.broadcast_to(bits, patterns.shape)
    read = (patterns >> lost << lost | (1 << lost) >> 1).astype(np.uint16)
    read[sealed:] = patterns[sealed:]
    return read.view(np.float16).astype(float)


@pytest.mark.parametrize("thresholds", [(4, 8), RELEASED])
def test_planes_are_read_by_the_rules_of_the_paper(real, thresholds):
    q, k, v = real
    y, kv = decoded(PaperKV, q, k, v, thresholds=thresholds)
    keys, values = paper_rule(q, k, v, thresholds)
    found_keys, found_values = kv.bits_map(0)
    assert (found_keys[:448] == keys).all()
    assert (found_keys[448:] == 16).all()
    assert (values != found_values[:448, :, 0].T).mean() < 0.002  # float32 against float64: on the fence
    assert (found_values[448:] == 16).all()
    whole = split_planes(v.astype(np.float16).view(np.uint16))
    read = {bits: whole.dequantize(bits) for bits in (8, 12, 16)}
    values = np.select([found_values == bits for bits in read], list(read.values()))
    assert error(y, exact(q, masked(k, keys, 448), values)) < 1e-5
    assert kv.reads.key_bits == found_keys.sum(dtype=int)
    assert kv.reads.value_bits == found_values.sum(dtype=int)


def test_the_rule_of_the_text_is_better_than_that_of_the_release(real):
    q, k, v = real
    ys = [decoded(PaperKV, q, k, v, thresholds=t)[0] for t in ((4, 8), RELEASED)]
    assert error(ys[0], exact(q, k, v)) < error(ys[1], exact(q, k, v)) < 0.1


def test_the_control_of_the_paper_is_plain_fp16(real):
    q, k, v = real
    y, kv = decoded(PaperKV, q, k, v, control=True)
    assert error(y, exact(q, k.astype(np.float16), v.astype(np.float16))) < 1e-5
    assert kv.reads.bits_per_key == kv.reads.bits_per_value == 16
    assert kv.reads.meta_bits == 0


def test_column_maxima_never_fall(real):
    _, k, v = real
    kv = PaperKV(1, HEADS, DIM, LENGTH)
    before = np.zeros((HEADS, DIM), np.uint8)
    for start in range(0, LENGTH, 50):
        kv.append(0, -np.abs(k[start : start + 50]), v[start : start + 50])  # the sign must not matter
        peaks = kv.layers[0].key_peaks.copy()
        assert (peaks >= before).all()
        assert (peaks == field(k[: start + 50]).max(axis=0)).all()
        before = peaks
    kv.truncate(10)
    assert (kv.layers[0].key_peaks == before).all()


# ---- Threads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [AlignedKV, PaperKV])
def test_every_thread_count_gives_the_same_bits(cls, real, monkeypatch, each_thread_count):
    q, k, v = real
    results = set()
    monkeypatch.setattr("cachequant_lib.kv.compressed.WORTH_SHARING", 1)
    for _ in each_thread_count():
        y, kv = decoded(cls, q, k, v)
        results.add((y.tobytes(), kv.reads.key_bits, kv.reads.value_bits))
    assert len(results) == 1


# ---- Other CPUs ------------------------------------------------------------------------------------------------------

DECODE = """
import sys
import numpy as np
from cachequant_lib.kv.aligned import AlignedKV
from cachequant_lib.kv.fixture import load_kv_fixture
from cachequant_lib.kv.paper import PaperKV
fixture = load_kv_fixture()[15]
for cls in (AlignedKV, PaperKV):
    kv = cls(1, 3, 64, 500)
    kv.append(0, fixture.k[:500], fixture.v[:500])
    np.save(sys.argv[1] + cls.__name__, kv.attend(0, fixture.q[51:52])[0])
    np.save(sys.argv[1] + cls.__name__ + "Rows", kv.read_block(0, 500).rows)
"""


@pytest.mark.slow
def test_a_cpu_without_vectors_gives_the_same_answer(tmp_path):
    fixture = load_kv_fixture()[15]
    environment = os.environ | {"NUMBA_CPU_NAME": "generic", "NUMBA_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", DECODE, f"{tmp_path}/"], env=environment, cwd=ROOT, check=True)
    for cls in (AlignedKV, PaperKV):
        y, kv = decoded(cls, fixture.q[51], fixture.k[:500], fixture.v[:500])
        assert (np.load(tmp_path / f"{cls.__name__}Rows.npy") == kv.read_block(0, 500).rows).all()
        assert error(np.load(tmp_path / f"{cls.__name__}.npy"), y) < 1e-3  # a share on the fence may fall otherwise
