"""Files to a host and from it: only those that differ, in chunks, on from where a cut transfer stopped, verified.

Both ends do the same with the functions of far/files.py: a push reads here and writes there, a pull the other way
round. What a host says is not trusted: a name that leads out of the folder is refused.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from konvoi.cluster.far import files as files_here
from konvoi.cluster.session import FarError, Session
from konvoi.data.home import konvoi_home
from konvoi.errors import HostError
from konvoi.folder import BYTES_PER_MB
from konvoi.stages import BYTES, Report, silent

# A payload: large enough that a round trip does not count, small enough that progress is seen.
CHUNK_BYTES = 4 << 20
# Small files travel many at a time, up to a chunk.
MAX_TOGETHER = 1000
# Reading gigabytes from a slow disk takes its time; a lost connection is noticed by ssh, not by this.
HASH_SECONDS = 1800.0
# Left free on the receiving disk.
SPARE_BYTES = 100 * 1000 * 1000

_HASHING = threading.Lock()

Digest = tuple[int, str]
"""Bytes and SHA-256."""


class Side(Protocol):
    """Here or there."""

    def ask(
        self, what: str, *, timeout: float = HASH_SECONDS, payload: bytes | None = None, **arguments: Any
    ) -> Any: ...


class _Here:
    """The functions of far/files.py on this machine, with a memory of their own."""

    def ask(self, what: str, *, timeout: float = HASH_SECONDS, payload: bytes | None = None, **arguments: Any) -> Any:
        if payload is not None:
            arguments["payload"] = payload
        return getattr(files_here, what.removeprefix("files."))(**arguments)


@dataclass(frozen=True)
class Moved:
    """What a transfer had to move: nothing where all was there."""

    num_files: int
    num_bytes: int


@dataclass(frozen=True)
class _Way:
    """From where to where: `places` has folder and name of each file at the source."""

    source: Side
    target: Side
    places: Mapping[str, tuple[str, str]]
    folder: str
    receiver: str
    memory: str


def push(
    session: Session, files: Mapping[str, Path], folder: str, *, report: Report = silent, stage: str = "sending files"
) -> Moved:
    """Files of this machine into a folder of the host under the names given, in that order."""
    with _explained(session):
        report(f"{stage}: comparing")
        here, there = digests_here(files), digests_there(session, folder)
        resolved = {name: path.resolve() for name, path in files.items()}
        places = {name: (str(path.parent), path.name) for name, path in resolved.items()}
        way = _Way(_Here(), session, places, folder, session.host.name, files_here.MEMORY)
        return _move(way, _differing(here, there), report, stage)


def pull(
    session: Session,
    folder: str,
    target: Path,
    choose: Callable[[str], bool] = lambda name: True,
    *,
    report: Report = silent,
    stage: str = "fetching files",
) -> Moved:
    """Files of a host's folder into one of ours: those whose names are chosen."""
    with _explained(session):
        report(f"{stage}: comparing")
        there = {name: digest for name, digest in digests_there(session, folder).items() if choose(name)}
        for name in there:  # all of them before any byte
            files_here.place(str(target), name)
        here = _collect(files_here.digest(str(target), _memory()))
        places = {name: (folder, name) for name in there}
        way = _Way(session, _Here(), places, str(target), "this machine", _memory())
        return _move(way, _differing(there, here), report, stage)


def digests_there(session: Session, folder: str) -> dict[str, Digest]:
    """Of all files in a folder of the host."""
    return _collect(session.stream("files.digest", timeout=HASH_SECONDS, folder=folder))


def digests_here(files: Mapping[str, Path]) -> dict[str, Digest]:
    """Of these; remembered under $KONVOI_HOME, never beside the files."""
    if not files:
        return {}
    # Hosts are served side by side: the first of them hashes, the others find it done.
    with _HASHING:
        memory = files_here.Digests(os.path.commonpath([path.absolute().parent for path in files.values()]), _memory())
        found = {name: memory.of(str(path.absolute())) for name, path in files.items()}
        memory.save()
    return {name: (size, sha256) for name, (size, sha256) in found.items()}


