"""What every compressed cache promises, whatever its format: the KVCache contract, at every awkward length."""

import numpy as np
import pytest

import cachequant_lib as cq
from cachequant_lib.kv.aligned import AlignedKV
from cachequant_lib.kv.gear import GearKV
from cachequant_lib.kv.kivi import KiviKV
from cachequant_lib.kv.paper import PaperKV

LAYERS, KV_HEADS, DIM = 2, 2, 16
LENGTHS = [1, 2, 31, 63, 64, 65, 127, 128, 129, 200]

pytestmark = pytest.mark.compiled


def exactest(cls, capacity=200):
    """A cache that keeps all the bits its format has."""
    control = {"control": True}
    options = {AlignedKV: control, PaperKV: control, KiviKV: {"bits": 14, "residual": 64}, GearKV: {"bits": 14}}
    return cls(LAYERS, KV_HEADS, DIM, capacity, **options[cls])


@pytest.fixture(params=[AlignedKV, PaperKV, KiviKV, GearKV], ids=lambda cls: cls.__name__)
def cls(request):
    """Each compressed format."""
    return request.param


def rows(rng, count, heads=KV_HEADS):
    return rng.standard_normal((count, heads, DIM)).astype(np.float32)


def filled(kv, count, seed=0, step=None):
    """Append so many random rows to all layers, all at once or `step` at a time."""
    rng = np.random.default_rng(seed)
    keys, values = rows(rng, count * LAYERS), rows(rng, count * LAYERS)
    for start in range(0, count, step or count):
        for layer in range(LAYERS):
            span = slice(layer * count + start, layer * count + min(start + (step or count), count))
            kv.append(layer, keys[span], values[span])
    return kv


def dense(kv):
    """A plain cache with what can be restored from another."""
    copy = cq.DenseKV(LAYERS, KV_HEADS, DIM, kv.capacity)
    copy.write_block(kv.read_block(0, kv.length))
    return copy


def close(found, wanted, tolerance=2e-3):
    assert np.sqrt(((found - wanted) ** 2).mean() / (wanted**2).mean()) < tolerance


@pytest.mark.parametrize("length", LENGTHS)
def test_decode_agrees_with_attention_over_the_restored_rows(cls, length):
    kv = filled(exactest(cls), length)
    q = rows(np.random.default_rng(1), 1, KV_HEADS)
    for layer in range(LAYERS):
        np.testing.assert_allclose(kv.attend(layer, q), dense(kv).attend(layer, q), rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("length", LENGTHS)
def test_restored_rows_are_close(cls, length):
    kv = filled(exactest(cls), length)
    original = filled(cq.DenseKV(LAYERS, KV_HEADS, DIM, 200), length)
    close(kv.read_block(0, length).rows, original.read_block(0, length).rows, 5e-4)


def test_prefill_is_exact(cls):
    rng = np.random.default_rng(0)
    kv, plain = exactest(cls), cq.DenseKV(LAYERS, KV_HEADS, DIM, 200)
    k, v, q = rows(rng, 100), rows(rng, 100), rows(rng, 100, 3 * KV_HEADS)
    for cache in (kv, plain):
        cache.append(0, k, v)
    assert (kv.attend(0, q) == plain.attend(0, q)).all()
    assert kv.reads.num_values == 0  # the counters are for decode
    assert 0 < kv.bytes_read < plain.bytes_read
    k, v, q = rows(rng, 7), rows(rng, 7), rows(rng, 7)
    for cache in (kv, plain):
        cache.append(0, k, v)
    close(kv.attend(0, q), plain.attend(0, q))  # a second chunk sees the first one compressed


def test_prefill_is_causal(cls):
    rng = np.random.default_rng(0)
    k, v, q = rows(rng, 70), rows(rng, 70), rows(rng, 70)
    before, after = exactest(cls), exactest(cls)
    before.append(0, k, v)
    k[-1], v[-1] = 100, 100
    after.append(0, k, v)
    assert (before.attend(0, q)[:-1] == after.attend(0, q)[:-1]).all()


@pytest.mark.parametrize("step", [1, 7, 64, 65])
def test_chunks_are_stored_like_the_whole(cls, step):
    whole, parts = filled(exactest(cls), 150), filled(exactest(cls), 150, step=step)
    assert (whole.read_block(0, 150).rows == parts.read_block(0, 150).rows).all()
    q = rows(np.random.default_rng(1), 1)
    assert (whole.attend(1, q) == parts.attend(1, q)).all()


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 100, 128, 149, 150])
def test_truncate_and_go_on(cls, length):
    kv = filled(exactest(cls), 150)
    before = kv.read_block(0, length).rows
    kv.truncate(length)
    assert kv.length == length
    assert (kv.read_block(0, length).rows == before).all()
    filled(kv, 30, seed=2)
    assert kv.length == length + 30
    np.testing.assert_allclose(kv.read_block(0, length).rows, before, rtol=1e-3, atol=1e-3)
    q = rows(np.random.default_rng(1), 1)
    np.testing.assert_allclose(kv.attend(0, q), dense(kv).attend(0, q), rtol=2e-4, atol=1e-5)


