"""First stage: cleans a chunk of pairs in a process of its own; what only the whole corpus can tell follows later.

chunks/000012.source  .target   the pairs that are left, one sentence a line
chunks/000012.npy               a record of each, see RECORD
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from konvoi.data.clean import Cleaner, Cleaning, Tally, near_key, pair_key, sentence_key
from konvoi.data.inputs import Files, Inputs
from konvoi.data.text import BadLine, Pair, form_of, pair_of, raw_rows
from konvoi.folder import save_array

CHUNK_PAIRS = 50_000
MAX_CHUNK_BYTES = 64 << 20
MAX_EXAMPLES = 20
# What an example shows of a sentence.
MAX_EXAMPLE_LETTERS = 1000

RECORD = np.dtype(
    [
        ("row", "u4"),
        ("pair", "u8"),
        ("near", "u8"),
        ("source", "u8"),
        ("sizes", "u4", (4,)),  # bytes of source and target, words of source and target
    ]
)
"""What later stages need to know of a pair: where it stood, its keys, its size."""

Example = tuple[int, str, str]
"""Row in the input (from 1), source, target."""
Examples = dict[str, list[Example]]


@dataclass(frozen=True)
class RawChunk:
    """Rows as they stand in the files; columns of lines, so that a process receives a few long strings only."""

    number: int
    first_row: int
    """Counted over all parts, from 1."""
    files: Files
    first_line: int
    """In the files of this part."""
    columns: tuple[bytes, ...]


@dataclass
class Sifted:
    """What became of a chunk."""

    num_kept: int
    num_bytes: int
    tally: Tally
    examples: Examples = field(default_factory=dict)


def raw_chunks(parts: Iterable[Files]) -> Iterator[RawChunk]:
    """The rows of all parts in chunks of equal size; those of long lines, and the last of a part, are smaller."""
    numbers, first_row = itertools.count(), 1
    for files in parts:
        rows, first_line = raw_rows(files), 1
        while chunk := _take(rows):
            columns = tuple(b"\n".join(column) for column in zip(*chunk, strict=True))
            yield RawChunk(next(numbers), first_row, files, first_line, columns)
            first_row, first_line = first_row + len(chunk), first_line + len(chunk)


def _take(rows: Iterator[tuple[bytes, ...]]) -> list[tuple[bytes, ...]]:
    chunk, num_bytes = [], 0
    for row in itertools.islice(rows, CHUNK_PAIRS):
        chunk.append(row)
        num_bytes += len(row[0]) + len(row[-1])
        if num_bytes > MAX_CHUNK_BYTES:
            break
    return chunk


@dataclass(frozen=True)
class Sift:
    """Cleans chunks; small enough to be sent to another process with every one of them."""

    folder: Path
    cleaning: Cleaning
    inputs: Inputs
    held_out: frozenset[str]
    """The source sentences of dev and test, normalised."""

    def __call__(self, chunk: RawChunk) -> Sifted:
        languages = self.inputs.languages[::-1] if self.inputs.is_turned else self.inputs.languages
        cleaner = Cleaner(self.cleaning, languages, self.held_out)
        tally, examples = Tally(), Examples()
        kept: list[tuple[int, Pair]] = []
        for row, pair in self._pairs(chunk, tally, examples):
            source, target = cleaner.normalise(pair[0]), cleaner.normalise(pair[1])
            if reason := cleaner.why_not(source, target):
                tally.add(reason, source, target)
                remember(examples, reason, row, source, target)
            else:
                kept.append((row, (source, target)))
        self._write(chunk.number, kept)
        return Sifted(len(kept), sum(map(len, chunk.columns)), tally, examples)

    def _pairs(self, chunk: RawChunk, tally: Tally, examples: Examples) -> Iterator[tuple[int, Pair]]:
        """All that can be read."""
        rows, form = zip(*(column.split(b"\n") for column in chunk.columns), strict=True), form_of(chunk.files)
        for place, raw in enumerate(rows):
            try:
                pair = pair_of(raw, form, self.inputs.languages)
            except BadLine as error:
                where = f"{chunk.files[error.side]}: line {chunk.first_line + place:,}"
                tally.add_many("unreadable", 1)
                remember(examples, "unreadable", chunk.first_row + place, f"{where} {error.problem}", error.hint)
            else:
                yield chunk.first_row + place, pair[::-1] if self.inputs.is_turned else pair

    def _write(self, number: int, kept: list[tuple[int, Pair]]) -> None:
        for side, suffix in enumerate((".source", ".target")):
            text = "".join(f"{pair[side]}\n" for _, pair in kept)
            chunk_path(self.folder, number, suffix).write_bytes(text.encode())
        save_array(chunk_path(self.folder, number, ".npy"), np.array([*map(self._record, kept)], dtype=RECORD))

    def _record(self, numbered: tuple[int, Pair]) -> tuple[object, ...]:
        row, (source, target) = numbered
        near = near_key(source, target) if self.cleaning.remove_near_duplicates else 0
        sizes = (len(source.encode()) + 1, len(target.encode()) + 1, source.count(" ") + 1, target.count(" ") + 1)
        return (row, pair_key(source, target), near, sentence_key(source), sizes)


def chunk_path(folder: Path, number: int, suffix: str) -> Path:
    return folder / "chunks" / f"{number:06d}{suffix}"


def read_chunk(folder: Path, number: int, suffix: str) -> str:
    """The sentences of one side, each ended by a line end."""
    return chunk_path(folder, number, suffix).read_bytes().decode()


def read_records(folder: Path, num_chunks: int, name: str) -> NDArray[np.uint64]:
    """One field of the records of all chunks; the others stay on disk."""
    return np.concatenate([np.load(chunk_path(folder, i, ".npy"), mmap_mode="r")[name] for i in range(num_chunks)])


def remember(examples: Examples, reason: str, row: int, source: str, target: str) -> None:
    """Keeps the first few of each reason."""
    known = examples.setdefault(reason, [])
    if len(known) < MAX_EXAMPLES:
        known.append((row, source[:MAX_EXAMPLE_LETTERS], target[:MAX_EXAMPLE_LETTERS]))
