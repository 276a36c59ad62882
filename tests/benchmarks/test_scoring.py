"""The lean way to score a window gives the library's numbers."""

import numpy as np
import pytest

import cachequant_lib as cq
from benchmarks import scoring
from cachequant_lib.kv.dense import DenseKV


@pytest.fixture(scope="module")
def tiny():
    return cq.load("tiny")


@pytest.fixture(scope="module")
def ids(tiny):
    return tiny.tokenizer.encode(cq.heldout_text()[:2500])


@pytest.mark.parametrize("count", [1, 2, 127, 128, 129, 300])
def test_the_surprise_of_each_token_is_the_librarys(tiny, ids, count):
    window = ids[: count + 1]
    found = scoring.surprise(scoring.base(tiny, window))
    logits = tiny.forward(window[:-1], tiny.new_kv()).astype(np.float64)
    log_p = logits - np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True))
    log_p -= logits.max(axis=1, keepdims=True)
    np.testing.assert_allclose(found, -log_p[np.arange(count), window[1:]], atol=5e-5)


@pytest.mark.parametrize("count", [1, 128, 200])
@pytest.mark.parametrize("num_heads", [2, 6])
def test_a_window_attends_as_the_dense_cache_does(count, num_heads):
    rng = np.random.default_rng(0)
    k, v, q = (rng.standard_normal((count, heads, 8)).astype(np.float32) for heads in (2, 2, num_heads))
    k[:, :, 0] *= 30  # scores far apart: most of a row vanishes
    found = []
    for kind in (DenseKV, scoring.WindowKV):
        kv = kind(1, 2, 8, count)
        kv.append(0, k, v)
        found.append(kv.attend(0, q))
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)


def test_distances_are_those_of_compare(tiny, ids):
    model, window = cq.quantize_model(tiny, "int8", head="int8"), ids[:257]
    found = scoring.beside(scoring.base(tiny, window), model, window)
    text = tiny.tokenizer.decode(window)
    assert tiny.tokenizer.encode(text) == window
    expected = cq.compare(model, tiny, text)
    assert found.kl.mean() == pytest.approx(expected.kl_mean, rel=1e-3, abs=1e-7)
    assert found.kl.max() == pytest.approx(expected.kl_max, rel=1e-2)
    assert found.same.mean() == pytest.approx(expected.top1_agreement, abs=1 / 256)
    ratio = np.exp((found.nll - scoring.surprise(scoring.base(tiny, window))).mean())
    assert ratio == pytest.approx(expected.perplexity_ratio.value, rel=1e-5)


def test_a_model_beside_itself_is_no_distance(tiny, ids):
    found = scoring.beside(scoring.base(tiny, ids[:200]), tiny, ids[:200])
    assert np.abs(found.kl).max() < 1e-6
    assert found.same.all()
    np.testing.assert_array_equal(found.nll, scoring.surprise(scoring.base(tiny, ids[:200])))


def test_a_second_forward_into_a_window_is_refused(tiny, ids):
    config = tiny.config
    kv = scoring.WindowKV(config.num_layers, config.num_kv_heads, config.head_dim, 10)
    tiny.forward(ids[:4], kv)
    with pytest.raises(ValueError, match="one forward; 4 positions are stored already"):
        tiny.forward(ids[4:6], kv)
