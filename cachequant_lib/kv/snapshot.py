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
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cachequant_lib.errors import CacheError
from cachequant_lib.kv.arena import RowPool
from cachequant_lib.kv.match import Namespace
from cachequant_lib.kv.radix import TOKEN_BYTES, Node, extend, find, pack, split, unpack

if TYPE_CHECKING:
    from cachequant_lib.kv.prefix import PrefixCache

FORMAT = "cachequant-prefix-cache-1"


def save(cache: "PrefixCache", path: Path, fingerprint: str) -> int:
    """Write everything a cache holds; return the number of tokens. An older file stays as it was until the very end.

    The file can be read by its owner only, for it tells what was asked. Takes up to twice the bytes in memory.

    Parameters
    ----------
    cache : PrefixCache
    path : Path
    fingerprint : str
        Whose rows these are, such as ``model.fingerprint``; loading asks for the same.
    """
    from safetensors.numpy import save_file

    leaves = [(name, node) for name, root in cache._roots.items() for node in root.walk() if not node.children]
    leaves.sort(key=lambda leaf: -leaf[1].used)
    names = sorted({name for name, _ in leaves}, key=repr)
    written: set[Node] = set()
    tokens: list[int] = []
    prompts: list[tuple[int, int, int]] = []
    rows: list[list[Any]] = [[] for _ in names]
    for name, leaf in leaves:
        path_down = list(leaf.path())[::-1]
        ids = unpack(b"".join(node.tokens for node in path_down))
        new = [node for node in path_down if node not in written]
        written.update(new)
        tokens += ids
        prompts.append((names.index(name), len(ids), len(ids) - sum(node.num_tokens for node in new)))
        rows[names.index(name)] += [node.rows for node in new]
    tensors = {"tokens": np.array(tokens, np.int64), "prompts": np.array(prompts, np.int64).reshape(-1, 3)}
    for index, name in enumerate(names):
        tensors[f"rows.{index}"] = cache._roots[name].pool.gather(np.concatenate(rows[index]))
    meta = {"format": FORMAT, "fingerprint": fingerprint, "namespaces": json.dumps(names)}
    meta["digest"] = _digest(meta, tensors)

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
    return sum(node.num_tokens for node in written)


def load(cache: "PrefixCache", path: Path, fingerprint: str) -> int:
    """Add the prompts of a file to a cache, those used last first, until one does not fit; evicts nothing.

    Returns
    -------
    int
        Tokens that were not there before. They have been used as recently as when they were saved, one after the other.

    Raises
    ------
    CacheError
        If the file is damaged, is no saved prefix cache, or has another fingerprint. Nothing was added then.
    FileNotFoundError
        If there is no such file.
    """
    meta, tensors = _read(path)
    if meta["fingerprint"] != fingerprint:
        raise CacheError(f"{path.name} was saved for {meta['fingerprint']!r}, and {fingerprint!r} was asked for")
    prompts = list(_prompts(path, meta, tensors))
    for name, _, rows, _ in prompts:
        held = cache._roots.get(name)
        if held is not None and held.pool is not cache._arena.pool(rows.shape[1:], rows.dtype):
            raise CacheError(f"{path.name} holds other rows for namespace {name!r} than this cache does")
    before, loaded = cache.stats.inserted_tokens, []
    for name, ids, rows, start in prompts:
        if cache._arena.missing(cache._arena.pool(rows.shape[1:], rows.dtype), len(rows)):
            break
        cache.insert(ids, rows, name, start)
        loaded.append((name, ids))
    for name, ids in reversed(loaded):
        node = find(cache._roots[name], pack(ids))[0]
        cache._pin(node)
        cache._unpin(node)
    return cache.stats.inserted_tokens - before


def _prompts(path: Path, meta: dict[str, str], tensors: dict[str, Any]) -> Iterator[tuple[Namespace, Any, Any, int]]:
    """Yield namespace, token ids, rows, and the token they begin with, of each prompt; raise if one cannot be right."""
    try:
        names = [tuple(name) if isinstance(name, list) else name for name in json.loads(meta["namespaces"])]
        pools = [RowPool(tensors[f"rows.{i}"].shape[1:], tensors[f"rows.{i}"].dtype, 0) for i in range(len(names))]
        roots = [Node(None, b"", np.empty(0, np.int64), pool) for pool in pools]
        at, next_row = 0, [0] * len(names)
        for index, length, start in tensors["prompts"].tolist():
            key = pack(tensors["tokens"][at : at + length])
            rows = tensors[f"rows.{index}"][next_row[index] : next_row[index] + length - start]
            node, inside, stored = find(roots[index], key)
            if not 0 <= start <= stored < length == len(unpack(key)) or len(rows) != length - start:
                raise ValueError(f"prompt at token {at}")
            yield names[index], unpack(key), rows, start
            node = split(node, inside) if inside < node.num_tokens else node
            extend(node, key[stored * TOKEN_BYTES :], np.arange(stored, length))
            at, next_row[index] = at + length, next_row[index] + len(rows)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CacheError(f"{path.name} contradicts itself: {error!r}") from error


def _read(path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Metadata and tensors of a file, checked against its digest and each other."""
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
    if digest != _digest(meta, tensors):
        raise CacheError(f"{path.name} is damaged: its contents are not those that were saved")
    return meta, tensors


def _digest(meta: dict[str, str], tensors: dict[str, Any]) -> str:
    """Hash of everything in a file but the hash itself."""
    digest = hashlib.blake2b(repr(sorted(meta.items())).encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tensor.dtype.str}{tensor.shape}".encode())
        digest.update(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
