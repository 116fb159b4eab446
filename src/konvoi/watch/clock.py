"""How long a run has been going on, over its sessions."""

from __future__ import annotations

from typing import Any

SESSION_KINDS = ("started", "restart")


class Clock:
    """Seconds of training by a rank's own events; what a resume threw away does not count."""

    def __init__(self) -> None:
        self._seconds_before = 0.0
        self._began_at: float | None = None
        self._last_at = 0.0
        self._seconds_at_checkpoint: dict[int, float] = {}

    def see(self, event: dict[str, Any]) -> None:
        kind, at, step = event.get("kind"), event.get("time"), event.get("step")
        if not isinstance(at, int | float):
            return
        if self._began_at is None or kind in SESSION_KINDS:
            self._seconds_before = self.seconds()
            self._began_at = self._last_at = at
        if kind == "restart" and isinstance(step, int):
            self._seconds_before = self._seconds_at_checkpoint.get(step, self._seconds_before)
        self._last_at = max(self._last_at, at)
        if kind == "checkpoint" and isinstance(step, int):
            self._seconds_at_checkpoint[step] = self.seconds()

    def seconds(self, now: float | None = None) -> float:
        """Up to the last event, or up to now."""
        if self._began_at is None:
            return 0.0
        return self._seconds_before + max(self._last_at, now or 0.0) - self._began_at
