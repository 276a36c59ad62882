"""Engines in their own processes: answers, errors and deaths all arrive."""

import os

import pytest

from benchmarks import workers
from benchmarks.records import BenchmarkError
from benchmarks.workers import Worker, crew


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "REST_S", 0.0)


def test_an_object_in_another_process_answers_and_keeps_its_state() -> None:
    with Worker("list", list, (3, 1, 2), num_threads=1) as worker:
        worker.ready()
        worker.call("sort")
        worker.call("append", 9)
        assert worker.call("__len__") == 4
        assert worker.call("index", 9) == 3


def test_an_error_there_is_one_error_here() -> None:
    with Worker("list", list, num_threads=1) as worker:
        worker.ready()
        with pytest.raises(BenchmarkError, match=r"engine 'list': IndexError: pop from empty list"):
            worker.call("pop")


def test_an_object_that_cannot_be_made_is_reported_with_its_name() -> None:
    with pytest.raises(BenchmarkError, match=r"engine 'broken': ValueError"), crew({"broken": (int, ("x",))}, 1):
        pass


def test_a_worker_that_dies_is_noticed() -> None:
    with Worker("quitter", dict, num_threads=1) as worker:
        worker.ready()
        worker._process.kill()
        with pytest.raises(BenchmarkError, match=r"'quitter' ended without an answer \(exit code -9\)"):
            worker.call("keys")


def test_threads_are_pinned_in_the_worker_and_only_there() -> None:
    before = dict(os.environ)
    with crew({"environment": (dict, ())}, 3) as made:
        assert list(made) == ["environment"]
        assert dict(os.environ) == before
    assert workers.environment(3)["OMP_NUM_THREADS"] == "3"
    assert workers.environment(3)["OMP_MAX_ACTIVE_LEVELS"] == "1"
    with workers._variables({"CACHEQUANT_TEST_VARIABLE": "x"}):
        assert os.environ["CACHEQUANT_TEST_VARIABLE"] == "x"
    assert dict(os.environ) == before
