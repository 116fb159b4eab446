"""Tells whether prepared data still belong to the same settings and input files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Reading gigabytes just to learn that nothing changed would delay every start: a file above this
# size is known by its size, its time of change, and its first and last megabyte.
MAX_WHOLE_BYTES = 16 << 20
END_BYTES = 1 << 20


def fingerprint(path: Path) -> dict[str, Any]:
    """Name, size and SHA-256 of a file (of a large one: see above)."""
    status = path.stat()
    if status.st_size <= MAX_WHOLE_BYTES:
        return {"name": path.name, "bytes": status.st_size, "sha256": _sha256(path.read_bytes())}
    with path.open("rb") as stream:
        first = stream.read(END_BYTES)
        stream.seek(-END_BYTES, 2)
        ends = first + stream.read(END_BYTES)
    changed = status.st_mtime_ns
    return {"name": path.name, "bytes": status.st_size, "changed_ns": changed, "sha256_of_ends": _sha256(ends)}


def key_of(settings: dict[str, Any], files: Iterable[Path]) -> str:
    """12 hex digits that change with any setting or input."""
    content = {"settings": settings, "files": [fingerprint(path) for path in files]}
    return _sha256(json.dumps(content, sort_keys=True).encode())[:12]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
