"""How much of the processor this process got: the difference between slow work and work that had to wait for a core."""

from __future__ import annotations

import os
import threading
import time

NANOSECONDS = 1e-9


class ProcessorTime:
    """take() tells what passed since the last one."""

    def __init__(self, is_on: bool = True) -> None:
        self._is_on = is_on
        self._schedstat = _open_schedstat() if is_on else None
        self._before = self._now()

    def take(self) -> dict[str, float]:
        """Nothing where it is switched off."""
        if not self._is_on:
            return {}
        before, self._before = self._before, self._now()
        return {name: round(value - before[name], 6) for name, value in self._before.items()}

    def _now(self) -> dict[str, float]:
        """All threads' time on a core, and this thread's time of waiting for one where the system tells it."""
        now = {"cpu_seconds": time.process_time()}
        if self._schedstat is not None:
            # on a core, ready but without one (both in ns), number of turns
            now["run_delay_seconds"] = int(os.pread(self._schedstat, 100, 0).split()[1]) * NANOSECONDS
        return now

    def close(self) -> None:
        if self._schedstat is not None:
            os.close(self._schedstat)
            self._schedstat = None


def _open_schedstat() -> int | None:
    """Of the thread that trains; kept open, since opening costs more than reading."""
    try:
        return os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
    except OSError:
        return None
