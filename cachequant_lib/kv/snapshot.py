"""A prefix cache on disk: a safetensors file that is read whole or refused, and replaced in one step or not at all.

``tokens`` holds the ids of all prompts, those used last first; ``prompts`` has a line for each: number of its
namespace, its length, and the token from which on its rows are in the file (earlier ones are a prompt's above).
``rows.0`` and so on hold the rows of each namespace.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cachequant_lib.errors import CacheError
from cachequant_lib.kv.arena import Rows
from cachequant_lib.kv.ledger import Namespace
from cachequant_lib.kv.radix import Node, pack, unpack

if TYPE_CHECKING:
    from cachequant_lib.kv.prefix import PrefixCache

FORMAT = "cachequant-prefix-cache-1"
Prompt = tuple[Namespace, NDArray[np.int64], Rows, int]
"""Namespace, token ids, rows, and the token that the rows begin with."""


def collect(roots: dict[Namespace, Node], fingerprint: str) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Copy all prompts of a tree into the tensors and the metadata of a file."""
    leaves = [(name, node) for name, root in roots.items() for node in root.walk() if not node.children]
    leaves.sort(key=lambda leaf: -leaf[1].used)
    names = list(dict.fromkeys(name for name, _ in leaves))
    written: set[Node] = set()
    tokens: list[int] = []
    prompts: list[tuple[int, int, int]] = []
    rows: dict[Namespace, list[Any]] = {name: [] for name in names}
    for name, leaf in leaves:
        path = list(leaf.path())[::-1]
        new = [node for node in path if node not in written]
        written.update(new)
        num_tokens, num_new = sum(node.num_tokens for node in path), sum(node.num_tokens for node in new)
        tokens += unpack(b"".join(node.tokens for node in path))
        prompts.append((names.index(name), num_tokens, num_tokens - num_new))
        rows[name] += [node.rows for node in new]
    tensors = {"tokens": np.array(tokens, np.int64), "prompts": np.array(prompts, np.int64).reshape(-1, 3)}
    for index, name in enumerate(names):
        tensors[f"rows.{index}"] = roots[name].pool.gather(np.concatenate(rows[name]))
    meta = {"format": FORMAT, "fingerprint": fingerprint, "namespaces": json.dumps(names)}
    return tensors, meta | {"digest": _digest(tensors, meta)}


def write(path: Path, tensors: dict[str, NDArray[Any]], meta: dict[str, str]) -> None:
    """Write a file beside its place and put it there once it is safe on the disk."""
    from safetensors.numpy import save_file

    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-", suffix=".tmp")
    os.close(handle)
    try:
        save_file(tensors, temporary, meta)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def read(path: Path, fingerprint: str) -> list[Prompt]:
    """Read a file and check it against its digest; return its prompts, those used last first.

    Raises
    ------
    CacheError
        If the file is damaged, is no saved prefix cache, or was saved for another fingerprint.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            meta = file.metadata() or {}
            if meta.get("format") != FORMAT:
                raise CacheError(f"{path.name} is no saved prefix cache ({FORMAT}); it says {meta.get('format')!r}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (a file is no dict)
    except SafetensorError as error:
        raise CacheError(f"{path.name} is damaged or no saved prefix cache: {error}") from error
    digest = meta.pop("digest", "")
    if digest != _digest(tensors, meta):
        raise CacheError(f"{path.name} is damaged: its contents are not those that were saved")
    if meta["fingerprint"] != fingerprint:
        raise CacheError(f"{path.name} was saved for {meta['fingerprint']!r}, and {fingerprint!r} was asked for")
    names = [tuple(name) if isinstance(name, list) else name for name in json.loads(meta["namespaces"])]
    found, at, next_row = [], 0, [0] * len(names)
    for index, length, start in tensors["prompts"].tolist():
        first, last = next_row[index], next_row[index] + length - start
        found.append((names[index], tensors["tokens"][at : at + length], tensors[f"rows.{index}"][first:last], start))
        at, next_row[index] = at + length, last
    return found


def restore(cache: "PrefixCache", prompts: list[Prompt]) -> int:
    """Insert prompts, those used last first, until one does not fit, and use them in the old order."""
    for name, _, rows, _ in prompts:
        root = cache._roots.get(name)
        if root is not None and root.pool is not cache._arena.pool(rows.shape[1:], rows.dtype):
            raise CacheError(f"the file holds other rows for namespace {name!r} than this cache: {rows.shape[1:]}")
    before, loaded = cache.stats.inserted_tokens, []
    for name, ids, rows, start in prompts:
        if cache._arena.missing(cache._arena.pool(rows.shape[1:], rows.dtype), len(rows)):
            break
        cache.insert(ids, rows, name, start)
        loaded.append((name, ids))
    for name, ids in reversed(loaded):  # only now: inserting one prompt may have parted another
        cache._touch(pack(ids), name)
    return cache.stats.inserted_tokens - before


def _digest(tensors: dict[str, NDArray[Any]], meta: dict[str, str]) -> str:
    """Hash of everything in a file but the hash itself."""
    digest = hashlib.blake2b(repr(sorted(meta.items())).encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tensor.dtype.str}{tensor.shape}".encode())
        digest.update(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)  # any shape -> (bytes,)
    return digest.hexdigest()
