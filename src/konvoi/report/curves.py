"""What several sections draw from: the steps of a run as curves."""

from __future__ import annotations

import numpy as np

from konvoi.analysis.record import Floats, HostRecord, RunRecord, Steps
from konvoi.report.blocks import Series, thinned

PHASE_WORDS = {
    "data": "waiting for data",
    "forward": "forward",
    "backward": "backward",
    "optimiser": "optimiser",
    "exposed_communication": "exchanging gradients",
    "agreement": "agreement",
    "other": "other",
}
# Where the workers measured it: exchange and agreement, told apart by what the rank did meanwhile.
MOVING, WAITING = "moving bytes", "waiting for other ranks"


def timed_steps(steps: Steps) -> Steps:
    """Those whose phases are true: on GPUs only the sampled ones."""
    return steps.where(steps["sampled"] == 1) if steps.has("sampled") else steps


def phase_columns(steps: Steps) -> dict[str, Floats]:
    """Seconds of each phase that the run knows, step by step, by its name for people."""
    found = {words: np.nan_to_num(steps[f"phases.{key}"]) for key, words in PHASE_WORDS.items()}
    if steps.has("communication.waiting_seconds") and steps.has("communication.moving_seconds"):
        for key in ("exposed_communication", "agreement"):
            found.pop(PHASE_WORDS[key])
        rest = found.pop("other")
        found[MOVING] = np.nan_to_num(steps["communication.moving_seconds"])
        found[WAITING] = np.nan_to_num(steps["communication.waiting_seconds"])
        found["other"] = rest
    return {words: column for words, column in found.items() if column.any()}


def step_curve(steps: Steps, key: str, name: str) -> list[Series]:
    """Empty where no step has a value."""
    return [thinned(name, steps.numbers, steps[key])] if steps.has(key) else []


def evaluation_curve(run: RunRecord, key: str, name: str) -> list[Series]:
    """A point for each evaluation."""
    points = [(event.get("step"), event.get(key)) for event in run.evaluations]
    known = [(float(step), float(value)) for step, value in points if step is not None and value is not None]
    if not known:
        return []
    x, y = np.array(known).T
    return [Series(name, x, y, style="dots" if len(known) <= 60 else "line")]


def began_at(run: RunRecord) -> float:
    """The time of the first event or sample of all."""
    times = [event["time"] for rank in run.ranks.values() for event in rank.started[:1] if event.get("time")]
    times += [host.samples[0].get("time") or np.inf for host in run.hosts.values() if host.samples]
    return float(min(times, default=0.0))


def host_minutes(run: RunRecord, host: HostRecord) -> Floats:
    """When its samples were taken, since the run began."""
    return (host.column("time") - began_at(run)) / 60
