"""Takes files out of archives without trusting them.

Only regular files come out, only inside the folder, never through a link, and never more than the bounds allow. A file
gets its name when it is whole.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from tarfile import HeaderError, ReadError
from typing import IO, cast

from konvoi.errors import DataError
from konvoi.stages import BYTES, Report, silent

CHUNK_BYTES = 1 << 20
TEMPORARY_FILE = ".unpacking"
# Text shrinks to a fifth, a bomb to a thousandth. Small files may shrink as they like.
MAX_RATIO = 200
UNSUSPICIOUS_BYTES = 64 << 20
GZIP_MAGIC, XZ_MAGIC, ZIP_MAGICS = b"\x1f\x8b", b"\xfd7zXZ\x00", (b"PK\x03\x04", b"PK\x05\x06")
BAD_HINT = "get it again: it did not arrive whole, or it was made wrongly"


@dataclass
class Unpacked:
    """What came out of an archive."""

    files: list[Path] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Links, devices and what else is no regular file."""
    num_bytes: int = 0


@dataclass(frozen=True)
class _Entry:
    name: str
    is_folder: bool
    is_regular: bool
    open: Callable[[], IO[bytes]]


def unpack(archive_path: Path, members: dict[str, str], folder: Path, *, report: Report = silent) -> list[Path]:
    """Writes the named members to folder/<given name>, in one pass; all that are missing are named together."""
    folder.mkdir(parents=True, exist_ok=True)
    written: dict[str, Path] = {}
    with _explained(str(archive_path)):
        for entry in _entries(archive_path, report):
            name = entry.name.removeprefix("./")
            if name in members and entry.is_regular:
                with entry.open() as stream:
                    written[name] = _write(stream, folder, folder / members[name])[0]
    if missing := [name for name in members if name not in written]:
        raise DataError(
            f"{archive_path} does not hold {', '.join(missing)}", hint="it is another file than the one wanted"
        )
    return [written[name] for name in members]


def unpack_all(
    archive: Path | IO[bytes],
    folder: Path,
    *,
    max_bytes: int,
    max_files: int,
    name: str = "",
    report: Report = silent,
) -> Unpacked:
    """Writes all regular files of an archive below a folder, by one process at a time.

    An open stream must be a plain tar (such as a tar inside a tar); `name` is what errors call it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    label, result = name or str(archive), Unpacked()
    with _explained(label):
        for entry in _entries(archive, report):
            if entry.is_folder:
                continue
            if not entry.is_regular:
                result.skipped.append(entry.name)
                continue
            target = _safe_target(folder, entry.name, label)
            _check_room(len(result.files) < max_files, f"{label} holds more than {max_files:,} files")
            with entry.open() as stream:
                path, num_bytes = _write(stream, folder, target, max_bytes - result.num_bytes, label)
            result.files.append(path)
            result.num_bytes += num_bytes
    return result


def _safe_target(folder: Path, name: str, label: str) -> Path:
    """Where a member goes; refuses names that lead outside, and links that were there before."""
    inside = PurePosixPath(name)
    if inside.is_absolute() or ".." in inside.parts or not inside.parts or "\0" in name:
        raise DataError(f"{label} wants to write outside its folder: {name}", hint="do not trust this archive")
    target = folder.joinpath(*inside.parts)
    for parent in target.relative_to(folder).parents:
        if (folder / parent).is_symlink() and parent.parts:
            raise DataError(f"{folder / parent} is a link: nothing is unpacked through it", hint="remove the link")
    return target


def _write(
    stream: IO[bytes], folder: Path, target: Path, max_bytes: int | None = None, label: str = ""
) -> tuple[Path, int]:
    """Writes beside, then renames: what bears the name is whole. A link of that name is replaced, not followed."""
    temporary = folder / TEMPORARY_FILE
    temporary.unlink(missing_ok=True)
    num_bytes = 0
    try:
        with temporary.open("xb") as output:
            while chunk := stream.read(CHUNK_BYTES):
                num_bytes += len(chunk)
                is_small = max_bytes is None or num_bytes <= max_bytes
                _check_room(is_small, f"{label} holds more than the {max_bytes or 0:,} bytes left to it")
                output.write(chunk)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return target, num_bytes


def _check_room(is_within: bool, problem: str) -> None:
    if not is_within:
        raise DataError(problem, hint="it is another file than the one wanted, or made to fill the disk")


@contextlib.contextmanager
def _explained(label: str) -> Iterator[None]:
    """What a bad archive does to those who read it becomes one line."""
    try:
        yield
    except (EOFError, ReadError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataError(f"{label} is cut short or damaged: {error}", hint=BAD_HINT) from None
    except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
        place = error.filename2 or error.filename
        raise DataError(f"{label} has a file where there is a folder, or the reverse: {place}", hint=BAD_HINT) from None


def _entries(archive: Path | IO[bytes], report: Report) -> Iterator[_Entry]:
    """The entries of an archive in its order, each to be read before the next."""
    if not isinstance(archive, Path):
        yield from _tar_entries(archive)
        return
    with archive.open("rb") as raw:
        yield from _entries_of_file(raw, _Bounded(raw, archive, report))


def _entries_of_file(raw: IO[bytes], bounded: _Bounded) -> Iterator[_Entry]:
    head = raw.read(6)
    raw.seek(0)
    if head.startswith(ZIP_MAGICS):
        yield from _zip_entries(raw, bounded)
        return
    bounded.inner = _decompressed(raw, head)
    yield from _tar_entries(cast(IO[bytes], bounded))
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
        is_modest = self.num_bytes <= max(UNSUSPICIOUS_BYTES, MAX_RATIO * packed_read)
        _check_room(is_modest, f"{self.path} unpacks to more than {MAX_RATIO} times its size")
        self.report(f"unpacking {self.path.name}", min(packed_read, self.packed_bytes), self.packed_bytes, BYTES)


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


def _tar_entries(stream: IO[bytes]) -> Iterator[_Entry]:
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_StrictHeader, bufsize=CHUNK_BYTES) as tar:
        for member in tar:
            # A sparse file may be all hole: a few bytes that unpack to terabytes.
            is_regular = member.isreg() and not member.issparse()
            yield _Entry(member.name, member.isdir(), is_regular, partial(_open_in_tar, tar, member))
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
            yield _Entry(info.filename, info.is_dir(), is_regular, partial(_open_in_zip, archive, info, bounded))


def _open_in_zip(archive: zipfile.ZipFile, info: zipfile.ZipInfo, bounded: _Bounded) -> IO[bytes]:
    """No more comes out than the size that it declares, so that is what counts."""
    bounded.count(info.file_size, bounded.packed_bytes)
    try:
        return archive.open(info)
    except RuntimeError as error:
        # A password, or a way of packing that Python does not know.
        raise DataError(f"{bounded.path} cannot be unpacked: {error}", hint=BAD_HINT) from None
