"""How long a run is and was meant to be: steps, epochs."""

from __future__ import annotations

from konvoi.analysis.record import RunRecord
from konvoi.config.duration import Length, parse


def steps_done(run: RunRecord) -> int:
    return int(run.steps.numbers[-1]) if len(run.steps) else int(run.summary.get("steps") or 0)


def steps_per_epoch(run: RunRecord) -> float | None:
    """None where the run has not told how many micro-batches an epoch holds."""
    per_epoch, accumulate = run.summary.get("micro_batches_per_epoch"), run.setting("train.accumulate", 1)
    if not isinstance(per_epoch, int | float) or not isinstance(accumulate, int) or per_epoch <= 0 or accumulate <= 0:
        return None
    return per_epoch / (run.num_workers * accumulate)


def epochs_done(run: RunRecord) -> float | None:
    per_epoch = steps_per_epoch(run)
    return steps_done(run) / per_epoch if per_epoch else None


def planned(run: RunRecord, key: str = "train.duration") -> Length | None:
    """A duration of the recipe; None where it is not given or cannot be read."""
    try:
        return parse(run.setting(key))
    except ValueError:
        return None


def planned_steps(run: RunRecord) -> int | None:
    """None where the run is to last a time, or an epoch's length is not known."""
    length, per_epoch = planned(run), steps_per_epoch(run)
    if length is None or (length.unit == "epoch" and per_epoch is None):
        return None
    return length.steps(per_epoch or 1.0)
