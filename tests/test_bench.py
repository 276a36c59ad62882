"""The timer: what it keeps, what it pairs, and that pinning is undone."""

import sys
import time

import numba
import pytest
import threadpoolctl
from hypothesis import given
from hypothesis import strategies as st

from cachequant_lib import bench
from cachequant_lib.bench import CostModel, Measurement, Spread
from cachequant_lib.errors import CacheQuantError, MeasurementError

TIMES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30)


class Clock:
    """A clock that only moves when somebody works."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(bench.time, "perf_counter", lambda: self.now)

    def work(self, *seconds: float):
        """A function whose calls take these times, the last one for ever after."""
        left = list(seconds)

        def fn() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return fn


def test_the_cold_call_and_the_warm_up_are_not_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    m = bench.measure(Clock(monkeypatch).work(9.0, 5.0, 1.0, 3.0, 2.0), repeats=3)
    assert m.first_call_s == 9.0
    assert m.samples_s == (1.0, 3.0, 2.0)
    assert (m.median, m.low, m.high) == (2.0, 1.0, 3.0)


def test_no_warm_up_means_the_second_call_is_the_first_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.measure(Clock(monkeypatch).work(9.0, 5.0, 1.0), repeats=2, warmup=0).samples_s == (5.0, 1.0)


def test_short_functions_are_repeated_until_a_sample_is_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    clock = Clock(monkeypatch)

    def fn() -> None:
        nonlocal calls
        calls += 1
        clock.now += 0.001

    m = bench.measure(fn, repeats=2, warmup=0, min_sample_s=0.1)
    assert m.samples_s == pytest.approx((0.001, 0.001))
    assert calls >= 1 + 2 * 100  # the cold call, and two samples of at least a hundred calls


def test_rivals_take_turns_and_the_order_is_reversed_in_every_second_round() -> None:
    order: list[str] = []
    bench.interleave({n: (lambda n=n: order.append(n)) for n in "abc"}, repeats=3, warmup=1)
    assert "".join(order) == "abc" + "abc" + "abc" + "cba" + "abc"


def test_a_ratio_is_taken_round_by_round() -> None:
    slow, fast = Measurement((2.0, 40.0, 6.0), 0.0), Measurement((1.0, 10.0, 3.0), 0.0)
    assert slow.ratio(fast) == Spread(2.0, 2.0, 4.0)  # not 6 / 3: the slow minute hit both
    with pytest.raises(MeasurementError, match="3 samples cannot be paired with 1"):
        slow.ratio(Measurement((1.0,), 0.0))


def test_a_measurement_says_its_spread() -> None:
    assert str(Measurement((0.001, 0.002, 0.004), 0.5)) == "2 ms [1 .. 4], 3 samples; first call 500 ms"
    assert str(Spread.of([3.0, 1.0, 2.0])) == "2 [1 .. 3]"


@pytest.mark.parametrize(("repeats", "warmup", "functions"), [(0, 1, {"a": int}), (1, -1, {"a": int}), (1, 1, {})])
def test_a_run_without_samples_is_refused(repeats: int, warmup: int, functions: dict) -> None:
    with pytest.raises(MeasurementError, match="repeats"):
        bench.interleave(functions, repeats, warmup)


def test_the_real_clock_is_used() -> None:
    m = bench.measure(lambda: time.sleep(0.002), repeats=2, warmup=0)
    assert m.low >= 0.002


@given(TIMES, st.floats(0, 100))
def test_a_percentile_is_one_of_the_samples(samples: list[float], percent: float) -> None:
    assert bench.percentile(samples, percent) in samples


def test_percentiles_use_the_nearest_rank() -> None:
    samples = [50.0, 10.0, 40.0, 20.0, 30.0]
    assert [bench.percentile(samples, p) for p in (0, 50, 90, 100)] == [10.0, 30.0, 50.0, 50.0]
    assert bench.percentile(list(range(49)), 90) == 43  # round(0.9 * 48)
    for bad in ([], 50), ([1.0], 101), ([1.0], -1):
        with pytest.raises(MeasurementError, match="percent"):
            bench.percentile(*bad)


@given(TIMES)
def test_a_spread_is_in_order(samples: list[float]) -> None:
    spread = Spread.of(samples)
    assert spread.low <= spread.median <= spread.high


def test_a_spread_of_nothing_is_refused() -> None:
    with pytest.raises(MeasurementError, match="no samples"):
        Spread.of([])


def test_cost_is_per_thousand_generated_tokens_with_the_prefill_in_it() -> None:
    assert CostModel(dollars_per_hour=3.6).per_1k_tokens(wall_s=2.0, generated_tokens=50) == pytest.approx(0.04)
    # The source's own row: 8 + 50 tokens at 216.3 and 40.9 tok/s cost it $0.00244.
    assert CostModel().per_1k_tokens(8 / 216.3 + 49 / 40.9, 50) == pytest.approx(0.00244, rel=0.01)
    with pytest.raises(MeasurementError, match="generated_tokens"):
        CostModel().per_1k_tokens(1.0, 0)


def test_the_price_says_where_it_comes_from() -> None:
    price = CostModel()
    assert (price.dollars_per_hour, "c7i.2xlarge" in price.instance) == (0.357, True)
    assert "source project" in price.source


def _blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}


def test_pinning_sets_every_pool_and_puts_them_back() -> None:
    import numpy  # noqa: F401  (brings the BLAS)

    before = numba.get_num_threads(), _blas_threads()
    with bench.pin_threads(1) as given_to_numba:
        assert (given_to_numba, numba.get_num_threads(), _blas_threads()) == (1, 1, {1})
    assert (numba.get_num_threads(), _blas_threads()) == before


def test_pinning_is_undone_after_an_error() -> None:
    before = numba.get_num_threads(), _blas_threads()
    with pytest.raises(RuntimeError, match="inside"), bench.pin_threads(1):
        raise RuntimeError("inside")
    assert (numba.get_num_threads(), _blas_threads()) == before


def test_numba_is_never_asked_for_more_threads_than_it_has() -> None:
    with bench.pin_threads(10_000) as given_to_numba:
        assert given_to_numba == numba.config.NUMBA_NUM_THREADS


def test_pytorch_is_pinned_if_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class Torch:
        threads = 7

        def get_num_threads(self) -> int:
            return self.threads

        def set_num_threads(self, n: int) -> None:
            self.threads = n

    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    with bench.pin_threads(1):
        assert torch.threads == 1
    assert torch.threads == 7


def test_no_thread_at_all_is_refused() -> None:
    with pytest.raises(CacheQuantError, match="at least 1, got 0"), bench.pin_threads(0):
        pass


def test_rotate_cycles_through_its_functions() -> None:
    seen: list[int] = []
    turn = bench.rotate([lambda: seen.append(1), lambda: seen.append(2)])
    for _ in range(5):
        turn()
    assert seen == [1, 2, 1, 2, 1]
    with pytest.raises(MeasurementError, match="at least one"):
        bench.rotate([])
