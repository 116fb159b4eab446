"""A real HTTP server on loopback that can behave as badly as real ones do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Served:
    """How one request is answered."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    etag: str = '"one"'
    last_modified: str = ""
    knows_ranges: bool = True
    shift: int = 0
    """How far off the range is that it sends."""
    cut_at: int | None = None
    """The connection breaks before this byte of the body."""
    stall_at: int | None = None
    """Nothing more comes from this byte on."""
    claimed_bytes: int | None = None
    """A Content-Length that is a lie."""
    tells_length: bool = True


class Server:
    """Serves each name by the answers given for it, one a request; the last one stays."""

    def __init__(self, port: int) -> None:
        self.root = f"http://127.0.0.1:{port}"
        self.answers: dict[str, list[Served]] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.is_over = threading.Event()

    def serve(self, name: str, *answers: Served) -> str:
        """Its address."""
        self.answers[name] = list(answers)
        return f"{self.root}/{name}"

    def next_answer(self, name: str) -> Served:
        answers = self.answers.get(name, [Served(status=404)])
        return answers.pop(0) if len(answers) > 1 else answers[0]

    @property
    def ranges(self) -> list[str]:
        """What was asked for, request by request."""
        return [headers.get("Range", "all") for _, headers in self.requests]


@contextmanager
def running_server() -> Iterator[Server]:
    class Handler(_Handler):
        def do_GET(self) -> None:
            name = self.path.removeprefix(server.root).removeprefix("http://").partition("/")[2]
            server.requests.append((self.path, dict(self.headers)))
            self.answer(server.next_answer(name), server.is_over)

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server = Server(http.server_port)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.is_over.set()
        http.shutdown()
        http.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    def answer(self, served: Served, is_over: threading.Event) -> None:
        if served.status != 200:
            self._send_head(served.status, {**served.headers, "Content-Length": "0"})
            return
        start = self._asked_start(served)
        total = len(served.body)
        if start >= total > 0:
            self._send_head(416, {"Content-Range": f"bytes */{total}", "Content-Length": "0"})
            return
        first = max(0, start + served.shift) if start else 0
        headers = {"Content-Range": f"bytes {first}-{total - 1}/{total}"} if start else {}
        length = total - first if served.claimed_bytes is None else served.claimed_bytes - first
        names = {"ETag": served.etag, "Last-Modified": served.last_modified}
        headers |= {name: value for name, value in names.items() if value}
        headers |= {"Content-Length": str(length)} if served.tells_length else {}
        self._send_head(206 if start else 200, {**headers, **served.headers})
        self._send_body(served, first, is_over)

    def _asked_start(self, served: Served) -> int:
        """From which byte on; from the first where the file is another one by now."""
        asked = self.headers.get("Range", "")
        is_same = self.headers.get("If-Range", "") in ("", served.etag, served.last_modified)
        return int(asked[len("bytes=") : -1]) if asked and is_same and served.knows_ranges else 0

    def _send_head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send_body(self, served: Served, first: int, is_over: threading.Event) -> None:
        end = next((at for at in (served.cut_at, served.stall_at) if at is not None), len(served.body))
        self.wfile.write(served.body[first:end])
        self.wfile.flush()
        if served.stall_at is not None:
            is_over.wait(10)

    def log_message(self, format: str, *args: object) -> None:
        """Not a word."""
