from .bench import interleave, machine_info, measure, pin_threads
from .checkup import doctor
from .errors import (
    CacheError,
    CacheQuantError,
    CapacityError,
    CheckpointError,
    ContextLengthError,
    FormatError,
    ModelNotFoundError,
    ResultError,
    SamplingError,
    TokenError,
)
from .evaluate import Comparison, Perplexity, compare, perplexity
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
from .kv.prefix import PrefixCache
from .kv.trie import TokenTrie
from .model.linear import BFP8Linear, Float32Linear, Int8Linear
from .model.matmul import matmul_bfp8, matmul_int8
from .model.quantize import quantize_model
from .model.registry import fetch, heldout_text, load

__all__ = [
    "BFP8Linear",
    "BFP8Tensor",
    "CacheError",
    "CacheQuantError",
    "CapacityError",
    "CheckpointError",
    "Comparison",
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
    "Perplexity",
    "PrefixCache",
    "ResultError",
    "SamplingError",
    "Scheme",
    "SchemeTensor",
    "TokenError",
    "TokenTrie",
    "compare",
    "dequantize",
    "doctor",
    "fetch",
    "generate",
    "greedy",
    "heldout_text",
    "interleave",
    "load",
    "machine_info",
    "matmul_bfp8",
    "matmul_int8",
    "measure",
    "perplexity",
    "pin_threads",
    "quantize_bfp8",
    "quantize_int8",
    "quantize_model",
    "sample",
]
