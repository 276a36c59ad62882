"""DenseKV: causal attention as written out in float64, and a length that never lies."""

import numpy as np
import pytest

import cachequant_lib as cq

LAYERS, KV_HEADS, DIM = 3, 2, 8


def rows(rng, count, heads=KV_HEADS):
    return rng.standard_normal((count, heads, DIM)).astype(np.float32)


def filled(rng, count, capacity=32):
    kv = cq.DenseKV(LAYERS, KV_HEADS, DIM, capacity)
    for layer in range(LAYERS):
        kv.append(layer, rows(rng, count), rows(rng, count))
    return kv


def attend_naive(q, keys, values):
    """Causal attention in float64, one query and one head at a time."""
    y = np.zeros(q.shape)
    per_key = q.shape[1] // keys.shape[1]
    for t in range(len(q)):
        seen = len(keys) - len(q) + t + 1
        for h in range(q.shape[1]):
            scores = keys[:seen, h // per_key].astype(np.float64) @ q[t, h] / np.sqrt(DIM)
            weights = np.exp(scores - scores.max())
            y[t, h] = weights / weights.sum() @ values[:seen, h // per_key]
    return y


@pytest.mark.parametrize("num_heads", [2, 4, 6])
@pytest.mark.parametrize(("stored", "new"), [(0, 1), (0, 9), (5, 1), (5, 4), (23, 9)])
def test_attends_causally_with_shared_heads(num_heads, stored, new):
    rng = np.random.default_rng(0)
    kv = cq.DenseKV(LAYERS, KV_HEADS, DIM, 32)
    keys, values = rows(rng, stored + new), rows(rng, stored + new)
    kv.append(1, keys[:stored], values[:stored])
    kv.append(1, keys[stored:], values[stored:])
    q = rows(rng, new, num_heads)
    np.testing.assert_allclose(kv.attend(1, q), attend_naive(q, keys, values), rtol=1e-5, atol=1e-6)


def test_far_scores_become_exact_zeros_and_huge_ones_do_not_overflow():
    kv = cq.DenseKV(1, 1, DIM, 4)
    keys = np.zeros((3, 1, DIM), np.float32)
    keys[:, 0, 0] = [-1e4, 0.0, 3e4]
    values = np.arange(3, dtype=np.float32)[:, None, None] * np.ones(DIM, np.float32)
    kv.append(0, keys, values)
    q = np.zeros((1, 1, DIM), np.float32)
    q[0, 0, 0] = 1.0
    assert (kv.attend(0, q) == 2.0).all()


def test_the_caller_keeps_its_queries():
    kv = filled(np.random.default_rng(0), 4)
    q = rows(np.random.default_rng(1), 2)
    before = q.copy()
    kv.attend(0, q)
    assert (q == before).all()


def test_length_counts_what_every_layer_has():
    rng = np.random.default_rng(0)
    kv = filled(rng, 4)
    kv.append(0, rows(rng, 2), rows(rng, 2))
    assert kv.length == 4
    kv.truncate(4)  # a forward that failed after layer 0 is undone
    for layer in range(LAYERS):
        kv.append(layer, rows(rng, 1), rows(rng, 1))
    assert kv.length == 5


@pytest.mark.parametrize("length", [0, 1, 5, 6])
def test_truncate_keeps_exactly_so_many(length):
    rng = np.random.default_rng(0)
    kv = filled(rng, 6)
    before = kv.read_block(0, length).rows
    kv.truncate(length)
    assert kv.length == length
    assert (kv.read_block(0, length).rows == before).all()


@pytest.mark.parametrize("length", [-1, -6, 7, 1.5])
def test_truncate_outside_the_stored_is_refused(length):
    kv = filled(np.random.default_rng(0), 6)
    with pytest.raises(cq.CapacityError, match=f"6 positions to {length}"):
        kv.truncate(length)
    assert kv.length == 6


def test_a_reused_cache_is_as_good_as_new():
    used = filled(np.random.default_rng(1), 9)
    used.truncate(0)
    fresh = cq.DenseKV(LAYERS, KV_HEADS, DIM, 32)
    rng = np.random.default_rng(2)
    k, v, q = rows(rng, 3), rows(rng, 3), rows(rng, 3)
    for kv in (used, fresh):
        kv.append(0, k, v)
    assert (used.attend(0, q) == fresh.attend(0, q)).all()


def test_blocks_carry_rows_from_one_cache_to_another():
    rng = np.random.default_rng(0)
    source, target = filled(rng, 7), cq.DenseKV(LAYERS, KV_HEADS, DIM, 32)
    block = source.read_block(0, 5)
    assert block.rows.shape == (5, LAYERS, 2, KV_HEADS, DIM)
    target.write_block(block)
    assert target.length == 5
    assert (target.keys[:, :5] == source.keys[:, :5]).all()
    assert (target.values[:, :5] == source.values[:, :5]).all()
    target.write_block(source.read_block(5, 7))
    assert (target.read_block(0, 7).rows == source.read_block(0, 7).rows).all()


def test_blocks_are_copies():
    kv = filled(np.random.default_rng(0), 3)
    block = kv.read_block(0, 3)
    before = block.rows.copy()
    kv.keys[:] = 0
    assert (block.rows == before).all()


def test_a_gpt2_token_is_73728_bytes():
    kv = cq.DenseKV(12, 12, 64, 2)
    k = np.zeros((1, 12, 64), np.float32)
    for layer in range(12):
        kv.append(layer, k, k)
    assert kv.read_block(0, 1).rows.nbytes == kv.nbytes // 2 == 73_728


def test_bytes_read_are_counted_in_the_path():
    kv = filled(np.random.default_rng(0), 6)
    kv.attend(0, rows(np.random.default_rng(1), 1, 4))
    assert kv.bytes_read == 6 * KV_HEADS * DIM * 4 * 2


def test_no_room():
    rng = np.random.default_rng(0)
    kv = filled(rng, 6, capacity=8)
    with pytest.raises(cq.CapacityError, match="no room for 3 more positions: 6 of 8 are taken"):
        kv.append(0, rows(rng, 3), rows(rng, 3))
    with pytest.raises(cq.CapacityError, match="no room"):
        kv.write_block(cq.KVBlock(np.zeros((3, LAYERS, 2, KV_HEADS, DIM), np.float32)))
    assert kv.length == 6
    kv.append(0, rows(rng, 2), rows(rng, 2))  # what fits still fits


@pytest.mark.parametrize("shape", [(2, KV_HEADS, DIM + 1), (2, KV_HEADS + 1, DIM), (KV_HEADS, DIM)])
def test_rows_of_another_shape_are_refused(shape):
    kv = cq.DenseKV(LAYERS, KV_HEADS, DIM, 8)
    with pytest.raises(cq.FormatError, match="expected k and v"):
        kv.append(0, np.zeros(shape, np.float32), np.zeros(shape, np.float32))


def test_blocks_of_another_model_are_refused():
    kv = cq.DenseKV(LAYERS, KV_HEADS, DIM, 8)
    with pytest.raises(cq.FormatError, match="expected rows"):
        kv.write_block(cq.KVBlock(np.zeros((1, LAYERS + 1, 2, KV_HEADS, DIM), np.float32)))


@pytest.mark.parametrize("span", [(-1, 2), (2, 1), (0, 7)])
def test_ranges_outside_the_stored_are_refused(span):
    with pytest.raises(cq.CapacityError, match="are not within the 6 stored"):
        filled(np.random.default_rng(0), 6).read_block(*span)


def test_queries_that_cannot_be_the_newest_are_refused():
    kv = filled(np.random.default_rng(0), 2)
    with pytest.raises(cq.CapacityError, match="3 queries for a layer that holds 2"):
        kv.attend(0, np.zeros((3, 2, DIM), np.float32))
    with pytest.raises(cq.FormatError, match="expected q"):
        kv.attend(0, np.zeros((1, 3, DIM), np.float32))


@pytest.mark.parametrize("shape", [(0, 2, 8, 4), (3, 2, 8, 0), (3, 2, -8, 4)])
def test_impossible_shapes_are_refused(shape):
    with pytest.raises(cq.FormatError, match="at least 1"):
        cq.DenseKV(*shape)
