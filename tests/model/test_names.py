"""What may be given to load(): a name, or a folder as text or a path; anything else is told what is expected."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cachequant_lib.errors import CheckpointError, ModelNotFoundError
from cachequant_lib.model import registry
from cachequant_lib.model.registry import check_name, load


@pytest.mark.parametrize("name", ["gpt3", "", "Tiny", "/no/such/folder", "openai-community/gpt2"])
def test_an_unknown_name_lists_the_known_ones(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match="tiny, gpt2-random, smollm2-135m, gpt2"):
        load(name)


@pytest.mark.parametrize("given", ["~no-such-user/x", "a" * 5000, "a\0b", None, b"tiny", 5, ["tiny"], os.scandir])
def test_what_can_be_no_name_says_what_is_expected(given: Any) -> None:
    with pytest.raises(ModelNotFoundError, match=r"a folder that exists, given as text or a pathlib.Path") as caught:
        load(given)
    assert len(str(caught.value)) < 300


def test_a_name_can_be_checked_without_reading_weights(
    make_gpt2: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = make_gpt2()[1]
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path))
    monkeypatch.setattr(registry.checkpoint.StoredTensor, "read", None)
    for name in ("tiny", "gpt2-random", "gpt2", folder):
        check_name(name)
    for name in ("nosuch", None, tmp_path, "smollm2-135m"):
        with pytest.raises(ModelNotFoundError):
            check_name(name)  # type: ignore[arg-type]
    (folder / "config.json").write_text("{}", "utf-8")
    with pytest.raises(CheckpointError, match="model_type is None"):
        check_name(folder)


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match="is a file, not a folder"):
        load(tmp_path / "model.safetensors")


def test_an_empty_folder_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"has no config\.json"):
        load(tmp_path)


def test_a_path_a_string_and_a_relative_path_are_one_folder(make_gpt2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder = make_gpt2()
    monkeypatch.chdir(folder.parent)
    names = {load(folder).name, load(str(folder)).name, load("./gpt2-model").name}
    assert names == {"gpt2-model"}


def test_a_name_wins_over_a_folder(make_gpt2: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, folder = make_gpt2()
    folder.rename(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    assert load("tiny").config.vocab_size == 4096
    assert load("./tiny").config.vocab_size == 97
