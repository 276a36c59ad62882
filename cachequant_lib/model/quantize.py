"""Swap a model's linear layers for quantised ones."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar

from cachequant_lib.errors import FormatError
from cachequant_lib.formats import Scheme
from cachequant_lib.model.base import Model
from cachequant_lib.model.heads import CertifiedHead
from cachequant_lib.model.linear import BFP8Linear, Float32Linear, Int8Linear, Linear, SchemeLinear

ModelT = TypeVar("ModelT", bound=Model)

SCHEMES: dict[str, type[Linear]] = {"fp32": Float32Linear, "int8": Int8Linear, "bfp8": BFP8Linear}
HEADS: dict[str, type[Linear]] = {"fp32": Float32Linear, "int8": Int8Linear, "certified": CertifiedHead}


def quantize_model(model: ModelT, scheme: str | Scheme, head: str = "fp32") -> ModelT:
    """Return the model with every linear layer of its decoder blocks quantised: 4 a block in GPT-2, 7 in Llama.

    Embeddings, norms, attention and residuals stay float32. The given model is untouched and shares them.

    Parameters
    ----------
    model : Model
        A float32 model, as :func:`cachequant_lib.load` returns it.
    scheme : {"int8", "bfp8", "fp32"} or Scheme
        The first two multiply true integers; the third leaves the blocks as they are, to change the head alone. A
        :class:`Scheme` is simulated: quantised, dequantised, multiplied in float32.
    head : {"fp32", "int8", "certified"}, default "fp32"
        The projection to the vocabulary. "certified" reads an int8 copy to choose the next token, and proves that it is
        the one the float32 head would choose; asked for all logits, it is the float32 head. The token embedding keeps
        its float32 copy in any case.

    Returns
    -------
    Model
        Of the same class, with ``weight_format`` set. Costs one quantisation of each weight.

    Raises
    ------
    FormatError
        For an unknown scheme or head, a model that is quantised already, or rows that do not divide into blocks.
    """
    make = _linear_maker(scheme)
    if head not in HEADS:
        raise FormatError(f"head must be one of {tuple(HEADS)}, got {head!r}")
    if model.weight_format != "fp32":
        raise FormatError(f"expected a float32 model, got one in {model.weight_format!r}: quantise the original")
    changes: dict[str, Any] = {"weight_format": str(scheme)}
    if scheme != "fp32":
        changes["blocks"] = tuple(_quantize_block(block, make) for block in model.blocks)
    if head != "fp32":
        changes |= {"head": _requantize(model.head, HEADS[head]), "weight_format": f"{scheme}, {head} head"}
    return replace(model, **changes)


def _linear_maker(scheme: object) -> Callable[..., Linear]:
    """Return what builds a layer in this scheme from a weight and a bias."""
    if isinstance(scheme, Scheme):
        return lambda weight, bias: SchemeLinear(weight, bias, scheme=scheme)
    if not isinstance(scheme, str) or scheme not in SCHEMES:
        raise FormatError(f"scheme must be one of {tuple(SCHEMES)} or a Scheme, got {scheme!r}")
    return SCHEMES[scheme]


def _quantize_block(block: Any, make: Callable[..., Linear]) -> Any:
    """Return a copy of a decoder block with each of its linear layers rebuilt."""
    layers = {f.name: getattr(block, f.name) for f in fields(block)}
    return replace(block, **{name: _requantize(x, make) for name, x in layers.items() if isinstance(x, Linear)})


def _requantize(layer: Linear, make: Callable[..., Linear]) -> Linear:
    """Rebuild one float32 layer."""
    assert isinstance(layer, Float32Linear)
    return make(layer.weight, layer.bias)
