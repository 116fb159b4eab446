"""What lies where in a tar file, so that several processes can read it at once and nothing is unpacked twice."""

from __future__ import annotations

import errno
import gzip
import lzma
import math
import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from konvoi.errors import DataError
from konvoi.stages import BYTES, Report, silent

PACKED_SUFFIXES = (".tgz", ".tar.gz")
BLOCK_BYTES = tarfile.BLOCKSIZE
COPY_BYTES = 1 << 20
# Pictures hardly shrink when packed: what grows more than this is no archive of pictures.
MAX_GROWTH = 20
# What tarfile raises at headers that may be anything; numbers beyond all measure, too.
DAMAGE = (
    *(tarfile.TarError, EOFError, zlib.error, lzma.LZMAError),
    *(ValueError, ArithmeticError, LookupError, RuntimeError, MemoryError),
)
NOT_ITSELF = "this is not the archive that it claims to be: download it again from its source"


class Member(NamedTuple):
    """One entry of a tar file, and where its bytes begin in the file."""

    path: str
    offset: int
    num_bytes: int
    is_regular: bool


def members(archive: Path, *, name: str = "") -> list[Member]:
    """All entries but folders of a tar file."""
    found, why = readable_members(archive, 0, archive.stat().st_size)
    if why:
        raise _damaged(name or str(archive), why)
    return found


def readable_members(archive: Path, start: int, end: int) -> tuple[list[Member], str]:
    """The same of a tar file that lies inside another from start to end, as far as it is whole, and what is wrong."""
    found: list[Member] = []
    with archive.open("rb") as stream:
        stream.seek(start)
        reached = start
        try:
            # Begun in the middle of a file, tarfile counts from the file's own start.
            with tarfile.open(fileobj=stream, mode="r:") as tar:
                for entry in _entries(tar, end):
                    reached = tar.offset
                    if not entry.isdir():
                        found.append(_member(entry))
        except DAMAGE as error:
            return found, f"{_words(error)}, {_so_far(found, reached - start)}"
        # tarfile takes a spoilt header for the end of the archive.
        stream.seek(reached)
        if reached + BLOCK_BYTES > end or stream.read(BLOCK_BYTES) != bytes(BLOCK_BYTES):
            return found, f"no end mark, {_so_far(found, reached - start)}"
    return found, ""


def _entries(tar: tarfile.TarFile, end: float = math.inf) -> Iterator[tarfile.TarInfo]:
    """tarfile knows no end of an inner archive, and a size below zero would send it round in circles."""
    for entry in tar:
        if not entry.offset_data <= tar.offset <= end:
            raise tarfile.ReadError("a file that ends elsewhere than inside")
        yield entry


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _so_far(found: list[Member], num_bytes: int) -> str:
    files = "1 file" if len(found) == 1 else f"{len(found):,} files"
    return f"{files} before byte {num_bytes:,}"


def _member(entry: tarfile.TarInfo) -> Member:
    return Member(entry.name, entry.offset_data, entry.size, entry.isreg() and not entry.issparse())


def _damaged(name: str, why: str) -> DataError:
    return DataError(
        f"{name} is cut short, damaged or no tar archive ({why})",
        hint="compare its size and checksum with those of its source, and download it again",
    )


def unpacked(archive: Path, folder: Path, report: Report = silent) -> Path:
    """A plain tar file with the content of a packed one; the archive itself where it is not packed.

    Gzip cannot be read from the middle, so its tar file is written once, beside the pictures to come.
    """
    if not archive.name.endswith(PACKED_SUFFIXES):
        return archive
    plain = folder / ".unpacked.tar"
    if not plain.exists():
        partial = folder / ".unpacked.tar.partial"
        with partial.open("wb") as target:
            for piece in _unpacked_pieces(archive, report):
                target.write(piece)
        partial.rename(plain)
    return plain


def _unpacked_pieces(archive: Path, report: Report = silent) -> Iterator[bytes]:
    """The content of a gzip file, a megabyte at a time; more than its size can justify is refused."""
    packed_bytes = archive.stat().st_size
    num_bytes = 0
    try:
        with archive.open("rb") as raw, gzip.GzipFile(fileobj=raw) as stream:
            while piece := stream.read(COPY_BYTES):
                num_bytes += len(piece)
                if num_bytes > MAX_GROWTH * (packed_bytes + COPY_BYTES):
                    raise DataError(f"{archive} unpacks to more than {MAX_GROWTH} times its size", hint=NOT_ITSELF)
                report(f"unpacking {archive.name}", raw.tell(), packed_bytes, BYTES)
                yield piece
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(str(archive), str(error)) from None


def read_packed(archive: Path, names: tuple[str, ...], max_bytes: int) -> dict[str, bytes]:
    """The content of the regular files with these base names in a packed or plain tar file."""
    found = {}
    try:
        with tarfile.open(archive, mode="r:*") as tar:
            for entry in _entries(tar):
                base = os.path.basename(entry.name)
                stream = tar.extractfile(entry) if entry.isreg() and base in names else None
                if stream is not None:
                    found[base] = stream.read(max_bytes)
    except (*DAMAGE, OSError) as error:
        # Without a number it is about the content; an invalid argument is an offset that the archive made up.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise _damaged(str(archive), _words(error)) from None
    return found
