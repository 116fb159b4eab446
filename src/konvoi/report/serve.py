"""The report of a run that goes on, for a browser on this machine."""

from __future__ import annotations

import errno
import hashlib
import sys
import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from konvoi.analysis.record import RunRecord
from konvoi.errors import MachineError, UserError
from konvoi.report import html
from konvoi.report.page import build

ADDRESS = "127.0.0.1"
# Whoever reaches the port under another name is a page elsewhere that had its name pointed here (DNS rebinding).
OWN_NAMES = ("127.0.0.1", "localhost")
EVERY_SECONDS = 2.0
# A long run takes seconds to read: no more than this share of a core goes into showing it.
MAX_SHARE = 0.1
# A run that died writes nothing: whether it lives must be asked anew even so.
ASK_ANEW_SECONDS = 30


@dataclass
class LivePage:
    """The page as of the latest events, made when somebody asks for it."""

    path: Path
    content: bytes = b""
    _state: tuple[Any, ...] = ()
    _next_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def latest(self) -> bytes:
        # One at a time: several windows must not read the run several times.
        with self._lock:
            state = self._state_now()
            if not self.content or (state != self._state and time.monotonic() >= self._next_at):
                self._rebuild()
                self._state = state
            return self.content

    def _rebuild(self) -> None:
        # Processor time: on a machine that is busy training, the clock tells how long we had to wait for a core.
        started = time.thread_time()
        run = RunRecord.read(self.path)
        self.content = html.write(build(run), live=run.status in ("running", "not started")).encode()
        self._next_at = time.monotonic() + max(EVERY_SECONDS, (time.thread_time() - started) / MAX_SHARE)

    def _state_now(self) -> tuple[Any, ...]:
        files = sorted((*self.path.glob("*.json"), *self.path.glob("events/*.jsonl"), *self.path.glob("hosts/*.jsonl")))
        sizes = [(file.name, stat.st_size, stat.st_mtime_ns) for file in files if (stat := file.stat())]
        return (*sizes, int(time.monotonic() / ASK_ANEW_SECONDS))


class Handler(BaseHTTPRequestHandler):
    """Answers for one page; says nothing on the terminal."""

    page: ClassVar[LivePage]

    def do_GET(self) -> None:
        if self._refused():
            return
        try:
            content = self.page.latest()
        except UserError as error:
            # Moved or deleted meanwhile; it may come back.
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error.problem}\n".encode())
            return
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        if self.headers.get("If-None-Match") == tag:
            self._answer(HTTPStatus.NOT_MODIFIED, b"", tag)
        else:
            self._answer(HTTPStatus.OK, content, tag)

    def _refused(self) -> bool:
        name = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if name not in OWN_NAMES:
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, b"this server answers on this machine only\n")
        elif self.path.partition("?")[0] != "/":
            self._answer(HTTPStatus.NOT_FOUND, b"there is one page only: /\n")
        else:
            return False
        return True

    def _answer(self, status: HTTPStatus, content: bytes, tag: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"text/{'html' if tag else 'plain'}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()
        self.wfile.write(content)

    def version_string(self) -> str:
        return "konvoi"

    def log_message(self, format: str, *args: Any) -> None:
        """A line for each request would bury the address."""


class Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A window that was closed meanwhile is no fault of ours."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def server_of(path: Path, port: int) -> ThreadingHTTPServer:
    """Listens already; port 0 is any that is free."""
    RunRecord.read(path)
    handler = type("RunHandler", (Handler,), {"page": LivePage(path)})
    try:
        return Server((ADDRESS, port), handler)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        problem = f"port {port} cannot be used: {error.strerror}"
        raise MachineError(problem, hint="name another with --port; --port 0 takes any that is free") from None
