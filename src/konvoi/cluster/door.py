"""An agent's door: any other agent of the training may ask how it stands, whoever leads just now and whoever is gone.

One connection, one question (the job's id, which strangers do not know), one answer (a line of JSON).
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any, Literal

QUESTION_BYTES = 100
ANSWER_BYTES = 1 << 20
# A stranger who says nothing holds nobody up for longer.
PATIENCE_SECONDS = 0.5

Answer = dict[str, Any] | Literal["refused", "silent"]


class Door:
    """Listens on the host's private address only, from a thread, as long as the agent lives."""

    def __init__(self, address: str, job: str, port: int = 0) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, port), family=family)
        self.port: int = self._listener.getsockname()[1]
        self.card: dict[str, Any] = {}
        """What it answers; replaced as a whole."""
        self._job = job
        threading.Thread(target=self._serve, name="door", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            # Wakes up the thread, which closing alone does not.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                try:
                    self._answer(connection)
                except OSError:
                    continue

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_SECONDS)
        with connection.makefile("rb") as questions:
            if questions.readline(QUESTION_BYTES).decode(errors="replace").strip() == self._job:
                connection.sendall(json.dumps(self.card).encode() + b"\n")


def ask(address: str, port: int, job: str, timeout: float) -> Answer:
    """How another agent stands; refused where there is none any more, silent where nobody knows."""
    try:
        with socket.create_connection((address, port), timeout=timeout) as connection:
            connection.sendall(f"{job}\n".encode())
            with connection.makefile("rb") as answers:
                card = json.loads(answers.readline(ANSWER_BYTES))
                return card if isinstance(card, dict) else "silent"
    except ConnectionRefusedError:
        return "refused"
    except (OSError, ValueError):
        return "silent"
