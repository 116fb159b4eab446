"""How long was an average step?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from konvoi.analysis.answer import Answer
from konvoi.analysis.record import PHASES, Floats, RunRecord, Steps
from konvoi.analysis.wording import counted, duration, listed, percent

QUESTION = "How long was an average step?"
# A step this many times as long as the median is an outlier.
OUTLIER = 2.0


@dataclass(frozen=True)
class Spread:
    mean: float
    median: float
    p95: float


def answer(run: RunRecord) -> Answer:
    steps = run.steps.where(np.isfinite(run.steps["step_seconds"]))
    if not len(steps):
        return Answer(QUESTION, "can't tell", "No step was finished.")
    spread, phases, slow = spread_of(steps["step_seconds"]), by_phase(steps), outliers(run, steps)
    words = [
        f"A step took {duration(spread.mean)} on average over {counted(len(steps), 'step')}:"
        f" median {duration(spread.median)}, 95th percentile {duration(spread.p95)}."
    ]
    told = [f"{name.replace('_', ' ')} {duration(s)} ({percent(s / spread.mean)})" for name, s in _largest(phases)]
    if told:
        words.append(f"Of the mean: {listed(told)}.")
    words += _first_step(steps, spread) + _outlier_words(slow)
    facts = {f"{name}_seconds": value for name, value in vars(spread).items()}
    facts |= {"num_steps": len(steps), "phase_seconds": phases, "outliers": slow}
    return Answer(QUESTION, duration(spread.mean), " ".join(words), facts)


def spread_of(seconds: Floats) -> Spread:
    return Spread(float(seconds.mean()), float(np.median(seconds)), float(np.percentile(seconds, 95)))


def by_phase(steps: Steps) -> dict[str, float]:
    """Mean seconds; on a GPU of the steps that were sampled, since only those have true phases."""
    sampled = steps["sampled"] == 1
    chosen = steps.where(sampled) if sampled.any() else steps
    known = [name for name in PHASES if chosen.has(f"phases.{name}")]
    return {name: float(np.nanmean(chosen[f"phases.{name}"])) for name in known}


def outliers(run: RunRecord, steps: Steps) -> dict[str, int]:
    """How many steps took more than twice the median, by what they coincide with."""
    seconds = steps["step_seconds"]
    median = float(np.median(seconds))
    counts: dict[str, int] = {}
    for place in np.flatnonzero(seconds > OUTLIER * median):
        reason = _coincides_with(run, steps, int(place), float(seconds[place]) - median)
        counts[reason] = counts.get(reason, 0) + 1
    return counts


def _coincides_with(run: RunRecord, steps: Steps, place: int, excess_seconds: float) -> str:
    """What explains at least half of the time that a step took beyond the median."""
    number = int(steps.numbers[place])
    session_starts = {1, *(event.get("step", 0) + 1 for event in run.first.restarts)}
    if number in session_starts:
        return "the first step of a session"
    for name, words in (
        ("phases.data", "waiting for data"),
        ("communication.waiting_seconds", "waiting for another rank"),
        ("communication.moving_seconds", "a slower network"),
        ("run_delay_seconds", "no free core"),
    ):
        values = steps[name]
        if steps.has(name) and values[place] - np.nanmedian(values) >= excess_seconds / 2:
            return _after_pause(run, number) or words if name == "communication.waiting_seconds" else words
    return _after_pause(run, number) or "nothing that was recorded"


def _after_pause(run: RunRecord, number: int) -> str:
    """The rank that wrote a checkpoint comes late to the next step: no straggler."""
    if any(event.get("step") == number - 1 for event in run.first.checkpoints):
        return "a checkpoint just before"
    return "an evaluation just before" if any(e.get("step") == number - 1 for e in run.evaluations) else ""


def _largest(phases: dict[str, float]) -> list[tuple[str, float]]:
    """The phases that a reader would miss, the longest first."""
    total = sum(phases.values())
    return [item for item in sorted(phases.items(), key=lambda item: -item[1]) if item[1] >= 0.01 * total]


def _first_step(steps: Steps, spread: Spread) -> list[str]:
    first = float(steps["step_seconds"][0])
    if len(steps) < 5 or first < 1.5 * spread.median:
        return []
    return [f"The first took {duration(first)}, {first / spread.median:.1f} times the median."]


def _outlier_words(counts: dict[str, int]) -> list[str]:
    if not counts:
        return ["None took more than twice the median."]
    told = [f"{count} with {reason}" for reason, count in sorted(counts.items(), key=lambda item: -item[1])]
    total = sum(counts.values())
    return [f"{counted(total, 'step').capitalize()} took more than twice the median: {listed(told)}."]
