"""The doctor: its limits are plausible, and its verdicts follow from the facts."""

from typing import Any

import pytest

from cachequant_lib import checkup
from cachequant_lib.checkup import GPT2_BYTES_PER_TOKEN

FACTS: dict[str, Any] = {
    "instruction_sets": ["AVX2", "AVX-512 VNNI"],
    "threading_layer": "omp",
    "memory_bytes": 16 << 30,
    "cores": 2,
}


def verdicts(**changes: Any) -> str:
    return "\n".join(checkup._verdicts(FACTS | changes))


def test_eight_bit_multiply_accumulate_decides_what_is_promised() -> None:
    assert "multiply-accumulate: yes" in verdicts()
    assert "multiply-accumulate: yes" in verdicts(instruction_sets=["NEON", "NEON dot product"])
    assert "multiply-accumulate: no" in verdicts(instruction_sets=["AVX2"])


def test_each_weakness_is_named_and_only_then() -> None:
    assert "generic path" in verdicts(instruction_sets=[])
    assert "generic path" not in verdicts()
    assert "workqueue" in verdicts(threading_layer="workqueue")
    assert "workqueue" not in verdicts()
    assert "gpt2-random may not fit" in verdicts(memory_bytes=2 << 30)
    assert "may not fit" not in verdicts(memory_bytes=None)
    assert "One core" in verdicts(cores=1)
    assert "16-bit floats" in verdicts()
    assert "16-bit floats" not in verdicts(instruction_sets=["AVX-512 BF16"])


def test_bandwidth_is_bytes_over_the_best_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    checkup.read_bandwidth(1, num_bytes=4000, budget_s=0.0)  # compiled before the clock is ours
    ticks = iter([0.0, 1.0, 3.0, 10.0, 10.5, 20.0])  # deadline; a pass of 2 s; a pass of 0.5 s; is there time left?
    monkeypatch.setattr(checkup.time, "perf_counter", lambda: next(ticks))
    assert checkup.read_bandwidth(1, num_bytes=1 << 14, budget_s=0.0) == (1 << 14) / 0.5


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_every_byte_is_read_by_one_of_the_streams(num_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    stream = checkup._read_streams
    monkeypatch.setattr(checkup, "_read_streams", lambda tile, share: read.append(int(stream(tile, share))))
    checkup.read_bandwidth(num_threads, num_bytes=100_000, budget_s=0.0)
    assert len(set(read)) == 1  # equal shares of ones
    assert read[0] * num_threads * 4 >= 100_000  # int32 ones, summed: all that was asked for


def test_the_report_predicts_a_floor_for_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "read_bandwidth", lambda n: 10e9 * n)
    monkeypatch.setattr(checkup, "matmul_rate", lambda n: 100e9 * n)
    report = checkup.doctor_report()
    assert report["decode_floor_s"][1] == pytest.approx(GPT2_BYTES_PER_TOKEN / 10e9)
    assert pytest.approx(494.6e6, rel=1e-3) == GPT2_BYTES_PER_TOKEN


def test_it_prints_and_returns_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(checkup, "read_bandwidth", lambda n: 10e9 * n)
    monkeypatch.setattr(checkup, "matmul_rate", lambda n: 100e9 * n)
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Nehalem")
    assert checkup.doctor() is None
    text = capsys.readouterr().out
    for word in ("processor", "caches", "reads 10.0 GB/s", "49.5 ms", "What that means", "OPENBLAS_CORETYPE=Nehalem"):
        assert word in text


def test_real_measurements_are_positive() -> None:
    assert checkup.read_bandwidth(2, num_bytes=1 << 20, budget_s=0.0) > 0
    assert checkup.matmul_rate(1, size=32, budget_s=0.0) > 0
