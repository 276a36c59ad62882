"""What the experiments on AlignedKV share: who takes part, real rows to read, and many caches in one forward pass."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.records import BenchmarkError
from benchmarks.scoring import WindowKV
from cachequant_lib.kv.base import FloatArray, KVBlock, KVCache
from cachequant_lib.kv.dense import DenseKV
from cachequant_lib.kv.paper import RELEASED
from cachequant_lib.model.base import KV_FORMATS, Model

EXACT = "exact"


class RoundedKV(DenseKV):
    """A dense cache whose rows are rounded as they come: every number alike, whatever the query."""

    format = "rounded"

    def __init__(self, *shape: int, rounding: Callable[[FloatArray], FloatArray]) -> None:
        super().__init__(*shape)
        self._rounding = rounding

    def append(self, layer: int, k: FloatArray, v: FloatArray) -> None:
        """Round T positions and add them to one layer; see :meth:`KVCache.append`."""
        super().append(layer, self._rounding(k), self._rounding(v))

    def write_block(self, block: KVBlock) -> None:
        """Round a block and copy it in; see :meth:`KVCache.write_block`."""
        super().write_block(KVBlock(self._rounding(block.rows)))


def drop(bits: int) -> Callable[[FloatArray], FloatArray]:
    """Leave out the last bits of every fp16 number; fill them with 100..., the middle of what they may have been."""

    def rounding(x: FloatArray) -> FloatArray:
        kept = x.astype(np.float16).view(np.uint16) >> bits << bits
        return (kept | 1 << (bits - 1)).astype(np.uint16).view(np.float16).astype(np.float32)

    return rounding


def bf16(x: FloatArray) -> FloatArray:
    """Round to bf16, half to even: the upper 16 bits of a float32."""
    wide = np.ascontiguousarray(x).view(np.uint32)
    return ((wide + (0x7FFF + (wide >> 16 & 1))) & np.uint32(0xFFFF0000)).view(np.float32)


@dataclass(frozen=True)
class Contestant:
    """A way to store and read keys and values.

    Attributes
    ----------
    label : str
    format : str
        Of the library, or "rounded".
    options : mapping
        Of the format.
    bits : float or None
        Read of each number if that is fixed, its share of metadata included; None where it is counted.
    """

    label: str
    format: str
    options: Mapping[str, Any] = field(default_factory=dict)
    bits: float | None = None

    def new_kv(self, num_layers: int, num_kv_heads: int, head_dim: int, capacity: int) -> KVCache:
        """Make an empty cache."""
        shape = (num_layers, num_kv_heads, head_dim, capacity)
        return (
            RoundedKV(*shape, **self.options)
            if self.format == "rounded"
            else KV_FORMATS[self.format](*shape, **self.options)
        )


ALIGNED = {
    "paper": Contestant("paper, thresholds 4/8", "aligned", {"design": "paper"}),
    "released": Contestant("paper, V as released, 1/2", "aligned", {"design": "paper", "thresholds": RELEASED}),
    "paper-control": Contestant("paper's code, all 16 bits", "aligned", {"design": "paper", "control": True}),
    "fixed-8": Contestant("fixed point, 2⁻⁸", "aligned", {"tolerance": 2.0**-8}),
    "fixed-11": Contestant("fixed point, 2⁻¹¹", "aligned", {"tolerance": 2.0**-11}),
    "fixed-control": Contestant("fixed point, all 16 bits", "aligned", {"control": True}),
}
ROUNDED = {
    "drop-3": Contestant("13 bits of each", "rounded", {"rounding": drop(3)}, 13),
    "drop-4": Contestant("12 bits of each", "rounded", {"rounding": drop(4)}, 12),
    "bf16": Contestant("bf16", "rounded", {"rounding": bf16}, 16),
}
QUANTISED = {f"kivi-{b}": Contestant(f"KIVI, {b} bits", "kivi", {"bits": b}) for b in (10, 8, 4, 2)} | {
    f"gear-{b}": Contestant(f"GEAR, {b} bits", "gear", {"bits": b}) for b in (10, 4)
}
CONTESTANTS = {EXACT: Contestant("float32", "dense", {}, 32)} | ALIGNED | ROUNDED | QUANTISED


# ---- Real rows -------------------------------------------------------------------------------------------------------


class Recorder(WindowKV):
    """A window's cache that also keeps the queries of some layers."""

    def __init__(self, *shape: int, layers: Sequence[int]) -> None:
        super().__init__(*shape)
        self.queries: dict[int, FloatArray | None] = dict.fromkeys(layers)

    def attend(self, layer: int, q: FloatArray) -> FloatArray:
        """Keep the queries, and attend; see :meth:`WindowKV.attend`."""
        if layer in self.queries:
            self.queries[layer] = q.copy()
        return super().attend(layer, q)


