"""From a folder of weights on disk to a model, with every doubt settled before anything is computed.

A folder is laid out as on the Hugging Face hub: ``config.json``, ``model.safetensors`` (or shards with an index), and
a tokenizer. Pickle files are never opened. A folder that carries a ``SHA256SUMS`` file is checked against it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachequant_lib.errors import CacheQuantError, CheckpointError, ModelNotFoundError
from cachequant_lib.model import gpt2, llama
from cachequant_lib.model.base import Model, ModelConfig
from cachequant_lib.model.checksums import verify_checksums
from cachequant_lib.model.entries import shown
from cachequant_lib.model.ops import FloatArray
from cachequant_lib.model.tokenizer import load_tokenizer

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

ARCHITECTURES = {"gpt2": gpt2, "llama": llama}
STORED_TYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies, and what its file says it is. Nothing of it has been read."""

    path: Path
    name: str
    stored_type: str
    shape: tuple[int, ...]
    offset: int

    def read(self) -> FloatArray:
        """Read the tensor as contiguous float32.

        Raises
        ------
        CheckpointError
            If a value is NaN or infinite, or the values show that the stored 16-bit type is mislabelled.
        """
        count = int(np.prod(self.shape, dtype=np.int64))
        stored: NDArray[Any] = np.fromfile(self.path, STORED_TYPES[self.stored_type], count, offset=self.offset)
        if self.stored_type == "BF16":  # bfloat16 is the upper half of a float32
            stored = (stored.astype(np.uint32) << 16).view(np.float32)
        values: FloatArray = stored.astype(np.float32, copy=False).reshape(self.shape)  # (count,) -> shape
        low, high = values.min(), values.max()  # NaN passes through both
        if not (np.isfinite(low) and np.isfinite(high)):
            bad = int(np.count_nonzero(~np.isfinite(values)))
            raise CheckpointError(f"{self.path}: {bad} of {count} values of {self.name} are NaN or infinite")
        if values.ndim == 2 and self.stored_type != "F32" and _looks_mislabelled(values):
            raise CheckpointError(
                f"{self.path}: {self.name} is labelled {self.stored_type}, but read that way its values are not those "
                "of trained weights: the label is probably wrong"
            )
        return values


def load_folder(folder: Path, name: str | None = None) -> Model:
    """Load a model of either architecture from a folder; float16, bfloat16 and float32 become float32.

    Parameters
    ----------
    folder : Path
    name : str, optional
        What to call the model; the folder's name if not given.

    Raises
    ------
    ModelNotFoundError
        If the folder or a file it needs is not there.
    CheckpointError
        If the files are damaged, disagree with each other, ask for something the forward pass does not do, or cannot
        be read.
    """
    try:
        return _load_folder(folder, name)
    except CacheQuantError:
        raise
    except OSError as error:  # no permission, a name too long for the system, a failing disk
        raise CheckpointError(f"{folder} cannot be read: {error}") from error


def _load_folder(folder: Path, name: str | None) -> Model:
    architecture, config, tensors = inspect_folder(folder)
    verify_checksums(folder)
    tokenizer = load_tokenizer(folder, config.eos_token_id, config.vocab_size)
    model: Model = architecture.build(config, tokenizer, name or folder.name, lambda key: tensors[key].read())
    head = tensors.get("lm_head.weight")
    if config.tied_head and head is not None and not np.array_equal(head.read(), model.embedding):
        raise CheckpointError(
            f"{folder}: {CONFIG} ties the head to the embedding, but lm_head.weight is different: "
            "set tie_word_embeddings to false if the head is its own"
        )
    return model


def inspect_folder(folder: Path) -> tuple[Any, ModelConfig, dict[str, StoredTensor]]:
    """Check a folder's configuration and its tensors' names, shapes and types; no weight is read.

    Returns
    -------
    (module, ModelConfig, dict)
        The architecture's module, the configuration, and where each tensor lies.
    """
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise ModelNotFoundError(f"{folder} {what}: give a folder with {CONFIG}, {WEIGHTS} and a tokenizer")
    raw = _read_json(folder / CONFIG)
    stored = find_tensors(folder)
    architecture, config = read_config(folder, raw)
    return architecture, config, match_tensors(stored, architecture, config, folder)


def read_config(folder: Path, raw: Mapping[str, Any]) -> tuple[Any, ModelConfig]:
    """Return the module of the architecture and the configuration, or raise CheckpointError."""
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise CheckpointError(f"{folder}: model_type is {shown(model_type)}; supported are {', '.join(ARCHITECTURES)}")
    if raw.get("quantization_config"):
        raise CheckpointError(f"{folder}: the weights are stored quantised; give the float checkpoint")
    architecture = ARCHITECTURES[model_type]
    try:
        return architecture, architecture.read_config(raw)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from error


