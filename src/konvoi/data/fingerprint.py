"""Knows files by their content, so that the same text is never prepared twice."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from konvoi.folder import write_json

# Hashing a gigabyte at every start would be felt: a larger file's digest is remembered until its size or time changes.
MAX_UNREMEMBERED_BYTES = 4 << 20
MEMORY_FILE = "digests.json"


def digest(path: Path, home: Path) -> str:
    """SHA-256 of a file's content."""
    status = path.stat()
    if status.st_size <= MAX_UNREMEMBERED_BYTES:
        return _hash(path)
    state = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    memory, name = _read_memory(home), str(path.absolute())
    if name not in memory or memory[name][:-1] != state:
        # Read again what another process may have added meanwhile; the last writer wins, which costs a hash at most.
        memory = {**_read_memory(home), name: [*state, _hash(path)]}
        # A home that can't be written costs a hash each time, no more.
        with contextlib.suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
            write_json(home / MEMORY_FILE, memory)
    return str(memory[name][-1])


def key_of(content: Any) -> str:
    """12 hex digits that change with anything in it."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _hash(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _read_memory(home: Path) -> dict[str, list[Any]]:
    try:
        return dict(json.loads((home / MEMORY_FILE).read_bytes()))
    except (OSError, ValueError):
        return {}
