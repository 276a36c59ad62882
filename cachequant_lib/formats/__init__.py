"""Number formats in plain NumPy: what the 8-bit codes and their scales mean."""

from cachequant_lib.errors import FormatError
from cachequant_lib.formats.bfp8 import BFP8Tensor, quantize_bfp8
from cachequant_lib.formats.int8 import Int8Tensor, quantize_int8
from cachequant_lib.formats.scheme import FloatArray, Scheme, SchemeTensor

__all__ = [
    "BFP8Tensor",
    "Int8Tensor",
    "Scheme",
    "SchemeTensor",
    "dequantize",
    "quantize_bfp8",
    "quantize_int8",
]


def dequantize(tensor: Int8Tensor | BFP8Tensor | SchemeTensor) -> FloatArray:
    """Give back the values that the codes stand for.

    Parameters
    ----------
    tensor : Int8Tensor, BFP8Tensor or SchemeTensor
        Codes and scales, as a ``quantize`` function returned them.

    Returns
    -------
    ndarray of float32
        ``code * scale / 127``, in the shape of the array that was quantised. Costs one multiply a value.

    Raises
    ------
    FormatError
        If it is none of these.
    """
    if not isinstance(tensor, Int8Tensor | BFP8Tensor | SchemeTensor):
        raise FormatError(f"expected a quantised tensor, got {type(tensor).__name__}")
    return tensor.dequantize()
