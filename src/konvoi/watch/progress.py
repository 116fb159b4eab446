"""How far a run is, and how long it will still take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from konvoi.analysis.length import planned, planned_steps, steps_done
from konvoi.analysis.record import RunRecord

PACE_STEPS = 200


@dataclass(frozen=True)
class Progress:
    step: int
    total_steps: int | None
    """None where the recipe gives a time, or where nobody knows yet how many steps an epoch has."""
    share: float | None
    """Done so far, 0 to 1."""
    seconds: float
    """Of training so far."""
    seconds_left: float | None
    """None where it cannot be told, or where the run has ended."""


def progress_of(run: RunRecord, seconds: float) -> Progress:
    step, total = steps_done(run), planned_steps(run)
    left = _seconds_left(run, seconds, step, total) if run.status == "running" else None
    return Progress(step, total, _share(run, seconds, step, total), seconds, left)


def _share(run: RunRecord, seconds: float, step: int, total: int | None) -> float | None:
    if run.summary.get("ending") == "finished":
        return 1.0
    duration = planned(run)
    if duration and duration.seconds:
        return min(1.0, seconds / duration.seconds)
    return min(1.0, step / total) if total else None


def _seconds_left(run: RunRecord, seconds: float, step: int, total: int | None) -> float | None:
    """Until the nearest of the ends that are known; early stopping is not."""
    ends = []
    for length in (planned(run), planned(run, "train.time_budget")):
        if length and length.seconds:
            ends.append(length.seconds - seconds)
    pace = _seconds_per_step(run)
    if total is not None and pace is not None:
        ends.append((total - step) * pace)
    return max(0.0, min(ends)) if ends else None


def _seconds_per_step(run: RunRecord) -> float | None:
    """A step as of late, and its part of all evaluations and checkpoints so far."""
    seconds = run.steps.last(PACE_STEPS)["step_seconds"]
    if not np.isfinite(seconds).any():
        return None
    between = sum(event.get("seconds") or 0.0 for event in (*run.evaluations, *run.first.checkpoints))
    return float(np.nanmean(seconds)) + between / max(1, steps_done(run))
