"""``SHA256SUMS``: a list of files and the digests they must have, in the format of the command ``sha256sum``."""

import hashlib
import re
from pathlib import Path

from cachequant_lib.errors import CheckpointError
from cachequant_lib.model.entries import shown

CHECKSUMS = "SHA256SUMS"


def verify_checksums(folder: Path) -> None:
    """Compare the files of a folder with its ``SHA256SUMS``, if it has one. Hashing costs about 0.6 s a GB.

    Raises
    ------
    CheckpointError
        If a listed file is missing or has other contents, or a line is not one that ``sha256sum`` writes. Blank lines
        and lines that start with ``#`` are passed over.
    """
    listing = folder / CHECKSUMS
    if not listing.is_file():
        return
    try:
        lines = listing.read_text("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{listing} is not UTF-8 text: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = re.fullmatch(r"([0-9a-fA-F]{64}) [ *](\S.*?)\s*", line)  # the star marks a file read as binary
        if parts is None or not _stays_inside(parts[2]):
            raise CheckpointError(
                f"{listing}, line {number}: {shown(line)} is not 64 hexadecimal digits, two spaces and a file's name"
            )
        verify_sha256(folder / parts[2], parts[1])


def verify_sha256(path: Path, expected: str) -> None:
    """Raise CheckpointError unless the file's SHA-256 is `expected`, in hexadecimal."""
    if not path.is_file():
        raise CheckpointError(f"{path} is missing, though its folder's {CHECKSUMS} lists it; fetch the model again")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected.lower():
        raise CheckpointError(
            f"{path} has SHA-256 {found}, expected {expected}: it was changed or damaged; fetch it again"
        )


def _stays_inside(name: str) -> bool:
    """Whether a listed name can only mean a file in its own folder or below."""
    path = Path(name)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in name
