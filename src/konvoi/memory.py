"""How this process deals with the memory that it has freed."""

from __future__ import annotations

import ctypes
import sys


def keep_memory() -> None:
    """Tells glibc to reuse freed memory instead of giving it back: fewer page faults (docs/lab-notes.md)."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        m_trim_threshold, m_mmap_max, m_arena_max = -1, -4, -8
        # Large blocks would be mapped, and their pages faulted in, anew each time.
        libc.mallopt(m_mmap_max, 0)
        libc.mallopt(m_trim_threshold, (1 << 31) - 1)
        # A thread's own arena is made of pieces of 64 MB, which are given back as soon as they are empty.
        libc.mallopt(m_arena_max, 1)
