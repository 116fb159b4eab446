"""What each possible cause takes of a run's time: the numbers that the verdict, its evidence and its advice share."""

from __future__ import annotations

from dataclasses import dataclass

from konvoi.analysis.length import planned, planned_steps, steps_per_epoch
from konvoi.analysis.network import Exchange, exchange_of
from konvoi.analysis.record import RunRecord
from konvoi.analysis.shares import TimeShares, pauses, time_shares
from konvoi.analysis.straggler import Straggler, find_straggler
from konvoi.analysis.sync import way_of
from konvoi.analysis.verdict import Cause
from konvoi.config.duration import Length


@dataclass(frozen=True)
class Findings:
    run: RunRecord
    times: TimeShares
    exchange: Exchange
    straggler: Straggler | None
    costs: dict[Cause, float]
    """The share of the time after the start-up that would be saved without the cause."""
    start_up_share: float
    """Of the whole run, as long as it is meant to become."""

    @property
    def step_seconds(self) -> float:
        """A mean step of the rank that speaks for all, of those that count."""
        return self.times.ranks[0].step if self.times.ranks else 0.0


def find(run: RunRecord, last_steps: int | None = None) -> Findings:
    times = time_shares(run, last_steps)
    straggler = find_straggler(run, times)
    costs = {**_costs_in_steps(times, straggler), **_costs_of_pauses(run, times)}
    return Findings(
        run, times, exchange_of(times, way_of(run).is_behind_steps), straggler, costs, _start_up_share(run, times)
    )


def _costs_in_steps(times: TimeShares, straggler: Straggler | None) -> dict[Cause, float]:
    step_seconds = times.ranks[0].step if times.ranks else 0.0
    if times.training <= 0 or step_seconds <= 0:
        return {"network": 0.0, "straggler": 0.0, "input": 0.0}
    per_second = times.steps / times.training / step_seconds
    slow_seconds = straggler.seconds if straggler else 0.0
    # The slow rank's own input is the straggler's cost; what all wait for is the input's.
    own_input = slow_seconds if straggler and straggler.why == "slow input" else 0.0
    return {
        "network": times.steps / times.training * times.of_step("moving"),
        "straggler": slow_seconds * per_second,
        "input": max(0.0, times.slowest_input - own_input) * per_second,
    }


def _costs_of_pauses(run: RunRecord, times: TimeShares) -> dict[Cause, float]:
    """What they took, but no more than they take at the pace of the recipe: every run ends with one of each."""
    if times.training <= 0:
        return {"evaluation": 0.0, "checkpointing": 0.0}
    evaluate_every, save_every = planned(run, "evaluate.every"), planned(run, "checkpoint.every")
    # Every evaluation is followed by a checkpoint.
    found: dict[Cause, tuple[float, list[Length | None]]] = {
        "evaluation": (times.evaluation, [evaluate_every]),
        "checkpointing": (times.checkpointing, [evaluate_every, save_every]),
    }
    return {
        cause: min(seconds / times.training, _cycle_share(run, times, pause_seconds(run, cause), every))
        for cause, (seconds, every) in found.items()
    }


def pause_seconds(run: RunRecord, cause: Cause) -> float:
    """The mean of an evaluation or a checkpoint."""
    seconds = pauses(run.first.evaluations if cause == "evaluation" else run.first.checkpoints).values()
    return sum(seconds) / len(seconds) if seconds else 0.0


def _cycle_share(run: RunRecord, times: TimeShares, seconds: float, every: list[Length | None]) -> float:
    """Of the time from one such pause to the next; 1 where the recipe does not tell how often it is."""
    between = [found for length in every if length and (found := _length_seconds(run, times, length)) is not None]
    return seconds / (seconds + min(between)) if between and seconds > 0 else 1.0


def _length_seconds(run: RunRecord, times: TimeShares, length: Length) -> float | None:
    if length.seconds is not None:
        return length.seconds
    per_epoch = steps_per_epoch(run)
    num_steps = length.steps(per_epoch or 1.0)
    known = times.num_steps and num_steps and (length.unit == "step" or per_epoch)
    return num_steps * times.steps / times.num_steps if known and num_steps else None


def _start_up_share(run: RunRecord, times: TimeShares) -> float:
    """A long run that has just begun is not slow because of its start."""
    if times.total <= 0:
        return 0.0
    if run.status == "finished" or not times.num_steps:
        return times.start_up / times.total
    length, num_steps = planned(run), planned_steps(run)
    whole = length.seconds if length and length.seconds else 0.0
    whole = num_steps * times.training / times.num_steps if num_steps else whole
    return times.start_up / max(times.total, times.start_up + whole)
