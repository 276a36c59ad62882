"""Perplexity counts every token once and knows the answer where there is one."""

from dataclasses import replace

import numpy as np
import pytest

import cachequant_lib as cq
from cachequant_lib.evaluate import mean_interval

TEXT = "It was a very fine day, and she walked to the village with her sister. " * 30


@pytest.fixture(scope="module")
def tiny():
    return cq.load("tiny")


class UniformHead:
    """Stands for a head that finds every token equally likely."""

    out_features = 4096

    def __call__(self, x):
        return np.zeros((len(x), 4096), np.float32)


@pytest.mark.parametrize("window", [7, 100, 1024])
@pytest.mark.parametrize("share", [1, 2, 7])
def test_uniform_predictions_give_the_vocabulary_size(tiny, window, share):
    uniform = replace(tiny, head=UniformHead())
    result = cq.perplexity(uniform, TEXT, window, max(1, window // share))
    assert result.value == pytest.approx(4096, rel=1e-12)
    assert result.low == pytest.approx(4096)
    assert result.high == pytest.approx(4096)


@pytest.mark.parametrize("count", [2, 5, 99, 100, 101, 300])
@pytest.mark.parametrize("stride", [100, 51, 10])
def test_every_token_after_the_first_is_scored_once(tiny, count, stride):
    text = tiny.tokenizer.decode(tiny.tokenizer.encode(TEXT)[:count])
    num_tokens = len(tiny.tokenizer.encode(text))
    assert cq.perplexity(tiny, text, 100, stride).num_tokens == num_tokens - 1


def test_it_is_the_likelihood_written_out(tiny):
    ids = tiny.tokenizer.encode(TEXT)[:40]
    logits = tiny.forward(ids, tiny.new_kv()).astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    nll = [-log_p[i, ids[i + 1]] for i in range(39)]
    text = tiny.tokenizer.decode(ids)
    result = cq.perplexity(tiny, text)
    assert result.value == pytest.approx(np.exp(np.mean(nll)), rel=1e-6)
    assert result.bits_per_byte == pytest.approx(np.sum(nll) / np.log(2) / len(text.encode()), rel=1e-6)


@pytest.mark.parametrize("text", ["é", "日", "\U0001f600"])
def test_a_character_of_several_tokens_has_its_true_bytes(tiny, text):
    result = cq.perplexity(tiny, text)
    assert result.bits_per_byte == pytest.approx(result.num_tokens * np.log2(result.value) / len(text.encode()))


def test_a_short_text_has_an_interval_too(tiny):
    result = cq.perplexity(tiny, TEXT[:200])
    assert result.num_tokens < 128
    assert result.low < result.value < result.high


def test_a_cache_that_is_in_use_is_refused(tiny):
    shared = tiny.new_kv()
    with pytest.raises(cq.CacheError, match="this one holds 4 positions"):
        cq.perplexity(tiny, TEXT[:100], window=4, kv=lambda model: shared)


def test_overlapping_windows_equal_windows_fed_by_hand(tiny):
    ids = tiny.tokenizer.encode(TEXT)[:30]
    nll = []
    for target in range(1, 30):  # window 8, stride 1: each target sees up to 8 tokens
        begin = max(0, target - 8)
        logits = tiny.forward(ids[begin:target], tiny.new_kv(), last_only=True)[0].astype(np.float64)
        nll.append(np.log(np.exp(logits).sum()) - logits[ids[target]])
    result = cq.perplexity(tiny, tiny.tokenizer.decode(ids), window=8, stride=1)
    assert result.value == pytest.approx(np.exp(np.mean(nll)), rel=1e-5)


def test_more_context_is_never_worse_on_this_text(tiny):
    values = [cq.perplexity(tiny, TEXT, window=64, stride=stride).value for stride in (64, 32, 8)]
    assert values[0] > values[1] > values[2]


def test_token_by_token_is_the_same_number(tiny):
    once, stepwise = cq.perplexity(tiny, TEXT, 128), cq.perplexity(tiny, TEXT, 128, kv="dense")
    assert stepwise.value == pytest.approx(once.value, rel=1e-5)
    made = cq.perplexity(tiny, TEXT, 128, kv=lambda model: model.new_kv(capacity=128))
    assert made.value == stepwise.value
    assert "token by token through dense KV" in stepwise.protocol


def test_the_interval_holds_the_value_and_narrows_with_length(tiny):
    text = cq.heldout_text()
    short, long = cq.perplexity(tiny, text[:3000]), cq.perplexity(tiny, text[:24000])
    assert short.low < short.value < short.high
    assert long.high / long.low < short.high / short.low


def test_the_same_call_gives_the_same_result(tiny):
    assert cq.perplexity(tiny, TEXT[:500]) == cq.perplexity(tiny, TEXT[:500])


def test_a_model_agrees_with_itself(tiny):
    same = cq.compare(tiny, tiny, TEXT[:600])
    assert (same.kl_mean, same.kl_max, same.top1_agreement, same.first_divergence) == (0.0, 0.0, 1.0, None)
    stepwise = cq.compare(tiny, tiny, TEXT[:600], kv="dense")
    assert 0 <= stepwise.kl_max < 1e-8


def test_quantising_moves_the_predictions_a_little(tiny):
    result = cq.compare(cq.quantize_model(tiny, "int8"), tiny, TEXT[:1500])
    assert 0 < result.kl_mean < 0.01
    assert result.kl_mean < result.kl_max
    assert 0.9 < result.top1_agreement <= 1


def test_first_divergence_is_a_position(tiny):
    uniform = replace(tiny, head=UniformHead())
    result = cq.compare(uniform, tiny, TEXT[:300])
    ids = tiny.tokenizer.encode(TEXT[:300])
    exact = tiny.forward(ids[:-1], tiny.new_kv()).argmax(axis=1)
    assert result.first_divergence == int((exact != 0).argmax())
    assert result.num_positions == len(ids) - 1


@pytest.mark.parametrize("text", ["", "a"])
def test_nothing_to_score(tiny, text):
    with pytest.raises(cq.TokenError, match="at least 2 tokens"):
        cq.perplexity(tiny, text)
    with pytest.raises(cq.TokenError, match="at least 2 tokens"):
        cq.compare(tiny, tiny, text)


def test_protocols_that_cannot_be(tiny):
    with pytest.raises(cq.ContextLengthError, match="window 1025 is longer"):
        cq.perplexity(tiny, TEXT, 1025)
    for stride in (0, 65):
        with pytest.raises(cq.FormatError, match="1 <= stride <= window"):
            cq.perplexity(tiny, TEXT, 64, stride)


def test_the_paired_ratio_tells_apart_what_two_intervals_cannot(tiny):
    text = cq.heldout_text()[:12000]
    worse = cq.quantize_model(tiny, cq.Scheme("tensor", "pow2"))
    exact, rounded = cq.perplexity(tiny, text, 256), cq.perplexity(worse, text, 256)
    ratio = cq.compare(worse, tiny, text, 256).perplexity_ratio
    assert ratio.value == pytest.approx(rounded.value / exact.value, rel=1e-9)
    assert ratio.low < ratio.value < ratio.high
    assert ratio.high - ratio.low < 0.05 * (exact.high - exact.low) / exact.value


def test_a_model_beside_itself_has_the_ratio_one(tiny):
    ratio = cq.compare(tiny, tiny, TEXT[:600]).perplexity_ratio
    assert (ratio.value, ratio.low, ratio.high) == (1.0, 1.0, 1.0)


def test_the_interval_of_a_mean_weighs_units_by_their_tokens():
    sums, counts = np.array([10.0, 30.0, 2.0]), np.array([10, 10, 1])
    found = mean_interval(sums, counts)
    assert found.value == pytest.approx(42 / 21)
    assert 1.0 <= found.low < found.value < found.high <= 3.0
    single = mean_interval(np.array([6.0]), np.array([3]))
    assert (single.value, single.low, single.high) == (2.0, 2.0, 2.0)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(3)
    counts, hits = np.full(40, 10), 0
    for _ in range(200):
        found = mean_interval(rng.normal(20, 5, 40), counts)
        hits += found.low <= 2.0 <= found.high
    assert 0.88 <= hits / 200 <= 0.99


@pytest.mark.parametrize(("sums", "counts"), [([], []), ([1.0], [1, 2]), ([0.0], [0]), ([[1.0]], [[1]])])
def test_an_interval_of_nothing_is_refused(sums, counts):
    with pytest.raises(cq.TokenError, match="a sum and a count for each unit"):
        mean_interval(np.array(sums), np.array(counts))


def test_a_model_without_a_head_has_nothing_to_score(tiny):
    headless = replace(tiny, head=None)
    for score in (lambda: cq.perplexity(headless, TEXT), lambda: cq.compare(headless, tiny, TEXT)):
        with pytest.raises(cq.FormatError, match="tiny has no head"):
            score()


def test_a_prediction_of_nan_is_an_error_and_not_a_perplexity(tiny):
    norm = replace(tiny.final_norm, weight=tiny.final_norm.weight * np.nan)
    with pytest.raises(cq.FormatError, match="tiny predicts NaN or infinity in tokens 0 to"):
        cq.perplexity(replace(tiny, final_norm=norm), TEXT[:200])


def test_a_text_longer_than_the_context_is_read_in_windows(tiny):
    text = cq.heldout_text()[:9000]
    assert len(tiny.tokenizer.encode(text)) > tiny.config.context_length
    assert cq.perplexity(tiny, text).num_tokens == len(tiny.tokenizer.encode(text)) - 1


def test_an_unknown_scheme_is_answered_with_the_known_ones(tiny):
    with pytest.raises(cq.FormatError, match=r"one of \('fp32', 'int8', 'bfp8'\) or a Scheme, got 'int4'"):
        cq.quantize_model(tiny, "int4")
    with pytest.raises(cq.FormatError, match=r"'pow2', 'exact', 'fp16', 'snapped'"):
        cq.Scheme(32, "pow3")
