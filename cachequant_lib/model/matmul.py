"""Products of two quantised tensors, with true integer arithmetic on the readable kernel."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachequant_lib.errors import FormatError
from cachequant_lib.formats import BFP8Tensor, Int8Tensor
from cachequant_lib.kernels import loops
from cachequant_lib.kernels.jit import PARALLEL
from cachequant_lib.model.linear import FloatArray, check_sum_length

Operand = tuple[NDArray[np.int8], NDArray[Any]]  # codes (M, K), and their scales (M,) or exponents (M, K / 32)


def matmul_int8(x: Int8Tensor, weight: Int8Tensor, bias: FloatArray | None = None) -> FloatArray:
    """Multiply two int8 matrices with true integer arithmetic: ``x @ weight.T + bias``.

    Parameters
    ----------
    x : Int8Tensor, codes (M, K)
    weight : Int8Tensor, codes (N, K)
    bias : ndarray of float32, shape (N,), optional

    Returns
    -------
    ndarray of float32, shape (M, N)
        Sums of products are exact in int32, then scaled in float64: M N K multiply-adds, one scaling an output.

    Raises
    ------
    FormatError
        If an operand is not int8, the shapes do not match, or K is long enough for an int32 sum to overflow.
    """
    for operand in (x, weight):
        if not isinstance(operand, Int8Tensor):
            raise FormatError(f"matmul_int8 takes two Int8Tensor, got {type(operand).__name__}")
    bias = _check_operands((x.codes, x.scales), (weight.codes, weight.scales), bias)
    check_sum_length(x.codes.shape[1])
    out = np.empty((len(x.codes), len(weight.codes)), np.float32)
    x_scales, weight_scales = x.scales.astype(np.float64), weight.scales.astype(np.float64)
    with PARALLEL:
        loops.matmul_int8(x.codes, x_scales, weight.codes, weight_scales, bias, out)
    return out


def matmul_bfp8(x: BFP8Tensor, weight: BFP8Tensor, bias: FloatArray | None = None) -> FloatArray:
    """Multiply two BFP8 matrices with true integer arithmetic inside each block: ``x @ weight.T + bias``.

    Parameters
    ----------
    x : BFP8Tensor, mantissas (M, K)
    weight : BFP8Tensor, mantissas (N, K)
        With the block size of `x`.
    bias : ndarray of float32, shape (N,), optional

    Returns
    -------
    ndarray of float32, shape (M, N)
        Sums within a block are exact in int32; K / 32 scalings an output in float64.

    Raises
    ------
    FormatError
        If an operand is not BFP8, the shapes or the block sizes do not match.
    """
    for operand in (x, weight):
        if not isinstance(operand, BFP8Tensor):
            raise FormatError(f"matmul_bfp8 takes two BFP8Tensor, got {type(operand).__name__}")
    operands = (x.mantissas, x.exponents), (weight.mantissas, weight.exponents)
    bias = _check_operands(*operands, bias)
    if x.block_size != weight.block_size:
        raise FormatError(f"block sizes differ: {x.block_size} and {weight.block_size}")
    check_sum_length(x.block_size)
    out = np.empty((len(x.mantissas), len(weight.mantissas)), np.float32)
    x_scales, weight_scales = np.ldexp(1.0, x.exponents), np.ldexp(1.0, weight.exponents)
    with PARALLEL:
        loops.matmul_bfp8(x.mantissas, x_scales, weight.mantissas, weight_scales, bias, out)
    return out


def _check_operands(x: Operand, weight: Operand, bias: FloatArray | None) -> FloatArray:
    """Raise unless codes, scales and bias fit each other; return the bias, zeros if there is none.

    Whoever builds a tensor by hand can get it wrong, and a kernel does not look: it would read past the scales.
    """
    for codes, scales in (x, weight):
        if codes.ndim != 2 or codes.dtype != np.int8 or codes.size == 0 or scales.shape[:1] != codes.shape[:1]:
            got = f"{codes.dtype} {codes.shape} with scales {scales.shape}"
            raise FormatError(f"expected int8 codes (M, K) with a row of scales for each row of codes, got {got}")
        if scales.ndim > 2 or (scales.ndim == 2 and (scales.dtype.kind != "i" or codes.shape[1] % scales.shape[1])):
            raise FormatError(f"scales of shape {scales.shape} and type {scales.dtype} do not fit codes {codes.shape}")
        if codes.min() < -127:
            raise FormatError("codes lie in -127..127, got -128")
    if x[0].shape[1] != weight[0].shape[1]:
        raise FormatError(f"expected codes (M, K) and (N, K), got {x[0].shape} and {weight[0].shape}")
    if bias is None:
        return np.zeros(len(weight[0]), np.float32)
    bias = np.asarray(bias, np.float32)
    if bias.shape != (len(weight[0]),):
        raise FormatError(f"expected a bias of shape ({len(weight[0])},), got {bias.shape}")
    return bias
