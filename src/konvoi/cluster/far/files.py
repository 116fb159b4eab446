"""Files and folders: what is there, by size and SHA-256; bytes out of them and into them.

A file grows as NAME.part and gets its name when its checksum is right. Both ends of a transfer use these functions
(see cluster/transfer.py); names are relative, and none leads out of its folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from typing import Any

MEMORY = "~/.cache/konvoi/digests"
PART = ".part"
BLOCK_BYTES = 1 << 20
# Digests are told of so many at a time, and at least so often: silence would look like a lost connection.
NUM_TOLD, TOLD_SECONDS = 500, 5.0


class Digests:
    """Remembers the digests of a folder's files until their size or times change."""

    def __init__(self, folder: str, memory: str) -> None:
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        self.file = os.path.join(os.path.expanduser(memory), name + ".json")
        self.known: dict[str, list[Any]] = _read_json(self.file)

    def of(self, path: str) -> list[Any]:
        """[bytes, SHA-256]"""
        state = _state(path)
        if self.known.get(path, [])[:-1] != state:
            self.known[path] = [*state, _sha256(path)]
        return [state[0], self.known[path][-1]]

    def learn(self, path: str, sha256: str) -> None:
        self.known[path] = [*_state(path), sha256]

    def save(self) -> None:
        # Where it can't be written, the next look takes longer, no more.
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(self.file), exist_ok=True)
            temporary = f"{self.file}.{os.getpid()}"
            with open(temporary, "w") as stream:
                json.dump(self.known, stream)
            os.replace(temporary, self.file)


_DIGESTS: dict[str, Digests] = {}


def digest(folder: str, memory: str = MEMORY) -> Iterator[dict[str, list[Any]]]:
    """{name: [bytes, SHA-256]} of all files in the folder, some at a time; hidden and unfinished ones are left out."""
    root = _root(folder)
    digests = _digests(root, memory)
    found: dict[str, list[Any]] = {}
    told_at = time.monotonic()
    try:
        for name in _names(root):
            found[name] = digests.of(os.path.join(root, name))
            if len(found) >= NUM_TOLD or time.monotonic() - told_at > TOLD_SECONDS:
                yield found
                found, told_at = {}, time.monotonic()
    finally:
        digests.save()
    yield found


def fingerprint(folder: str, memory: str = MEMORY) -> list[Any]:
    """[files, bytes, SHA-256 over all names and digests]: equal where the folders are."""
    found: dict[str, list[Any]] = {}
    for some in digest(folder, memory):
        found.update(some)
    return [len(found), sum(size for size, _ in found.values()), digest_of_digests(found)]


def digest_of_digests(found: dict[str, list[Any]]) -> str:
    return hashlib.sha256(json.dumps(sorted(found.items())).encode()).hexdigest()


def free_bytes(folder: str) -> int:
    """On the disk where the folder is, or will be."""
    path = _root(folder)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return shutil.disk_usage(path).free


def read(folder: str, name: str, offset: int, size: int) -> bytes:
    with open(place(folder, name), "rb") as stream:
        stream.seek(offset)
        return stream.read(size)


def read_whole(files: list[list[str]]) -> bytes:
    """Small files, each given by folder and name, one after another."""
    return b"".join(_content(place(folder, name)) for folder, name in files)


def part(folder: str, name: str) -> list[Any]:
    """[bytes, SHA-256] of what an interrupted transfer left."""
    path = place(folder, name) + PART
    return [os.path.getsize(path), _sha256(path)] if os.path.isfile(path) else [0, ""]


def beginning(folder: str, name: str, num_bytes: int) -> str:
    """SHA-256 of a file's first bytes."""
    return _sha256(place(folder, name), num_bytes)


def write(folder: str, name: str, offset: int, payload: bytes) -> None:
    """From there on; what was behind it is gone."""
    path = place(folder, name) + PART
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "r+b" if offset else "wb") as stream:
        stream.truncate(offset)
        stream.seek(offset)
        stream.write(payload)


def finish(folder: str, name: str, sha256: str, memory: str = MEMORY) -> None:
    """Gives a file its name, if it is what it should be."""
    path = place(folder, name)
    _check(path, _sha256(path + PART), sha256)
    os.replace(path + PART, path)
    _digests(_root(folder), memory).learn(path, sha256)


def write_whole(folder: str, files: list[list[Any]], payload: bytes, memory: str = MEMORY) -> None:
    """Small files, each given by name, size and SHA-256, whose bytes come one after another."""
    if sum(size for _, size, _ in files) != len(payload):
        raise ValueError(f"{files[0][0]} has changed meanwhile, or a file beside it")
    offset = 0
    for name, size, sha256 in files:
        write(folder, name, 0, payload[offset : offset + size])
        finish(folder, name, sha256, memory)
        offset += size


def remember(folder: str, memory: str = MEMORY) -> None:
    """Saves the digests of what was finished, so that the next look is quick."""
    _digests(_root(folder), memory).save()


def place(folder: str, name: str) -> str:
    """Where a name lies: in its folder, whatever is in the name, and wherever a link there leads."""
    root = _root(folder)
    path = os.path.realpath(os.path.join(root, name))
    if not path.startswith(os.path.join(root, "")):
        raise ValueError(f"{name!r} lies outside of {folder}")
    return path


def _root(folder: str) -> str:
    return os.path.realpath(os.path.expanduser(folder))


def _names(root: str) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = os.path.join(folder, name)
            if not name.startswith(".") and not name.endswith(PART) and _is_ours(root, path):
                yield os.path.relpath(path, root)


def _is_ours(root: str, path: str) -> bool:
    """A file, and no link that leads elsewhere or nowhere."""
    return os.path.isfile(path) and os.path.realpath(path).startswith(os.path.join(root, ""))


def _digests(root: str, memory: str) -> Digests:
    if root not in _DIGESTS:
        _DIGESTS[root] = Digests(root, memory)
    return _DIGESTS[root]


def _state(path: str) -> list[int]:
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _sha256(path: str, num_bytes: int | None = None) -> str:
    """Of all of it, or of its beginning."""
    sha256 = hashlib.sha256()
    left = os.path.getsize(path) if num_bytes is None else num_bytes
    with open(path, "rb") as stream:
        while left > 0:
            block = stream.read(min(BLOCK_BYTES, left))
            if not block:
                break
            sha256.update(block)
            left -= len(block)
    return sha256.hexdigest()


def _check(path: str, found: str, wanted: str) -> None:
    """What is damaged goes, or a next try would go on from it."""
    if found != wanted:
        os.remove(path + PART)
        raise ValueError(f"{os.path.basename(path)} arrived damaged")


def _content(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read()


def _read_json(path: str) -> dict[str, Any]:
    try:
        with open(path) as stream:
            return dict(json.load(stream))
    except (OSError, ValueError):
        return {}
