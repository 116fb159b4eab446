"""Sentences as numbers on disk, opened as memory maps so that all ranks of a host share one copy.

<prefix>.tokens        all ids one after another, uint16 where the vocabulary allows it, else uint32
<prefix>.offsets.npy   int64, one more than there are sentences: sentence i is tokens[offsets[i]:offsets[i + 1]]
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from konvoi.errors import DataError

Tokens = npt.NDArray[np.unsignedinteger[Any]]


def tokens_path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".tokens")


def offsets_path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".offsets.npy")


class TokenWriter:
    """Streams sentences to disk; the offsets follow at close, so an unfinished file can't be opened."""

    def __init__(self, prefix: Path, num_pieces: int) -> None:
        self.dtype = np.dtype(np.uint16 if num_pieces <= 1 << 16 else np.uint32)
        self._prefix = prefix
        self._lengths: list[npt.NDArray[np.int64]] = []
        self._stream = tokens_path(prefix).open("wb")

    def write(self, sentences: Sequence[Sequence[int]]) -> None:
        """Appends sentences as they are; the caller has put the end of sentence there."""
        lengths = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
        ids = itertools.chain.from_iterable(sentences)
        # Not tofile(), nor np.save() into a file: on a full disk they raise an error without an errno.
        self._stream.write(np.fromiter(ids, dtype=self.dtype, count=int(lengths.sum())).data)
        self._lengths.append(lengths)

    def close(self) -> None:
        self._stream.close()
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), *self._lengths]).cumsum()
        content = io.BytesIO()
        np.save(content, offsets)
        offsets_path(self._prefix).write_bytes(content.getbuffer())

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._stream.close()


class TokenFile:
    """Sentences of one side of a split; `file[i]` is a view into the map, nothing is copied."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.offsets = _open_offsets(prefix)
        self.tokens = _open_tokens(prefix, int(self.offsets[-1]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Tokens:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sentence {index} of {len(self)}")
        index %= len(self)
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def __reduce__(self) -> tuple[type[TokenFile], tuple[Path]]:
        """Another process opens the map anew instead of receiving the tokens."""
        return TokenFile, (self.prefix,)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int32]:
        """The number of tokens of each sentence."""
        return np.diff(self.offsets).astype(np.int32)


def _open_offsets(prefix: Path) -> npt.NDArray[np.int64]:
    path = offsets_path(prefix)
    try:
        offsets = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise _damaged(path, "is missing") from None
    except (ValueError, EOFError, OSError) as error:
        raise _damaged(path, str(error)) from None
    if offsets.dtype != np.int64 or offsets.ndim != 1 or len(offsets) == 0 or offsets[0] != 0:
        raise _damaged(path, "does not hold offsets")
    # Indexing a plain array is several times faster than indexing its memmap subclass.
    return np.asarray(offsets)


def _open_tokens(prefix: Path, num_tokens: int) -> Tokens:
    path = tokens_path(prefix)
    if not path.is_file():
        raise _damaged(path, "is missing")
    num_bytes = path.stat().st_size
    dtypes = {2 * num_tokens: np.uint16, 4 * num_tokens: np.uint32}
    if num_bytes not in dtypes:
        raise _damaged(path, f"has {num_bytes:,} bytes where its offsets say {num_tokens:,} tokens")
    if num_tokens == 0:
        return np.empty(0, dtype=np.uint16)
    return np.asarray(np.memmap(path, dtype=dtypes[num_bytes], mode="r"))


def _damaged(path: Path, problem: str) -> DataError:
    return DataError(f"{path}: {problem}", hint="remove this folder and prepare the set again: konvoi data prepare")
