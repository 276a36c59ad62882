"""Run a quantised model's blocks in one compiled pass: lay its weights out for it, make room, call the kernel.

The weights of all layers lie one after the other in a few large arrays, which the operating system can map with large
pages; the layers' own arrays become views of them, so nothing is kept twice.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np

from cachequant_lib.kernels.causal import room_needed
from cachequant_lib.kernels.either import rows_like
from cachequant_lib.kernels.forward import forward_alone, forward_shared
from cachequant_lib.kernels.jit import PARALLEL
from cachequant_lib.kernels.quantize import LARGEST_POWER, NOT_FINITE
from cachequant_lib.kernels.tiles import STRIP, Tile
from cachequant_lib.kernels.work import Room, Shape, Work
from cachequant_lib.kv.dense import DenseKV
from cachequant_lib.model.linear import BFP8Linear, Int8Linear, PackedLinear
from cachequant_lib.model.ops import FloatArray, LayerNorm, RMSNorm

ROWS = 128  # that go through a layer together: what lies between two products stays in the second-level cache
FEW_ROWS = 16  # with fewer, a thread prepares all rows for itself rather than wait for the others


class Stage(NamedTuple):
    """The parts of one block, in the order of the pass; linears in one tuple read the same input."""

    norm_1: LayerNorm | RMSNorm
    qkv: tuple[Any, ...]
    out: tuple[Any, ...]
    norm_2: LayerNorm | RMSNorm
    up: tuple[Any, ...]
    down: tuple[Any, ...]


class WholePass:
    """The blocks of one model, ready to run.

    Parameters
    ----------
    stages : sequence of Stage
        One a layer; all linears are of one packed class.
    num_heads, num_kv_heads, head_dim : int
    rope : tuple of two arrays, optional
        Cosines and sines, if positions are turned in.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        rope: tuple[FloatArray, FloatArray] | None,
    ) -> None:
        first = stages[0]
        self._tile: Tile = first.down[0]._tile
        self._limit = LARGEST_POWER if isinstance(first.down[0], BFP8Linear) else NOT_FINITE - 1
        self._linears = tuple(
            stack([getattr(stage, part) for stage in stages]) for part in ("qkv", "out", "up", "down")
        )
        self._norms = _stack_norms([(stage.norm_1, stage.norm_2) for stage in stages])
        widths = [self._padded(linear.out_features) for linear in first.qkv]
        q_width, kv_width = num_heads * head_dim, num_kv_heads * head_dim
        self._shape = Shape(
            num_layers=len(stages),
            width=first.qkv[0].in_features,
            hidden_width=first.down[0].in_features,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            key_column=q_width if len(widths) == 1 else widths[0],
            value_column=q_width + kv_width if len(widths) == 1 else widths[0] + widths[1],
            centred=isinstance(first.norm_1, LayerNorm),
            gated=len(first.up) == 2,
            rotary=rope is not None,
            eps=np.float32(first.norm_1.eps),
        )
        self._rope = np.zeros((2, 1, 1), np.float32) if rope is None else np.stack(rope)  # (2, positions, D/2)

    def __call__(self, x: FloatArray, kv: DenseKV) -> bool:
        """Take x (T, C), which follows the positions of `kv`, through all layers in place; appends to `kv`.

        Returns whether all numbers on the way were finite. If not, x means nothing, and nothing was appended.
        """
        num_rows, width = x.shape
        stream = np.zeros((num_rows, -(-self._padded(width) // STRIP) * STRIP), np.float32)
        stream[:, :width] = x
        num_threads = numba.get_num_threads()  # type: ignore[no-untyped-call]
        few, held = num_rows < FEW_ROWS, min(ROWS, num_rows)
        shape, room = self._shape, self._make_room(stream, kv, num_threads, held)
        depth = max(shape.width, shape.num_heads * shape.head_dim, shape.hidden_width)
        rows = rows_like(self._linears[0], num_threads if few else 1, held, depth)
        qkv, out, up, down = self._linears
        work = Work(shape, qkv, out, up, down, rows, room, kv.length)
        with PARALLEL:
            if num_threads == 1:
                forward_alone(self._tile, *work)
            else:
                forward_shared(self._tile, *work, few)
        if room.worst.max() > self._limit:
            return False
        x[...] = stream[:, :width]
        kv.extend(num_rows)
        return True

    def _padded(self, columns: int) -> int:
        """Columns rounded up to whole panels."""
        return -(-columns // self._tile.width) * self._tile.width

    def _make_room(self, stream: FloatArray, kv: DenseKV, num_threads: int, held: int) -> Room:
        """Set the arrays of a pass out, in which a thread holds so many rows at a time."""
        shape, num_rows, tile = self._shape, len(stream), self._tile
        columns = max(self._linears[0].panels.shape[1] * tile.width, self._padded(shape.hidden_width))
        private = max(room_needed(tile, shape.head_dim, kv.length + num_rows), self._norms.shape[-1])
        return Room(
            x=stream,
            norms=self._norms,
            rope=self._rope,
            keys=kv.keys.reshape(-1),  # (L, capacity, Hkv, D) -> flat
            values=kv.values.reshape(-1),  # the same
            queries=np.empty((num_rows, shape.num_heads * shape.head_dim), np.float32),
            wide=np.empty((held, columns), np.float32),
            side=np.empty((num_threads, held if shape.gated else 1, tile.width), np.float32),
            private=np.empty((num_threads, private), np.float32),
            worst=np.zeros(num_threads, np.int32),
        )


def can_run(stages: Sequence[Stage]) -> bool:
    """Whether all linears of all layers are int8, or all BFP8."""
    kinds = {type(linear) for stage in stages for part in stage if isinstance(part, tuple) for linear in part}
    return kinds in ({Int8Linear}, {BFP8Linear})


def _stack_norms(norms: Sequence[tuple[LayerNorm | RMSNorm, ...]]) -> FloatArray:
    """Scales and shifts of all layers: (L, 2, 2, C rounded up to 16), padded with zeros."""
    width = norms[0][0].weight.size
    stacked = np.zeros((len(norms), 2, 2, -(-width // STRIP) * STRIP), np.float32)
    for layer, pair in enumerate(norms):
        for n, norm in enumerate(pair):
            stacked[layer, n, 0, :width] = norm.weight
            if isinstance(norm, LayerNorm):
                stacked[layer, n, 1, :width] = norm.bias
    return stacked


def stack(layers: Sequence[tuple[PackedLinear, ...]]) -> Any:
    """Move the packed weights of all layers into arrays that hold them one after the other, and return those.

    The linears of one layer lie side by side. Each keeps views of its part. A model that shares its linears with one
    that was stacked before gets the same arrays.
    """
    first = layers[0][0]
    if first.stacked is not None and all(
        linear.stacked is first.stacked and linear.place == (layer, n)
        for layer, linears in enumerate(layers)
        for n, linear in enumerate(linears)
    ):
        return first.stacked
    kind = type(first._packed)
    sizes = [sum(len(linear._packed[field]) for linear in layers[0]) for field in range(len(first._packed))]
    stacked = kind(
        *(
            np.empty((len(layers), size, *part.shape[1:]), part.dtype)
            for size, part in zip(sizes, first._packed, strict=True)
        )
    )
    for layer, linears in enumerate(layers):
        starts = [0] * len(sizes)
        for n, linear in enumerate(linears):
            views = []
            for field, part in enumerate(linear._packed):
                view = stacked[field][layer, starts[field] : starts[field] + len(part)]
                view[...] = part
                starts[field] += len(part)
                views.append(view)
            linear.move_to(kind(*views), stacked, (layer, n))
    return stacked
