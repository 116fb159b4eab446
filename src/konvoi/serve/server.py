"""uvicorn, with an end at which nothing that was accepted is lost."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from konvoi.errors import MachineError, UserError
from konvoi.serve.service import Service

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# A client that just had an answer may be sending its next request: it is told of the end rather than cut off.
QUIET_SECONDS = 1.0
# A connection on which nothing is asked, or whose answer nobody reads any more, is closed within twice this.
LOOK_SECONDS = 20.0
# At the end, for pages and files, which are not counted among the requests.
CLOSING_SECONDS = 5


class Connection(H11Protocol):
    """uvicorn's, which waits without end for a head to come, and for an answer to be read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._seen: object = None
        self._look()

    def _look(self) -> None:
        is_waiting = self.cycle is None or self.cycle.response_complete or self.transport.is_closing()
        # Whoever reads, however slowly, leaves fewer bytes each time.
        seen = (self.cycle, self.transport.get_write_buffer_size()) if is_waiting else None
        if seen and seen == self._seen:
            return self.transport.abort()
        self._seen = seen
        self.loop.call_later(LOOK_SECONDS, self._look)


class Server(uvicorn.Server):
    """Told to end it goes on listening, refuses what comes (503), answers what it has, and then ends. A second signal
    ends it at once."""

    def __init__(self, app: FastAPI) -> None:
        self.service: Service = app.state.service
        # No access log: a path may hold what somebody typed.
        config = uvicorn.Config(
            app,
            http=Connection,
            lifespan="on",
            access_log=False,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=CLOSING_SECONDS,
        )
        super().__init__(config)
        self._told_at, self._end_at = 0.0, float("inf")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.service.is_ending:
            self.should_exit = self.force_exit = True
            # It would tell of all that is cut off, with tracebacks.
            logging.getLogger("uvicorn.error").disabled = True
        self.service.is_ending = True
        self._told_at = time.monotonic()
        self._end_at = self._told_at + self.service.limits.ending_seconds

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to end now."""
        now = time.monotonic()
        is_quiet = now - max(self._told_at, self.service.latest_at) >= QUIET_SECONDS
        is_done = self.service.is_ending and self.service.num_requests == 0 and is_quiet
        return await super().on_tick(counter) or is_done or now >= self._end_at

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise them again at the end: an ordinary end would look like a violent one."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound: nobody else takes the port while the models load. Port 0 is any that is free."""
    family, address = _resolved(host, port)
    # Named as TCP, or asyncio leaves Nagle's algorithm on: an answer of two packets then takes 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise MachineError(
                f"{host} is no address of this machine", hint="name one of its own with --host"
            ) from None
        problem = f"port {port} cannot be used: {error.strerror}"
        raise MachineError(problem, hint="name another with --port; --port 0 takes any that is free") from None
    return listener


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(_resolved(host, 0)[1][0]).is_loopback


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise UserError(f"{host} is no address", hint="as in --host 127.0.0.1") from None
    family, _, _, _, address = found[0]
    return family, (str(address[0]), int(address[1]))
