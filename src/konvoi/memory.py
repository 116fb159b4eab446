"""How this process deals with the memory that it has freed."""

from __future__ import annotations

import ctypes
import sys

# Of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8


def keep_memory() -> None:
    """Tells glibc to reuse freed memory instead of giving it back: fewer page faults (docs/lab-notes.md)."""
    # Large blocks would be mapped, and their pages faulted in, anew each time.
    _set(M_MMAP_MAX, 0)
    _set(M_TRIM_THRESHOLD, (1 << 31) - 1)


def share_memory_with_new_threads() -> None:
    """They get no arena of their own: its pieces of 64 MB are given back as soon as they are empty."""
    _set(M_ARENA_MAX, 1)


def _set(name: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).mallopt(name, value)
