"""All blocks in one compiled pass: the same bits however a text is cut, and next to the numbers of single layers."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import numba
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import cachequant_lib as cq
from cachequant_lib.errors import FormatError
from cachequant_lib.kernels.float_reference import attend_ref, gate_ref, gelu_ref, normalize_ref
from cachequant_lib.kernels.reference import linear_bfp8_ref, linear_int8_ref
from cachequant_lib.kv.dense import DenseKV
from cachequant_lib.model.base import Model
from cachequant_lib.model.linear import Int8Linear, Linear
from cachequant_lib.model.ops import apply_rope
from cachequant_lib.model.registry import load

pytestmark = pytest.mark.compiled

NUM_TOKENS = 150  # more than go through a layer together
SHAPES = {
    "gpt2": {"n_embd": 96, "n_head": 3, "n_positions": 160},
    "gpt2-odd": {"n_embd": 60, "n_head": 5, "n_inner": 77, "n_positions": 160},
    "llama": {"hidden_size": 96, "intermediate_size": 160, "max_position_embeddings": 160},
    "llama-odd": {
        "hidden_size": 54,
        "intermediate_size": 75,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 10,
        "max_position_embeddings": 160,
    },
}
CASES = [(shape, scheme) for shape in SHAPES for scheme in ("int8", "bfp8") if scheme == "int8" or "odd" not in shape]


@pytest.fixture(params=CASES, ids="-".join)
def model(request: pytest.FixtureRequest) -> Model:
    shape, scheme = request.param
    _, folder = request.getfixturevalue(f"make_{shape.partition('-')[0]}")(**SHAPES[shape])
    return cq.quantize_model(load(folder), scheme)


@pytest.fixture
def ids() -> np.ndarray:
    return np.random.default_rng(5).integers(0, 97, NUM_TOKENS)


def run(model: Model, ids: np.ndarray, *cuts: int, kv: Any = None) -> tuple[np.ndarray, Any]:
    """Residual stream of all ids, taken in pieces, and the cache."""
    kv = kv or model.new_kv()
    return np.concatenate([model.hidden_states(part, kv) for part in np.split(ids, cuts)]), kv


def assert_same(first: tuple[np.ndarray, Any], second: tuple[np.ndarray, Any]) -> None:
    """The residual streams are equal, bit for bit, and so are all keys and values."""
    assert_array_equal(first[0].view(np.int32), second[0].view(np.int32))
    length = first[1].length
    assert second[1].length == length
    for one, other in ((first[1].keys, second[1].keys), (first[1].values, second[1].values)):
        assert_array_equal(one[:, :length].view(np.int32), other[:, :length].view(np.int32))


CUTS = [(1,), (149,), (8, 16, 29), (3, 131, *range(140, NUM_TOKENS))]


def test_pieces_and_threads_leave_the_same_bits(model: Model, ids: np.ndarray, each_thread_count: Any) -> None:
    assert model.whole_pass is not None
    whole = run(model, ids)
    for _ in each_thread_count():
        assert_same(run(model, ids), whole)
        for cuts in CUTS:
            assert_same(run(model, ids, *cuts), whole)


def test_token_by_token_leaves_the_same_bits(model: Model, ids: np.ndarray) -> None:
    numba.set_num_threads(1)
    assert_same(run(model, ids, *range(1, NUM_TOKENS)), run(model, ids))
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)


@pytest.mark.parametrize("reused", [1, 100, 149])
def test_a_copied_prefix_leaves_the_same_bits(model: Model, ids: np.ndarray, reused: int) -> None:
    whole, cold = run(model, ids)
    warm = model.new_kv(capacity=NUM_TOKENS + 3)
    warm.write_block(cold.read_block(0, reused))
    assert_same((run(model, ids[reused:], kv=warm)[0], warm), (whole[reused:], cold))


def multiply(linear: Any, x: np.ndarray) -> np.ndarray:
    """What a packed layer must give, from the formats and the oracle of its kernel."""
    quantize, oracle = {
        Int8Linear: (cq.quantize_int8, linear_int8_ref),
        cq.BFP8Linear: (cq.quantize_bfp8, linear_bfp8_ref),
    }[type(linear)]
    return oracle(*vars(quantize(x)).values(), *vars(linear.tensor).values(), linear.bias)


def oracle_pass(model: Model, ids: np.ndarray) -> np.ndarray:
    """The residual stream, from the oracles of all kernels alone."""
    x, config = model.embed(ids, 0), model.config
    for stage in model.stages():
        norms = [
            (n.weight, getattr(n, "bias", np.float32(0)), n.eps, hasattr(n, "bias"))
            for n in (stage.norm_1, stage.norm_2)
        ]
        qkv = np.concatenate([multiply(linear, normalize_ref(x, *norms[0])) for linear in stage.qkv], axis=1)
        q, k, v = np.split(
            qkv.reshape(len(x), -1, config.head_dim), np.cumsum([config.num_heads, config.num_kv_heads]), 1
        )
        if model.rope is not None:
            q, k = (apply_rope(part, *(table[: len(x)] for table in model.rope)) for part in (q, k))
        x = x + multiply(stage.out[0], attend_ref(q, k, v).reshape(len(x), -1))
        up = [multiply(linear, normalize_ref(x, *norms[1])) for linear in stage.up]
        x = x + multiply(stage.down[0], gelu_ref(*up) if len(up) == 1 else gate_ref(*up))
    return x


def test_every_bit_is_that_of_the_oracles(model: Model, ids: np.ndarray) -> None:
    assert_array_equal(run(model, ids[:30])[0].view(np.int32), oracle_pass(model, ids[:30]).view(np.int32))


def test_a_prefix_cache_never_changes_an_answer(model: Model, ids: np.ndarray) -> None:
    cache = cq.PrefixCache()
    cold = [cq.generate(model, ids[:n], 8, stop_at_eos=False) for n in (90, 140, 140)]
    warm = [cq.generate(model, ids[:n], 8, stop_at_eos=False, prefix_cache=cache) for n in (90, 140, 140)]
    assert [w.token_ids for w in warm] == [c.token_ids for c in cold]
    assert warm[1].cached_tokens == 90


def test_single_layers_give_nearly_the_same(model: Model, ids: np.ndarray) -> None:
    plain = dataclasses.replace(model, layer_by_layer=True)
    assert plain.whole_pass is None
    x, kv = run(model, ids[:1])
    y, other = run(plain, ids[:1])
    # up to the first layer's attention no code has been rounded from a different number: only norms differ
    assert np.abs(kv.keys[0, 0] - other.keys[0, 0]).max() < 1e-2 * np.abs(other.keys[0, 0]).max()
    assert np.abs(x - y).max() < 0.05 * np.abs(y).max()
    assert kv.bytes_read == other.bytes_read


def test_greedy_tokens_are_those_of_single_layers() -> None:
    model = load("tiny")
    for scheme in ("int8", "bfp8"):
        whole = cq.quantize_model(model, scheme)
        assert whole.whole_pass is not None
        plain = dataclasses.replace(whole, layer_by_layer=True)
        for prompt in ("It was a ", "Mr. Darcy replied, that "):
            texts = [cq.generate(m, prompt, 40).text for m in (whole, plain)]
            assert texts[0] == texts[1]


class OtherKV(DenseKV):
    """A cache that the compiled pass does not know."""


def test_other_caches_and_formats_go_layer_by_layer(make_gpt2: Any, ids: np.ndarray) -> None:
    model = load(make_gpt2(**SHAPES["gpt2"])[1])
    assert model.whole_pass is None
    assert cq.quantize_model(model, cq.Scheme(32, "pow2")).whole_pass is None
    quantized = cq.quantize_model(model, "int8")
    plain, config = dataclasses.replace(quantized, layer_by_layer=True), model.config
    kv = OtherKV(config.num_layers, config.num_kv_heads, config.head_dim, NUM_TOKENS)
    assert_array_equal(quantized.forward(ids, kv), plain.forward(ids, plain.new_kv()))
    mixed = dataclasses.replace(quantized, blocks=(quantized.blocks[0], model.blocks[1]))
    assert mixed.whole_pass is None
    assert mixed.forward(ids, mixed.new_kv()).shape == (NUM_TOKENS, 97)


def test_weights_are_kept_once(model: Model, ids: np.ndarray) -> None:
    layers = [linear for block in model.blocks for linear in vars(block).values() if isinstance(linear, Linear)]
    before = [linear.content() for linear in layers]
    fingerprint, nbytes = model.fingerprint, model.nbytes
    model = dataclasses.replace(model)  # a fresh one, which has not run
    run(model, ids)
    for linear, content in zip(layers, before, strict=True):
        assert all(part.base is not None for part in linear._packed)
        assert repr(linear.content()) == repr(content)
    assert (model.fingerprint, model.nbytes) == (fingerprint, nbytes)
    again = dataclasses.replace(model, name="again")
    run(again, ids)
    assert again.whole_pass is not model.whole_pass
    assert again.whole_pass._linears[0] is model.whole_pass._linears[0]


def test_numbers_that_are_not_finite_are_refused(make_llama: Any, ids: np.ndarray) -> None:
    model = load(make_llama(**SHAPES["llama"])[1])
    model.blocks[1].norm_2.weight[3] = np.inf
    quantized = cq.quantize_model(model, "int8")
    kv = quantized.new_kv()
    with pytest.raises(FormatError, match=r"finite|infinit|NaN"):
        quantized.forward(ids, kv)
    assert kv.length == 0


def test_layer_by_layer_is_another_model_to_a_prefix_cache(make_gpt2: Any) -> None:
    model = load(make_gpt2(**SHAPES["gpt2"])[1])
    plain = dataclasses.replace(model, layer_by_layer=True)
    assert plain.fingerprint == model.fingerprint  # float32 has one way only
    quantized = cq.quantize_model(model, "int8")
    assert dataclasses.replace(quantized, layer_by_layer=True).fingerprint != quantized.fingerprint
    assert isinstance(quantized.blocks[0].mlp_up, Int8Linear)


PEAK = """
import tracemalloc
import numba
import numpy as np
import cachequant_lib as cq
tiny = cq.quantize_model(cq.load("tiny"), "int8")
tiny.forward([1, 2, 3], tiny.new_kv())  # compiles, which needs memory once
model = cq.load("gpt2-random")
tracemalloc.start()
quantized = cq.quantize_model(model, "int8")
embedding, positions = model.embedding.nbytes, model.positions.nbytes  # shared with the model that was there before
del model
ids = np.arange(512)
kv = quantized.new_kv()
quantized.forward(ids[:1], kv)  # moves the weights of all layers together
kv.truncate(0)
tracemalloc.reset_peak()
for part in (ids[:500], ids[500:501], ids[501:]):
    quantized.forward(part, kv, last_only=True)
peak = tracemalloc.get_traced_memory()[1] + embedding + positions
codes = sum(vars(block)[name].nbytes for block in quantized.blocks for name in vars(block) if "norm" not in name)
print(peak / (codes + embedding + kv.nbytes))
"""


@pytest.mark.slow
def test_a_pass_needs_little_more_than_weights_and_cache() -> None:
    run = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert 1 < float(run.stdout) <= 1.1
