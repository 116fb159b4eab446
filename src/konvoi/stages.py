"""How far a stage of long work has come: told by those who work, shown by those who talk to people."""

from __future__ import annotations

from typing import Protocol

BYTES = "bytes"


class Report(Protocol):
    """Called now and then while a stage goes on; a new stage name ends the stage before."""

    def __call__(self, stage: str, done: int = 0, total: int | None = None, unit: str = "lines") -> None: ...


def silent(stage: str, done: int = 0, total: int | None = None, unit: str = "lines") -> None:
    """Reports to nobody."""
