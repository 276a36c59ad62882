"""The grid of 8-bit schemes: how many values share a scale, and how the scale is rounded.

Every scheme stores a code ``m`` in -127..127 and a scale ``s`` for each group, and means ``m * s / 127``. The
scale is never smaller than the group's largest magnitude, so nothing is clipped. BFP8 is the corner
``(32, "pow2")`` and int8 the corner ``("row", "exact")``.
"""

from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cachequant_lib.errors import FormatError

FloatArray: TypeAlias = NDArray[np.float32]
CodeArray: TypeAlias = NDArray[np.int8]
ScaleRule = Literal["pow2", "exact", "fp16", "snapped"]

MAX_CODE = 127  # -128 is never used, so that negating a value negates its code
SCALE_BITS: dict[ScaleRule, int] = {"pow2": 8, "exact": 32, "fp16": 16, "snapped": 11}
SNAP_STEPS = 8  # "snapped" scales: 8 per octave, 3 stored mantissa bits beside 8 exponent bits
MIN_MAGNITUDE = 1e-38  # a smaller maximum is treated as this one, which keeps the exponent in float32's range


def check_values(x: ArrayLike) -> FloatArray:
    """Return `x` as float32, or say why it cannot be quantised."""
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise FormatError(f"expected rows of equal length ({error})") from error
    if array.dtype.kind not in "fiu":
        raise FormatError(f"expected real numbers, got an array of {array.dtype}")
    with np.errstate(over="ignore"):
        values = array.astype(np.float32, copy=False)
    if values.ndim == 0 or values.shape[-1] == 0:
        raise FormatError(f"expected at least one value along the last axis, got shape {values.shape}")
    if not np.isfinite(values).all():
        bad = int(values.size - np.isfinite(values).sum())
        raise FormatError(f"cannot quantise NaN or infinity: {bad} of {values.size} values are not finite in float32")
    return values


def is_whole(value: object, least: int = 0) -> bool:
    """Whether something is a whole number of at least `least`."""
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


