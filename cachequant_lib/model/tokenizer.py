"""Text to token ids and back: a thin layer over the `tokenizers` library, with its silent cases made loud."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cachequant_lib.errors import CheckpointError, ModelNotFoundError, TokenError

IdArray = NDArray[np.int64]

END_OF_TEXT = "<|endoftext|>"


class Tokenizer:
    """Byte-level BPE: any text becomes ids and comes back unchanged.

    Parameters
    ----------
    backend : tokenizers.Tokenizer
        Its truncation and padding settings, if any, are switched off: text is never cut or padded in silence.
    eos_token_id : int, optional
        The id that ends a text.
    model_vocab_size : int, optional
        How many ids the model has. Embeddings are often padded to a round number, so it may choose an id that the
        tokenizer has no token for.

    Attributes
    ----------
    has_text : bool
        Whether text can be encoded and decoded. False where a folder of weights came without a tokenizer.

    Notes
    -----
    The written name of a special token, such as ``<|endoftext|>``, becomes that token, as it does in `transformers`.
    Untrusted text can therefore contain it.
    """

    has_text = True

    def __init__(self, backend: Any, eos_token_id: int | None = None, model_vocab_size: int | None = None) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.eos_token_id = eos_token_id
        self._num_ids = max(self.vocab_size, model_vocab_size or 0)

    def save(self, path: Path) -> None:
        """Write the tokenizer as a ``tokenizer.json``."""
        self._backend.save(str(path))

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special tokens included."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`. No token is added at either end; the empty text gives an empty list.

        Raises
        ------
        TokenError
            If `text` is not a string, or holds half of a surrogate pair: that is not a character and has no bytes.
        """
        if not isinstance(text, str):
            raise TokenError(f"expected text, got {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TokenError(
                f"character {error.start} of the text is {text[error.start]!r}, half of a surrogate pair: it stands "
                "for no character, so it has no token ids; remove it or repair the text's decoding"
            ) from error
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Sequence[int] | ArrayLike) -> str:
        """Return the text of some token ids, special tokens included; the empty list gives the empty text.

        Ids that end in the middle of a character give U+FFFD there, as in `transformers`. So does each id that is one
        of the model's, but for which the tokenizer has no token.

        Raises
        ------
        TokenError
            If an id is not a whole number in ``0..V-1``, V being the tokenizer's or the model's vocabulary, whichever
            is larger.
        """
        if _is_empty(token_ids):
            return ""
        parts: list[list[int]] = [[]]  # cut at every id without a token
        for token in check_token_ids(token_ids, self._num_ids).tolist():
            if self._backend.id_to_token(token) is None:
                parts.append([])
            else:
                parts[-1].append(token)
        return "\ufffd".join(self._backend.decode(part, skip_special_tokens=False) for part in parts)


class MissingTokenizer(Tokenizer):
    """Stands in where a folder carries weights alone: the model takes token ids, and text is refused.

    Parameters
    ----------
    folder : Path
        Named in the message.
    """

    has_text = False

    def __init__(self, folder: Path, eos_token_id: int | None = None) -> None:
        self._folder = folder
        self.eos_token_id = eos_token_id

    @property
    def vocab_size(self) -> int:
        """Refused: there is no vocabulary."""
        raise self._refusal()

    def encode(self, text: str) -> list[int]:
        """Refused: see the class."""
        raise self._refusal()

    def decode(self, token_ids: Sequence[int] | ArrayLike) -> str:
        """Refused, except that no ids give the empty text."""
        if _is_empty(token_ids):
            return ""
        raise self._refusal()

    def save(self, path: Path) -> None:
        """Refused: see the class."""
        raise self._refusal()

    def _refusal(self) -> ModelNotFoundError:
        return ModelNotFoundError(
            f"{self._folder} holds no tokenizer: give token ids instead of text, or put its tokenizer.json there"
        )


def _is_empty(token_ids: object) -> bool:
    """Whether this is a sequence, but of nothing. Empty text or an empty dictionary is no such sequence."""
    try:
        return not isinstance(token_ids, str | bytes | dict | set) and len(token_ids) == 0  # type: ignore[arg-type]
    except TypeError:  # a single number, None
        return False


