"""Downloads a file: goes on where a broken download stopped, tries again, tries elsewhere, and checks what came."""

from __future__ import annotations

import contextlib
import hashlib
import random
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NoReturn

import requests
import urllib3
from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema

import konvoi
from konvoi.errors import DataError, MachineError
from konvoi.fetch.sets import Archive
from konvoi.folder import read_json, write_json
from konvoi.stages import BYTES, Report, silent

CONNECT_SECONDS = 15.0
READ_SECONDS = 60.0
CHUNK_BYTES = 1 << 18
# Tries in a row at one address that bring (nearly) nothing. A long download may break as often as it likes.
MAX_TRIES = 5
PROGRESS_BYTES = 1 << 20
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 30.0
MAX_RETRY_AFTER_SECONDS = 120.0
PASSING_STATUSES = {408, 425, 429, 500, 502, 503, 504}
BYTES_PER_MB = 1e6
NO_SUCH_NAME = "the name of the server was not found"
# Packed on the way, a file would have other sizes and ranges than the server says.
HEADERS = {"User-Agent": f"Mozilla/5.0 (compatible; konvoi/{konvoi.__version__})", "Accept-Encoding": "identity"}

# Tests put their own in its place.
sleep = time.sleep


@dataclass(frozen=True)
class Origin:
    """Where a file comes from, and how its server tells this version of it from others."""

    address: str = ""
    etag: str = ""
    last_modified: str = ""
    sha256: str = ""
    """Of the whole file, once it is here."""

    @property
    def validator(self) -> str:
        """Names this version in If-Range, for which a weak ETag won't do; empty where the server has no name for it."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.last_modified


class _Trouble(Exception):
    """What went wrong at an address, whether another try may help, and how long the server asks to wait."""

    def __init__(self, problem: str, *, is_passing: bool, wait_seconds: float = 0.0) -> None:
        super().__init__(problem)
        self.problem, self.is_passing, self.wait_seconds = problem, is_passing, wait_seconds


def download(archive: Archive, folder: Path, *, report: Report = silent, mirror: str | None = None) -> Path:
    """The verified file in the folder; where it is there already, nothing is done. A mirror is tried first."""
    final = folder / archive.name
    if final.is_file():
        return final
    folder.mkdir(parents=True, exist_ok=True)
    failures = []
    with requests.Session() as session:
        transfer = _Transfer(archive, folder, session, report)
        for address in (*_at_mirror(mirror, archive), *archive.addresses):
            try:
                transfer.fetch(address)
                return transfer.finish(final)
            except _Trouble as trouble:
                failures.append(f"  {address}: {trouble.problem}")
    raise DataError(
        "\n".join((f"{archive.name} could not be downloaded:", *failures)),
        hint="try again later: it goes on where it stopped; or name another server that has it with --mirror URL, "
        "or a folder that has it with --from DIR",
    )


def origin_of(path: Path) -> Origin:
    """What is remembered of a file that was downloaded."""
    return Origin(**read_json(_origin_path(path)))


def sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def what_is_wrong(archive: Archive, num_bytes: int, sha256: str) -> str:
    """How a file differs from what is known of it; empty where it doesn't."""
    if archive.num_bytes not in (None, num_bytes):
        return f"{num_bytes:,} bytes instead of {archive.num_bytes:,}"
    if archive.sha256 not in (None, sha256):
        return f"wrong checksum: SHA-256 {sha256[:16]}... instead of {archive.sha256:.16}..."
    return ""


def _origin_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.origin.json")


def _at_mirror(mirror: str | None, archive: Archive) -> list[str]:
    if mirror is None:
        return []
    if not mirror.startswith(("http://", "https://")):
        raise DataError(f"--mirror {mirror}: not an address", hint="such as https://example.org/corpora")
    return [f"{mirror.rstrip('/')}/{archive.name}"]


