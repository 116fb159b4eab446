"""A GPU's own clock. Never run on a GPU yet."""

from __future__ import annotations

from typing import Any

import torch

from konvoi.telemetry.timeline import HostClock


class CudaClock(HostClock):
    """The host asks and runs ahead; in every so many steps, events on the stream tell when the work was done."""

    def __init__(self, every_steps: int = 20) -> None:
        self.every_steps = every_steps
        self.is_exact = False
        self._num_steps = 0

    def mark(self) -> Any:
        if not self.is_exact:
            return super().mark()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, first: Any, second: Any) -> float:
        if isinstance(first, float):
            return super().seconds(first, second)
        second.synchronize()
        milliseconds: float = first.elapsed_time(second)
        return milliseconds / 1000

    def next_step(self) -> None:
        self._num_steps += 1
        self.is_exact = self._num_steps % self.every_steps == 0