def test_a_failed_forward_is_undone(cls):
    kv, twin = filled(exactest(cls), 60), filled(exactest(cls), 60)
    rng = np.random.default_rng(3)
    kv.append(0, rows(rng, 10), rows(rng, 10))  # seals a block in layer 0 only
    assert kv.length == 60
    kv.truncate(60)
    for cache in (kv, twin):
        filled(cache, 20, seed=4)
    close(kv.read_block(0, 80).rows, twin.read_block(0, 80).rows, 1e-4)


@pytest.mark.parametrize("length", [-1, 7, 1.5])
def test_truncate_outside_the_stored_is_refused(cls, length):
    kv = filled(exactest(cls), 6)
    with pytest.raises(cq.CapacityError):
        kv.truncate(length)
    assert kv.length == 6


def test_whole_blocks_travel_without_a_change(cls):
    source, target = filled(exactest(cls), 150), exactest(cls)
    target.write_block(source.read_block(0, 128))
    target.write_block(source.read_block(128, 150))
    q = rows(np.random.default_rng(1), 1)
    close(target.attend(0, q), source.attend(0, q), 1e-3)
    close(target.read_block(0, 150).rows, source.read_block(0, 150).rows, 1e-3)
    if cls in (AlignedKV, PaperKV):  # the others pass through fp16 on their way
        assert (target.read_block(0, 150).rows == source.read_block(0, 150).rows).all()
        assert (target.attend(0, q) == source.attend(0, q)).all()


@pytest.mark.parametrize("stop", [1, 63, 65, 100])
def test_parts_of_blocks_travel_closely(cls, stop):
    source, target = filled(exactest(cls), 150), exactest(cls)
    target.write_block(source.read_block(0, stop))
    assert target.length == stop
    close(target.read_block(0, stop).rows, source.read_block(0, stop).rows, 1e-3)
    filled(target, 50, seed=2)
    close(target.read_block(0, stop).rows, source.read_block(0, stop).rows, 1e-3)
    empty = source.read_block(3, 3)
    target.write_block(empty)
    assert target.length == stop + 50


def test_full_to_the_last_position(cls):
    for capacity in (1, 63, 64, 65, 128):
        kv = filled(exactest(cls, capacity), capacity)
        q = rows(np.random.default_rng(1), 1)
        np.testing.assert_allclose(kv.attend(0, q), dense(kv).attend(0, q), rtol=2e-4, atol=1e-5)
        with pytest.raises(cq.CapacityError, match="no room"):
            kv.append(0, q, q)
        assert kv.length == capacity


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("where", [0, 1])
def test_what_cannot_be_stored_is_refused_and_nothing_is_stored(cls, bad, where):
    kv = filled(exactest(cls), 70)
    before = kv.read_block(0, 70).rows
    pair = [np.ones((2, KV_HEADS, DIM), np.float32) for _ in range(2)]
    pair[where][1, 1, 3] = bad
    with pytest.raises(cq.FormatError, match="finite and at most"):
        kv.append(0, *pair)
    with pytest.raises(cq.FormatError, match="finite and at most"):
        kv.append(0, pair[0][1:], pair[1][1:])
    assert (kv.read_block(0, 70).rows == before).all()


