"""SHA256SUMS: what sha256sum and its kin write is understood, anything else is refused with its line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cachequant_lib.errors import CheckpointError, ModelNotFoundError
from cachequant_lib.model.registry import embedded_folder, load


@pytest.fixture
def listing(tmp_path: Path) -> Path:
    return Path(shutil.copytree(embedded_folder("tiny-austen"), tmp_path / "copy")) / "SHA256SUMS"


def test_a_copy_of_the_tiny_model_is_the_tiny_model(listing: Path) -> None:
    assert load(listing.parent).fingerprint == load("tiny").fingerprint


def test_one_flipped_bit_is_noticed(listing: Path) -> None:
    weights = np.fromfile(listing.parent / "model.safetensors", np.uint8)
    weights[-1000] ^= 1
    weights.tofile(listing.parent / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors has SHA-256 [0-9a-f]{64}, expected"):
        load(listing.parent)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_file_missing_from_a_checked_folder(listing: Path, name: str) -> None:
    (listing.parent / name).unlink()
    with pytest.raises((CheckpointError, ModelNotFoundError), match=name):
        load(listing.parent)


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda text: "".join(line[:64].upper() + line[64:] for line in text.splitlines(keepends=True)),
        lambda text: text.replace("  ", " *"),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "# made by hand\n\n" + text + "\n  \n# end",
        lambda text: text.rstrip("\n"),
    ],
    ids=["uppercase", "binary", "CRLF", "blank lines and remarks", "no newline at the end"],
)
def test_other_ways_of_writing_the_same_list(listing: Path, rewrite: Callable[[str], str]) -> None:
    listing.write_bytes(rewrite(listing.read_text("utf-8")).encode())
    load(listing.parent)
    with (listing.parent / "heldout.txt").open("ab") as file:
        file.write(b"!")
    with pytest.raises(CheckpointError, match=r"heldout\.txt has SHA-256"):  # the list was read, not passed over
        load(listing.parent)


@pytest.mark.parametrize(
    "line",
    [
        "garbage",
        "0" * 64,
        "0" * 64 + "  ",
        "0" * 63 + "  config.json",
        "g" * 64 + "  config.json",
        "0" * 64 + " config.json",
        "SHA256 (config.json) = " + "0" * 64,
        "0" * 64 + "  ../copy/config.json",
        "0" * 64 + "  /etc/hostname",
        "0" * 64 + "  a\0b",
    ],
)
def test_a_line_that_is_no_digest_and_name(listing: Path, line: str) -> None:
    with listing.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    number = len(listing.read_text("utf-8").splitlines())
    with pytest.raises(CheckpointError, match=rf"SHA256SUMS, line {number}: .* 64 hexadecimal digits"):
        load(listing.parent)


def test_a_list_that_is_not_text(listing: Path) -> None:
    listing.write_bytes(b"\xff\xfe" + listing.read_bytes())
    with pytest.raises(CheckpointError, match="SHA256SUMS is not UTF-8"):
        load(listing.parent)


def test_a_name_too_long_for_the_system(listing: Path) -> None:
    with listing.open("a", encoding="utf-8") as file:
        file.write("0" * 64 + "  " + "a" * 5000 + "\n")
    with pytest.raises(CheckpointError, match="copy cannot be read"):
        load(listing.parent)
