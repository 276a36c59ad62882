"""What every forward pass promises, whatever the weights: chunks, causality, refusals, never a half-filled cache."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from cachequant_lib.errors import CacheQuantError, CapacityError, ContextLengthError, FormatError, TokenError
from cachequant_lib.model.base import Model
from cachequant_lib.model.linear import Float32Linear
from cachequant_lib.model.registry import load

NUM_TOKENS = 24


@pytest.fixture(params=["gpt2", "llama"])
def model(request: pytest.FixtureRequest) -> Model:
    _, folder = request.getfixturevalue(f"make_{request.param}")()
    return load(folder)


@pytest.fixture
def ids() -> np.ndarray:
    return np.random.default_rng(5).integers(0, 97, NUM_TOKENS)


def in_chunks(model: Model, ids: np.ndarray, *cuts: int) -> np.ndarray:
    kv = model.new_kv()
    parts = [model.forward(part, kv) for part in np.split(ids, cuts)]
    assert kv.length == len(ids)
    return np.concatenate(parts)  # chunks of (t, V) -> (T, V)


def assert_close(a: np.ndarray, b: np.ndarray) -> None:
    assert_allclose(a, b, rtol=0, atol=1e-5 * max(1, np.abs(b).max()))


def test_two_chunks_cut_anywhere_equal_one(model: Model, ids: np.ndarray) -> None:
    whole = in_chunks(model, ids)
    for cut in range(1, NUM_TOKENS):
        assert_close(in_chunks(model, ids, cut), whole)


@pytest.mark.parametrize("cuts", [(5, 17), (1, 2), (22, 23), tuple(range(1, NUM_TOKENS))])
def test_many_chunks_equal_one(model: Model, ids: np.ndarray, cuts: tuple[int, ...]) -> None:
    assert_close(in_chunks(model, ids, *cuts), in_chunks(model, ids))


def test_a_future_token_never_changes_an_earlier_logit(model: Model, ids: np.ndarray) -> None:
    before = in_chunks(model, ids, 6)
    for position in range(1, NUM_TOKENS):
        changed = ids.copy()
        changed[position] = (ids[position] + 1) % 97
        after = in_chunks(model, changed, 6)
        assert_close(after[:position], before[:position])
        assert np.abs(after[position] - before[position]).max() > 1e-2


def test_last_only_gives_the_last_row(model: Model, ids: np.ndarray) -> None:
    last = model.forward(ids, model.new_kv(), last_only=True)
    assert last.shape == (1, 97)
    assert_close(last, in_chunks(model, ids)[-1:])


def test_a_cache_cut_back_and_used_again_is_as_good_as_new(model: Model, ids: np.ndarray) -> None:
    kv = model.new_kv()
    model.forward(ids[::-1], kv)
    kv.truncate(0)
    assert_close(model.forward(ids, kv), in_chunks(model, ids))
    kv.truncate(7)
    assert_close(model.forward(ids[7:], kv), in_chunks(model, ids)[7:])


@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor, lambda ids: np.array(ids, np.uint16)])
def test_any_container_of_ids_will_do(model: Model, ids: np.ndarray, make: Any) -> None:
    assert_array_equal(model.forward(make(ids.tolist()), model.new_kv()), model.forward(ids, model.new_kv()))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "empty"),
        (np.array([], np.int64), "empty"),
        ([3, -1], "token id -1 at position 1"),
        ([3, 4, 97], r"token id 97 at position 2 is not in 0\.\.96"),
        ([2**80], "whole numbers"),
        ([1.0, 2.0], "whole numbers"),
        ([1, None], "whole numbers"),
        ([True, False], "whole numbers"),
        ([[1, 2], [3, 4]], "one prompt at a time"),
        ([[1, 2], [3]], "flat sequence"),
        (torch.zeros(1, 3, dtype=torch.long), "one prompt at a time"),
        (5, "flat sequence"),
        (None, "flat sequence"),
        ("cat", "tokenizer.encode"),
    ],
)
def test_bad_ids_are_refused_before_anything_is_stored(model: Model, bad: Any, message: str) -> None:
    kv = model.new_kv()
    with pytest.raises(TokenError, match=message):
        model.forward(bad, kv)
    assert kv.length == 0


def test_the_context_is_full_at_exactly_its_length(model: Model) -> None:
    kv = model.new_kv()
    model.forward([1] * 39, kv)
    with pytest.raises(
        ContextLengthError, match=r"39 cached \+ 2 new = 41 positions.*context of 40: that is 1 too many"
    ):
        model.forward([1, 2], kv)
    assert kv.length == 39
    model.forward([1], kv)
    with pytest.raises(ContextLengthError):
        model.forward([1], kv)
    assert kv.length == 40


def test_a_small_cache_is_refused_with_the_size_it_needs(model: Model) -> None:
    kv = model.new_kv(capacity=8)
    model.forward([1] * 6, kv)
    with pytest.raises(CapacityError, match=r"6 cached \+ 3 new = 9 .*room for 8.*capacity=9"):
        model.forward([1] * 3, kv)
    assert kv.length == 6


def test_another_models_cache_is_refused(model: Model) -> None:
    with pytest.raises(FormatError, match="another model's"):
        model.forward([1], load("tiny").new_kv())


def test_there_is_no_mask_or_position_argument_to_get_wrong(model: Model) -> None:
    for name in ("attention_mask", "position_ids"):
        with pytest.raises(TypeError, match=name):
            model.forward([1], model.new_kv(), **{name: [1]})


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["second block", "head"])
def test_a_failure_on_the_way_leaves_the_cache_as_it_was(
    model: Model, ids: np.ndarray, where: str, error: type[BaseException]
) -> None:
    class Failing(Float32Linear):
        def _apply(self, x: np.ndarray) -> np.ndarray:
            raise error("power cut")

    def broken(linear: Any) -> Float32Linear:
        return Failing(np.zeros((linear.out_features, linear.in_features), np.float32))

    if where == "head":
        failing = dataclasses.replace(model, head=broken(model.head))
    else:
        field = "mlp_down" if model.config.architecture == "gpt2" else "down"
        block = dataclasses.replace(model.blocks[1], **{field: broken(getattr(model.blocks[1], field))})
        failing = dataclasses.replace(model, blocks=(model.blocks[0], block))
    kv = model.new_kv()
    model.forward(ids[:10], kv)
    before = kv.read_block(0, 10).rows
    with pytest.raises(error, match="power cut"):
        failing.forward(ids[10:], kv)
    assert kv.length == 10
    assert_array_equal(kv.read_block(0, 10).rows, before)
    assert_close(model.forward(ids[10:], kv), in_chunks(model, ids)[10:])


def test_new_kv_has_the_models_shape(model: Model) -> None:
    config, kv = model.config, model.new_kv()
    assert (kv.num_layers, kv.num_kv_heads, kv.head_dim) == (config.num_layers, config.num_kv_heads, config.head_dim)
    assert (kv.format, kv.capacity, kv.length) == ("dense", config.context_length, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "densee"}, "no KV format 'densee'; the formats are 'dense'"),
        ({"format": "dense", "bits": 2}, "'dense' has no option 'bits'"),
        ({"capacity": 0}, "at least 1"),
        *(({"capacity": value}, "capacity must be a whole number") for value in (2.5, 8.0, "8", True, -1, [8])),
    ],
)
def test_new_kv_refuses_what_it_does_not_know(model: Model, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        model.new_kv(**arguments)


def test_the_fingerprint_names_weights_config_and_format(make_gpt2: Any) -> None:
    _, folder = make_gpt2(seed=0)
    first, again = load(folder), load(folder)
    assert len(first.fingerprint) == 32
    assert first.fingerprint == again.fingerprint
    assert dataclasses.replace(first, name="renamed").fingerprint == first.fingerprint
    _, folder = make_gpt2(seed=1)
    others = [
        load(folder),
        dataclasses.replace(first, weight_format="int8"),
        dataclasses.replace(first, config=dataclasses.replace(first.config, norm_eps=1e-6)),
    ]
    assert len({first.fingerprint, *(other.fingerprint for other in others)}) == 4


def test_one_changed_weight_changes_the_fingerprint(model: Model) -> None:
    embedding = model.embedding.copy()
    embedding[3, 4] += 1e-3
    assert dataclasses.replace(model, embedding=embedding).fingerprint != model.fingerprint


def test_a_tied_head_shares_memory_and_counts_once(make_llama: Any) -> None:
    sizes = {}
    for tied in (True, False):
        model = load(make_llama(tie_word_embeddings=tied)[1])
        assert np.shares_memory(model.head.weight, model.embedding) == tied  # type: ignore[attr-defined]
        sizes[tied] = model.nbytes
    assert sizes[False] - sizes[True] == 97 * 48 * 4


def test_linears_are_contiguous_float32_rows_of_outputs(model: Model) -> None:
    linears = [value for block in model.blocks for value in vars(block).values() if isinstance(value, Float32Linear)]
    assert len(linears) == 2 * (4 if model.config.architecture == "gpt2" else 7)
    for linear in linears:
        assert linear.weight.shape == (linear.out_features, linear.in_features)
        assert linear.weight.flags.c_contiguous
        assert linear.weight.dtype == np.float32


def test_every_error_is_also_the_librarys_own() -> None:
    for error in (TokenError, ContextLengthError, CapacityError, FormatError):
        assert issubclass(error, CacheQuantError)
        assert issubclass(error, ValueError)
