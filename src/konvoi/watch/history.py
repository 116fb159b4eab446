"""A whole run in a bounded number of points, for its curves."""

from __future__ import annotations

from typing import Any

from konvoi.telemetry.units import SPEEDS

MAX_POINTS = 1024


class History:
    """Every n-th step; n doubles whenever there are too many points."""

    def __init__(self) -> None:
        self.points: list[tuple[int, float | None, float | None]] = []
        """step, loss, speed"""
        self.stride = 1
        self._num_steps = 0

    def wants_next(self) -> bool:
        """Called once for each step, so that most lines of a long run need not be parsed."""
        self._num_steps += 1
        return self._num_steps % self.stride == 0

    def add(self, event: dict[str, Any]) -> None:
        if not isinstance(event.get("step"), int):
            return
        speed = next((event[key] for key in SPEEDS if event.get(key) is not None), None)
        self.points.append((event["step"], event.get("loss"), speed))
        if len(self.points) > MAX_POINTS:
            self.points = self.points[1::2]
            self.stride *= 2

    def forget_after(self, step: int) -> None:
        """A resumed run goes back to its checkpoint."""
        self.points = [point for point in self.points if point[0] <= step]

    @property
    def losses(self) -> list[float]:
        return [loss for _, loss, _ in self.points if loss is not None]

    @property
    def speeds(self) -> list[float]:
        return [speed for _, _, speed in self.points if speed is not None]
