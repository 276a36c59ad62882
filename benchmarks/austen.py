"""Read Jane Austen's six novels out of Debian's package ``r-cran-janeaustenr``, without R.

Get the package and unpack it anywhere: ``apt-get download r-cran-janeaustenr`` and ``dpkg -x FILE.deb FOLDER``. The
novels are character vectors, one string a line, in an R "lazy-load database": ``Rdata.rdx`` says where each variable
lies in ``Rdata.rdb``, both in R's serialisation format (described in the manual "R Internals", section 1.8).
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from pathlib import Path
from typing import Any

SYMBOL, PAIRLIST, STRING, LOGICAL, INTEGER, REAL, STRINGS, LIST = 1, 2, 9, 10, 13, 14, 16, 19
REFERENCE, FIRST_EMPTY = 255, 241  # 241..254 are R's names for nothing: NULL, empty environments, and so on
NUMBER_CODES = {LOGICAL: "i", INTEGER: "i", REAL: "d"}


def read_novels(folder: Path) -> dict[str, str]:
    """Return title to text for every character vector in the database of a folder."""
    index = Unserializer(_decompress_stream((folder / "Rdata.rdx").read_bytes())).value()
    database = (folder / "Rdata.rdb").read_bytes()
    novels = {}
    for name, (start, length) in index["variables"].items():
        lines = Unserializer(_decompress_chunk(database[start : start + length])).value()
        if isinstance(lines, list) and lines and isinstance(lines[0], str):
            novels[name] = "\n".join(lines)
    return novels


class Unserializer:
    """Turns R's binary (XDR) serialisation into lists, dictionaries, strings and numbers."""

    def __init__(self, data: bytes) -> None:
        if data[:2] != b"X\n":
            raise ValueError(f"expected R's binary serialisation to begin with 'X', got {data[:2]!r}")
        self.data, self.position = data, 2
        self.symbols: list[Any] = []
        version, _, _ = self.integers(3)
        if version == 3:  # names the encoding it was written in
            encoding_length = self.integers(1)[0]
            self.position += encoding_length

    def integers(self, count: int) -> tuple[int, ...]:
        """Read big-endian 32-bit integers."""
        return self.numbers("i", count)

    def numbers(self, code: str, count: int) -> tuple[Any, ...]:
        """Read big-endian numbers of one kind, a letter of the `struct` module."""
        layout = struct.Struct(f">{count}{code}")
        values = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return values

    def value(self) -> Any:
        """Read the next value: a list, a dictionary if it has names, a string, or None."""
        flags = self.integers(1)[0]
        kind, has_attributes, has_tag = flags & 0xFF, bool(flags & 0x200), bool(flags & 0x400)
        if kind == REFERENCE:
            return self.symbols[(flags >> 8 or self.integers(1)[0]) - 1]
        if kind >= FIRST_EMPTY:
            return None
        if kind == SYMBOL:
            self.symbols.append(self.value())
            return self.symbols[-1]
        if kind == PAIRLIST:
            return self._pairs(has_attributes, has_tag)
        if kind == STRING:
            return self._string()
        items = self._vector(kind)
        names = (self.value() or {}).get("names") if has_attributes else None
        return dict(zip(names, items, strict=True)) if names else items

    def _pairs(self, has_attributes: bool, has_tag: bool) -> dict[Any, Any]:
        if has_attributes:
            self.value()
        tag = self.value() if has_tag else None
        head = self.value()
        return {tag: head, **(self.value() or {})}

    def _string(self) -> str | None:
        length = self.integers(1)[0]
        if length == -1:
            return None
        self.position += length
        return self.data[self.position - length : self.position].decode("utf-8")

    def _vector(self, kind: int) -> list[Any]:
        count = self.integers(1)[0]
        if kind in NUMBER_CODES:
            return list(self.numbers(NUMBER_CODES[kind], count))
        if kind in (STRINGS, LIST):
            return [self.value() for _ in range(count)]
        raise ValueError(f"R type {kind} at byte {self.position} is not one that holds text")


def _decompress_stream(data: bytes) -> bytes:
    """Gzip or zlib, whichever it is."""
    return zlib.decompress(data, wbits=47)


def _decompress_chunk(data: bytes) -> bytes:
    """One variable: its size, then a letter for bzip2 or xz, or else zlib straight away."""
    body = data[4:]
    if body[:1] == b"2":
        return bz2.decompress(body[1:])
    if body[:1] == b"Z":
        return lzma.decompress(body[1:])
    return zlib.decompress(body)
