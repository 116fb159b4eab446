"""The index of a split: a line of text per picture, and beside it the same as numbers, ready to be mapped.

train.tsv  path, class, bytes, width, height, checksum; sorted by path
train.npy  one record per line: where its path stands in train.tsv, and the numbers
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from konvoi.errors import DataError
from konvoi.folder import load_array, save_array

HEADER = "path\tclass\tbytes\twidth\theight\tchecksum\n"
RECORD = np.dtype(
    [
        ("path_at", "<i8"),
        ("path_bytes", "<i4"),
        ("class_number", "<i4"),
        ("num_bytes", "<i8"),
        ("width", "<i4"),
        ("height", "<i4"),
        ("checksum", "<u8", (2,)),
    ]
)
Records = np.ndarray[Any, np.dtype[np.void]]


def write_index(prefix: Path, lines: list[str], class_numbers: dict[str, int]) -> Records:
    """Writes prefix.tsv and prefix.npy; the lines are sorted and end with a line end."""
    records = np.zeros(len(lines), RECORD)
    path_at = len(HEADER)
    with prefix.with_suffix(".tsv").open("wb") as stream:
        stream.write(HEADER.encode())
        for number, line in enumerate(lines):
            content = line.encode()
            records[number] = _record(content, path_at, class_numbers)
            stream.write(content)
            path_at += len(content)
    save_array(prefix.with_suffix(".npy"), records)
    return records


def _record(content: bytes, path_at: int, class_numbers: dict[str, int]) -> tuple[Any, ...]:
    path, class_name, num_bytes, width, height, checksum = content[:-1].split(b"\t")
    halves = (int(checksum[:16], 16), int(checksum[16:], 16))
    return path_at, len(path), class_numbers[class_name.decode()], int(num_bytes), int(width), int(height), halves


class Entry(NamedTuple):
    """One picture of an index."""

    path: str
    class_number: int
    num_bytes: int
    width: int
    height: int
    checksum: str


class Entries:
    """The pictures of a split; a million of them open at once, since both files are only mapped."""

    def __init__(self, prefix: Path) -> None:
        self._text_path = prefix.with_suffix(".tsv")
        try:
            self.records: Records = load_array(prefix.with_suffix(".npy"), mapped=True)
            is_whole = self.records.dtype == RECORD and self._fits(self._text_path.stat().st_size)
        except (OSError, ValueError):
            is_whole = False
        if not is_whole:
            raise self._damaged()

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, number: int) -> Entry:
        record = self.records[number]
        return Entry(
            path=self.path(number),
            class_number=int(record["class_number"]),
            num_bytes=int(record["num_bytes"]),
            width=int(record["width"]),
            height=int(record["height"]),
            checksum="".join(f"{int(half):016x}" for half in record["checksum"]),
        )

    def __iter__(self) -> Iterator[Entry]:
        return (self[number] for number in range(len(self)))

    @property
    def class_numbers(self) -> npt.NDArray[np.int32]:
        return np.asarray(self.records["class_number"])

    def path(self, number: int) -> str:
        """The path of a picture, relative to the root of its set."""
        record = self.records[number]
        start = int(record["path_at"])
        try:
            return self._text[start : start + int(record["path_bytes"])].decode()
        except UnicodeDecodeError:
            raise self._damaged() from None

    @cached_property
    def _text(self) -> mmap.mmap:
        with self._text_path.open("rb") as stream:
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)

    def _fits(self, text_bytes: int) -> bool:
        """Whether the last path ends inside the text, and not more than one line's rest before its end."""
        if len(self.records) == 0:
            return text_bytes == len(HEADER)
        last = self.records[-1]
        end = int(last["path_at"]) + int(last["path_bytes"])
        return end < text_bytes and b"\n" not in self._text[end : text_bytes - 1]

    def _damaged(self) -> DataError:
        return DataError(
            f"{self._text_path} or its .npy file is missing or damaged",
            hint="remove this folder and prepare the set again",
        )
