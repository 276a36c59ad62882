"""The small operations between the matrix products: norms, activations, rotary positions. All in float32."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """Subtract the mean of each row, divide by its standard deviation, then scale and shift (GPT-2).

    Parameters
    ----------
    weight, bias : ndarray of float32, shape (C,)
    eps : float
        Added to the variance, so that a constant row does not divide by zero.
    """

    weight: FloatArray
    bias: FloatArray
    eps: float

    def __call__(self, x: FloatArray) -> FloatArray:
        """Normalise each row of `x`, shape (T, C); the result has the same shape. About 8 T C operations."""
        centred: FloatArray = x - x.mean(axis=-1, keepdims=True)  # mean: (T, C) -> (T, 1)
        variance = np.square(centred).mean(axis=-1, keepdims=True)  # (T, C) -> (T, 1)
        centred /= np.sqrt(variance + np.float32(self.eps))
        centred *= self.weight
        centred += self.bias
        return centred


@dataclass(frozen=True, eq=False)
class RMSNorm:
    """Divide each row by its root mean square, then scale (Llama). No mean is taken off and nothing is added.

    Parameters
    ----------
    weight : ndarray of float32, shape (C,)
    eps : float
        Added to the mean square.
    """

    weight: FloatArray
    eps: float

    def __call__(self, x: FloatArray) -> FloatArray:
        """Normalise each row of `x`, shape (T, C); the result has the same shape. About 4 T C operations."""
        mean_square = np.square(x).mean(axis=-1, keepdims=True)  # (T, C) -> (T, 1)
        y: FloatArray = x / np.sqrt(mean_square + np.float32(self.eps))
        y *= self.weight
        return y


def gelu(x: FloatArray) -> FloatArray:
    """GPT-2's activation: the tanh approximation of ``x * P(normal < x)``, known as ``gelu_new``.

    Hendrycks and Gimpel, "Gaussian Error Linear Units", arXiv:1606.08415, section 2.
    """
    inner = x * x
    inner *= np.float32(0.044715)
    inner += 1
    inner *= x  # x + 0.044715 x^3
    inner *= np.float32(np.sqrt(2 / np.pi))
    np.tanh(inner, out=inner)
    inner += 1
    inner *= x
    inner *= np.float32(0.5)
    return inner


def silu(x: FloatArray) -> FloatArray:
    """Llama's activation, ``x * sigmoid(x)``."""
    with np.errstate(over="ignore"):  # exp(-x) of a very negative x is inf, and x / inf is the right answer: zero
        denominator = np.exp(-x)
    denominator += 1
    return np.divide(x, denominator, out=denominator)


def rope_tables(context_length: int, head_dim: int, theta: float) -> tuple[FloatArray, FloatArray]:
    """Cosines and sines of every rotary angle, for :func:`apply_rope`.

    Pair ``i`` of a head turns by ``position * theta ** (-2 i / D)`` radians (Su et al., arXiv:2104.09864, section 3.2).
    The frequency is rounded to float32 before it is multiplied by the position: this is what models were trained
    with, and at position 8000 a more exact product would differ from theirs by up to 5e-4 radians.

    Returns
    -------
    cos, sin : ndarray of float32, shape (context_length, head_dim // 2)
    """
    frequency = (1 / theta ** (np.arange(0, head_dim, 2) / head_dim)).astype(np.float32)  # (D/2,)
    angle = (
        np.arange(context_length, dtype=np.float32)[:, None] * frequency
    )  # (positions, 1) * (D/2,) -> (positions, D/2)
    return np.cos(angle), np.sin(angle)


def apply_rope(x: FloatArray, cos: FloatArray, sin: FloatArray) -> FloatArray:
    """Turn each pair of a head by its angle; element ``i`` is paired with element ``i + D/2``.

    This half-and-half pairing is the layout of weights published in the Hugging Face format. Files in the gguf format
    pair neighbours instead, so their q and k rows must be reordered (see ``cachequant_lib.model.convert``).

    Parameters
    ----------
    x : ndarray of float32, shape (T, H, D)
    cos, sin : ndarray of float32, shape (T, D/2)
        The table rows of the T positions.

    Returns
    -------
    ndarray of float32, shape (T, H, D)
    """
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]  # (T, H, D) -> twice (T, H, D/2)
    cos, sin = cos[:, None, :], sin[:, None, :]  # (T, D/2) -> (T, 1, D/2), the same for every head
    turned = np.empty_like(x)
    turned[..., :half] = first * cos - second * sin
    turned[..., half:] = second * cos + first * sin
    return turned
