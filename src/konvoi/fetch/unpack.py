"""Takes files out of archives without trusting them.

Only the regular files that are asked for come out, under names of our own, never through a link, and never more than
the bounds allow. A file gets its name when it is whole.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tarfile import HeaderError, ReadError
from typing import IO, cast

from konvoi.errors import DataError
from konvoi.stages import BYTES, Report, silent

CHUNK_BYTES = 1 << 20
TEMPORARY_FILE = ".unpacking"
# Text shrinks to a fifth, a bomb to a thousandth. Small files may shrink as they like.
MAX_RATIO = 200
UNSUSPICIOUS_BYTES = 64 << 20
# The largest known archive has 0.9 GB, so that its text takes some 5 GB.
MAX_BYTES = 64 << 30
GZIP_MAGIC, XZ_MAGIC, ZIP_MAGICS = b"\x1f\x8b", b"\xfd7zXZ\x00", (b"PK\x03\x04", b"PK\x05\x06")
# What those who read archives raise at bytes that may be anything; numbers beyond all measure, too.
DAMAGE = (
    *(EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(ValueError, ArithmeticError, LookupError, RuntimeError, MemoryError),
)
BAD_HINT = "get it again: it did not arrive whole, or it was made wrongly"


@dataclass(frozen=True)
class _Entry:
    name: str
    is_regular: bool
    open: Callable[[], IO[bytes]]


def unpack(archive_path: Path, members: dict[str, str], folder: Path, *, report: Report = silent) -> list[Path]:
    """Writes the named members to folder/<given name>, in one pass; all that are missing are named together."""
    folder.mkdir(parents=True, exist_ok=True)
    written: dict[str, Path] = {}
    with _explained(archive_path):
        for entry in _entries(archive_path, report):
            name = entry.name.removeprefix("./")
            if name in members and entry.is_regular:
                with entry.open() as stream:
                    written[name] = _write(stream, folder / members[name])
    if missing := [name for name in members if name not in written]:
        raise DataError(
            f"{archive_path} does not hold {', '.join(missing)}", hint="it is another file than the one wanted"
        )
    return [written[name] for name in members]


def _write(stream: IO[bytes], target: Path) -> Path:
    """Writes beside, then renames: what bears the name is whole. A link of that name is replaced, not followed."""
    temporary = target.with_name(TEMPORARY_FILE)
    temporary.unlink(missing_ok=True)
    try:
        with temporary.open("xb") as output:
            while chunk := stream.read(CHUNK_BYTES):
                output.write(chunk)
        return temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _check_room(is_within: bool, problem: str) -> None:
    if not is_within:
        raise DataError(problem, hint="it is another file than the one wanted, or made to fill the disk")


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """What a bad archive does to those who read it becomes one line."""
    try:
        yield
    except (*DAMAGE, OSError) as error:
        # Without a number it is about the content; an invalid argument is an offset that the archive made up.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        why = str(error) or type(error).__name__
        raise DataError(f"{path} is cut short or damaged: {why}", hint=BAD_HINT) from None


def _entries(archive: Path, report: Report) -> Iterator[_Entry]:
    """The entries of an archive in its order, each to be read before the next."""
    with archive.open("rb") as raw:
        yield from _entries_of_file(raw, _Bounded(raw, archive, report))


def _entries_of_file(raw: IO[bytes], bounded: _Bounded) -> Iterator[_Entry]:
    head = raw.read(6)
    raw.seek(0)
    if head.startswith(ZIP_MAGICS):
        yield from _zip_entries(raw, bounded)
        return
    bounded.inner = _decompressed(raw, head)
    yield from _tar_entries(bounded)
    # Only at the very end the checksum of the packed data is compared.
    while bounded.read(CHUNK_BYTES):
        pass


def _decompressed(raw: IO[bytes], head: bytes) -> IO[bytes]:
    """By content, not by name: both .tgz and .tar are often the other."""
    if head.startswith(GZIP_MAGIC):
        return cast(IO[bytes], gzip.GzipFile(fileobj=raw))
    return cast(IO[bytes], lzma.LZMAFile(raw)) if head == XZ_MAGIC else raw


class _Bounded(io.RawIOBase):
    """Reads what comes out of the packed file, tells how far it is, and stops a bomb."""

    def __init__(self, raw: IO[bytes], path: Path, report: Report) -> None:
        self.raw, self.inner, self.path, self.report = raw, raw, path, report
        self.packed_bytes, self.num_bytes = path.stat().st_size, 0

    def read(self, size: int = -1) -> bytes:
        data = self.inner.read(size)
        self.count(len(data), self.raw.tell())
        return data

    def count(self, num_bytes: int, packed_read: int) -> None:
        self.num_bytes += num_bytes
        self.check(self.num_bytes)
        is_modest = self.num_bytes <= max(UNSUSPICIOUS_BYTES, MAX_RATIO * packed_read)
        _check_room(is_modest, f"{self.path} unpacks to more than {MAX_RATIO} times its size")
        self.report(f"unpacking {self.path.name}", min(packed_read, self.packed_bytes), self.packed_bytes, BYTES)

    def check(self, num_bytes: int) -> None:
        _check_room(num_bytes <= MAX_BYTES, f"{self.path} unpacks to more than {MAX_BYTES:,} bytes")


class _StrictHeader(tarfile.TarInfo):
    """A tar ends with blocks of zeros: one that just stops, or goes on with something else, is damaged."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> _StrictHeader:
        try:
            return super().fromtarfile(tarfile)
        except HeaderError as error:
            # Left to itself, tarfile takes everything but the zeros for the end as well.
            if type(error).__name__ == "EOFHeaderError":
                raise
            raise ReadError("it is no archive" if tarfile.offset == 0 else f"{error} in the middle") from None


def _tar_entries(bounded: _Bounded) -> Iterator[_Entry]:
    stream = cast(IO[bytes], bounded)
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_StrictHeader, bufsize=CHUNK_BYTES) as tar:
        for member in tar:
            # Before it looks for the next one: it would go on reading nothing until it has counted so far.
            bounded.check(tar.offset)
            # A sparse file may be all hole: a few bytes that unpack to terabytes.
            is_regular = member.isreg() and not member.issparse()
            yield _Entry(member.name, is_regular, partial(_open_in_tar, tar, member))
            # It remembers every member that it has seen: millions, in an archive of pictures.
            tar.members.clear()  # type: ignore[attr-defined]


def _open_in_tar(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(member)
    assert content is not None, "only regular members are opened"
    return content


def _zip_entries(raw: IO[bytes], bounded: _Bounded) -> Iterator[_Entry]:
    with zipfile.ZipFile(raw) as archive:
        for info in archive.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            is_regular = not info.is_dir() and kind in (0, stat.S_IFREG)
            yield _Entry(info.filename, is_regular, partial(_open_in_zip, archive, info, bounded))


def _open_in_zip(archive: zipfile.ZipFile, info: zipfile.ZipInfo, bounded: _Bounded) -> IO[bytes]:
    """No more comes out than the size that it declares, so that is what counts."""
    bounded.count(info.file_size, bounded.packed_bytes)
    try:
        return archive.open(info)
    except RuntimeError as error:
        # A password, or a way of packing that Python does not know.
        raise DataError(f"{bounded.path} cannot be unpacked: {error}", hint=BAD_HINT) from None
