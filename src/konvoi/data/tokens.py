"""Sentences as numbers on disk.

<prefix>.tokens        all ids one after another, uint16 where the vocabulary allows it, else uint32
<prefix>.lengths.npy   uint16 where all sentences allow it, else uint32: the number of tokens of each sentence
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from konvoi.errors import DataError
from konvoi.folder import load_array, save_array

Tokens = npt.NDArray[np.unsignedinteger[Any]]
Lengths = npt.NDArray[np.unsignedinteger[Any]]

PIECE_BYTES = 16 << 20
# Where each sentence begins would take 8 bytes a sentence in every rank: kept for every 64th, the rest is added up.
BLOCK_SENTENCES = 64


def tokens_path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".tokens")


def lengths_path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".lengths.npy")


def smallest_dtype(num_values: int) -> np.dtype[Any]:
    """Holds the numbers below that one."""
    return np.dtype(np.uint16 if num_values <= 1 << 16 else np.uint32)


class TokenWriter:
    """Streams sentences to disk; the lengths follow at close, so an unfinished file can't be opened."""

    def __init__(self, prefix: Path, num_pieces: int) -> None:
        self.dtype = smallest_dtype(num_pieces)
        self._prefix = prefix
        self._lengths: list[npt.NDArray[Any]] = []
        self._stream = tokens_path(prefix).open("wb")

    def write(self, sentences: Sequence[Sequence[int]]) -> None:
        """Appends sentences as they are; the caller has put the end of sentence there."""
        lengths = np.fromiter(map(len, sentences), dtype=np.int32, count=len(sentences))
        ids = itertools.chain.from_iterable(sentences)
        self.write_encoded(np.fromiter(ids, dtype=self.dtype, count=int(lengths.sum())), lengths)

    def write_encoded(self, tokens: Tokens, lengths: npt.NDArray[Any]) -> None:
        """Appends sentences that lie one after another already."""
        # Not tofile(): see save_array.
        self._stream.write(tokens.astype(self.dtype, copy=False).data)
        self._lengths.append(lengths)

    def close(self) -> None:
        self._stream.close()
        lengths = np.concatenate([np.zeros(0, dtype=np.int32), *self._lengths])
        save_array(lengths_path(self._prefix), lengths.astype(smallest_dtype(int(lengths.max(initial=0)) + 1)))

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._stream.close()


class TokenFile:
    """Sentences of one side of a split.

    Tokens are read when they are wanted: the page cache holds one copy for all ranks of a host, and a rank's own
    memory does not grow with the corpus, as that of a memory map does with every page it touches.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.lengths = _open_lengths(prefix)
        starts = np.add.reduceat(self.lengths, np.arange(0, len(self.lengths), BLOCK_SENTENCES), dtype=np.int64)
        self._block_starts = np.concatenate([[0], starts.cumsum()])
        self.num_tokens = int(self._block_starts[-1])
        self.dtype = _check_tokens(prefix, self.num_tokens)
        self._file = os.open(tokens_path(prefix), os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Tokens:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sentence {index} of {len(self)}")
        return self.read(np.array([index % len(self)]))

    def read(self, indices: npt.NDArray[np.integer[Any]]) -> Tokens:
        """The tokens of these sentences, one after another."""
        size = self.dtype.itemsize
        starts = (self._starts(indices) * size).tolist()
        num_bytes = (self.lengths[indices].astype(np.int64) * size).tolist()
        parts = [os.pread(self._file, length, start) for start, length in zip(starts, num_bytes, strict=True)]
        return np.frombuffer(b"".join(parts), dtype=self.dtype)

    def _starts(self, indices: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        """The block's start and the lengths of the sentences before in the block."""
        blocks, places = np.divmod(indices.astype(np.int64), BLOCK_SENTENCES)
        columns = np.arange(BLOCK_SENTENCES)
        where = np.minimum(blocks[:, None] * BLOCK_SENTENCES + columns, len(self) - 1)
        before = np.where(columns < places[:, None], self.lengths[where], 0).sum(axis=1, dtype=np.int64)
        starts: npt.NDArray[np.int64] = self._block_starts[blocks] + before
        return starts

    def share_of(self, token: int) -> float:
        """How much of all tokens is this one; read in pieces, so that memory stays small."""
        num_found = 0
        with tokens_path(self.prefix).open("rb") as stream:
            while content := stream.read(PIECE_BYTES):
                num_found += int((np.frombuffer(content, dtype=self.dtype) == token).sum())
        return num_found / max(1, self.num_tokens)

    def __reduce__(self) -> tuple[type[TokenFile], tuple[Path]]:
        """Another process opens the file anew instead of receiving the tokens."""
        return TokenFile, (self.prefix,)


def _open_lengths(prefix: Path) -> Lengths:
    path = lengths_path(prefix)
    try:
        lengths: Lengths = load_array(path)
    except FileNotFoundError:
        raise _damaged(path, "is missing") from None
    except (ValueError, OSError) as error:
        raise _damaged(path, str(error)) from None
    if lengths.dtype not in (np.uint16, np.uint32):
        raise _damaged(path, "does not hold lengths")
    return lengths


def _check_tokens(prefix: Path, num_tokens: int) -> np.dtype[Any]:
    """The type of the tokens, which follows from the size of their file."""
    path = tokens_path(prefix)
    if not path.is_file():
        raise _damaged(path, "is missing")
    num_bytes = path.stat().st_size
    dtypes = {4 * num_tokens: np.uint32, 2 * num_tokens: np.uint16}
    if num_bytes not in dtypes:
        raise _damaged(path, f"has {num_bytes:,} bytes where its lengths say {num_tokens:,} tokens")
    return np.dtype(dtypes[num_bytes])


def _damaged(path: Path, problem: str) -> DataError:
    return DataError(f"{path}: {problem}", hint="remove this folder and prepare the set again: konvoi data prepare")
