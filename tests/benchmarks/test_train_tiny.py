"""The training script works from a folder of texts to a folder that loads, on a toy."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import train_tiny
from benchmarks.austen import read_novels
from cachequant_lib.model.registry import load

TOY = ["--steps=2", "--vocab=300", "--layers=1", "--heads=2", "--width=16", "--context=24", "--batch=2"]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("one", "two"):
        paragraphs = [f"This is _paragraph_ {n} of novel {name}:\nit goes on\r\nfor three lines." for n in range(40)]
        (folder / f"{name}.txt").write_text("\n\n".join(paragraphs), "utf-8")
    return folder


def test_two_steps_give_a_model_that_loads(texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_tiny.main([f"--texts={texts}", f"--out={tmp_path / 'out'}", *TOY])
    model = load(tmp_path / "out")
    assert (model.config.num_layers, model.config.width, model.config.context_length) == (1, 16, 24)
    ids = model.tokenizer.encode("This is paragraph 3")
    assert np.isfinite(model.forward(ids, model.new_kv())).all()
    log = (tmp_path / "out" / "training.log").read_text("utf-8")
    assert log in capsys.readouterr().out
    assert "step 0, 0.00M tokens" in log
    assert "step 2, " in log


def test_the_end_of_every_novel_is_held_out_and_nothing_else(texts: Path) -> None:
    train, held_out = train_tiny.split_texts(texts)
    assert held_out.split("\n\n") == [
        *(f"This is paragraph {n} of novel one: it goes on for three lines." for n in (38, 39)),
        *(
            f"{'' if n > 38 else chr(10)}This is paragraph {n} of novel two: it goes on for three lines."
            for n in (38, 39)
        ),
    ]
    assert "paragraph 37 of novel two" in train
    assert "paragraph 38" not in train


def test_a_folder_without_texts_or_with_too_short_a_text_stops_with_a_sentence(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="too short for windows of 90000"):
        train_tiny.main([f"--texts={texts}", f"--out={tmp_path / 'out'}", *TOY, "--context=90000"])
    with pytest.raises(FileNotFoundError):
        train_tiny.split_texts(tmp_path)


@pytest.mark.parametrize("shape", [(8, 24), (24, 8), (12, 12)])
def test_orthogonalising_brings_singular_values_near_one(shape: tuple[int, int]) -> None:
    turned = train_tiny.orthogonalise(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    values = torch.linalg.svdvals(turned)
    assert turned.shape == shape
    assert 0.3 < values.min() <= values.max() < 1.3


def test_the_rate_rises_holds_and_falls() -> None:
    settings = train_tiny.Settings(Path(), Path(), steps=1000)
    factors = [train_tiny.rate_factor(step, settings) for step in (0, 19, 300, 399, 700, 999)]
    assert factors == pytest.approx([0.05, 1, 1, 1, 0.5, 0.02])


# ---- R's files -------------------------------------------------------------------------------------------------------


def r_string(text: str) -> bytes:
    return struct.pack(">ii", 9, len(text.encode())) + text.encode()


def r_strings(texts: list[str]) -> bytes:
    return struct.pack(">ii", 16, len(texts)) + b"".join(map(r_string, texts))


NEW_SYMBOL = struct.pack(">i", 1) + r_string("names")
FIRST_SYMBOL_AGAIN = struct.pack(">i", 1 << 8 | 255)


def r_named_list(items: dict[str, bytes], tag: bytes) -> bytes:
    names = struct.pack(">i", 2 | 0x400) + tag + r_strings([*items]) + struct.pack(">i", 254)
    return struct.pack(">ii", 19 | 0x200, len(items)) + b"".join(items.values()) + names


@pytest.mark.parametrize("version", [2, 3])
def test_novels_are_read_from_an_r_database(tmp_path: Path, version: int) -> None:
    header = b"X\n" + struct.pack(">iii", version, 0x40000, 0x20300)
    if version == 3:
        header += struct.pack(">i", 5) + b"UTF-8"
    variables, database = {}, b""
    for name, lines in {"emma": ["EMMA", "", "by Jane Austen"], "café": ["naïve"]}.items():
        chunk = zlib.compress(header + r_strings(lines))
        chunk = struct.pack(">i", len(header + r_strings(lines))) + chunk
        variables[name] = struct.pack(">iiii", 13, 2, len(database), len(chunk))
        database += chunk
    (tmp_path / "Rdata.rdb").write_bytes(database)
    index = r_named_list({"variables": r_named_list(variables, NEW_SYMBOL)}, FIRST_SYMBOL_AGAIN)
    (tmp_path / "Rdata.rdx").write_bytes(zlib.compress(header + index))
    assert read_novels(tmp_path) == {"emma": "EMMA\n\nby Jane Austen", "café": "naïve"}
