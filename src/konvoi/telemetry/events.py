"""The one event format: a JSON object a line, appended, readable while the run goes on."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from konvoi.folder import unless_full


class EventWriter:
    """A rank's own file. A line is written at once, so that a killed run loses nothing that happened."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_last_line(path)
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, kind: str, **values: Any) -> dict[str, Any]:
        event = {"kind": kind, "time": round(time.time(), 3), **values}
        with unless_full():
            self._file.write(json.dumps(finite(event), ensure_ascii=False) + "\n")
        return event

    def close(self) -> None:
        with unless_full():
            self._file.close()


def finite(value: Any) -> Any:
    """JSON knows no NaN and no infinity: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value


def _end_last_line(path: Path) -> None:
    # A killed writer may have left half a line; the next event must not be glued to it.
    if path.exists() and path.stat().st_size:
        with path.open("rb+") as file:
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
