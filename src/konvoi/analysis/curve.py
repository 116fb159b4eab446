"""The scores of a run as a curve over steps, epochs and time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from konvoi.analysis.length import steps_per_epoch
from konvoi.analysis.record import Floats, RunRecord

LOWER_IS_BETTER = ("loss", "perplexity")


@dataclass(frozen=True)
class Curve:
    metric: str
    steps: Floats
    times: Floats
    """Of the clock, when each was known."""
    values: Floats
    epochs: Floats | None = None
    """None where the length of an epoch is not known."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def sign(self) -> float:
        """+1 where more is better."""
        return -1.0 if self.metric in LOWER_IS_BETTER else 1.0

    @property
    def best(self) -> float:
        return float((self.sign * self.values).max() * self.sign)

    @property
    def best_step(self) -> int:
        return int(self.steps[(self.sign * self.values).argmax()])

    def reached_at(self, value: float, along: Floats) -> float | None:
        """Where on `along` (steps, epochs, seconds) the value was first reached, between two scores on a line."""
        reached = np.maximum.accumulate(self.sign * self.values)
        goal = self.sign * value
        after = int(np.searchsorted(reached, goal, side="left"))
        if after == len(reached):
            return None
        if after == 0:
            return float(along[0])
        share = (goal - reached[after - 1]) / (reached[after] - reached[after - 1])
        return float(along[after - 1] + share * (along[after] - along[after - 1]))


def score_curve(run: RunRecord, metric: str | None = None) -> Curve:
    """By the run's own metric unless another is named; evaluations without a finite value are left out."""
    metric = metric or run.metric
    points = [(event.get("step"), event.get("time"), event.get(metric)) for event in run.evaluations]
    known = [point for point in points if all(isinstance(value, int | float) for value in point)]
    table = np.array(known, dtype=np.float64).reshape(-1, 3)
    per_epoch = steps_per_epoch(run)
    return Curve(metric, table[:, 0], table[:, 1], table[:, 2], table[:, 0] / per_epoch if per_epoch else None)


def smoothed(values: Floats, half_width: int) -> Floats:
    """The mean over each value and its neighbours on both sides; what is not finite is left out."""
    known = np.isfinite(values)
    sums = np.concatenate(([0.0], np.cumsum(np.where(known, values, 0.0))))
    counts = np.concatenate(([0], np.cumsum(known)))
    first = np.maximum(np.arange(len(values)) - half_width, 0)
    last = np.minimum(np.arange(len(values)) + half_width + 1, len(values))
    with np.errstate(invalid="ignore"):
        return np.asarray((sums[last] - sums[first]) / (counts[last] - counts[first]), dtype=np.float64)