@dataclass(frozen=True)
class Rows:
    """What one layer's attention saw, rounded to fp16 as in a model of that type, here as float32.

    Attributes
    ----------
    q : ndarray of float32, shape (T, H, D)
        Not yet divided by the root of D.
    k, v : ndarray of float32, shape (T, Hkv, D)
    """

    q: FloatArray
    k: FloatArray
    v: FloatArray


def some_layers(model: Model, count: int) -> list[int]:
    """Layers, evenly spaced from the first to the last."""
    return sorted({round(i) for i in np.linspace(0, model.config.num_layers - 1, count)})


def record_rows(model: Model, ids: Sequence[int], layers: Sequence[int]) -> dict[int, Rows]:
    """Run a model over a text and keep what the attention of some layers saw."""
    config = model.config
    kv = Recorder(config.num_layers, config.num_kv_heads, config.head_dim, len(ids), layers=layers)
    model.hidden_states(np.asarray(ids, np.int64), kv)
    found = {n: (q, kv.keys[n], kv.values[n]) for n, q in kv.queries.items() if q is not None}
    return {n: Rows(*(part.astype(np.float16).astype(np.float32) for part in parts)) for n, parts in found.items()}


def last_queries(kv: KVCache, rows: Rows, length: int, num_queries: int) -> Iterator[tuple[int, FloatArray]]:
    """Fill a cache of one layer up to a length; on the way, decode the last queries: position, and output (H, D)."""
    start = length - num_queries
    kv.write_block(KVBlock(np.stack([rows.k[kv.length : start], rows.v[kv.length : start]], axis=1)[:, None]))
    for position in range(start, length):
        kv.append(0, rows.k[position : position + 1], rows.v[position : position + 1])
        yield position, kv.attend(0, rows.q[position : position + 1])[0]


# ---- Many caches, one model ------------------------------------------------------------------------------------------


class Panel(KVCache):
    """Several caches side by side: row i of a forward pass belongs to the i-th, and all rows to the same position.

    So a model's weights are read once for all of them. Each cache sees one query at a time, as in decode.
    """

    format = "panel"

    def __init__(self, caches: Sequence[KVCache]) -> None:
        one, many = caches[0], len(caches)
        super().__init__(one.num_layers, one.num_kv_heads, one.head_dim, one.capacity * many)
        self.caches = caches
        self._lengths = [one.length * many] * one.num_layers

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(kv.nbytes for kv in self.caches)

    def append(self, layer: int, k: FloatArray, v: FloatArray) -> None:
        """Give each cache its row."""
        for i, kv in enumerate(self.caches):
            kv.append(layer, k[i : i + 1], v[i : i + 1])
        self._lengths[layer] += len(k)

    def attend(self, layer: int, q: FloatArray) -> FloatArray:
        """Ask each cache for its row."""
        return np.concatenate([kv.attend(layer, q[i : i + 1]) for i, kv in enumerate(self.caches)])

    def read_block(self, start: int, stop: int) -> KVBlock:
        """Not to be used: rows of different caches have nothing in common."""
        raise NotImplementedError

    write_block = read_block  # type: ignore[assignment]


def side_by_side(model: Model, many: int) -> Model:
    """A Llama whose rotations hold still for so many rows of each position, as a :class:`Panel` needs it."""
    if model.rope is None:
        raise BenchmarkError(f"{model.name} adds its positions before the first block; choose a Llama")
    twin = copy.copy(model)
    cos_sin = tuple(np.repeat(table, many, axis=0) for table in model.rope)
    twin.__dict__["rope"] = cos_sin  # what its cached_property would compute, each row `many` times
    return twin


def step(model: Model, panel: Panel, ids: Sequence[int]) -> NDArray[np.float64]:
    """Decode one token in each cache; logits (N, V)."""
    x = model.final_norm(model.hidden_states(np.asarray(ids, np.int64), panel))
    return model.head(x).astype(np.float64)


def prefilled(model: Model, ids: Sequence[int]) -> KVBlock:
    """What a model's exact cache holds after some tokens."""
    config = model.config
    kv = WindowKV(config.num_layers, config.num_kv_heads, config.head_dim, len(ids))
    model.hidden_states(np.asarray(ids, np.int64), kv)
    return kv.read_block(0, len(ids))


def panel_of(names: Sequence[str], model: Model, block: KVBlock, room: int) -> Panel:
    """Caches of some contestants, each holding a block, with room for more."""
    config = model.config
    caches = []
    for name in names:
        kv = CONTESTANTS[name].new_kv(config.num_layers, config.num_kv_heads, config.head_dim, len(block) + room)
        kv.write_block(block)
        caches.append(kv)
    return Panel(caches)
