"""The readable kernel: three plain loops, 8-bit integers multiplied exactly, shared by int8 and BFP8."""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from cachequant_lib.kernels.jit import cached_njit

MAX_K = (2**31 - 1) // (127 * 127)
"""Longest group whose int32 sum of products of codes cannot overflow: 133,144."""


@cached_njit(parallel=True)
def matmul_blocks(
    a_codes: NDArray[np.int8],
    a_scales: NDArray[np.float64],
    b_codes: NDArray[np.int8],
    b_scales: NDArray[np.float64],
    bias: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Write ``a @ b.T + bias`` into `out`, multiplying codes as integers and scaling once a group.

    Parameters
    ----------
    a_codes : int8, shape (M, B, G)
        B groups of G codes a row. int8 has one group (1, K); BFP8 has (K / 32, 32).
    a_scales : float64, shape (M, B)
    b_codes, b_scales
        The same for the weight, shapes (N, B, G) and (N, B).
    bias : float32, shape (N,)
    out : float32, shape (M, N)

    Notes
    -----
    M N K int8 multiplies summed in int32 (a code is at most 127 and G at most ``MAX_K``, so no sum overflows);
    M N B float64 multiplies. Threads split the N outputs, the one axis that is long at decode, where M is 1: each
    output is summed by one thread in one order, so every thread count gives the same bits.
    """
    num_rows, num_groups, group_size = a_codes.shape
    for j in numba.prange(b_codes.shape[0]):  # type: ignore[no-untyped-call,attr-defined]
        for i in range(num_rows):
            total = 0.0
            for g in range(num_groups):
                dot = np.int32(0)
                for k in range(group_size):
                    dot = np.int32(dot + np.int32(a_codes[i, g, k]) * np.int32(b_codes[j, g, k]))
                total += dot * a_scales[i, g] * b_scales[j, g]
            out[i, j] = np.float32(total / (127 * 127) + bias[j])


def matmul_int8(a: Any, a_scales: Any, b: Any, b_scales: Any, bias: Any, out: Any) -> None:
    """Run :func:`matmul_blocks` on int8 operands: codes (M, K) and (N, K), float64 scales (M,) and (N,)."""
    matmul_blocks(a[:, None], a_scales[:, None], b[:, None], b_scales[:, None], bias, out)  # (M, K) -> (M, 1, K)


def matmul_bfp8(a: Any, a_scales: Any, b: Any, b_scales: Any, bias: Any, out: Any) -> None:
    """Run :func:`matmul_blocks` on BFP8 operands: codes (M, K) and (N, K), float64 scales (M, K/32) and (N, K/32)."""
    num_blocks = b_scales.shape[1]
    block_size = b.shape[1] // num_blocks
    a_blocks = a.reshape(len(a), num_blocks, block_size)  # (M, K) -> (M, K/32, 32)
    b_blocks = b.reshape(len(b), num_blocks, block_size)  # (N, K) -> (N, K/32, 32)
    matmul_blocks(a_blocks, a_scales, b_blocks, b_scales, bias, out)
