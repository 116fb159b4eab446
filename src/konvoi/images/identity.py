"""Tells whether a prepared set still belongs to the same files, without reading all of them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from konvoi.images.inputs import Inputs
from konvoi.stages import Report

END_BYTES = 1 << 20
# Labels, and the pictures inside the package: these are read whole.
WHOLE_BYTES = 4 << 20
REPORT_EVERY_FILES = 10_000


@dataclass(frozen=True)
class Identity:
    """What tells these inputs from others, and how much of them lies in a tree."""

    key: str
    """12 hex digits that change with any file."""
    tree_bytes: int


def identify(inputs: Inputs, settings: dict[str, Any], report: Report) -> Identity:
    """Archives are known by name, size, ends and time; trees by place, names, sizes and times.

    Without the time, a good archive in the place of a damaged one would give the old set again. So a copy is prepared
    again, unless it kept the time of the original (cp -p, rsync -a).
    """
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for path in inputs.files:
        digest.update(f"{path.name}\t{path.stat().st_size}\n".encode() + _content(path))
    if inputs.trees:
        digest.update(os.fsencode(inputs.root))
    tree_bytes = 0
    for number, (line, num_bytes) in enumerate(_tree_lines(inputs), start=1):
        digest.update(line)
        tree_bytes += num_bytes
        if number % REPORT_EVERY_FILES == 0:
            report("listing files", number, unit="files")
    return Identity(digest.hexdigest()[:12], tree_bytes)


def _tree_lines(inputs: Inputs) -> Iterator[tuple[bytes, int]]:
    for tree in inputs.trees:
        for picture, changed_ns in tree():
            yield os.fsencode(f"{picture.origin}\t{picture.num_bytes}\t{changed_ns}\n"), picture.num_bytes


def _content(path: Path) -> bytes:
    """All of a small file; of a large one, its time and the first and last megabyte."""
    status = path.stat()
    with path.open("rb") as stream:
        if status.st_size <= WHOLE_BYTES:
            return stream.read()
        first = stream.read(END_BYTES)
        stream.seek(status.st_size - END_BYTES)
        return f"{status.st_mtime_ns}\n".encode() + first + stream.read(END_BYTES)