def match_tensors(
    stored: Mapping[str, StoredTensor], architecture: Any, config: ModelConfig, folder: Path
) -> dict[str, StoredTensor]:
    """Check that a folder holds exactly the tensors its configuration calls for; return them without their prefix.

    Raises
    ------
    CheckpointError
        Naming the first tensors that are missing, unexpected, or of another shape or type.
    """
    tensors = {
        name.removeprefix(architecture.PREFIX): tensor
        for name, tensor in stored.items()
        if not name.endswith(architecture.UNUSED)
    }
    if len(tensors) < sum(not name.endswith(architecture.UNUSED) for name in stored):
        raise CheckpointError(f"{folder} holds a tensor twice, with and without the prefix {architecture.PREFIX!r}")
    if config.num_layers > len(tensors):  # before a list is made that could be as long as the number is large
        raise CheckpointError(f"{folder}: {CONFIG} has {config.num_layers} layers, the weights {len(tensors)} tensors")
    expected = architecture.tensor_shapes(config)
    allowed = expected if not config.tied_head else {**expected, "lm_head.weight": (config.vocab_size, config.width)}
    for problem, names in (
        ("lacks", expected.keys() - tensors.keys()),
        ("has unknown", tensors.keys() - allowed.keys()),
    ):
        if names:
            shown = ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise CheckpointError(f"{folder} {problem} tensors {shown}, going by its {CONFIG}")
    for name, tensor in tensors.items():
        if tensor.shape != allowed[name]:
            raise CheckpointError(
                f"{tensor.path}: {name} has shape {tensor.shape}, but {CONFIG} makes it {allowed[name]}"
            )
        if tensor.stored_type not in STORED_TYPES:
            raise CheckpointError(
                f"{tensor.path}: {name} is stored as {tensor.stored_type}; supported are {', '.join(STORED_TYPES)}"
            )
    return tensors


def find_tensors(folder: Path) -> dict[str, StoredTensor]:
    """List the tensors of ``model.safetensors``, or of all shards its index names."""
    if (folder / WEIGHTS).is_file():
        return read_header(folder / WEIGHTS)
    if not (folder / INDEX).is_file():
        pickles = sorted(path.name for path in folder.glob("*.bin"))
        advice = f"; {pickles[0]} is a pickle file, which is never opened: convert it first" if pickles else ""
        raise ModelNotFoundError(f"{folder} has no {WEIGHTS}{advice}")
    weight_map = _read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(f"{folder / INDEX} has no weight_map from tensor names to files")
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(set(weight_map.values())):
        if Path(shard).name != shard:
            raise CheckpointError(f"{folder / INDEX} names {shard!r}, which is not a plain file name")
        if not (folder / shard).is_file():
            raise ModelNotFoundError(f"{folder / INDEX} names {shard}, which is not there")
        found = read_header(folder / shard)
        if twice := sorted(found.keys() & tensors.keys()):
            raise CheckpointError(f"{folder / shard} holds {twice[0]}, which {tensors[twice[0]].path.name} holds too")
        tensors |= found
    if lost := sorted(weight_map.keys() - tensors.keys()):
        raise CheckpointError(f"{folder / INDEX} names {lost[0]}, which no shard holds")
    return tensors


def read_header(path: Path) -> dict[str, StoredTensor]:
    """List the tensors of one safetensors file, having checked that its header and its size agree to the byte.

    Raises
    ------
    CheckpointError
        If the file is cut short, is not safetensors, or its header claims sizes that do not fill it exactly.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np"):  # checks the header against the file size: offsets, shapes, types
            pass
    except (SafetensorError, ValueError) as error:
        with path.open("rb") as file:
            pointer = file.read(24) == b"version https://git-lfs."
        cause = "it is a Git LFS pointer, not the file itself" if pointer else str(error)
        raise CheckpointError(
            f"{path} ({path.stat().st_size} bytes) is not a whole safetensors file: {cause}; fetch it again"
        ) from error
    with path.open("rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_size))
    header.pop("__metadata__", None)
    return {
        name: StoredTensor(
            path, name, entry["dtype"], tuple(entry["shape"]), 8 + header_size + entry["data_offsets"][0]
        )
        for name, entry in header.items()
    }


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, or raise with the file's name."""
    if not path.is_file():
        raise ModelNotFoundError(f"{path.parent} has no {path.name}")
    try:
        contents = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(contents, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return contents


def _looks_mislabelled(matrix: FloatArray) -> bool:
    """Whether 16-bit values were read as the other 16-bit type.

    Trained weights spread over many sizes around zero. float16 read as bfloat16 comes out near 1e-15. bfloat16 read as
    float16 comes out between a quarter and two in size, with hardly a small value among thousands.
    """
    sample = np.abs(matrix.reshape(-1)[:: max(1, matrix.size // 4096)])  # (rows, columns) -> about (4096,)
    sample = np.sort(sample[sample > 0])
    if len(np.unique(sample)) < 256:  # a small or a deliberately plain matrix says nothing
        return False
    small, middle = sample[len(sample) // 100], sample[len(sample) // 2]
    return bool(middle < 1e-9 or small > 0.15 * middle)