def split_groups(values: NDArray[Any], num_groups: int) -> NDArray[Any]:
    """View rows of K values as groups: shape (..., K) -> (..., num_groups, K / num_groups)."""
    *rows, num_columns = values.shape
    return values.reshape(*rows, num_groups, num_columns // num_groups)


def pow2_exponent(max_abs: NDArray[Any]) -> NDArray[np.int32]:
    """Exponent of the smallest power of two at or above `max_abs`; 0 where the whole group is zero."""
    fraction, exponent = np.frexp(np.maximum(max_abs.astype(np.float64), MIN_MAGNITUDE))
    exponent = np.where(fraction == 0.5, exponent - 1, exponent)  # 2**k itself is 0.5 * 2**(k + 1)
    if (exponent > 127).any():
        raise FormatError(f"magnitude {max_abs.max():.4g} is above 2**127, the largest power-of-two scale in float32")
    return np.where(max_abs == 0, 0, exponent).astype(np.int32)


def codes_of(groups: NDArray[Any], scales: NDArray[Any]) -> CodeArray:
    """Round ``groups / scales * 127`` half to even, in float64; a zero scale gives zero codes.

    float64 matters: in float32 about two codes in a million land on the wrong side of a half.
    """
    safe = np.where(scales == 0, 1.0, scales.astype(np.float64))
    codes = np.rint(groups / safe * MAX_CODE)
    return np.clip(codes, -MAX_CODE, MAX_CODE).astype(np.int8)


def scales_of(max_abs: FloatArray, rule: ScaleRule) -> FloatArray:
    """Scale for each group maximum under a rule; never below the maximum."""
    if rule == "exact":
        return max_abs
    if rule == "pow2":
        powers: FloatArray = np.ldexp(np.float32(1), pow2_exponent(max_abs))
        powers[max_abs == 0] = 0.0
        return powers
    if rule == "snapped":
        fraction, exponent = np.frexp(max_abs.astype(np.float64))
        snapped = np.ldexp(np.ceil(fraction * 2 * SNAP_STEPS) / (2 * SNAP_STEPS), exponent)
        if (snapped > np.finfo(np.float32).max).any():
            raise FormatError(f"magnitude {max_abs.max():.4g} has no snapped scale in float32")
        return np.asarray(snapped, np.float32)
    with np.errstate(over="ignore"):
        half = max_abs.astype(np.float16)
        half = np.where(half.astype(np.float32) < max_abs, np.nextafter(half, np.float16(np.inf)), half)
    if np.isinf(half).any():
        raise FormatError(f"magnitude {max_abs.max():.6g} is above 65504, the largest fp16 scale")
    return half.astype(np.float32)


@dataclass(frozen=True)
class SchemeTensor:
    """Codes and scales of one array under a :class:`Scheme`.

    Attributes
    ----------
    codes : ndarray of int8, shape (..., K)
    scales : ndarray of float32
        Shape (..., K / G) for groups of G, (..., 1) for one scale per row, (1, ..., 1) for one in all.
    scheme : Scheme
    """

    codes: CodeArray
    scales: FloatArray
    scheme: "Scheme"

    def dequantize(self) -> FloatArray:
        """Return ``codes * scales / 127`` as float32, shape (..., K)."""
        groups = split_groups(self.codes, self.scales.shape[-1])  # (..., K) -> (..., K/G, G)
        values = groups * self.scales[..., None].astype(np.float64) / MAX_CODE
        restored: FloatArray = values.reshape(self.codes.shape).astype(np.float32)  # (..., K/G, G) -> (..., K)
        return restored


@dataclass(frozen=True)
class Scheme:
    """One point of the grid {granularity} x {scale rule}.

    Parameters
    ----------
    granularity : int, "row" or "tensor", default 32
        How many neighbours along the last axis share a scale; a whole row; or the whole array.
    scale : {"pow2", "exact", "fp16", "snapped"}, default "pow2"
        How the group's largest magnitude becomes its scale: rounded up to a power of two (8 bits), kept in
        float32 (32 bits), rounded up to fp16 (16 bits), or rounded up to one of 8 steps an octave (11 bits).

    Raises
    ------
    FormatError
        For a granularity or a scale rule that is not one of these.

    Notes
    -----
    Under "pow2" and "exact" a second pass changes nothing. Under "fp16" and "snapped" it may: the largest value that
    comes back can lie just below the one that went in, and so just below a step of the scale.
    """

    granularity: int | Literal["row", "tensor"] = 32
    scale: ScaleRule = "pow2"

    def __post_init__(self) -> None:
        if self.granularity not in ("row", "tensor") and not is_whole(self.granularity, 1):
            raise FormatError(f'granularity must be a positive int, "row" or "tensor", got {self.granularity!r}')
        if self.scale not in get_args(ScaleRule):
            raise FormatError(f"scale must be one of {get_args(ScaleRule)}, got {self.scale!r}")

    def group_size(self, num_columns: int) -> int:
        """Values per group in a row of `num_columns`; the row must divide evenly."""
        size = num_columns if isinstance(self.granularity, str) else int(self.granularity)
        if num_columns % size:
            raise FormatError(f"a row of {num_columns} values does not divide into blocks of {size}")
        return size

    def quantize(self, x: ArrayLike) -> SchemeTensor:
        """Quantise an array along its last axis.

        Parameters
        ----------
        x : array_like, shape (..., K)
            Finite real numbers.

        Returns
        -------
        SchemeTensor
            Codes (..., K) int8 and their float32 scales. Costs about three passes over `x` in float64.

        Raises
        ------
        FormatError
            If K does not divide into groups, a value is not finite, or a scale does not fit its rule.
        """
        values = check_values(x)
        num_columns = values.shape[-1]
        groups = split_groups(values, num_columns // self.group_size(num_columns))  # (..., K) -> (..., K/G, G)
        max_abs = np.abs(groups).max(axis=-1)  # (..., K/G)
        if self.granularity == "tensor":
            max_abs = max_abs.max(keepdims=True, initial=0)  # (..., 1) -> (1, ..., 1)
        scales = scales_of(max_abs, self.scale)
        codes = codes_of(groups, scales[..., None]).reshape(values.shape)  # (..., K/G, G) -> (..., K)
        return SchemeTensor(codes, scales, self)

    def bits_per_value(self, num_columns: int, num_rows: int = 1) -> float:
        """Storage of one value in bits, its share of the scale included.

        Parameters
        ----------
        num_columns, num_rows : int
            Shape of the array; `num_rows` matters only when one scale serves all of it.
        """
        shared = self.group_size(num_columns)
        if self.granularity == "tensor":
            shared = num_columns * num_rows
        return 8 + SCALE_BITS[self.scale] / shared
