"""int8 and BFP8 behind one face, for code that works with either: which one is decided while it is compiled.

Numba compiles a function once for each type of its arguments. The words below look at the type of a weight, or of the
rows that will be multiplied with it, and become the function of that format.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from cachequant_lib.kernels.bfp8 import BLOCK, PackedBFP8, panel_bfp8
from cachequant_lib.kernels.int8 import PackedInt8, panel_int8
from cachequant_lib.kernels.quantize import quantize_row_bfp8, quantize_row_int8


class RowsInt8(NamedTuple):
    """Room for M quantised rows of up to K numbers, for each thread.

    Attributes
    ----------
    codes : int8, shape (threads, M * K rounded up to 4), or (M, K rounded up to 4) of one thread
    peaks : int32, shape (threads, M), or (M,)
    steps : float32, shape (threads, M), or (M,)
    """

    codes: NDArray[np.int8]
    peaks: NDArray[np.int32]
    steps: NDArray[np.float32]


class RowsBFP8(NamedTuple):
    """Room for M rows of up to K numbers in blocks of 32, for each thread.

    Attributes
    ----------
    codes : int8, shape (threads, M * K), or (M, K) of one thread
    peaks : int32, shape (threads, M), or (M,)
    powers : float32, shape (threads, M * K / 32), or (M, K / 32)
    starts : int32, the same
    """

    codes: NDArray[np.int8]
    peaks: NDArray[np.int32]
    powers: NDArray[np.float32]
    starts: NDArray[np.int32]


def rows_like(weight: PackedInt8 | PackedBFP8, num_threads: int, num_rows: int, depth: int) -> RowsInt8 | RowsBFP8:
    """Make room for rows of up to `depth` numbers that a weight of this format can be multiplied with."""
    codes = np.empty((num_threads, num_rows * -(-depth // 4) * 4), np.int8)
    peaks = np.zeros((num_threads, num_rows), np.int32)
    if isinstance(weight, PackedInt8):
        return RowsInt8(codes, peaks, np.empty(peaks.shape, np.float32))
    blocks = num_threads, codes.shape[1] // BLOCK
    return RowsBFP8(codes, peaks, np.empty(blocks, np.float32), np.empty(blocks, np.int32))


def _is(kind: Any, container: type) -> bool:
    """Whether a Numba type is that of one of these tuples."""
    return getattr(kind, "instance_class", None) is container


def _word(name: str) -> Any:
    """Make a function that exists in compiled code only."""

    def word(*args: Any) -> Any:
        raise NotImplementedError(f"{name} is a word for compiled code")

    return word


layer_of, rows_of, quantize_row, multiply_panel = map(_word, ("layer_of", "rows_of", "quantize_row", "multiply_panel"))


@overload(layer_of, inline="always")
def _overload_layer_of(weight, layer):  # type: ignore[no-untyped-def]
    """Return the weight of one layer from arrays with one more axis in front."""
    if _is(weight, PackedInt8):
        return lambda weight, layer: PackedInt8(
            weight.panels[layer], weight.starts[layer], weight.scales[layer], weight.bias[layer]
        )
    return lambda weight, layer: PackedBFP8(weight.panels[layer], weight.exponents[layer], weight.bias[layer])


@overload(rows_of, inline="always")
def _overload_rows_of(rows, thread, count, depth):  # type: ignore[no-untyped-def]
    """Return a thread's room for `count` rows of `depth` numbers."""
    if _is(rows, RowsInt8):

        def rows_of_int8(rows, thread, count, depth):  # type: ignore[no-untyped-def]
            padded = (depth + 3) // 4 * 4
            codes = rows.codes[thread, : count * padded].reshape(count, padded)
            return RowsInt8(codes, rows.peaks[thread, :count], rows.steps[thread, :count])

        return rows_of_int8

    def rows_of_bfp8(rows, thread, count, depth):  # type: ignore[no-untyped-def]
        num_blocks = depth // BLOCK
        codes = rows.codes[thread, : count * depth].reshape(count, depth)
        powers = rows.powers[thread, : count * num_blocks].reshape(count, num_blocks)
        starts = rows.starts[thread, : count * num_blocks].reshape(count, num_blocks)
        return RowsBFP8(codes, rows.peaks[thread, :count], powers, starts)

    return rows_of_bfp8


@overload(quantize_row, inline="always")
def _overload_quantize_row(tile, x, rows, i):  # type: ignore[no-untyped-def]
    """Quantise x (K,) as row i."""
    if _is(rows, RowsInt8):
        return lambda tile, x, rows, i: quantize_row_int8(
            x, x.view(np.int32), np.int8(tile.flip), rows.codes[i], rows.peaks, rows.steps, i
        )
    return lambda tile, x, rows, i: quantize_row_bfp8(
        x, x.view(np.int32), tile.flip, rows.codes[i], rows.powers[i], rows.starts[i], rows.peaks, i
    )


@overload(multiply_panel, inline="always")
def _overload_multiply_panel(tile, rows, weight, j, out, column, add):  # type: ignore[no-untyped-def]
    """Multiply rows with the panel that begins at column j; store the result from `column` on, or add it there."""
    if _is(rows, RowsInt8):
        return lambda tile, rows, weight, j, out, column, add: panel_int8(
            tile, rows.codes, rows.steps, weight, j, out, column, add
        )
    return lambda tile, rows, weight, j, out, column, add: panel_bfp8(
        tile, rows.codes, rows.powers, rows.starts, weight, j, out, column, add
    )
