"""The certified head: the most likely tokens at a quarter of the bytes, proved to be those of the float32 head."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachequant_lib.errors import FormatError
from cachequant_lib.formats import quantize_int8
from cachequant_lib.kernels import head
from cachequant_lib.kernels.isa import best_instruction_set
from cachequant_lib.kernels.jit import PARALLEL
from cachequant_lib.kernels.tiles import Tile
from cachequant_lib.model.linear import Float32Linear, FloatArray, check_sum_length

Found = tuple[NDArray[np.intp], NDArray[np.float64]]  # the tokens, and their logits
FEW, SHARE = 64, 32  # candidates up to FEW, or one row in SHARE, are cheaper to score one by one than all rows at once


class CertifiedHead(Float32Linear):
    """A float32 head that need not read its float32 weight to say which tokens are the most likely.

    Called, it *is* the float32 head: all logits, the same bits. :meth:`largest` answers the question of a decode step,
    in three stages, each of which can only leave out what certainly is not among the `count` largest:

    1. int8 codes of the whole weight give each logit bounds (see :mod:`cachequant_lib.kernels.head`). A *candidate* can
       reach as high as `count` others certainly do. Typically a handful.
    2. The candidates' float32 rows are multiplied in float64. What the float32 head can make of such a row, whatever
       the order in which it adds, differs from that by its rounding: ``K u / (1 - K u) * sum |w_k x_k|`` at most. If
       exactly `count` candidates can be among the largest, these are the ones.
    3. If more can, they are so close that the float32 head's own rounding decides. Then it does: it is run as it is. So
       it is when stage 1 leaves too many candidates, or can say nothing because numbers are not finite or too large.

    This holds for any float32 arithmetic that rounds to nearest and keeps small numbers (no flushing to zero), whatever
    library does it.

    Attributes
    ----------
    weight, bias
        As in :class:`Float32Linear`, and shared with the embedding if the head is tied. The bias must be zero.
    calls, candidates, fallbacks : int
        What :meth:`largest` has done so far: how often it was asked, how many rows stage 2 has scored in all, and how
        often it had to run the float32 head.
    """

    arithmetic = "true integer, then float64 for the candidates"

    def __init__(self, weight: FloatArray, bias: FloatArray | None = None) -> None:
        super().__init__(weight, bias)
        if self.bias.any():
            raise FormatError("a certified head has no bias; this one is not zero")
        check_sum_length(self.in_features)
        isa = best_instruction_set()
        self._tile = Tile(isa, 1, isa.int8_tile[1])
        codes, units = _codes(self.weight)
        self._packed = head.pack_head(self._tile, codes, units, self.weight)
        self._in_range = float(self._packed.lengths.max()) + float(self._packed.errors.max()) <= head.LONGEST
        self._rounding = head.rounding_bound(self.in_features) * head.SAFETY  # float64's own is lost in the safety
        self.calls = self.candidates = self.fallbacks = 0

    def content(self) -> dict[str, Any]:
        """Return the weight and the bias, all else follows from them."""
        return {"weight": self.weight, "bias": self.bias}

    def largest(self, x: FloatArray, count: int) -> FloatArray:
        """Return logits (1, V) of one hidden state x (1, K), right for the `count` largest; the rest may be missing.

        Either the float32 head's own, or minus infinity everywhere but at its `count` largest. Those are rounded from
        float64 then, so they differ from the float32 head's by no more than its rounding. With a `count` of 1,
        ``argmax`` finds the float32 head's token in either case: a tie is always of the first kind.
        """
        found = self._prove(np.require(x[0], np.float32, ["C", "W"]), count) if len(x) == 1 else None
        with PARALLEL:
            self.calls += 1
            self.fallbacks += found is None
        if found is None:
            return self(x)
        logits = np.full((1, self.out_features), -np.inf, np.float32)
        logits[0, found[0]] = found[1]
        return logits

    def _prove(self, x: FloatArray, count: int) -> Found | None:
        """Return the `count` largest, if bounds can tell them from the rest."""
        most = max(FEW, self.out_features // SHARE)
        if count > min(most, self.out_features) or not self._in_range:
            return None
        bounds = np.empty((2, len(self._packed.units)), np.float32)
        with PARALLEL:
            bounded = head.bound_logits(self._tile, x, self._packed, bounds)
        if not bounded:
            return None
        lower, upper = bounds[:, : self.out_features]  # (2, V padded) -> 2 of (V,)
        rows = np.flatnonzero(upper >= _nth_largest(lower, count))
        if len(rows) > most:
            return None
        scores, magnitudes = np.empty((2, len(rows)))
        head.score_rows(self.weight, x, rows, scores, magnitudes)
        slack = self._rounding * magnitudes + float(head.FLOOR)
        best = np.flatnonzero(scores + slack >= _nth_largest(scores - slack, count))
        with PARALLEL:
            self.candidates += len(rows)
        return (rows[best], scores[best]) if len(best) == count else None

    @property
    def nbytes(self) -> int:
        """Bytes of the float32 weight and bias, and of the int8 copy in its format: the same on every CPU."""
        return super().nbytes + self.out_features * (self.in_features + 4 + 4 + 4)  # codes, a unit, two lengths

    @property
    def read_nbytes(self) -> int:
        """Bytes that stage 1 reads on this CPU."""
        return self._packed.nbytes

    def bits_per_weight(self) -> float:
        """32, and 8 and a share of the row's unit and lengths for the copy that is read."""
        return 32 + 8 + 3 * 32 / self.in_features


def _codes(weight: FloatArray) -> tuple[NDArray[np.int8], FloatArray]:
    """Quantise the rows, some at a time since that takes float64: codes (V, K) and units (V,)."""
    codes, units = np.empty(weight.shape, np.int8), np.empty(len(weight), np.float32)
    for first in range(0, len(weight), head.CHUNK_ROWS):
        rows = slice(first, first + head.CHUNK_ROWS)
        tensor = quantize_int8(weight[rows])
        codes[rows], units[rows] = tensor.codes, tensor.scales.astype(np.float64) / 127
    return codes, units


def _nth_largest(values: NDArray[Any], count: int) -> Any:
    """Return the value that `count` values reach."""
    return values.max() if count == 1 else np.partition(values, len(values) - count)[len(values) - count]
