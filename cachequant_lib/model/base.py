"""What every model has in common: its configuration, its checks, and one guarded forward pass."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cached_property
from inspect import signature
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cachequant_lib.errors import CapacityError, ContextLengthError, FormatError
from cachequant_lib.formats.scheme import is_whole
from cachequant_lib.kv.aligned import aligned_kv
from cachequant_lib.kv.base import KVCache
from cachequant_lib.kv.dense import DenseKV
from cachequant_lib.kv.gear import GearKV
from cachequant_lib.kv.kivi import KiviKV
from cachequant_lib.model.linear import Linear
from cachequant_lib.model.ops import FloatArray, LayerNorm, RMSNorm
from cachequant_lib.model.tokenizer import IdArray, Tokenizer, check_token_ids
from cachequant_lib.model.whole import Stage, WholePass, can_run

KV_FORMATS: dict[str, Callable[..., KVCache]] = {
    "dense": DenseKV,
    "aligned": aligned_kv,
    "kivi": KiviKV,
    "gear": GearKV,
}


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model. GPT-2 small: 12 layers, 12 heads of 64, width 768, vocabulary 50257, context 1024.

    Attributes
    ----------
    architecture : {"gpt2", "llama"}
    vocab_size : int
        V, the number of token ids, and of logits per position.
    context_length : int
        Most positions the model was trained to see.
    num_layers, num_heads, num_kv_heads, head_dim : int
        L, H, Hkv, D. GPT-2 has Hkv = H; with grouped-query attention H is a multiple of Hkv.
    width, hidden_width : int
        C, the size of the residual stream, and the size inside the MLP.
    norm_eps : float
    rope_theta : float or None
        Base of the rotary frequencies; None for GPT-2, whose positions are learned.
    tied_head : bool
        Whether the head is the token embedding itself.
    bos_token_id, eos_token_id : int or None
        Where the file lists several end tokens, the first.
    """

    architecture: Literal["gpt2", "llama"]
    vocab_size: int
    context_length: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    width: int
    hidden_width: int
    norm_eps: float
    rope_theta: float | None
    tied_head: bool
    bos_token_id: int | None
    eos_token_id: int | None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Model(ABC):
    """A decoder-only language model, its weights and its tokenizer. Nothing in it changes when it is used.

    Attributes
    ----------
    config : ModelConfig
    tokenizer : Tokenizer
    name : str
        What it was loaded as.
    embedding : ndarray of float32, shape (V, C)
    blocks : tuple
        One frozen dataclass a layer; its fields of type ``Linear`` are the ones that quantising replaces.
    final_norm : LayerNorm or RMSNorm
    head : Linear
        From the residual stream to logits. With a tied head it shares the embedding's memory.
    weight_format : str
        "fp32", or the format the linears were quantised to.
    layer_by_layer : bool
        Whether to run the blocks one linear after the other even where one compiled pass could do. That pass rounds
        its norms, activations and attention in its own order, so the two differ in the last bits.
    """

    config: ModelConfig
    tokenizer: Tokenizer
    name: str
    embedding: FloatArray
    blocks: tuple[Any, ...]
    final_norm: LayerNorm | RMSNorm
    head: Linear
    weight_format: str = "fp32"
    layer_by_layer: bool = False

    @abstractmethod
    def embed(self, ids: IdArray, start: int) -> FloatArray:
        """Return what the first block gets for checked ids, shape (T,), from position `start` on: (T, C)."""

    @abstractmethod
    def run_blocks(self, x: FloatArray, kv: KVCache) -> FloatArray:
        """Run the blocks over x (T, C), one linear after the other; appends to `kv`; returns (T, C)."""

    @abstractmethod
    def stages(self) -> list[Stage]:
        """Return the parts of each block in the order of the pass."""

    @cached_property
    def whole_pass(self) -> WholePass | None:
        """All blocks in one compiled call, if their linears are all int8 or all BFP8. Made on first use."""
        config, stages = self.config, self.stages()
        if self.layer_by_layer or not can_run(stages):
            return None
        return WholePass(stages, config.num_heads, config.num_kv_heads, config.head_dim, self.rope)

    @property
    def rope(self) -> tuple[FloatArray, FloatArray] | None:
        """Cosines and sines of the rotary angles, if the model turns positions in."""
        return None

    def hidden_states(self, ids: IdArray, kv: KVCache) -> FloatArray:
        """Run the blocks over checked ids, shape (T,); appends to `kv`; returns the residual stream, shape (T, C)."""
        x = self.embed(ids, kv.length)  # (T,) -> (T, C)
        if type(kv) is DenseKV and self.whole_pass is not None and self.whole_pass(x, kv):
            return x
        return self.run_blocks(x, kv)  # after numbers that were not finite, it tells which

    def forward(
        self, token_ids: ArrayLike, kv: KVCache, *, last_only: bool = False, num_best: int | None = None
    ) -> FloatArray:
        """Compute the logits of the next tokens; appends the T tokens to `kv`.

        Positions continue from ``kv.length``: there is no mask and no position argument that could disagree with the
        cache. If anything goes wrong on the way, `kv` is cut back to the length it came with.

        Parameters
        ----------
        token_ids : sequence of int, shape (T,)
            List, tuple, NumPy array or CPU tensor. One prompt: batches are refused, not padded.
        kv : KVCache
            From :meth:`new_kv`.
        last_only : bool, default False
            Compute the logits of the last position alone. In GPT-2 small the head is 31 % of the work per token.
        num_best : int, optional
            As `last_only`, and a promise to look at no more than so many of the largest logits. A certified head then
            reads a quarter of its bytes, and may put minus infinity in place of all others.

        Returns
        -------
        ndarray of float32, shape (T, V), or (1, V) with `last_only` or `num_best`
            Row ``i`` scores the token after ``token_ids[i]``. Chunks agree with one pass to 1e-5 of the largest logit
            in float32. With int8 or BFP8 blocks and a dense cache, the residual stream, keys and values are the same
            bits however a text is cut, on one machine; so is the last row that `last_only` gives.

        Raises
        ------
        TokenError
            If there are no ids, or they are not a flat sequence of whole numbers in ``0..V-1``.
        ContextLengthError
            If the positions would pass ``config.context_length``.
        CapacityError
            If `kv` has too little room.
        FormatError
            If `kv` has another model's shape, or `num_best` is no whole number of at least 1.
        """
        if num_best is not None and not is_whole(num_best, 1):
            raise FormatError(f"num_best must be a whole number of at least 1, got {num_best!r}")
        ids = check_token_ids(token_ids, self.config.vocab_size)
        start = self._check_kv(kv, len(ids))
        try:
            x = self.hidden_states(ids, kv)  # (T,) -> (T, C)
            if last_only or num_best is not None:
                x = x[-1:]  # (T, C) -> (1, C)
            x = self.final_norm(x)
            return self.head(x) if num_best is None else self.head.largest(x, num_best)  # (T, C) -> (T, V)
        except BaseException:
            kv.truncate(start)
            raise

    def new_kv(self, format: str = "dense", *, capacity: int | None = None, **options: Any) -> KVCache:
        """Make an empty cache of this model's shape.

        Parameters
        ----------
        format : {"dense", "aligned", "kivi", "gear"}
        capacity : int, optional
            Positions to make room for; the whole context if not given.
        **options
            Settings of the format: none for "dense"; those of :func:`~cachequant_lib.kv.aligned.aligned_kv`,
            :class:`~cachequant_lib.kv.kivi.KiviKV` and :class:`~cachequant_lib.kv.gear.GearKV` for the others.

        Raises
        ------
        FormatError
            If the format or an option is unknown, or `capacity` is not a whole number of at least 1.
        """
        if format not in KV_FORMATS:
            raise FormatError(f"no KV format {format!r}; the formats are {', '.join(map(repr, KV_FORMATS))}")
        settings = signature(KV_FORMATS[format]).parameters.values()
        unknown = options.keys() - {setting.name for setting in settings if setting.kind is setting.KEYWORD_ONLY}
        if unknown:
            raise FormatError(f"KV format {format!r} has no option {', '.join(map(repr, sorted(unknown)))}")
        config = self.config
        room = config.context_length if capacity is None else capacity
        if not is_whole(room, 1):
            raise FormatError(f"capacity must be a whole number of at least 1, got {room!r}")
        shape = (config.num_layers, config.num_kv_heads, config.head_dim, int(room))
        return KV_FORMATS[format](*shape, **options)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights as stored; a head that is the embedding itself counts once."""
        stored = [part for field in fields(self) for part in _weights(getattr(self, field.name))]
        shared = self.embedding.nbytes if getattr(self.head, "weight", None) is self.embedding else 0
        return sum(part.nbytes for part in stored) - shared

    @cached_property
    def fingerprint(self) -> str:
        """Name of exactly this model: 32 hexadecimal digits over its configuration, weights and weight format.

        Equal fingerprints mean equal logits: caches may be shared. Computed on first use, about 1 s for 1 GB, and kept.
        """
        unnamed = {"config", "tokenizer", "name"}
        if not (self.layer_by_layer and can_run(self.stages())):  # only then does it change a bit
            unnamed.add("layer_by_layer")
        digest = hashlib.blake2b(digest_size=16)
        digest.update(repr((asdict(self.config), self.weight_format)).encode())
        for field in fields(self):
            if field.name not in unnamed:
                _digest(digest, field.name, getattr(self, field.name))
        return digest.hexdigest()

    def __repr__(self) -> str:
        config = self.config
        return (
            f"<{self.name}: {config.architecture}, {config.num_layers} layers, {config.width} wide, "
            f"{self.weight_format}, {self.nbytes / 1e6:.1f} MB>"
        )

    def _check_kv(self, kv: KVCache, num_new: int) -> int:
        """Return where the new positions start, or raise if `kv` cannot take them."""
        config = self.config
        expected = (config.num_layers, config.num_kv_heads, config.head_dim)
        found = (kv.num_layers, kv.num_kv_heads, kv.head_dim)
        if found != expected:
            raise FormatError(
                f"this cache is another model's: (layers, KV heads, head size) is {found}, {self.name} needs {expected}"
            )
        start, stop = kv.length, kv.length + num_new
        if stop > config.context_length:
            raise ContextLengthError(
                f"{start} cached + {num_new} new = {stop} positions, but {self.name} has a context of "
                f"{config.context_length}: that is {stop - config.context_length} too many, shorten the text"
            )
        if stop > kv.capacity:
            raise CapacityError(
                f"{start} cached + {num_new} new = {stop} positions, but this cache has room for {kv.capacity}: "
                f"make it with new_kv(capacity={stop}) or more"
            )
        return start


def _weights(part: Any) -> Iterator[Linear | NDArray[Any]]:
    """All linears and other arrays in a tree of dataclasses and tuples."""
    if isinstance(part, Linear | np.ndarray):
        yield part
    elif isinstance(part, tuple):
        for item in part:
            yield from _weights(item)
    elif is_dataclass(part):
        for field in fields(part):
            yield from _weights(getattr(part, field.name))


def _digest(digest: "hashlib.blake2b", name: str, part: Any) -> None:
    """Feed a tree of linears, dataclasses, tuples, arrays and plain values to a hash, names and shapes included."""
    if isinstance(part, np.ndarray):
        digest.update(f"{name}:{part.dtype.str}{part.shape}".encode())
        digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)  # any shape -> (bytes,)
    elif isinstance(part, tuple):
        for index, item in enumerate(part):
            _digest(digest, f"{name}.{index}", item)
    elif isinstance(part, Linear) or is_dataclass(part):
        content = part.content() if isinstance(part, Linear) else {f.name: getattr(part, f.name) for f in fields(part)}
        digest.update(f"{name}:{type(part).__name__}".encode())
        for key, value in content.items():
            _digest(digest, f"{name}.{key}", value)
    else:
        digest.update(f"{name}:{part!r}".encode())
