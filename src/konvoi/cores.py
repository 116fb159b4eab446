"""The processor's cores, and how this process shares them with others."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Those that this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def give_way_where_busy() -> None:
    """Where something else has the cores, torch's threads had better sleep than spin while they wait for each other.

    To be said before torch is imported. For a short while only: alone on the machine they compute faster if they spin
    (docs/lab-notes.md).
    """
    if os.getloadavg()[0] > usable_cores() / 2:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