class _Part:
    """As much of a file as is here, with its checksum so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_bytes, self.hash = 0, hashlib.sha256()
        if path.is_file():
            with path.open("rb") as stream:
                self.hash = hashlib.file_digest(stream, "sha256")
                self.num_bytes = stream.tell()

    def start_over(self) -> None:
        self.path.write_bytes(b"")
        self.num_bytes, self.hash = 0, hashlib.sha256()

    def append_all(self, chunks: Iterator[bytes]) -> Iterator[int]:
        """Yields how many bytes there are after each chunk."""
        with self.path.open("ab") as output:
            for chunk in chunks:
                output.write(chunk)
                # Nothing may wait in a buffer: it would still be written after the part was thrown away.
                output.flush()
                self.hash.update(chunk)
                self.num_bytes += len(chunk)
                yield self.num_bytes


class _Transfer:
    """One file on its way, over several tries and addresses."""

    def __init__(self, archive: Archive, folder: Path, session: requests.Session, report: Report) -> None:
        self.archive, self.session, self.report = archive, session, report
        self.path = folder / archive.name
        self.part = _Part(folder / f"{archive.name}.part")
        self.origin = origin_of(self.path)
        self.total: int | None = None
        self.is_continued = False

    def finish(self, final: Path) -> Path:
        write_json(_origin_path(final), asdict(replace(self.origin, sha256=self.part.hash.hexdigest())))
        self.part.path.rename(final)
        return final

    def fetch(self, address: str) -> None:
        """Tries until the whole file is here, or until the address has to be given up."""
        num_fruitless, most_bytes = 0, self.part.num_bytes if self._range_headers(address) else 0
        while True:
            try:
                return self._try(address)
            except _Trouble as trouble:
                # Measured by the most that was ever here: a server that always begins again makes no progress.
                is_progress = self.part.num_bytes >= most_bytes + PROGRESS_BYTES
                most_bytes = max(most_bytes, self.part.num_bytes)
                num_fruitless = 0 if is_progress else num_fruitless + 1
                if not trouble.is_passing or num_fruitless == MAX_TRIES:
                    raise
                self._pause(num_fruitless, trouble)

    def _pause(self, num_fruitless: int, trouble: _Trouble) -> None:
        pause = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** max(0, num_fruitless - 1))
        # Never twice the same: those who were turned away together should not come back together.
        seconds = max(pause * random.uniform(0.5, 1.0), min(trouble.wait_seconds, MAX_RETRY_AFTER_SECONDS))
        self.report(f"{self.archive.name}: {trouble.problem}; trying again in {seconds:.0f} s")
        sleep(seconds)

    def _try(self, address: str) -> None:
        with self._explained(), self._answer(address) as answer:
            self._check_status(answer)
            self._begin(address, answer)
            self._check_size()
            for num_bytes in self.part.append_all(self._chunks(answer)):
                self.report(f"downloading {self.archive.name}", num_bytes, self.total, BYTES)
                self._check_length(num_bytes)
            self._check_end()

    def _answer(self, address: str) -> requests.Response:
        headers = {**HEADERS, **self._range_headers(address)}
        return self.session.get(address, headers=headers, stream=True, timeout=(CONNECT_SECONDS, READ_SECONDS))

    def _range_headers(self, address: str) -> dict[str, str]:
        """Asks for the rest, but only of the same file: a half is never glued to the half of another version."""
        if not self.part.num_bytes:
            return {}
        rest = {"Range": f"bytes={self.part.num_bytes}-"}
        if self.origin.address == address and self.origin.validator:
            return {**rest, "If-Range": self.origin.validator}
        # With a known checksum any server may go on: at the end, halves that do not belong together are found.
        return rest if self.archive.sha256 else {}

    def _check_status(self, answer: requests.Response) -> None:
        # 206: here is the rest. 416: nothing is left to send, so that the part is the whole file, or too long.
        expected = (206, 416, 200) if "Range" in answer.request.headers else (200,)
        if answer.status_code not in expected:
            problem = f"{answer.status_code} {answer.reason}".strip()
            is_passing = answer.status_code in PASSING_STATUSES
            raise _Trouble(problem, is_passing=is_passing, wait_seconds=_retry_after(answer.headers))
        if answer.headers.get("Content-Type", "").startswith("text/html"):
            raise _Trouble("a web page instead of the file", is_passing=False)

    def _begin(self, address: str, answer: requests.Response) -> None:
        """Goes on with the part, or starts over where the server sends everything."""
        self.is_continued = answer.status_code != 200
        if self.is_continued:
            self.total = _total_of_range(answer.headers)
            is_rest = _start_of_range(answer.headers) == self.part.num_bytes
            if not (is_rest if answer.status_code == 206 else self.total is not None):
                self._discard("sent another range than the one asked for")
            if address != self.origin.address:
                self._remember(address, answer.headers)
            return
        # First the part, then its origin: in between, an empty part has nothing to be glued to.
        self.part.start_over()
        self._remember(address, answer.headers)
        self.total = _number(answer.headers.get("Content-Length", ""))

    def _remember(self, address: str, headers: Mapping[str, Any]) -> None:
        self.origin = Origin(address, headers.get("ETag", ""), headers.get("Last-Modified", ""))
        write_json(_origin_path(self.path), asdict(self.origin))

    def _discard(self, problem: str) -> NoReturn:
        """Throws away what is here. If a part from before was in it, that may be at fault: the address has a chance."""
        self.part.start_over()
        raise _Trouble(problem, is_passing=self.is_continued)

    def _check_size(self) -> None:
        """Before anything is written: that it is the right file, and that there is room for it."""
        if self.total is not None and self.archive.num_bytes not in (None, self.total):
            self._discard(f"{self.total:,} bytes instead of {self.archive.num_bytes:,}")
        self.total = self.total if self.total is not None else self.archive.num_bytes
        missing, free = (self.total or 0) - self.part.num_bytes, shutil.disk_usage(self.path.parent).free
        if missing > free:
            raise MachineError(
                f"{self.archive.name}: {missing / BYTES_PER_MB:,.1f} MB are missing, "
                f"but only {free / BYTES_PER_MB:,.1f} MB are free on the disk of {self.path.parent}",
                hint="free some space, or set KONVOI_HOME to a folder on another disk",
            )

    def _chunks(self, answer: requests.Response) -> Iterator[bytes]:
        """The bytes as they were sent. Some servers call a .tgz a packed .tar; it must not be unpacked on the way."""
        if answer.status_code == 416:
            return
        while chunk := answer.raw.read(CHUNK_BYTES, decode_content=False):
            yield chunk

    def _check_length(self, num_bytes: int) -> None:
        if self.total is not None and num_bytes > self.total:
            self._discard(f"more than {self.total:,} bytes")

    def _check_end(self) -> None:
        """Whether the whole file is here, and the right one; a wrong one is thrown away."""
        num_bytes, total = self.part.num_bytes, self.total
        if total is not None and num_bytes < total:
            raise _Trouble(f"cut short at {num_bytes:,} of {total:,} bytes", is_passing=True)
        self._check_length(num_bytes)
        if problem := what_is_wrong(self.archive, num_bytes, self.part.hash.hexdigest()):
            self._discard(problem)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Names what happened to the connection; what happens to the disk is left as it is."""
        try:
            yield
        except (InvalidURL, InvalidSchema, MissingSchema, urllib3.exceptions.LocationParseError) as error:
            raise _Trouble(f"not an address: {error}", is_passing=False) from None
        except urllib3.exceptions.ProtocolError:
            of_total = "" if self.total is None else f" of {self.total:,}"
            raise _Trouble(f"cut short at {self.part.num_bytes:,}{of_total} bytes", is_passing=True) from None
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            problem = _what_happened(error)
            # Someone without network should be told at once, not after minutes of trying.
            is_passing = problem != NO_SUCH_NAME or self.part.num_bytes > 0
            raise _Trouble(problem, is_passing=is_passing) from None