def _collect(parts: Iterable[dict[str, list[Any]]]) -> dict[str, Digest]:
    return {name: (int(size), str(sha256)) for some in parts for name, (size, sha256) in some.items()}


def _memory() -> str:
    return str(konvoi_home() / "digests")


def _differing(wanted: dict[str, Digest], have: dict[str, Digest]) -> dict[str, Digest]:
    return {name: digest for name, digest in wanted.items() if have.get(name) != digest}


def _move(way: _Way, digests: dict[str, Digest], report: Report, stage: str) -> Moved:
    total_bytes = sum(size for size, _ in digests.values())
    if digests:
        _check_space(way, total_bytes)
    done_bytes = 0
    for group in _groups(digests):
        chunks = _send_large(way, *group[0]) if group[0][1][0] > CHUNK_BYTES else _send_small(way, group)
        for num_bytes in chunks:
            done_bytes += num_bytes
            report(stage, done_bytes, total_bytes, BYTES)
    if digests:
        way.target.ask("files.remember", folder=way.folder, memory=way.memory)
    return Moved(len(digests), total_bytes)


def _check_space(way: _Way, needed_bytes: int) -> None:
    free_bytes = way.target.ask("files.free_bytes", folder=way.folder)
    if free_bytes < needed_bytes + SPARE_BYTES:
        raise HostError(
            way.receiver,
            f"no space for {way.folder}: {needed_bytes / BYTES_PER_MB:,.0f} MB are needed, "
            f"{free_bytes / BYTES_PER_MB:,.0f} MB are free",
            hint="free some, or name a folder on another disk",
        )


def _groups(digests: dict[str, Digest]) -> Iterator[list[tuple[str, Digest]]]:
    """A large file alone, small ones together; in their order."""
    group: list[tuple[str, Digest]] = []
    group_bytes = 0
    for name, (size, sha256) in digests.items():
        if group and (group_bytes + size > CHUNK_BYTES or len(group) == MAX_TOGETHER):
            yield group
            group, group_bytes = [], 0
        group.append((name, (size, sha256)))
        group_bytes += size
    if group:
        yield group


def _send_small(way: _Way, group: list[tuple[str, Digest]]) -> Iterator[int]:
    """All in one go; yields their bytes."""
    payload = way.source.ask("files.read_whole", files=[list(way.places[name]) for name, _ in group])
    files = [[name, *digest] for name, digest in group]
    way.target.ask("files.write_whole", folder=way.folder, files=files, payload=payload, memory=way.memory)
    yield len(payload)


def _send_large(way: _Way, name: str, digest: Digest) -> Iterator[int]:
    """Chunk by chunk, on from what is there already; yields the bytes of each."""
    size, sha256 = digest
    folder, name_there = way.places[name]
    offset = _good_bytes(way, name, size)
    yield offset
    while offset < size:
        num_bytes = min(CHUNK_BYTES, size - offset)
        chunk = way.source.ask("files.read", folder=folder, name=name_there, offset=offset, size=num_bytes)
        if len(chunk) != num_bytes:
            raise ValueError(f"{name} has changed meanwhile")
        way.target.ask("files.write", folder=way.folder, name=name, offset=offset, payload=chunk)
        offset += num_bytes
        yield num_bytes
    way.target.ask("files.finish", timeout=HASH_SECONDS, folder=way.folder, name=name, sha256=sha256, memory=way.memory)


def _good_bytes(way: _Way, name: str, size: int) -> int:
    """How much of the file an interrupted transfer has left that is right."""
    left_bytes, left_sha256 = way.target.ask("files.part", timeout=HASH_SECONDS, folder=way.folder, name=name)
    if not 0 < left_bytes <= size:
        return 0
    folder, name_there = way.places[name]
    sha256 = way.source.ask(
        "files.beginning", timeout=HASH_SECONDS, folder=folder, name=name_there, num_bytes=left_bytes
    )
    return left_bytes if sha256 == left_sha256 else 0


@contextlib.contextmanager
def _explained(session: Session) -> Iterator[None]:
    """What either end refuses, in the host's name."""
    try:
        yield
    except FarError as error:
        raise HostError(session.host.name, error.text) from None
    except ValueError as error:
        raise HostError(session.host.name, str(error)) from None
