"""Clients that begin and do not go on: they keep no place from others, and do not keep the service from ending."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from tests.hosts import wait_until

PATIENCE_SECONDS = 60
# Its answer is too large for any socket's buffer: nobody can send it to a client that does not read.
SERVICE = """
from konvoi.bundle.interfaces import Translation
from konvoi.serve import server
from konvoi.serve.app import create_app
from konvoi.serve.limits import Limits

class Translator:
    source, target, name = "en", "de", "long"
    def translate(self, sentences, **_):
        return [[Translation("x" * 10_000_000 if one == "long" else one, 0.0)] for one in sentences]

server.LOOK_SECONDS = 0.5
app = create_app([Translator()], limits=Limits(max_requests=1, request_seconds=2, ending_seconds=1))
with server.listen("127.0.0.1", 0) as listener:
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    server.Server(app).run([listener])
"""
LONG = b'{"sentences": ["long", "long", "long"]}'
HEAD = b"POST /api/translate/stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LENGTH = b"Content-Length: %d\r\n\r\n" % len(LONG)


@pytest.fixture
def service() -> Iterator[tuple[int, subprocess.Popen[str]]]:
    words = [sys.executable, "-c", SERVICE]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield int(process.stdout.readline()), process
        process.kill()


def status_of(port: int, text: str = "short") -> int:
    url = f"http://127.0.0.1:{port}/api/translate"
    return httpx.post(url, json={"text": text}, timeout=PATIENCE_SECONDS).status_code


def is_closed(connection: socket.socket) -> bool:
    """By the service, without a word or in the middle of an answer; raises where it is not."""
    connection.settimeout(PATIENCE_SECONDS)
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1 << 20):
            pass
    return True


def test_who_does_not_read_its_answer_keeps_no_place(service: tuple[int, subprocess.Popen[str]]) -> None:
    port, _ = service
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(HEAD + LENGTH + LONG)
        assert connection.recv(1)
        wait_until(lambda: status_of(port) == 200)
        assert is_closed(connection)


def test_who_does_not_read_its_answer_does_not_keep_the_service_from_ending(
    service: tuple[int, subprocess.Popen[str]],
) -> None:
    port, process = service
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(HEAD + LENGTH + LONG)
        assert connection.recv(1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize("begun", [b"", HEAD], ids=["nothing", "half a head"])
def test_a_connection_on_which_nothing_is_asked_is_closed(
    service: tuple[int, subprocess.Popen[str]], begun: bytes
) -> None:
    port, _ = service
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(begun)
        assert is_closed(connection)
    assert status_of(port) == 200
