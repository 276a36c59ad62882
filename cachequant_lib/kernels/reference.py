"""Exact integer oracles in NumPy: slow, obvious, and what every kernel must equal bit for bit."""

import numpy as np
from numpy.typing import NDArray


def matmul_int8_ref(
    a_codes: NDArray[np.int8],
    a_scales: NDArray[np.float32],
    b_codes: NDArray[np.int8],
    b_scales: NDArray[np.float32],
    bias: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Multiply codes (M, K) and (N, K) as 64-bit integers, then scale once: (M, N) float32.

    `a_scales` is (M,), `b_scales` (N,), `bias` (N,). The integers are exact; the scaling is float64.
    """
    a_columns = a_scales[:, None].astype(np.float64)  # (M,) -> (M, 1)
    b_columns = b_scales[:, None].astype(np.float64)  # (N,) -> (N, 1)
    return _matmul_ref(a_codes, a_columns, b_codes, b_columns, bias)


def matmul_bfp8_ref(
    a_mantissas: NDArray[np.int8],
    a_exponents: NDArray[np.int32],
    b_mantissas: NDArray[np.int8],
    b_exponents: NDArray[np.int32],
    bias: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Multiply mantissas (M, K) and (N, K) block by block as 64-bit integers: (M, N) float32.

    `a_exponents` is (M, K / 32), `b_exponents` (N, K / 32), `bias` (N,). Blocks are added in order in float64.
    """
    a_scales, b_scales = np.ldexp(1.0, a_exponents), np.ldexp(1.0, b_exponents)
    return _matmul_ref(a_mantissas, a_scales, b_mantissas, b_scales, bias)


def linear_int8_ref(
    a_codes: NDArray[np.int8],
    a_scales: NDArray[np.float32],
    b_codes: NDArray[np.int8],
    b_scales: NDArray[np.float32],
    bias: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Compute what the packed int8 kernel does, operation by operation: exact sums, then float32.

    Shapes as for :func:`matmul_int8_ref`, from which it differs by at most five roundings to float32 of the product
    and one of the sum.
    """
    steps = (a_scales.astype(np.float64) / (127 * 127)).astype(np.float32)  # (M,)
    sums = a_codes.astype(np.int64) @ b_codes.astype(np.int64).T  # (M, N)
    return sums.astype(np.float32) * b_scales * steps[:, None] + bias


def linear_bfp8_ref(
    a_mantissas: NDArray[np.int8],
    a_exponents: NDArray[np.int32],
    b_mantissas: NDArray[np.int8],
    b_exponents: NDArray[np.int32],
    bias: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Compute what the packed BFP8 kernel does, operation by operation: exact sums of a block, then float32.

    Shapes as for :func:`matmul_bfp8_ref`, from which it differs by the rounding of K / 32 additions, of the product
    with 1 / 127**2, and of the bias.
    """
    num_blocks = a_exponents.shape[1]
    a_blocks = np.split(a_mantissas.astype(np.int64), num_blocks, axis=1)  # (M, K) -> K/32 of (M, 32)
    b_blocks = np.split(b_mantissas.astype(np.int64), num_blocks, axis=1)  # (N, K) -> K/32 of (N, 32)
    a_powers, b_powers = np.ldexp(np.float32(1), a_exponents), np.ldexp(np.float32(1), b_exponents)
    total = np.zeros((len(a_mantissas), len(b_mantissas)), np.float32)
    for g, (a, b) in enumerate(zip(a_blocks, b_blocks, strict=True)):
        total += (a @ b.T).astype(np.float32) * b_powers[None, :, g] * a_powers[:, g, None]
    return total * np.float32(1 / (127 * 127)) + bias


def bound_columns_ref(
    codes: NDArray[np.int8],
    units: NDArray[np.float32],
    lengths: NDArray[np.float32],
    errors: NDArray[np.float32],
    digits: NDArray[np.int8],
    factors: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Compute what the packed head does, operation by operation: exact sums of two digits, then float32.

    `codes` is (V, K), `digits` (2, K), `factors` (3,): step, alpha, beta. Returns the lowest and highest logits (2, V).
    """
    step, alpha, beta = factors
    high, low = (digits.astype(np.int64) @ codes.astype(np.int64).T).astype(np.float32)  # (2, V)
    logits = (high * np.float32(128) + low) * step * units
    radii = lengths * alpha + errors * beta + np.float32(2.0**-120)
    return np.stack([logits - radii, logits + radii])


def _matmul_ref(
    a_codes: NDArray[np.int8],
    a_scales: NDArray[np.float64],
    b_codes: NDArray[np.int8],
    b_scales: NDArray[np.float64],
    bias: NDArray[np.float32] | None,
) -> NDArray[np.float32]:
    """Sum the integer dot products of each group of columns, scaled, from left to right."""
    num_groups = a_scales.shape[1]
    a_groups = np.split(a_codes.astype(np.int64), num_groups, axis=1)  # (M, K) -> K/G of (M, G)
    b_groups = np.split(b_codes.astype(np.int64), num_groups, axis=1)  # (N, K) -> K/G of (N, G)
    total = np.zeros((len(a_codes), len(b_codes)))
    for g, (a, b) in enumerate(zip(a_groups, b_groups, strict=True)):
        total += (a @ b.T) * a_scales[:, g, None] * b_scales[None, :, g]
    total /= 127 * 127
    if bias is not None:
        total += bias
    return total.astype(np.float32)