def check_token_ids(token_ids: ArrayLike, vocab_size: int) -> IdArray:
    """Return the ids as an int64 array of shape (T,), or raise before anything is computed.

    Raises
    ------
    TokenError
        If there are none, they are not flat, not whole numbers, or outside ``0..vocab_size-1``.
    """
    if isinstance(token_ids, str):
        raise TokenError(f"expected token ids, got the text {token_ids[:40]!r}: call tokenizer.encode first")
    try:
        ids = np.asarray(token_ids)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise TokenError(f"token ids must be one flat sequence of whole numbers ({error})") from error
    if ids.ndim != 1:
        raise TokenError(
            f"token ids must be one flat sequence, got {ids.ndim} dimensions {ids.shape}: "
            "batches are not supported, run one prompt at a time"
        )
    if len(ids) == 0:
        raise TokenError("no token ids: the prompt is empty, and a model needs at least one token to continue from")
    if ids.dtype.kind not in "iu":
        raise TokenError(f"token ids must be whole numbers, got {ids[0]} ({ids.dtype})")
    low, high = ids.min(), ids.max()
    if low < 0 or high >= vocab_size:
        bad = low if low < 0 else high
        where = int(np.argmax(ids == bad))
        raise TokenError(f"token id {bad} at position {where} is not in 0..{vocab_size - 1}")
    return ids.astype(np.int64)


def load_tokenizer(folder: Path, eos_token_id: int | None = None, model_vocab_size: int | None = None) -> Tokenizer:
    """Read ``tokenizer.json``, or ``vocab.json`` with ``merges.txt``, from a folder.

    A folder with no trace of a tokenizer gives one that refuses text, so that bare weights can still be run on ids.

    Raises
    ------
    ModelNotFoundError
        If part of a tokenizer is there, but not the files needed to build it.
    CheckpointError
        If a file cannot be read as a tokenizer.
    """
    from tokenizers import Tokenizer as Backend

    whole, vocab, merges = folder / "tokenizer.json", folder / "vocab.json", folder / "merges.txt"
    try:
        if whole.is_file():
            return Tokenizer(Backend.from_file(str(whole)), eos_token_id, model_vocab_size)
        if vocab.is_file() and merges.is_file():
            tokens = json.loads(vocab.read_text("utf-8"))
            return byte_level_bpe(tokens, read_merges(merges), eos_token_id, model_vocab_size=model_vocab_size)
    except Exception as error:  # the backend raises bare Exception
        raise CheckpointError(f"the tokenizer files in {folder} cannot be read: {error}") from error
    traces = [name for name in _TOKENIZER_TRACES if (folder / name).exists()]
    if traces:
        raise ModelNotFoundError(
            f"{folder} has {', '.join(traces)} but neither tokenizer.json nor both vocab.json and merges.txt: "
            "copy the missing file there"
        )
    return MissingTokenizer(folder, eos_token_id)


_TOKENIZER_TRACES = ("tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt", "tokenizer.model")


def gpt2_tokenizer(vocab_bpe: Path, model_vocab_size: int | None = None) -> Tokenizer:
    """Build GPT-2's tokenizer from its merge list alone: the vocabulary follows from the order of the merges.

    Ids 0..255 are the bytes in the order of their printable stand-ins, then one id a merge, then ``<|endoftext|>``.
    """
    merges = read_merges(vocab_bpe)
    tokens = [*_byte_symbols(), *(left + right for left, right in merges), END_OF_TEXT]
    vocab = {token: index for index, token in enumerate(tokens)}
    return byte_level_bpe(vocab, merges, len(tokens) - 1, model_vocab_size=model_vocab_size)


def read_merges(path: Path) -> list[tuple[str, str]]:
    """Read a merge list: one pair a line, best first, after an optional ``#version`` line."""
    pairs: list[tuple[str, str]] = []
    lines = path.read_text("utf-8").split("\n")
    for line in lines[1:] if lines[0].startswith("#version") else lines:
        if line:
            left, right = line.split(" ")
            pairs.append((left, right))
    return pairs


def byte_level_bpe(
    vocab: dict[str, int],
    merges: list[tuple[str, str]],
    eos_token_id: int | None,
    *,
    special: Sequence[str] = (END_OF_TEXT,),
    split_digits: bool = False,
    model_vocab_size: int | None = None,
) -> Tokenizer:
    """Build a byte-level BPE tokenizer.

    Parameters
    ----------
    vocab : dict
        Token to id.
    merges : list of (str, str)
        Best first.
    eos_token_id : int or None
    special : sequence of str
        Tokens recognised whole wherever they are written; those not in `vocab` are left out.
    split_digits : bool, default False
        Make every digit its own token, as SmolLM2 does.
    model_vocab_size : int, optional
        See :class:`Tokenizer`.
    """
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    backend = Backend(models.BPE(vocab=vocab, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level]) if split_digits else byte_level
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special if token in vocab]
    )
    return Tokenizer(backend, eos_token_id, model_vocab_size)


def _byte_symbols() -> list[str]:
    """Return the 256 stand-ins of bytes: the printable ones first, as themselves, then the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(byte) for byte in printable] + [chr(0x100 + n) for n in range(256 - len(printable))]
