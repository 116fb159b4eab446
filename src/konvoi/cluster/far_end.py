"""The far end of a session: reads requests, answers them. Sent to the host as it is; the standard library alone.

A message is a line of JSON and, where that has "bytes", so many bytes after it. Requests: {"ask": "files.digest",
"arguments": {...}} or {"learn": "files"} with the source. Answers: {"result": ...}, {"error": {"kind", "text"}}, and
{"more": ...} for each value of a generator.

When the requests end, so does everything: a function that still runs, and what it has started in this process group,
as if Ctrl-C had been pressed, then by force. What is to outlive the session begins a session of its own.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
import time
import types
from typing import IO, Any

GRACE_SECONDS = 2
MODULES: dict[str, types.ModuleType] = {}


def main(ready: str) -> None:
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What a function prints must not get between the answers, nor a program that it starts keep the connection open.
    for number in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    answers.write((ready + "\n").encode())
    answers.flush()
    try:
        _serve(requests, answers)
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    finally:
        os.kill(0, signal.SIGKILL)


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    received: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_receive, args=(requests, received), daemon=True).start()
    for request, payload in iter(received.get, None):
        try:
            _answer(request, payload, answers)
        except Exception as error:
            _send(answers, {"error": {"kind": type(error).__name__, "text": str(error)}})


def _receive(requests: IO[bytes], received: queue.Queue[Any]) -> None:
    """In a thread, so that the end is noticed while a function runs."""
    for line in requests:
        request = json.loads(line)
        payload = requests.read(request["bytes"]) if "bytes" in request else None
        if payload is not None and len(payload) < request["bytes"]:
            break
        received.put((request, payload))
    received.put(None)
    os.kill(0, signal.SIGINT)
    time.sleep(GRACE_SECONDS)
    os.kill(0, signal.SIGKILL)


def _answer(request: dict[str, Any], payload: bytes | None, answers: IO[bytes]) -> None:
    if "learn" in request:
        _learn(request["learn"], payload or b"")
        _send(answers, {"result": None})
        return
    name, _, function = request["ask"].partition(".")
    arguments = request["arguments"] if payload is None else {**request["arguments"], "payload": payload}
    result = getattr(MODULES[name], function)(**arguments)
    if isinstance(result, types.GeneratorType):
        for value in result:
            _send(answers, {"more": value})
        result = None
    _send(answers, {"result": result})


def _learn(name: str, source: bytes) -> None:
    module = types.ModuleType(name)
    exec(compile(source, name + ".py", "exec"), module.__dict__)
    MODULES[name] = module


def _send(answers: IO[bytes], header: dict[str, Any]) -> None:
    """Bytes travel behind their header."""
    key, value = next(iter(header.items()))
    if isinstance(value, bytes):
        header = {key: None, "bytes": len(value)}
    answers.write(json.dumps(header).encode() + b"\n" + (value if isinstance(value, bytes) else b""))
    answers.flush()
