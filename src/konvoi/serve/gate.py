"""What every request passes before the app sees it, and every answer on its way out.

In: may it be asked, is there room, is it small enough, does it come in time. Out: headers for browsers, metrics.
Bodies are read here, whole: what the app is given is there, and has been counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from konvoi.serve import limits as sizes
from konvoi.serve.refusal import Refusal
from konvoi.serve.security import HEADERS, Security
from konvoi.serve.service import Service

# What is too large is read to its end even so, and dropped, up to this.
MAX_DROPPED_BYTES = 10 * sizes.MAX_PICTURE_BYTES
KNOWN_PATHS = (
    *("/", "/docs", "/docs.css", "/openapi.json", "/health", "/ready", "/metrics"),
    *("/api/models", "/api/translate", "/api/translate/stream", "/api/classify"),
)

log = logging.getLogger(__name__)


class ClientGone(Exception):
    """Nobody is left to be answered."""


class Gate:
    def __init__(self, app: ASGIApp, service: Service, security: Security) -> None:
        self.app, self.service, self.security = app, service, security

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        answer = Answer(send, scope["path"], self.service)
        try:
            await self._answer_or_refuse(scope, receive, answer)
        except ClientGone:
            pass
        except Exception as error:
            _log_without_content(error)
            if answer.status:
                raise ConnectionAbortedError from None
            await Refusal(500, "this is a fault of the service, not yours").response()(scope, receive, answer)
        finally:
            self.service.metrics.answered(_label(scope["path"]), answer.status, time.monotonic() - answer.began_at)

    async def _answer_or_refuse(self, scope: Scope, receive: Receive, answer: Answer) -> None:
        body = Body(receive, self.service.limits.request_seconds)
        try:
            headers = Headers(scope=scope)
            self.security.check(scope["path"], headers)
            if scope["method"] != "POST":
                return await self.app(scope, receive, answer)
            with self._place():
                content = await body.read(_max_bytes(scope["path"]))
                await _unless_gone(self.app, scope, content, receive, answer)
        except Refusal as refusal:
            await body.drop()
            await refusal.response()(scope, receive, answer)

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Among the requests that are answered at the same time."""
        self.service.latest_at = time.monotonic()
        if self.service.is_ending:
            raise Refusal(503, "the service is ending", headers={"Retry-After": "5"})
        if self.service.num_requests >= self.service.limits.max_requests:
            problem = f"{self.service.num_requests} requests are being answered already"
            raise Refusal(429, problem, hint="come again in a second", headers={"Retry-After": "1"})
        self.service.num_requests += 1
        try:
            yield
        finally:
            self.service.num_requests -= 1


class Body:
    """Of a request: read once, and kept or dropped."""

    def __init__(self, receive: Receive, max_seconds: float) -> None:
        self._receive, self._max_seconds = receive, max_seconds
        self._is_over = False

    async def read(self, max_bytes: int) -> bytes:
        self._is_over = True
        try:
            async with asyncio.timeout(self._max_seconds):
                return await _read(self._receive, max_bytes)
        except TimeoutError:
            raise Refusal(408, "the request did not arrive in time", headers={"Connection": "close"}) from None

    async def drop(self) -> None:
        """A client hears of a refusal only once it has sent all: before, it would find the connection broken."""
        if not self._is_over:
            with suppress(Refusal):
                await self.read(max_bytes=0)


class Answer:
    """Sends, with our headers, and knows what was sent."""

    def __init__(self, send: Send, path: str, service: Service) -> None:
        self._send, self._service = send, service
        self._cache = "no-store" if path.startswith("/api/") else "no-cache"
        self.began_at = time.monotonic()
        self.status = 0
        """0 before the answer's head was sent."""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers.update(HEADERS)
            headers.setdefault("Cache-Control", self._cache)
            if self._service.is_ending:
                headers["Connection"] = "close"
        try:
            async with asyncio.timeout(self._service.limits.request_seconds):
                await self._send(message)
        except TimeoutError:
            # Who does not read its answer may not keep a place from others.
            raise ClientGone from None


async def _read(receive: Receive, max_bytes: int) -> bytes:
    chunks, num_bytes, is_more = [], 0, True
    while is_more and num_bytes <= MAX_DROPPED_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        num_bytes += len(message.get("body", b""))
        if num_bytes <= max_bytes:
            chunks.append(message.get("body", b""))
        else:
            chunks.clear()
        is_more = message.get("more_body", False)
    if num_bytes > max_bytes:
        raise Refusal(413, f"this is more than {max_bytes / 1e6:.0f} MB", hint="send less at a time")
    return b"".join(chunks)


async def _unless_gone(app: ASGIApp, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
    """A closed window, or one whose user typed on, needs no answer: the model is spared it."""
    answering = asyncio.ensure_future(app(scope, _replay(body), send))
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ClientGone
        answering.result()
    finally:
        answering.cancel()
        leaving.cancel()
        await asyncio.gather(answering, leaving, return_exceptions=True)


def _replay(body: bytes) -> Receive:
    """The whole body at once; then nothing ever happens."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    return receive


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _max_bytes(path: str) -> int:
    return sizes.MAX_PICTURE_BYTES if path == "/api/classify" else sizes.MAX_JSON_BYTES


def _label(path: str) -> str:
    """Of few values: a metric for every path that somebody tries would fill the memory."""
    return path if path in KNOWN_PATHS else "/static" if path.startswith("/static/") else "other"


def _log_without_content(error: Exception) -> None:
    """Where it happened and what kind it is; its message might hold what a user typed."""
    log.error("%s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
