"""Files of lines, read in pieces: plain or gzip, never more than one piece in memory."""

from __future__ import annotations

import csv
import gzip
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from hisparse_sim.errors import InputError

BLOCK_BYTES = 4 * 2**20
PIECE_BYTES = 64 * 2**10
_LONGEST_LINE_BYTES = 256 * 2**20
_HEAD_BYTES = 256 * 2**10
_MARK = b"\xef\xbb\xbf"
_BROKEN = (EOFError, zlib.error, gzip.BadGzipFile)
"""What a gzip that was cut short or damaged raises."""
_PACKED = {
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"\xfd7zXZ\x00": "xz",
    b"\x04\x22\x4d\x18": "LZ4",
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf\x27\x1c": "7z",
}
"""First bytes of files that are packed otherwise than by gzip."""
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class Block(NamedTuple):
    """Whole lines; only the last of a file may lack its end. ``line``: the number of the first, from 1."""

    line: int
    text: bytes


def check_kind(path: Path) -> None:
    """Refuse a pipe or device, which may never end and cannot be read twice. Raises InputError."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return  # whoever opens it says what is wrong
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError("is neither a file nor a folder; save what it gives in a file", where=str(path))


def read_blocks(path: Path, *, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """The lines of ``path`` in pieces of about ``block_bytes``.

    Raises InputError for a file that cannot be read, is UTF-16, ends inside its gzip stream or holds
    no line end for very long.
    """
    line, rest = 1, b""
    try:
        with _open(path) as file:
            for piece in _pieces(file, block_bytes):
                if line == 1 and not rest:
                    piece = _without_mark(piece, path)
                end = piece.rfind(b"\n") + 1
                if not end:
                    rest += piece
                    if len(rest) > _LONGEST_LINE_BYTES:
                        raise InputError(
                            f"has no line end within {_LONGEST_LINE_BYTES >> 20} MiB", where=f"{path}:{line}"
                        )
                    continue
                text, rest = rest + piece[:end], piece[end:]
                yield Block(line, text)
                line += text.count(b"\n")
    except _BROKEN as error:
        raise InputError(
            f"the gzip is cut short or damaged from here on: {error}", where=f"{path}:{line}"
        ) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from None
    if rest:
        yield Block(line, rest)


def pieces_of(block: Block) -> Iterator[Block]:
    """The same lines in pieces of about ``PIECE_BYTES``."""
    line, start = block.line, 0
    while start < len(block.text):
        end = block.text.find(b"\n", start + PIECE_BYTES) + 1 or len(block.text)
        piece = Block(line, block.text[start:end])
        yield piece
        line, start = line + piece.text.count(b"\n"), end


def read_head(path: Path) -> bytes:
    """The first lines of ``path``: at least one, unless that is very long. Empty for an empty file."""
    for block in read_blocks(path, block_bytes=_HEAD_BYTES):
        return block.text
    return b""


def read_start(path: Path, count: int) -> bytes:
    """The first ``count`` bytes, unpacked and without a byte order mark. Raises InputError."""
    try:
        with _open(path) as file:
            return file.read(count).removeprefix(_MARK)
    except EOFError:
        raise InputError("the gzip is cut short", where=f"{path}:1") from None
    except (zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"the gzip is damaged: {error}", where=str(path)) from None
    except FileNotFoundError:
        raise InputError("no such file or folder", where=str(path)) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from None


def text_of(line: bytes) -> str:
    """A line as text. Raises ValueError with what is wrong."""
    if b"\0" in line:
        raise ValueError("holds NUL bytes, which UTF-8 text does not; mixed encodings?")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} of the line is not UTF-8 text; mixed encodings?") from None


def cells_of(line: str) -> list[str]:
    """The values of a line of a table. Raises ValueError with what is wrong."""
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error as error:
        if "end of data" in str(error):
            raise ValueError("a quotation mark is not closed within the line") from None
        if "new-line" in str(error):
            raise ValueError("holds a carriage return within the line; lines end with a line feed") from None
        raise ValueError(str(error)) from None


def _pieces(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Pieces of ``size`` or a little more; of a gzip that breaks off, all that comes before."""
    parts: list[bytes] = []
    left = size
    try:
        while part := file.read1(size):  # type: ignore[attr-defined]
            parts.append(part)
            left -= len(part)
            if left <= 0:
                yield b"".join(parts)
                parts, left = [], size
    except _BROKEN:
        if parts:
            yield b"".join(parts)
        raise
    if parts:
        yield b"".join(parts)


def _open(path: Path) -> IO[bytes]:
    check_kind(path)
    with path.open("rb") as file:
        start = file.read(8)
    if packed := next((name for mark, name in _PACKED.items() if start.startswith(mark)), None):
        raise InputError(f"is packed by {packed}; unpack it, or pack it by gzip", where=str(path))
    gzipped = start.startswith(b"\x1f\x8b")
    return gzip.open(path, "rb") if gzipped else path.open("rb")  # type: ignore[return-value]


def _without_mark(text: bytes, path: Path) -> bytes:
    if text.startswith(_UTF16):
        raise InputError("is UTF-16 text; save it as UTF-8", where=f"{path}:1")
    return text.removeprefix(_MARK)
