"""Where the seconds of a step go, and what of its communication was waiting for another worker. Does not import torch.

A phase is a stretch of the step. A collective is an exchange with the other workers: those of the gradients begin
while the backward pass goes on, and only what outlasts it is exposed. All workers leave a collective together, so the
one that came last has the shortest: that is what moving the bytes took, and whatever another took longer was waiting.
No clocks are compared between hosts.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

# These happen between two steps, and have events of their own.
BETWEEN_STEPS = ("evaluation", "checkpoint")
# Collectives of a step whose durations the workers tell each other; further ones count with the last.
MAX_COLLECTIVES = 32


class HostClock:
    """A mark is a time."""

    is_exact = True
    """Whether the marks of this step tell when work was done; a device's clock does so in some steps only."""

    def mark(self) -> Any:
        return time.perf_counter()

    def seconds(self, first: Any, second: Any) -> float:
        """Between two marks."""
        elapsed: float = second - first
        return elapsed

    def next_step(self) -> None:
        """Time needs no preparation."""


@dataclass(frozen=True)
class Span:
    """Seconds since the step began."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.begin)

    def overlap(self, other: Span) -> float:
        return max(0.0, min(self.end, other.end) - max(self.begin, other.begin))


@dataclass(frozen=True)
class StepTimes:
    seconds: float
    """Without what happens between two steps."""
    phases: dict[str, float]
    """They add up to the seconds."""
    between: dict[str, float]
    """Evaluation and checkpoint before this step."""
    collectives: list[Span]
    """The agreement that closed the step before, then the gradients', each from when the one before it ended."""
    exposed: list[Span]
    """When this worker stood still for them."""
    is_exact: bool = True
    """Whether the phases tell when work was done, or only when a device was asked for it."""

    def durations(self) -> list[float]:
        """One number for each of MAX_COLLECTIVES, for the other workers."""
        seconds = [span.seconds for span in self.collectives]
        first, rest = seconds[: MAX_COLLECTIVES - 1], seconds[MAX_COLLECTIVES - 1 :]
        return [*first, sum(rest), *[0.0] * (MAX_COLLECTIVES - 1 - len(first))]

    def communication(self, durations_by_rank: Sequence[Sequence[float]]) -> dict[str, float]:
        """How the standing still splits into waiting and moving, once everybody's durations are known."""
        shortest = [min(column) for column in zip(*durations_by_rank, strict=True)]
        exposed_seconds = sum(span.seconds for span in self.exposed)
        waiting_seconds = 0.0
        for span, moving_seconds in zip(self.collectives, shortest, strict=False):
            waiting = Span(span.begin, max(span.begin, span.end - moving_seconds))
            waiting_seconds += sum(waiting.overlap(exposed) for exposed in self.exposed)
        waiting_seconds = min(waiting_seconds, exposed_seconds)
        return {
            "seconds": round(_union_seconds(self.collectives), 6),
            "waiting_seconds": round(waiting_seconds, 6),
            "moving_seconds": round(exposed_seconds - waiting_seconds, 6),
            "agreement_moving_seconds": round(shortest[0], 6),
            "num_collectives": len(self.collectives),
        }


class Timeline:
    """with timeline("data"): ... marks a phase; collective() marks an exchange; take() ends the step."""

    is_on = True

    def __init__(self, clock: HostClock | None = None) -> None:
        self.clock = clock or HostClock()
        self._lock = threading.Lock()
        self._began = self.clock.mark()
        self._phases: list[tuple[str, Any, Any]] = []
        self._collectives: list[list[Any]] = []
        self.phase, self.num_begun, self.begun_at, self.num_steps = "", 0, time.monotonic(), 0
        """Where this worker is, for whoever wonders whether it hangs: all workers go through the same phases."""

    def _enter(self, phase: str) -> None:
        self.phase, self.num_begun, self.begun_at = phase, self.num_begun + 1, time.monotonic()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begin = self.clock.mark()
        self._enter(name)
        try:
            yield
        finally:
            self._enter(f"what follows {name}")
            self._phases.append((name, begin, self.clock.mark()))

    def collective(self) -> Callable[[], None]:
        """Begins now; ends when the function it returns is called, by whichever thread learns of it."""
        marks = [self.clock.mark()]
        with self._lock:
            self._collectives.append(marks)
        return lambda: marks.append(self.clock.mark())

    def take(self) -> StepTimes:
        """What happened since the last take."""
        began, now, is_exact = self._began, self.clock.mark(), self.clock.is_exact
        phases, self._phases = self._phases, []
        with self._lock:
            collectives, self._collectives = self._collectives, []

        def span(begin: Any, end: Any) -> Span:
            return Span(self.clock.seconds(began, begin), self.clock.seconds(began, end))

        named = [(name, span(begin, end)) for name, begin, end in phases]
        gradients = [span(marks[0], marks[-1]) for marks in collectives]
        total_seconds = self.clock.seconds(began, now)
        self.clock.next_step()
        self._began = self.clock.mark()
        self.num_steps += 1
        return replace(_step_times(total_seconds, named, gradients), is_exact=is_exact)


class NoTimeline(Timeline):
    """Knows the step's seconds and nothing else: what measuring costs is measured against it."""

    is_on = False

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if name in BETWEEN_STEPS:
            with super().__call__(name):
                yield
        else:
            self._enter(name)
            yield

    def collective(self) -> Callable[[], None]:
        return lambda: None

    def take(self) -> StepTimes:
        return replace(super().take(), phases={})


def _step_times(total_seconds: float, phases: list[tuple[str, Span]], gradients: list[Span]) -> StepTimes:
    seconds: dict[str, float] = defaultdict(float)
    agreements = [span for name, span in phases if name == "agreement"]
    # Waiting for what was sent some steps ago.
    waits = [span for name, span in phases if name == "exposed_communication"]
    exposed = [*agreements, *waits]
    for name, span in phases:
        seconds[name] += span.seconds
        began_inside = [g.begin for g in gradients if name == "backward" and span.begin <= g.begin <= span.end]
        if began_inside:
            # The last bucket is sent once the last gradient is there: what follows is no computing any more.
            stands_still = Span(max(began_inside), span.end)
            exposed.append(stands_still)
            seconds["backward"] -= stands_still.seconds
            seconds["exposed_communication"] += stands_still.seconds
    between = {name: seconds.pop(name) for name in BETWEEN_STEPS if name in seconds}
    step_seconds = total_seconds - sum(between.values())
    seconds["other"] = max(0.0, step_seconds - sum(seconds.values()))
    phases_rounded = {name: round(value, 6) for name, value in seconds.items()}
    collectives = [*agreements, *waits, *_one_after_another(gradients)]
    return StepTimes(step_seconds, phases_rounded, between, collectives, exposed)


def _one_after_another(spans: list[Span]) -> list[Span]:
    """A collective in the queue behind another is not under way yet."""
    result: list[Span] = []
    for span in sorted(spans, key=lambda span: span.begin):
        begin = max(span.begin, result[-1].end) if result else span.begin
        result.append(Span(begin, max(begin, span.end)))
    return result


def _union_seconds(spans: list[Span]) -> float:
    total, until = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.begin):
        total += max(0.0, span.end - max(span.begin, until))
        until = max(until, span.end)
    return total
