"""What decoding processes share with their parent: memory for pixels, and the messages about it."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import NamedTuple

import numpy as np

from konvoi.image_input.augment import Pixels, View
from konvoi.image_input.batches import Filled

# Far more than any message needs; a longer one would be cut off without a word.
MAX_MESSAGE_BYTES = 1 << 20


class Task(NamedTuple):
    """A part of a micro-batch that is to be decoded."""

    ticket: int
    """Of the micro-batch; an answer bears it again."""
    position: int
    view: View
    slot: int
    num_images: int
    """Of the whole micro-batch."""
    first: int
    end: int


class Answer(NamedTuple):
    """What became of a task; its pixels are in the slot."""

    ticket: int
    first: int
    filled: Filled | None
    problem: str = ""
    hint: str = ""


class Slot:
    """Room for a micro-batch in memory without a name: it is freed when the last process is gone, however it ended."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None

    @classmethod
    def new(cls) -> Slot:
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("konvoi-pictures"))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def pixels(self, num_images: int, size: int) -> Pixels:
        """[N, size, size, RGB]; arrays of before keep their memory when it has to grow for larger ones."""
        num_bytes = num_images * size * size * 3
        if self._map is None or len(self._map) < num_bytes:
            if os.fstat(self.descriptor).st_size < num_bytes:
                os.ftruncate(self.descriptor, num_bytes)
            self._map = mmap.mmap(self.descriptor, num_bytes)
        return np.frombuffer(self._map, np.uint8, num_bytes).reshape(num_images, size, size, 3)

    def close(self) -> None:
        self._map = None
        os.close(self.descriptor)
