"""What a whole forward pass works with: the shape of a model, its weights, and room for what lies between."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Shape(NamedTuple):
    """What the kernel must know of a model.

    Attributes
    ----------
    num_layers, width, hidden_width, num_heads, num_kv_heads, head_dim : int
    key_column, value_column : int
        Where keys and values begin in the columns of the first product; queries begin at 0.
    centred, gated, rotary : bool
        LayerNorm instead of RMSNorm, SwiGLU instead of GELU, positions turned in instead of added.
    eps : float
        Of the norms.
    """

    num_layers: int
    width: int
    hidden_width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    key_column: int
    value_column: int
    centred: bool
    gated: bool
    rotary: bool
    eps: np.float32


class Room(NamedTuple):
    """The arrays of one pass over T rows, taken through a layer M at a time.

    Attributes
    ----------
    x : float32, shape (T, C rounded up to panels and to 16)
        The residual stream, zero past C; changed in place.
    norms : float32, shape (L, 2, 2, C rounded up to 16)
        Of each layer two norms, of each scale and shift; zero past C.
    rope : float32, shape (2, positions, D / 2)
        Cosines and sines; anything if the model is not rotary.
    keys, values : float32, flat (L * capacity * Hkv * D)
    queries : float32, shape (T, H D)
        Of every row; attention leaves its results there.
    wide : float32, shape (M, columns of the widest product)
    side : float32, shape (threads, M, columns of a panel)
    private : float32, shape (threads, as :func:`cachequant_lib.kernels.causal.room_needed` says and one row of x)
    worst : int32, shape (threads,)
        Bit pattern of the largest magnitude that was quantised; begins at 0.
    """

    x: NDArray[np.float32]
    norms: NDArray[np.float32]
    rope: NDArray[np.float32]
    keys: NDArray[np.float32]
    values: NDArray[np.float32]
    queries: NDArray[np.float32]
    wide: NDArray[np.float32]
    side: NDArray[np.float32]
    private: NDArray[np.float32]
    worst: NDArray[np.int32]


class Work(NamedTuple):
    """One forward pass: what to do it with, and on what.

    Attributes
    ----------
    shape : Shape
    qkv, out, up, down : PackedInt8 or PackedBFP8
        Weights of all L layers; each array has L as its first axis. `up` of a gated model holds the panels of the gate,
        then those of the other.
    rows : RowsInt8 or RowsBFP8
        Room for quantised rows.
    room : Room
    start : int
        Position of the first row.
    """

    shape: Shape
    qkv: Any
    out: Any
    up: Any
    down: Any
    rows: Any
    room: Room
    start: int
