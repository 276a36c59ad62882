"""Real queries, keys and values, small enough to come with the library."""

from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numpy as np

from cachequant_lib.kv.base import FloatArray

LAYERS = (1, 7, 15, 29)
"""The layers of SmolLM2-135M, of 30, that were kept."""


@dataclass(frozen=True)
class KVFixture:
    """What attention saw in one layer of SmolLM2-135M-Instruct while it read 512 tokens; in fp16, here as float32.

    Attributes
    ----------
    q : ndarray of float32, shape (64, 9, 64)
        Queries of the last 64 positions, not yet divided by the root of the head size. Three share a key-value head.
    k, v : ndarray of float32, shape (512, 3, 64)
        Keys, after rotation by their positions, and values.
    k_unrotated : ndarray of float32, shape (512, 3, 64)
        The keys before.
    """

    q: FloatArray
    k: FloatArray
    v: FloatArray
    k_unrotated: FloatArray


@lru_cache(maxsize=1)
def load_kv_fixture() -> dict[int, KVFixture]:
    """Return the fixture of each of the four layers, 1, 7, 15 and 29. 2.7 MB on disk; read once."""
    from safetensors.numpy import load

    arrays = load(resources.files("cachequant_lib").joinpath("data/kv-fixture/kv-fixture.safetensors").read_bytes())

    def rows(name: str) -> FloatArray:
        return np.ascontiguousarray(arrays[name].transpose(1, 0, 2), np.float32)  # (H, T, D) -> (T, H, D)

    names = ("q", "k", "v", "k_prerope")
    return {layer: KVFixture(*(rows(f"l{layer}.{name}") for name in names)) for layer in LAYERS}