def _what_happened(error: Exception) -> str:
    cause = getattr(error.args[0], "reason", error.args[0]) if error.args else error
    # Kinds of other kinds stand first.
    for kind, words in (
        (urllib3.exceptions.NameResolutionError, NO_SUCH_NAME),
        (urllib3.exceptions.NewConnectionError, f"no connection: {str(cause).rpartition(': ')[2]}"),
        (urllib3.exceptions.ConnectTimeoutError, f"no answer within {CONNECT_SECONDS:g} s"),
        (urllib3.exceptions.ReadTimeoutError, f"nothing came for {READ_SECONDS:g} s"),
        (urllib3.exceptions.SSLError, f"no safe connection: {cause}"),
        (urllib3.exceptions.ProxyError, f"the proxy fails: {cause}"),
        (urllib3.exceptions.ProtocolError, "the connection broke"),
    ):
        if isinstance(error, kind) or isinstance(cause, kind):
            return words
    return f"{type(error).__name__}: {error}"


def _retry_after(headers: Mapping[str, Any]) -> float:
    """Seconds that the server asks to wait, given as a number or as a date; 0 where it does not say."""
    value = str(headers.get("Retry-After", "")).strip()
    if (seconds := _number(value)) is not None:
        return float(seconds)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return 0.0


def _start_of_range(headers: Mapping[str, Any]) -> int | None:
    """Content-Range: bytes 5-9/10 -> 5"""
    return _number(str(headers.get("Content-Range", "")).removeprefix("bytes").strip().partition("-")[0])


def _total_of_range(headers: Mapping[str, Any]) -> int | None:
    """Content-Range: bytes 5-9/10 -> 10"""
    return _number(str(headers.get("Content-Range", "")).rpartition("/")[2])


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
