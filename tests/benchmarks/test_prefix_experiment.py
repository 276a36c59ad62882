"""The `prefix` experiment end to end, with everything made small."""

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as cli
from benchmarks import prefix


def test_a_small_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"NUM_PROMPTS": 20, "STORED": (200, 400), "TRIE_STORED": 200, "MISS_TOKENS": (8,)}
    small |= {"MIN_SAMPLE_S": 0.0, "COLD_BYTES": 1 << 20}
    for name, value in small.items():
        monkeypatch.setattr(prefix, name, value)
    place = ["--out", str(tmp_path), "--machine", "box"]
    assert cli.main(["prefix", "--model", "tiny", "--threads", "1", "--reps", "2", *place]) == 0
    data = json.loads((tmp_path / "box" / "prefix.json").read_text())["data"]
    row_bytes = data["bytes_per_token"]["rows"]
    assert row_bytes * data["hit"]["num_tokens"] == data["hit"]["num_bytes"]
    assert row_bytes < data["bytes_per_token"]["all"]
    lengths = {name: len(parts["replace"]) for name, parts in data["scaling"]["policies"].items()}
    assert lengths == {"lru": 2, "lfu": 2, "trie": 1}
    table = capsys.readouterr().out
    assert "they part every 100 tokens" in table
    assert "times a plain copy of its bytes" in table
    assert table.split("400")[1].split()[4:6] == ["-", "-"]
