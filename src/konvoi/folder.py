"""Files and folders that are there as a whole or not at all; folders are made once, by one process at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from konvoi.errors import DataError, MachineError, UserError
from konvoi.stages import Report, silent

if TYPE_CHECKING:
    from numpy.typing import NDArray

BYTES_PER_MB = 1e6
DAMAGED = "it is damaged, or another program's: bring a whole copy of it"


class KeepsWorkError(DataError):
    """Wrong input, too, but what was made of it stays: it took hours, or shows what is wrong."""


def write_whole(path: Path, text: str) -> None:
    """Beside, then rename: a reader never sees half of it, nor, after a power cut, an empty file in its place."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def unless_full() -> Iterator[None]:
    """What a run tells of itself is not worth ending it for, when the disk is full."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise


def is_full(error: Exception) -> bool:
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)


def write_json(path: Path, value: dict[str, Any]) -> None:
    write_whole(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Empty where the file does not exist yet."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}", hint=DAMAGED) from None
    if not isinstance(value, dict):
        raise UserError(f"{path} holds no JSON object", hint=DAMAGED)
    return value


def save_array(path: Path, array: NDArray[Any]) -> None:
    """As .npy. Not np.save() into the file: on a full disk it raises an error that does not say so (no errno)."""
    import numpy

    content = io.BytesIO()
    numpy.save(content, array)
    path.write_bytes(content.getbuffer())


def load_array(path: Path, *, mapped: bool = False) -> NDArray[Any]:
    """What save_array() wrote, without pickle; ValueError where it is none.

    Of a header with a changed byte numpy raises what Python's own parser does: SyntaxError, TokenError, TypeError ...
    """
    import numpy

    try:
        array = numpy.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:
        raise ValueError(str(error)) from None
    if not isinstance(array, numpy.ndarray) or array.ndim != 1:
        raise ValueError("holds no list of numbers")
    return array


def make_once(final: Path, make: Callable[[Path], None], *, needed_bytes: int, report: Report = silent) -> None:
    """Lets `make` fill a folder that then takes the place of `final`; does nothing where `final` is there.

    Whoever comes second waits and finds the work done. What an interrupted process (or a full disk) leaves in
    the work folder is given to the next one, which may go on from there; wrong input leaves nothing, unless the error
    asks for it.
    """
    if final.exists():
        return
    with _explained(final, needed_bytes):
        final.parent.mkdir(parents=True, exist_ok=True)
        with _alone(final, report):
            if final.exists():
                return
            work = work_folder(final)
            work.mkdir(exist_ok=True)
            try:
                make(work)
            except DataError as error:
                if not isinstance(error, KeepsWorkError):
                    shutil.rmtree(work, ignore_errors=True)
                raise
            work.rename(final)


def work_folder(final: Path) -> Path:
    """Where a folder grows before it is whole."""
    return final.with_name(f".{final.name}.unfinished")


@contextlib.contextmanager
def _alone(final: Path, report: Report) -> Iterator[None]:
    """Holds the lock of a folder; it dies with its holder."""
    path = final.with_name(f".{final.name}.lock")
    with contextlib.ExitStack() as stack:
        while True:
            file = stack.enter_context(path.open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report(f"waiting for another process that makes {final.name}")
                fcntl.flock(file, fcntl.LOCK_EX)
            # The holder before removed the file: only a lock on the one that is there now keeps others out.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    break
        stack.callback(path.unlink, missing_ok=True)
        yield


@contextlib.contextmanager
def _explained(final: Path, needed_bytes: int) -> Iterator[None]:
    """Says what the machine lacks, instead of an errno."""
    free_mb = shutil.disk_usage(_existing(final)).free / BYTES_PER_MB
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise MachineError(
                f"no space left for {final}: about {needed_bytes / BYTES_PER_MB:,.0f} MB are needed, "
                f"{free_mb:,.0f} MB were free",
                hint="free some space and start again: it goes on where it stopped; "
                "or set KONVOI_HOME to a folder on another disk",
            ) from None
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM) or not final.parent.is_dir():
            raise MachineError(
                f"cannot write {error.filename or final}: {error.strerror}",
                hint="set KONVOI_HOME to a folder that you may write",
            ) from None
        raise


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())
