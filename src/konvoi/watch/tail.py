"""Files that grow, and small files that are replaced: each is read again only as far as it changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from konvoi.errors import UserError
from konvoi.run_directory import event_of


class Tail:
    """The whole lines that a file got since it was last asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._num_bytes_read = 0

    def lines(self) -> Iterator[bytes]:
        """A last line that is still being written comes the next time, as a whole."""
        try:
            file = self.path.open("rb")
        except OSError:
            return
        with file:
            if os.fstat(file.fileno()).st_size < self._num_bytes_read:
                # It was cut or written anew: what was read is not what is there.
                self._num_bytes_read = 0
            file.seek(self._num_bytes_read)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._num_bytes_read += len(line)
                yield line

    def last_lines(self, count: int, max_bytes: int = 8192) -> list[str]:
        """The end of the file, whatever was read before."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - max_bytes))
                return file.read().decode("utf-8", errors="replace").splitlines()[-count:]
        except OSError:
            return []


class Replaced:
    """A small file that is replaced as a whole."""

    def __init__(self, path: Path, read: Callable[[], dict[str, Any]]) -> None:
        self._path, self._read = path, read
        self._stamp: tuple[int, ...] = ()
        self._value: dict[str, Any] = {}

    def value(self) -> dict[str, Any]:
        """As it is now; as it was before where it cannot be read."""
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._stamp:
                self._value, self._stamp = self._read(), stamp
        except (OSError, UserError):
            pass
        return self._value


# What is read here line by line and what is read whole have the same events.
parsed = event_of
