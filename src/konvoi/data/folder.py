"""Folders that are there as a whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from konvoi.errors import MachineError

BYTES_PER_MB = 1e6


@contextlib.contextmanager
def whole_folder(final: Path, *, needed_bytes: int) -> Iterator[Path]:
    """Yields a temporary folder beside `final`, which takes its place at the end; on any error it is removed."""
    with _explained(final, needed_bytes):
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(final.parent)
        temporary = Path(tempfile.mkdtemp(prefix=_prefix(final), dir=final.parent))
        try:
            # mkdtemp locks others out, but a prepared set may be shared.
            temporary.chmod(0o755)
            yield temporary
            _take_place(temporary, final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _take_place(temporary: Path, final: Path) -> None:
    try:
        temporary.rename(final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        # Another process finished the same folder first: its content is the same.


@contextlib.contextmanager
def _explained(final: Path, needed_bytes: int) -> Iterator[None]:
    """Says what the machine lacks, instead of an errno."""
    free_mb = shutil.disk_usage(_existing(final)).free / BYTES_PER_MB
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise MachineError(
                f"no space left for {final}: about {needed_bytes / BYTES_PER_MB:,.0f} MB are needed, "
                f"{free_mb:,.0f} MB were free",
                hint="free some space, or set KONVOI_HOME to a folder on another disk",
            ) from None
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise MachineError(
                f"cannot write {error.filename or final}: {error.strerror}",
                hint="set KONVOI_HOME to a folder that you may write",
            ) from None
        raise


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _prefix(final: Path) -> str:
    return f".{final.name}.{socket.gethostname()}.{os.getpid()}."


def _remove_abandoned(parent: Path) -> None:
    """Removes what a killed process of this host left behind; other hosts may share the folder and still be at it."""
    of_this_host = re.compile(rf"\..+\.{re.escape(socket.gethostname())}\.(\d+)\.[^.]+")
    for folder in parent.glob(".*"):
        match = of_this_host.fullmatch(folder.name)
        if match and not _is_alive(int(match[1])):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # alive, but another user's
    return True
