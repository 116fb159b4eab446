"""Where the seconds of a step go."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """with phases("data"): ... adds up the seconds of each phase until they are taken."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._since = time.perf_counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += time.perf_counter() - started

    def take(self) -> tuple[float, dict[str, float]]:
        """Seconds since the last take, and how they split; what no phase claims is "other"."""
        now = time.perf_counter()
        total_seconds, self._since = now - self._since, now
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        seconds["other"] = max(0.0, total_seconds - sum(seconds.values()))
        return total_seconds, {name: round(value, 6) for name, value in seconds.items()}
