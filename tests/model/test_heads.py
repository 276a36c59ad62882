"""The certified head chooses the float32 head's token, always: by proof where it can, by running it where it cannot."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import cachequant_lib as cq
from cachequant_lib.model import heads
from cachequant_lib.model.heads import CertifiedHead


def random_head(rows=3000, depth=64, seed=0):
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((rows, depth)).astype(np.float32)
    return weight, CertifiedHead(weight), rng.standard_normal((40, depth)).astype(np.float32)


def check(head, weight, x, count=1):
    """Compare with the float32 head; return whether it was run."""
    exact, before = cq.Float32Linear(weight)(x), head.fallbacks
    found = head.largest(x, count)
    assert found.shape == exact.shape
    if head.fallbacks > before:
        assert (found.view(np.int32) == exact.view(np.int32)).all()  # the same bits, NaN included
        return True
    chosen = np.flatnonzero(found[0] > -np.inf)
    assert len(chosen) == count
    assert set(chosen) == set(np.argsort(-exact[0], kind="stable")[:count])
    if count == 1:
        assert found.argmax() == exact.argmax()
    slack = len(x[0]) * 2.0**-23 * np.abs(weight[chosen] * x).sum(axis=1)
    assert (np.abs(found[0, chosen] - exact[0, chosen]) <= slack).all()
    return False


# ---- It is the float32 head ------------------------------------------------------------------------------------------


def test_called_it_is_the_float32_head():
    weight, head, x = random_head()
    for rows in (1, 2, 40):
        assert (head(x[:rows]) == cq.Float32Linear(weight)(x[:rows])).all()
    assert head.weight is weight
    assert head.calls == 0


@pytest.mark.parametrize("count", [1, 2, 5, 50])
@pytest.mark.parametrize("shape", [(1, 8), (63, 1), (3000, 64), (4096, 33)])
def test_the_largest_are_those_of_the_float32_head(shape, count):
    weight, head, x = random_head(*shape)
    fallbacks = sum(check(head, weight, row[None], count) for row in x)
    assert (head.calls, head.fallbacks) == (40, fallbacks)
    if shape[0] >= 3000 and count <= 5:
        assert fallbacks < 4
        assert 40 * count <= head.candidates < 40 * count * 10


def test_a_vocabulary_of_rows():
    weight, head, x = random_head(50257, 32)
    assert sum(check(head, weight, row[None]) for row in x) <= 2


def test_outliers_in_the_hidden_state():
    weight, head, x = random_head()
    x[:, [3, 40]] *= [30, 200]
    assert sum(check(head, weight, row[None]) for row in x) < 10


# ---- Ties and near-ties ----------------------------------------------------------------------------------------------


def test_of_equal_rows_the_one_that_the_float32_head_finds():
    weight, _, x = random_head()
    for row in x[:10]:
        best = (weight @ row).argmax()
        twins = weight.copy()
        twins[[5, 1500, 2999]] = weight[best]
        assert check(CertifiedHead(twins), twins, row[None])


def test_rows_that_differ_in_their_last_bits():
    rng = np.random.default_rng(0)
    weight, _, x = random_head()
    decided = 0
    for row in x:
        best = weight[(weight @ row).argmax()]
        near = weight.copy()
        for place in rng.choice(3000, 40, replace=False):
            bits = best.copy().view(np.int32)
            bits += rng.integers(-2, 3, 64).astype(np.int32) << rng.integers(0, 12)
            near[place] = bits.view(np.float32)
        decided += not check(CertifiedHead(near), near, row[None])
    assert 0 < decided < 40  # some are told apart, some are left to the float32 head


def test_ties_at_the_edge_of_the_largest():
    weight, _, x = random_head()
    order = np.argsort(-(weight @ x[0]))
    weight[order[5]] = weight[order[4]]
    head = CertifiedHead(weight)
    assert check(head, weight, x[:1], 5)  # the fifth and the sixth are equal
    assert not check(head, weight, x[:1], 6)  # both are in


def test_rows_of_zeros_and_a_hidden_state_of_zeros():
    weight, _, x = random_head()
    weight[::2] = 0
    head = CertifiedHead(weight)
    assert not check(head, weight, x[:1])
    assert check(head, weight, np.zeros((1, 64), np.float32))
    assert check(CertifiedHead(weight * 0), weight * 0, x[:1])
    assert check(CertifiedHead(-np.abs(weight)), -np.abs(weight), np.abs(x[:1]))  # 1500 rows tie at 0


ANY = st.one_of(
    st.floats(-2, 2, width=32), st.integers(-2, 2).map(float), st.floats(-(2.0**60), 2.0**60, width=32), st.just(2e-40)
)


@given(data=st.data())
@settings(deadline=None)
def test_any_numbers(data):
    depth, rows = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))
    weight = data.draw(hnp.arrays(np.float32, (rows, depth), elements=ANY))
    again = data.draw(st.integers(0, rows - 1))
    weight = np.concatenate([weight, weight[again:]])  # some rows twice
    x = data.draw(hnp.arrays(np.float32, (1, depth), elements=ANY))
    check(CertifiedHead(weight), weight, x, data.draw(st.integers(1, rows)))


# ---- Where nothing can be proved -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_a_hidden_state_beyond_the_limits_gets_the_float32_head(bad):
    weight, head, x = random_head()
    x[0, 7] = bad
    with np.errstate(all="ignore"):
        assert check(head, weight, x[:1])


def test_a_weight_beyond_the_limits_gets_the_float32_head():
    weight, _, x = random_head()
    weight[17] *= np.float32(1e30)
    assert check(CertifiedHead(weight), weight, x[:1])


def test_too_many_candidates_and_too_many_asked_for(monkeypatch):
    weight, head, x = random_head()
    assert not check(head, weight, x[:1], 60)
    assert check(head, weight, x[:1], 2999)
    weight[:200] = weight[(weight @ x[0]).argmax()]
    before = (head := CertifiedHead(weight)).candidates
    assert check(head, weight, x[:1])
    assert head.candidates == before  # 200 rows are not scored one by one
    monkeypatch.setattr(heads, "FEW", 300)
    assert check(head, weight, x[:1])
    assert head.candidates >= before + 200


def test_several_rows_get_all_logits():
    weight, head, x = random_head()
    assert (head.largest(x, 1) == cq.Float32Linear(weight)(x)).all()
    assert head.fallbacks == 1


def test_what_it_is_made_of():
    weight, head, _ = random_head(1000, 64)
    assert head.nbytes == weight.nbytes + 1000 * 4 + 1000 * (64 + 12)
    assert head.read_nbytes >= 1000 * (64 + 16)
    assert head.describe().startswith("CertifiedHead 64 -> 1000, true integer, then float64 for the candidates, 41.5")
    assert head.content().keys() == {"weight", "bias"}


def test_bad_weights_are_refused():
    weight = np.ones((3, 4), np.float32)
    CertifiedHead(weight, np.zeros(3, np.float32))
    with pytest.raises(cq.FormatError, match="no bias"):
        CertifiedHead(weight, np.ones(3, np.float32))
    with pytest.raises(cq.FormatError, match="overflow"):
        CertifiedHead(np.ones((1, 133145), np.float32))
    weight[1, 1] = np.nan
    with pytest.raises(cq.FormatError, match="finite"):
        CertifiedHead(weight)
    with pytest.raises(cq.FormatError, match=r"expected x \(M, 4\)"):
        CertifiedHead(np.ones((3, 4), np.float32)).largest(np.ones((1, 5), np.float32), 1)


# ---- In a model ------------------------------------------------------------------------------------------------------

PROMPT = "It was a very fine day, and she walked to the village"


@pytest.fixture(scope="module", params=["fp32", "int8"])
def pair(request):
    """The embedded model with a float32 head and with a certified one."""
    tiny = cq.load("tiny")
    return cq.quantize_model(tiny, request.param), cq.quantize_model(tiny, request.param, head="certified")


def test_greedy_tokens_are_those_of_the_float32_head(pair):
    plain, certified = pair
    before = certified.head.calls
    expected = cq.generate(plain, PROMPT, 25)
    assert cq.generate(certified, PROMPT, 25).token_ids == expected.token_ids
    assert certified.head.calls == before + 25
    assert certified.head.fallbacks < 3


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_k": 40}, {"top_k": 7, "temperature": 3.0, "top_p": 0.8}])
def test_a_sampler_of_the_largest_draws_the_same_tokens(pair, options):
    _, certified = pair
    before = certified.head.calls
    drawn = [cq.generate(model, PROMPT, 12, sampler=cq.sample(**options), seed=1).token_ids for model in pair]
    assert drawn[0] == drawn[1]
    assert certified.head.calls == before + 12


@pytest.mark.parametrize(
    "sampler", [cq.sample(), cq.sample(temperature=0.7), cq.sample(top_p=0.9), lambda logits, rng: int(logits.argmin())]
)
def test_any_other_sampler_gets_all_logits(pair, sampler):
    _, certified = pair
    before = certified.head.calls
    drawn = [cq.generate(model, PROMPT, 4, sampler=sampler).token_ids for model in pair]
    assert drawn[0] == drawn[1]
    assert certified.head.calls == before


def test_scores_use_all_logits(pair):
    plain, certified = pair
    before = certified.head.calls
    assert cq.perplexity(certified, PROMPT).value == cq.perplexity(plain, PROMPT).value
    assert cq.perplexity(certified, PROMPT, kv="dense").value == cq.perplexity(plain, PROMPT, kv="dense").value
    assert cq.compare(certified, plain, PROMPT).kl_max == 0
    assert certified.head.calls == before


def test_forward_takes_the_promise(pair):
    plain, certified = pair
    ids = plain.tokenizer.encode(PROMPT)
    full = plain.forward(ids, plain.new_kv())[-1]
    assert (
        certified.forward(ids, certified.new_kv()).argmax(axis=1) == plain.forward(ids, plain.new_kv()).argmax(axis=1)
    ).all()
    assert plain.forward(ids, plain.new_kv(), num_best=1).shape == (1, plain.config.vocab_size)
    for count in (1, 2, 3):
        found = certified.forward(ids, certified.new_kv(), num_best=count)[0]
        assert set(np.argsort(-found, kind="stable")[:count]) == set(np.argsort(-full, kind="stable")[:count])
    for bad in (0, -1, 1.5, True):
        with pytest.raises(cq.FormatError, match="num_best must be a whole number of at least 1"):
            certified.forward(ids, certified.new_kv(), num_best=bad)


def test_a_llama_with_a_head_of_its_own(make_llama):
    model = cq.load(make_llama(vocab_size=501, tie_word_embeddings=False)[1])
    certified = cq.quantize_model(model, "fp32", head="certified")
    assert certified.head.weight is model.head.weight
    for prompt in ([3, 4, 5], [7], [100, 2, 90]):
        expected = cq.generate(model, prompt, 20, stop_at_eos=False).token_ids
        assert cq.generate(certified, prompt, 20, stop_at_eos=False).token_ids == expected