def test_zeros_tiny_numbers_and_the_largest_half(cls):
    kv, plain = exactest(cls), cq.DenseKV(LAYERS, KV_HEADS, DIM, 200)
    atol = 1e-29 if cls in (AlignedKV, PaperKV) else 1e-7  # KIVI's step has to be an fp16 number
    keys, values = np.zeros((2, 100, KV_HEADS, DIM), np.float32)
    keys[50:, :, 0], values[50:, 0] = -0.0, 65504.0
    keys[10, :, 1], values[20, 1] = 2.0**-24, 1e-30
    for cache in (kv, plain):
        for layer in range(LAYERS):
            cache.append(layer, keys, values)
    np.testing.assert_allclose(kv.read_block(0, 100).rows, plain.read_block(0, 100).rows, rtol=1e-3, atol=atol)
    q = rows(np.random.default_rng(1), 1)
    np.testing.assert_allclose(kv.attend(0, q), plain.attend(0, q), rtol=1e-4, atol=1e-29)


def test_scores_in_the_thousands_pick_one_token(cls):
    kv, plain = exactest(cls), cq.DenseKV(LAYERS, KV_HEADS, DIM, 200)
    rng = np.random.default_rng(0)
    keys, values, q = 300 * rows(rng, 100), rows(rng, 100), 300 * rows(rng, 1)
    for cache in (kv, plain):
        cache.append(0, keys, values)
    np.testing.assert_allclose(kv.attend(0, q), plain.attend(0, q), rtol=2e-3, atol=2e-3)


def test_the_bits_of_the_last_step(cls):
    kv = filled(cls(LAYERS, KV_HEADS, DIM, 200), 100)
    kv.attend(1, rows(np.random.default_rng(1), 1, 3 * KV_HEADS))
    keys, values = kv.bits_map(1)
    assert keys.shape == values.shape == (100, KV_HEADS, DIM)
    assert kv.reads.key_bits == keys.sum(dtype=int)
    assert kv.reads.value_bits == values.sum(dtype=int)
    assert kv.reads.bits_per_key == keys.mean()
    assert kv.reads.bits_per_number * 2 * keys.size == 8 * kv.bytes_read


def test_queries_and_rows_of_another_shape_are_refused(cls):
    kv = filled(exactest(cls), 6)
    with pytest.raises(cq.FormatError, match="expected q"):
        kv.attend(0, np.zeros((1, 3, DIM), np.float32))
    with pytest.raises(cq.FormatError, match="expected k and v"):
        kv.append(0, np.zeros((1, KV_HEADS, 4), np.float32), np.zeros((1, KV_HEADS, 4), np.float32))
    with pytest.raises(cq.FormatError, match="expected rows"):
        kv.write_block(cq.KVBlock(np.zeros((1, LAYERS + 1, 2, KV_HEADS, DIM), np.float32)))


def test_the_caller_keeps_its_arrays(cls):
    kv = exactest(cls)
    k, v, q = (rows(np.random.default_rng(s), 70) for s in range(3))
    copies = k.copy(), v.copy(), q.copy()
    kv.append(0, k, v)
    first = kv.attend(0, q)
    k[:], v[:] = 0, 0
    assert (kv.attend(0, q) == first).all()
    kv.attend(0, q[:1])
    assert (q == copies[2]).all()


@pytest.mark.parametrize("cls", [AlignedKV, PaperKV])
def test_a_head_size_that_is_no_multiple_of_four_is_refused(cls):
    with pytest.raises(cq.FormatError, match="multiple of four, got 6"):
        cls(1, 1, 6, 10)


@pytest.mark.parametrize("tolerance", [-0.1, 1.5, float("nan")])
def test_impossible_tolerances_are_refused(tolerance):
    with pytest.raises(cq.FormatError, match="tolerance"):
        AlignedKV(1, 1, 4, 10, tolerance=tolerance)


@pytest.mark.parametrize("thresholds", [(8, 4), (1,), (-1, 2), (4, 101), (1.5, 2)])
def test_impossible_thresholds_are_refused(thresholds):
    with pytest.raises(cq.FormatError, match="thresholds"):
        PaperKV(1, 1, 4, 10, thresholds=thresholds)


def test_memory_held():
    digits = AlignedKV(1, 32, 128, 4032)  # and one block to spare
    assert digits.nbytes == 32 * (4096 * 128 * 4 + 64 * 128 + 4096 + 64 * 128 * 4)
    planes = PaperKV(1, 32, 128, 4096)
    assert planes.nbytes == 32 * (4096 * 128 * 4 + 2 * 128 + 2 * 64 * 128 * 2)
