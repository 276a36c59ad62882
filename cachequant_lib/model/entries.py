"""The entries of a ``config.json``, each taken only if it is of its kind: a size, a number, a choice, a token id.

An entry that is absent or null takes its default; one without a default must be there.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cachequant_lib.errors import CheckpointError

LARGEST_SIZE = 2**31 - 1
_FLOAT32 = np.finfo(np.float32)


def size(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """Return a whole number of at least 1. No float, text or truth value is rounded or counted as one.

    Raises
    ------
    CheckpointError
        If it is not one, or is absent without a default.
    """
    value = raw.get(key, default)
    value = default if value is None else value
    if value is None:
        raise CheckpointError(f"config.json has no {key!r}")
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST_SIZE:
        raise CheckpointError(f"config.json has {key} = {shown(value)}, which is not a whole number of at least 1")
    return value


def positive(raw: Mapping[str, Any], key: str, default: float, low: float = float(_FLOAT32.tiny)) -> float:
    """Return a finite number of at least `low`, which is the smallest that float32 holds in full unless given.

    Raises
    ------
    CheckpointError
        If it is not one. With such a number every logit could become NaN.
    """
    value = raw.get(key)
    value = default if value is None else value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= float(_FLOAT32.max):  # NaN fails both comparisons
        raise CheckpointError(f"config.json has {key} = {shown(value)}, but it must be finite and at least {low:.2g}")
    return float(value)


def choice(raw: Mapping[str, Any], key: str, default: bool) -> bool:
    """Return true or false, or raise CheckpointError: the text "false" is neither."""
    value = raw.get(key)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise CheckpointError(f"config.json has {key} = {shown(value)}; write true or false, without quotation marks")
    return value


def token_id(raw: Mapping[str, Any], key: str, vocab_size: int) -> int | None:
    """Return a token id, the first where several are listed, or None where the file gives none.

    Raises
    ------
    CheckpointError
        If one of them is not a whole number in ``0..vocab_size-1``, or the list is empty.
    """
    value = raw.get(key)
    if value is None:
        return None
    ids = value if isinstance(value, list) else [value]
    if not ids or not all(type(item) is int and 0 <= item < vocab_size for item in ids):
        raise CheckpointError(f"config.json has {key} = {shown(value)}; token ids are 0..{vocab_size - 1}")
    return int(ids[0])


def table(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a nested object, empty where the file gives none, or raise CheckpointError."""
    value = raw.get(key) or {}
    if not isinstance(value, dict):
        raise CheckpointError(f"config.json has {key} = {shown(value)}, which is not a JSON object")
    return value


def shown(value: Any) -> str:
    """Return what an entry holds, short enough for one line of a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."
