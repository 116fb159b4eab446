"""Reads parallel text, plain or packed, line by line in bounded memory.

Every error names the file, the line and the remedy.
"""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn, cast

from konvoi.errors import DataError, did_you_mean

Pair = tuple[str, str]

PACKED_SUFFIXES = (".gz", ".xz")
# A file without line ends would else be read into memory as a whole.
MAX_LINE_BYTES = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file without their line ends; only "\\n" (or "\\r\\n") ends a line."""
    number = 0
    with _open(path) as stream:
        try:
            while raw := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                yield _decode(raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw, path, number)
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
            raise DataError(
                f"{path}: damaged after line {number}: {error}",
                hint=f"copy or download {path.name} again; its size is {path.stat().st_size:,} bytes",
            ) from None
    if number == 0:
        raise DataError(f"{path} is empty", hint="give a file with one sentence a line")


def read_pairs(source_path: Path, target_path: Path) -> Iterator[Pair]:
    """Line by line from two files, which must have equally many lines."""
    sources, targets = read_lines(source_path), read_lines(target_path)
    number = 0
    for source in sources:
        target = next(targets, None)
        if target is None:
            _raise_unequal(source_path, number + 1 + _count(sources), target_path, number)
        yield source, target
        number += 1
    if (num_more := _count(targets)) > 0:
        _raise_unequal(source_path, number, target_path, number + num_more)


def read_tsv_pairs(path: Path) -> Iterator[Pair]:
    """The first two columns of a tab-separated file."""
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise DataError(
                f"{path}: line {number} has no tab",
                hint="each line must hold the source sentence, a tab, and the target sentence",
            )
        yield columns[0], columns[1]


def _open(path: Path) -> BinaryIO:
    if path.is_dir():
        raise DataError(f"{path} is a folder, not a file", hint="name a text file inside it")
    try:
        if path.suffix == ".gz":
            return cast(BinaryIO, gzip.open(path, "rb"))
        # The buffer makes readline of an .xz file several times faster.
        return cast(BinaryIO, io.BufferedReader(lzma.open(path))) if path.suffix == ".xz" else path.open("rb")
    except FileNotFoundError:
        siblings = [sibling.name for sibling in path.parent.glob("*")] if path.parent.is_dir() else []
        near = did_you_mean(path.name, siblings)
        raise DataError(f"{path} does not exist{near}", hint="check the path; .gz and .xz files may be named") from None
    except PermissionError:
        raise DataError(f"{path} may not be read", hint=f"allow it: chmod u+r {path}") from None


def _decode(raw: bytes, path: Path, number: int) -> str:
    if len(raw) > MAX_LINE_BYTES:
        raise DataError(
            f"{path}: line {number} is longer than {MAX_LINE_BYTES:,} bytes",
            hint='give one sentence a line, each ended by "\\n"',
        )
    if b"\0" in raw:
        raise DataError(
            f"{path}: line {number} holds a NUL byte, so this is no UTF-8 text",
            hint=f"if it is UTF-16: iconv -f UTF-16 -t UTF-8 {path.name}; if it is packed, name it .gz or .xz",
        )
    try:
        return raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: line {number} is not UTF-8: byte 0x{raw[error.start]:02x} at position {error.start + 1}",
            hint=f"convert it, for example: iconv -f ISO-8859-1 -t UTF-8 {path.name}",
        ) from None


def _count(lines: Iterator[str]) -> int:
    return sum(1 for _ in lines)


def _raise_unequal(source_path: Path, num_sources: int, target_path: Path, num_targets: int) -> NoReturn:
    raise DataError(
        f"{source_path} has {num_sources:,} lines but {target_path} has {num_targets:,}",
        hint="line n of one file must translate line n of the other; look for a lost or an extra line end",
    )
