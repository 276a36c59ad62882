"""The small operations agree with torch's, and stay finite at the far ends of float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from cachequant_lib.model.ops import LayerNorm, RMSNorm, apply_rope, gelu, rope_tables, silu

X = (np.random.default_rng(0).standard_normal((5, 24)) * 3 + 1).astype(np.float32)
WEIGHT, BIAS = np.random.default_rng(1).standard_normal((2, 24)).astype(np.float32)


def test_layer_norm_is_torchs() -> None:
    expected = torch.nn.functional.layer_norm(
        *map(torch.from_numpy, (X,)), (24,), *map(torch.from_numpy, (WEIGHT, BIAS))
    )
    assert_allclose(LayerNorm(WEIGHT, BIAS, 1e-5)(X), expected.numpy(), atol=2e-6)


def test_rms_norm_is_torchs() -> None:
    expected = torch.nn.functional.rms_norm(torch.from_numpy(X), (24,), torch.from_numpy(WEIGHT), 1e-5)
    assert_allclose(RMSNorm(WEIGHT, 1e-5)(X), expected.numpy(), atol=2e-6)


@pytest.mark.parametrize("norm", [LayerNorm(WEIGHT, BIAS, 1e-5), RMSNorm(WEIGHT, 1e-5)])
def test_norms_leave_their_input_alone_and_survive_zeros(norm: LayerNorm | RMSNorm) -> None:
    before = X.copy()
    norm(X)
    assert_allclose(X, before, atol=0)
    assert np.isfinite(norm(np.zeros((2, 24), np.float32))).all()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(gelu, lambda x: torch.nn.functional.gelu(x, approximate="tanh")), (silu, torch.nn.functional.silu)],
)
def test_activations_are_torchs_up_to_large_values(ours: object, theirs: object) -> None:
    x = np.concatenate([np.linspace(-12, 12, 2001), [-1e4, -200, -88.8, 0, 200, 1e4]]).astype(np.float32)
    y = ours(x)  # type: ignore[operator]
    assert y.dtype == np.float32
    assert_allclose(y, theirs(torch.from_numpy(x)).numpy(), rtol=2e-6, atol=2e-6)  # type: ignore[operator]


@given(st.integers(0, 200), st.integers(0, 60))
def test_rotary_scores_depend_on_the_distance_alone(start: int, distance: int) -> None:
    """The property the rotation exists for: moving query and key together changes nothing."""
    cos, sin = rope_tables(300, 16, 10000.0)
    q, k = np.random.default_rng(3).standard_normal((2, 1, 1, 16)).astype(np.float32)

    def score(key_position: int) -> float:
        query = slice(key_position + distance, key_position + distance + 1)
        key = slice(key_position, key_position + 1)
        return float((apply_rope(q, cos[query], sin[query]) * apply_rope(k, cos[key], sin[key])).sum())

    assert score(start) == pytest.approx(score(0), abs=2e-4)


def test_rotation_keeps_lengths_and_position_zero_keeps_everything() -> None:
    cos, sin = rope_tables(8, 6, 10000.0)
    x = np.random.default_rng(4).standard_normal((8, 3, 6)).astype(np.float32)
    turned = apply_rope(x, cos, sin)
    assert turned.shape == x.shape
    assert_allclose(np.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)
    assert_allclose(turned[0], x[0], atol=0)
