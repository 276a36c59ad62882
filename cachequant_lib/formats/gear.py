"""GEAR's numbers: KIVI's, with outliers kept apart and a matrix of low rank that repairs the rest."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cachequant_lib.errors import FormatError
from cachequant_lib.formats.kivi import KiviTensor, quantize_kivi
from cachequant_lib.formats.scheme import FloatArray, check_values, is_whole

LOOPS = 3  # of power iteration


@dataclass(frozen=True)
class GearTensor:
    """A chunk of keys or values (T, H, D) as the sum of three parts.

    Attributes
    ----------
    backbone : KiviTensor
        All numbers in few bits; outliers were replaced by the mean of their vector first.
    outliers : ndarray of float16, shape (n,)
    places : ndarray of int32, shape (n,)
        The outliers, and where they belong in the flattened chunk.
    left, right : ndarray of float16, shapes (H, T, r) and (H, D, r)
        ``left @ right.T`` is the low-rank part of what the others miss, head by head.
    """

    backbone: KiviTensor
    outliers: NDArray[np.float16]
    places: NDArray[np.int32]
    left: NDArray[np.float16]
    right: NDArray[np.float16]

    def dequantize(self) -> FloatArray:
        """Return the sum of all parts as float32, shape (T, H, D)."""
        values = _restore(self.backbone, self.outliers, self.places)
        repair = self.left.astype(np.float32) @ self.right.astype(np.float32).swapaxes(1, 2)  # (H, T, D)
        return values + repair.transpose(1, 0, 2)

    @property
    def nbytes(self) -> int:
        """Bytes of all parts as held."""
        return self.backbone.nbytes + sum(p.nbytes for p in (self.outliers, self.places, self.left, self.right))

    @property
    def bits_per_value(self) -> float:
        """KIVI's bits, and a share of 48 for each outlier and 16 for each number of the low-rank part."""
        extra = 48 * self.outliers.size + 16 * (self.left.size + self.right.size)
        return self.backbone.bits_per_value + extra / self.backbone.codes.size


def _restore(backbone: KiviTensor, outliers: NDArray[np.float16], places: NDArray[np.int32]) -> FloatArray:
    values = np.ascontiguousarray(backbone.dequantize())
    values.reshape(-1)[places] = outliers  # a view: the array is contiguous
    return values


def quantize_gear(
    x: ArrayLike, bits: int, axis: int, group_size: int = 32, rank: int = 2, outliers: float = 0.02, seed: int = 0
) -> GearTensor:
    """Quantise a chunk of keys or values the way of GEAR.

    Parameters
    ----------
    x : array_like, shape (T, H, D)
        Finite real numbers within fp16.
    bits, group_size : int
        Of the backbone.
    axis : {0, -1}
        0 for keys: groups of tokens, and outliers within each channel. -1 for values: groups of channels, and outliers
        within each token, all heads together.
    rank : int, default 2
    outliers : float, default 0.02
        The share of a vector, half of it above and half below, rounded to whole numbers, that is kept apart.
    seed : int, default 0
        Of the random start of the power iteration.

    Raises
    ------
    FormatError
        For impossible settings, or numbers that are not finite or not in fp16.
    """
    values = check_values(x)
    if values.ndim != 3 or axis not in (0, -1) or not is_whole(rank) or not 0 <= outliers < 1:
        raise FormatError(f"need (T, H, D), axis 0 or -1, a rank and a share, got {values.shape}, {axis}, {rank}")
    index = np.arange(values.size).reshape(values.shape)
    vectors = index.reshape(len(index), -1) if axis == -1 else index.reshape(len(index), -1).T  # (vectors, n)
    flat = values.reshape(-1).copy()
    order = np.take_along_axis(vectors, np.argsort(flat[vectors], axis=-1, kind="stable"), axis=-1)
    count = round(outliers / 2 * vectors.shape[-1])
    chosen = np.concatenate([order[:, :count], order[:, vectors.shape[-1] - count :]], axis=-1)
    places = chosen.reshape(-1).astype(np.int32)
    kept = flat[places].astype(np.float16)
    flat[chosen] = flat[vectors].mean(axis=-1, keepdims=True)
    backbone = quantize_kivi(flat.reshape(values.shape), bits, axis, group_size)
    missed = (values - _restore(backbone, kept, places)).transpose(1, 0, 2)  # (T, H, D) -> (H, T, D)
    right: NDArray[Any] = np.random.default_rng(seed).standard_normal((missed.shape[0], missed.shape[2], int(rank)))
    left: NDArray[Any] = np.zeros((*missed.shape[:2], int(rank)))
    for loop in range(LOOPS if rank else 0):
        last = loop == LOOPS - 1
        left = missed @ (np.linalg.qr(right)[0] if last else right)  # (H, T, D) @ (H, D, r) -> (H, T, r)
        left = np.linalg.qr(left)[0] if last else left
        right = missed.swapaxes(1, 2) @ left  # (H, D, T) @ (H, T, r) -> (H, D, r)
    return GearTensor(backbone, kept, places, left.astype(np.float16), right.astype(np.float16))
