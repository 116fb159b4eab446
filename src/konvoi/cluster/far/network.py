"""The way from this host to the others: answers them on its ports, connects to theirs, measures what comes through.

Each host has a token, which the others know. Who connects says its first half and hears the second: a stranger's
service, or another host's, is not taken for it, and it does nothing for a stranger. IPv4.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import socket
import statistics
import subprocess
import threading
import time
from typing import Any

CONNECT_SECONDS = 2.0
# A connection on which nothing happens for so long is given up.
SILENCE_SECONDS = 5.0
NUM_ECHOES = 20
BLOCK_BYTES = 1 << 18
ECHO, POUR = b"e", b"p"

_listeners: list[socket.socket] = []


def clock() -> float:
    return time.time()


def listen(address: str, first: int, last: int, token: str) -> dict[str, Any]:
    """Answers holders of the token on a port of the range and on one of the system's choice, on this address alone.

    Two ports: a training meets on the first kind, gloo and NCCL talk over the second.
    """
    hush()
    try:
        own = socket.gethostbyname(address)
        for range_first, range_last in ((first, last), (0, 0)):
            _listeners.append(_bound(own, range_first, range_last))
    except OSError as error:
        hush()
        return {"problem": _name(error)}
    for listener in _listeners:
        listener.listen()
        threading.Thread(target=_accept, args=(listener, token), daemon=True).start()
    return {"address": own, "ports": [listener.getsockname()[1] for listener in _listeners]}


def hush() -> None:
    """No more answers."""
    while _listeners:
        listener = _listeners.pop()
        # Closing alone would leave the thread in accept(), and with it the port.
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def free_port(address: str, first: int, last: int) -> int:
    """One of the range that nobody listens on, by chance."""
    with _bound(socket.gethostbyname(address), first, last) as free:
        port: int = free.getsockname()[1]
    return port


def reach(peers: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Which of these answer on all their ports, and from where the kernel goes to them; all at once."""
    results: dict[str, dict[str, Any]] = {}

    def one(name: str, peer: dict[str, Any]) -> None:
        results[name] = _reach(peer["address"], peer["ports"], peer["token"])

    threads = [threading.Thread(target=one, args=item, daemon=True) for item in peers.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def measure(address: str, port: int, token: str, warm_up_seconds: float, seconds: float) -> dict[str, float]:
    """The time of a small message there and back, and the rate at which bytes come from there.

    The warm-up lets TCP find the rate, and empties what a token bucket has saved up.
    """
    connection, _ = _connect(address, port, token)
    with connection:
        latency = _latency(connection)
        connection.sendall(POUR)
        _receive(connection, warm_up_seconds)
        num_bytes, took = _receive(connection, seconds)
    return {"latency_seconds": latency, "bytes_per_second": num_bytes / took}


def run(words: list[str], environment: dict[str, str], seconds: float) -> dict[str, Any]:
    """A program on this host, at most so long; with it end those that it started."""
    process = subprocess.Popen(
        [os.path.expanduser(words[0]), *words[1:]],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        start_new_session=True,
    )
    try:
        output, complaints = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, complaints = process.communicate()
        complaints += f"\nno end after {seconds:g} s"
    return {"code": process.returncode, "output": output, "complaints": complaints}


def _bound(address: str, first: int, last: int) -> socket.socket:
    for port in random.sample(range(first, last + 1), last + 1 - first):
        listener = socket.socket()
        # A connection of a moment ago must not keep us off; one who listens does.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            return listener
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"all ports from {first} to {last} are taken")


def _accept(listener: socket.socket, token: str) -> None:
    while True:
        try:
            connection, peer = listener.accept()
        except OSError:
            return  # hushed
        threading.Thread(target=_serve, args=(connection, peer[0], token), daemon=True).start()


def _serve(connection: socket.socket, peer: str, token: str) -> None:
    ask, answer = _halves(token)
    # Whoever connected may leave at any time, in the middle of what we pour too.
    with connection, contextlib.suppress(OSError):
        _prepare(connection)
        if _read(connection, len(ask)) != ask:
            return
        connection.sendall(answer + peer.encode() + b"\n")
        while True:
            command = connection.recv(1)
            if command == ECHO:
                connection.sendall(ECHO)
            elif command == POUR:
                _pour(connection)
            else:
                return


def _pour(connection: socket.socket) -> None:
    block = bytes(BLOCK_BYTES)
    while True:
        connection.sendall(block)


def _reach(address: str, ports: list[int], token: str) -> dict[str, Any]:
    """The first port that does not answer is the problem."""
    result: dict[str, Any] = {}
    for port in ports:
        try:
            result.update(port=port, remote_address=socket.gethostbyname(address))
            connection, seen_as = _connect(result["remote_address"], port, token)
        except OSError as error:
            return {**result, "problem": _name(error)}
        with connection:
            result.update(local_address=connection.getsockname()[0], seen_as=seen_as)
    return result


def _connect(address: str, port: int, token: str) -> tuple[socket.socket, str]:
    """The connection, and the address that the other end sees us come from."""
    ask, answer = _halves(token)
    connection = socket.create_connection((address, port), timeout=CONNECT_SECONDS)
    try:
        _prepare(connection)
        connection.sendall(ask)
        if _read(connection, len(answer)) != answer:
            raise OSError(errno.EPROTO, "something else answers")
        return connection, b"".join(iter(lambda: connection.recv(1).strip(), b"")).decode()
    except socket.timeout:  # noqa: UP041 (not yet TimeoutError in Python 3.8)
        connection.close()
        raise OSError(errno.EPROTO, "connected, but nothing answers") from None
    except BaseException:
        connection.close()
        raise


def _prepare(connection: socket.socket) -> None:
    connection.settimeout(SILENCE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _halves(token: str) -> tuple[bytes, bytes]:
    middle = len(token) // 2
    return token[:middle].encode(), token[middle:].encode()


def _read(connection: socket.socket, num_bytes: int) -> bytes:
    """So many bytes; fewer where the other end leaves."""
    data = b""
    while len(data) < num_bytes:
        more = connection.recv(num_bytes - len(data))
        if not more:
            break
        data += more
    return data


def _latency(connection: socket.socket) -> float:
    seconds = []
    for _ in range(NUM_ECHOES):
        began = time.perf_counter()
        connection.sendall(ECHO)
        _read(connection, 1)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _receive(connection: socket.socket, seconds: float) -> tuple[int, float]:
    """Bytes that came, and the time that they took."""
    buffer, num_bytes, began = bytearray(BLOCK_BYTES), 0, time.perf_counter()
    while True:
        count = connection.recv_into(buffer)
        took = time.perf_counter() - began
        num_bytes += count
        if not count or took >= seconds:
            return num_bytes, took


def _name(error: OSError) -> str:
    """A word for what went wrong, as in "ECONNREFUSED"."""
    if isinstance(error, socket.gaierror):
        return "ENONAME"
    # Python's own time-out carries no number.
    return "ETIMEDOUT" if isinstance(error, socket.timeout) else errno.errorcode.get(error.errno or 0, str(error))
