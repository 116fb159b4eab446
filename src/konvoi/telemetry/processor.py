"""How much of the processor this process got: the difference between slow work and work that had to wait for a core.

And how much of it others had meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import psutil

from konvoi.cores import usable_cores

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


class OtherPrograms:
    """share() tells how much of this process's cores others had since it was made: 0.5 of two are one."""

    def __init__(self) -> None:
        self._before = self._now()

    def share(self) -> float:
        elapsed, busy, own = (now - before for now, before in zip(self._now(), self._before, strict=True))
        return min(1.0, max(0.0, (busy - own) / (elapsed * usable_cores()))) if elapsed > 0 else 0.0

    def _now(self) -> tuple[float, float, float]:
        """The time; the cores' seconds for whomever; and for this process, its threads and its children."""
        cores = dict(enumerate(psutil.cpu_times(percpu=True)))
        # Without interrupts: the packets that the kernel carries may well be our own.
        busy = sum(_working(cores[core]) + getattr(cores[core], "steal", 0.0) for core in _own_cores() & cores.keys())
        process = psutil.Process()
        used = process.cpu_times()
        ended = used.children_user + used.children_system
        return time.monotonic(), busy, _working(used) + ended + sum(map(_used, process.children(recursive=True)))


def _own_cores() -> set[int]:
    """By their numbers; some may be missing, where others are switched off or belong to somebody else."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(usable_cores()))


def _working(times: Any) -> float:
    return float(times.user + times.system + getattr(times, "nice", 0.0))


def _used(child: psutil.Process) -> float:
    try:
        return _working(child.cpu_times())
    except psutil.Error:
        # It ended meanwhile.
        return 0.0
