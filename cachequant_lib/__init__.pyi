from .bench import interleave, machine_info, measure, pin_threads
from .doctor import doctor
from .errors import (
    CacheError,
    CacheQuantError,
    CapacityError,
    CheckpointError,
    ContextLengthError,
    FormatError,
    ModelNotFoundError,
    ResultError,
    TokenError,
)
from .formats import (
    BFP8Tensor,
    Int8Tensor,
    Scheme,
    SchemeTensor,
    dequantize,
    quantize_bfp8,
    quantize_int8,
)
from .generation import Generation, generate, greedy, sample
from .kv.base import KVBlock, KVCache
from .kv.dense import DenseKV
from .kv.trie import TokenTrie
from .model.checkpoint import load
from .model.linear import BFP8Linear, Float32Linear, Int8Linear, matmul_bfp8, matmul_int8
from .model.quantize import quantize_model
from .model.registry import fetch

__all__ = [
    "BFP8Linear",
    "BFP8Tensor",
    "CacheError",
    "CacheQuantError",
    "CapacityError",
    "CheckpointError",
    "ContextLengthError",
    "DenseKV",
    "Float32Linear",
    "FormatError",
    "Generation",
    "Int8Linear",
    "Int8Tensor",
    "KVBlock",
    "KVCache",
    "ModelNotFoundError",
    "ResultError",
    "Scheme",
    "SchemeTensor",
    "TokenError",
    "TokenTrie",
    "dequantize",
    "doctor",
    "fetch",
    "generate",
    "greedy",
    "interleave",
    "load",
    "machine_info",
    "matmul_bfp8",
    "matmul_int8",
    "measure",
    "pin_threads",
    "quantize_bfp8",
    "quantize_int8",
    "quantize_model",
    "sample",
]
