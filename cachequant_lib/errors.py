"""The errors of the library: each is also the built-in a reader would expect to catch."""

__all__ = [
    "CacheError",
    "CacheQuantError",
    "CapacityError",
    "CheckpointError",
    "ContextLengthError",
    "FormatError",
    "InstructionSetError",
    "MeasurementError",
    "ModelNotFoundError",
    "ResultError",
    "SamplingError",
    "TokenError",
]


class CacheQuantError(Exception):
    """Base class: catch this to catch every error the library raises on purpose."""


class FormatError(CacheQuantError, ValueError):
    """A number format cannot hold these values, this shape or this name."""


class TokenError(CacheQuantError, ValueError):
    """A prompt is empty, or a token id is not one of the model's."""


class ContextLengthError(CacheQuantError, ValueError):
    """More positions were asked for than the model was trained to see."""


class CapacityError(CacheQuantError, ValueError):
    """A KV cache has no room for the rows it was given."""


class CacheError(CacheQuantError, ValueError):
    """A prefix cache was handed rows that do not belong where they were put."""


class CheckpointError(CacheQuantError, ValueError):
    """Weights on disk are damaged, mislabelled, incomplete or not finite."""


class ModelNotFoundError(CacheQuantError, FileNotFoundError):
    """No such model here; the message says how to get it."""


class SamplingError(CacheQuantError, ValueError):
    """A sampler was asked for that cannot draw."""


class ResultError(CacheQuantError, ValueError):
    """A stored measurement is missing or does not have the expected shape."""


class MeasurementError(CacheQuantError, ValueError):
    """A timing was asked for that cannot be taken, paired or summarised."""


class InstructionSetError(CacheQuantError, ValueError):
    """The instruction set that was asked for is unknown, or not one that this process may use."""
