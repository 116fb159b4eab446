"""A conversation with a host over one ssh connection: ask("files.digest", path=...) runs a function of far/files.py.

Nothing need be installed on the host but Python: the far end is sent first, a file of far/ when it is first asked for.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, TypeVar

from konvoi.cluster.hosts import Cluster, Host
from konvoi.cluster.ssh import explain, remote, ssh_words
from konvoi.errors import ClusterError, HostError

T = TypeVar("T")
START_SECONDS = 20
ANSWER_SECONDS = 60
# The far end gives its functions 2 s to end.
CLOSE_SECONDS = 5
FAR_END = Path(__file__).with_name("far_end.py")
FAR = Path(__file__).with_name("far")
# Reads the far end's source, whose length comes with it, and runs it.
BOOT = "import sys; exec(compile(sys.stdin.buffer.read({size}), 'konvoi', 'exec')); main({ready!r})"

Message = tuple[dict[str, Any], bytes | None]


class FarError(Exception):
    """A function of far/ raised: the kind is the exception's name there."""

    def __init__(self, host: str, kind: str, text: str) -> None:
        super().__init__(f"{host}: {kind}: {text}")
        self.host, self.kind, self.text = host, kind, text


class Session:
    """Used by one thread at a time; closing it ends the far end, and with it ssh."""

    def __init__(self, cluster: Cluster, host: Host, python: str | None = None) -> None:
        self.cluster, self.host = cluster, host
        self._known: set[str] = set()
        self._is_streaming = False
        # ssh's complaints; a file, since nobody reads a pipe while we wait for an answer.
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115
        source, ready = FAR_END.read_bytes(), f"konvoi {uuid.uuid4().hex}"
        self._process = self._start_ssh(
            [python or cluster.python, "-u", "-c", BOOT.format(size=len(source), ready=ready)]
        )
        self._answers: queue.Queue[Message | None] = queue.Queue(maxsize=64)
        self._reader = threading.Thread(target=self._read, args=(f"{ready}\n".encode(),), daemon=True)
        self._reader.start()
        try:
            self._send_bytes(source)
            self._next(START_SECONDS)
        except BaseException:
            self.close()
            raise

    def _start_ssh(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [*ssh_words(self.cluster, self.host), remote(command)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                # Ctrl-C is ours to handle: ssh must live long enough to tell the host.
                start_new_session=True,
            )
        except FileNotFoundError:
            self._complaints.close()
            raise ClusterError("there is no ssh on this machine", hint="install OpenSSH's client") from None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """When it returns nothing that was asked for runs on the host, unless the connection is dead."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        give_up_at = time.monotonic() + CLOSE_SECONDS
        while self._reader.is_alive():
            if time.monotonic() > give_up_at:
                self._process.kill()
            # ssh does not end before its last words are read.
            with contextlib.suppress(queue.Empty):
                self._answers.get(timeout=0.05)
        self._process.wait()
        self._process.stdout.close()
        self._complaints.close()

    def ask(self, what: str, *, timeout: float = ANSWER_SECONDS, payload: bytes | None = None, **arguments: Any) -> Any:
        """The function's result; bytes where it returns bytes."""
        self._request(what, timeout, payload, arguments)
        return self._result(timeout)

    def stream(
        self, what: str, *, timeout: float = ANSWER_SECONDS, payload: bytes | None = None, **arguments: Any
    ) -> Iterator[Any]:
        """The values of a generator there, one by one; `timeout` is the longest silence between two."""
        self._request(what, timeout, payload, arguments)
        while True:
            is_last, value = self._answer(timeout)
            if is_last:
                return
            yield value

    def _request(self, what: str, timeout: float, payload: bytes | None, arguments: dict[str, Any]) -> None:
        assert not self._is_streaming, "a stream was left before its end; its session can only be closed"
        module = what.partition(".")[0]
        if module not in self._known:
            self._send({"learn": module}, (FAR / f"{module}.py").read_bytes())
            self._result(timeout)
            self._known.add(module)
        self._send({"ask": what, "arguments": arguments}, payload)

    def _result(self, timeout: float) -> Any:
        while True:
            is_last, value = self._answer(timeout)
            if is_last:
                return value

    def _answer(self, timeout: float) -> tuple[bool, Any]:
        """Whether it is the result, not one of a generator's values; and its value."""
        header, payload = self._next(timeout)
        self._is_streaming = "more" in header
        if "error" in header:
            raise FarError(self.host.name, header["error"]["kind"], header["error"]["text"])
        key = "more" if self._is_streaming else "result"
        return not self._is_streaming, header[key] if payload is None else payload

    def _next(self, timeout: float) -> Message:
        try:
            message = self._answers.get(timeout=timeout)
        except queue.Empty:
            self.close()
            problem = f"no answer for {timeout:g} s"
            raise HostError(self.host.name, problem, hint="is it overloaded, or the connection lost?") from None
        if message is None:
            raise self._lost()
        return message

    def _send(self, header: dict[str, Any], payload: bytes | None = None) -> None:
        if payload is not None:
            header = {**header, "bytes": len(payload)}
        self._send_bytes(json.dumps(header).encode() + b"\n" + (payload or b""))

    def _send_bytes(self, message: bytes) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(message)
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise self._lost() from None

    def _lost(self) -> HostError:
        """The connection ended, and ssh says why."""
        code = self._process.wait()
        if self._complaints.closed:
            return HostError(self.host.name, "the connection is closed")
        self._complaints.seek(0)
        return explain(self.cluster, self.host, code, self._complaints.read().decode(errors="replace"))

    def _read(self, ready: bytes) -> None:
        """In a thread: messages into the queue; None when the connection ends."""
        assert self._process.stdout
        try:
            # A login script may print something first.
            while (line := self._process.stdout.readline()) != ready:
                if not line:
                    return
            self._answers.put(({}, None))
            for message in _messages(self._process.stdout):
                self._answers.put(message)
        except (OSError, ValueError):
            pass  # closed while we read
        finally:
            self._answers.put(None)


def _messages(file: IO[bytes]) -> Iterator[Message]:
    for line in file:
        header = json.loads(line)
        yield header, file.read(header["bytes"]) if "bytes" in header else None


def on_all(hosts: Sequence[Host], work: Callable[[Host], T]) -> dict[str, T | HostError]:
    """The same work for every host at once, by name, in their order. What a host fails with is its result."""

    def one(host: Host, outcome: Future[T | HostError]) -> None:
        try:
            outcome.set_result(work(host))
        except HostError as error:
            outcome.set_result(error)
        except FarError as error:
            outcome.set_result(HostError(host.name, f"{error.kind}: {error.text}"))
        except BaseException as error:
            outcome.set_exception(error)

    outcomes: dict[str, Future[T | HostError]] = {host.name: Future() for host in hosts}
    for host in hosts:
        # Daemons: Ctrl-C does not wait for a host, as a pool of threads would.
        threading.Thread(target=one, args=(host, outcomes[host.name]), daemon=True).start()
    return {name: outcome.result() for name, outcome in outcomes.items()}
