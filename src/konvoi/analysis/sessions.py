"""The sessions of a run: each time that it was started or resumed, and where its time went."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from konvoi.analysis.record import Floats, RunRecord
from konvoi.run_directory import RunDirectory, read_events


@dataclass
class Session:
    """Times are those of the first rank's clock."""

    began_at: float = 0.0
    ended_at: float = 0.0
    start_up_seconds: float = 0.0
    step_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    steps: dict[int, float] = field(default_factory=dict)
    """Seconds by number of the step."""

    @property
    def seconds(self) -> float:
        return max(0.0, self.ended_at - self.began_at)


def sessions(run: RunRecord) -> list[Session]:
    """From the events in the order in which they were written: the record keeps of repeated steps only the last."""
    found: list[Session] = []
    for event in read_events(RunDirectory(run.path).events / f"rank{run.first.rank}.jsonl"):
        at = _number(event.get("time"))
        if not found or _begins_another(event, found[-1]):
            found.append(Session(began_at=at, ended_at=at))
        if at:
            found[-1].ended_at = at
        _add(found[-1], event)
    if found and not run.first.started:
        _guess_beginning(found[0], run)
    return found


def _begins_another(event: dict[str, Any], session: Session) -> bool:
    """ "restart" follows "started"; runs from before there was "started" have "restart" alone."""
    done_something = bool(session.steps or session.evaluation_seconds or session.checkpoint_seconds)
    return event.get("kind") == "started" or (event.get("kind") == "restart" and done_something)


def _add(session: Session, event: dict[str, Any]) -> None:
    kind, seconds = event.get("kind"), _number(event.get("seconds"))
    if kind == "started":
        session.began_at -= seconds
        session.start_up_seconds = seconds
    elif kind == "step" and isinstance(event.get("step"), int):
        seconds = _number(event.get("step_seconds"))
        if not session.steps and not session.start_up_seconds:
            # An old run: all that is known of its beginning is the first step.
            session.began_at = min(session.began_at, session.ended_at - seconds)
        session.steps[event["step"]] = seconds
        session.step_seconds += seconds
    elif kind == "evaluation":
        session.evaluation_seconds += seconds
    elif kind == "checkpoint":
        session.checkpoint_seconds += seconds


def _guess_beginning(session: Session, run: RunRecord) -> None:
    """environment.json is written when the command begins."""
    try:
        began_at = datetime.fromisoformat(str(run.environment.get("started_at"))).timestamp()
    except ValueError:
        return
    if 0 <= session.began_at - began_at < 3600:
        session.start_up_seconds, session.began_at = session.began_at - began_at, began_at


def active_seconds(found: list[Session], times: Floats) -> Floats:
    """For each moment, how long the run had been going on by then, pauses between sessions left out."""
    if not found:
        return np.zeros_like(times)
    moments, elapsed, total = [], [], 0.0
    for session in found:
        moments += [session.began_at, session.ended_at]
        elapsed += [total, total + session.seconds]
        total += session.seconds
    return np.interp(times, moments, elapsed)


def _number(value: Any) -> float:
    """No time is negative or without end, whatever a stranger's events say."""
    return float(value) if isinstance(value, int | float) and 0 <= value < math.inf else 0.0
