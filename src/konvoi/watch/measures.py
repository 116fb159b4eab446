"""What the views show of a run, as numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from konvoi.analysis.record import PHASES, Floats, HostRecord, RankRecord, RunRecord, Steps
from konvoi.analysis.wording import metric_name, score
from konvoi.telemetry.units import SPEEDS

# "Now" is the mean of this many steps, or of this many seconds of a host's samples.
NOW_STEPS = 50
NOW_SAMPLES = 5
AMOUNTS = {"own_target_tokens": "tokens/s", "own_images": "images/s"}
SCORES = ("loss", "bleu", "chrf", "accuracy_1", "accuracy_5")


def mean(values: Floats) -> float:
    """Of those that are there; NaN where none is."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else math.nan


def latest(rank: RankRecord) -> Steps:
    return rank.steps.last(NOW_STEPS)


def step_seconds(rank: RankRecord) -> float:
    return mean(latest(rank)["step_seconds"])


@dataclass(frozen=True)
class RankNow:
    """A rank as of late."""

    rank: int
    host: str
    phases: dict[str, float]
    speed: str
    """4,061 tokens/s"""

    @classmethod
    def of(cls, rank: RankRecord) -> RankNow:
        return cls(rank.rank, rank.host, phases_of(rank), own_speed(rank))

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())


def phases_of(rank: RankRecord) -> dict[str, float]:
    """The mean step, part by part, in the order in which they happen.

    What a rank stood still for another, and what bytes took, tell more than which collective it happened in.
    """
    steps = latest(rank)
    if steps.has("sampled"):
        # On a GPU only these steps were measured by its own clock.
        steps = steps.where(steps["sampled"] == 1)
    names = [name for name in PHASES if name not in ("agreement", "exposed_communication", "other")]
    found = {name: _mean_or_zero(steps[f"phases.{name}"]) for name in names}
    exchanged = _mean_or_zero(steps["phases.exposed_communication"]) + _mean_or_zero(steps["phases.agreement"])
    if steps.has("communication.waiting_seconds"):
        waiting = min(exchanged, _mean_or_zero(steps["communication.waiting_seconds"]))
        between = {"waiting": waiting, "network": exchanged - waiting}
    else:
        between = {"exchange": exchanged}
    optimiser = found.pop("optimiser")
    return {**found, **between, "optimiser": optimiser, "other": _mean_or_zero(steps["phases.other"])}


def _mean_or_zero(values: Floats) -> float:
    value = mean(values)
    return value if math.isfinite(value) else 0.0


def speed(run: RunRecord) -> tuple[float, str] | None:
    """Of all ranks together: all that was done of late, by all the time that it took."""
    steps = latest(run.first)
    for key, words in SPEEDS.items():
        if per_second := _per_second(steps[key] * steps["step_seconds"], steps):
            return per_second, words
    return None


def own_speed(rank: RankRecord) -> str:
    """What this rank did itself."""
    steps = latest(rank)
    for key, words in AMOUNTS.items():
        if per_second := _per_second(steps[key], steps):
            return f"{per_second:,.0f} {words}"
    return ""


def _per_second(done: Floats, steps: Steps) -> float:
    """0 where it is not known."""
    seconds = float(np.nansum(steps["step_seconds"]))
    return float(np.nansum(done)) / seconds if seconds > 0 else 0.0


def scores_of(run: RunRecord, metric: str) -> list[tuple[int, float]]:
    """step and value of each evaluation that has it"""
    found = ((event["step"], event.get(metric)) for event in run.evaluations)
    return [(step, value) for step, value in found if isinstance(value, int | float)]


def evaluation_words(event: dict[str, Any]) -> list[str]:
    """dev loss 2.247, BLEU 28.92 ..."""
    values = ((metric, event.get(metric)) for metric in SCORES)
    return [f"{metric_name(name)} {score(value, name)}" for name, value in values if isinstance(value, int | float)]


@dataclass(frozen=True)
class Traffic:
    """Of a host as of late, over the interface that the job uses."""

    interface: str
    in_bits_per_second: float
    out_bits_per_second: float
    link_bits_per_second: float | None

    @property
    def share(self) -> float | None:
        """Of the link, the busier way."""
        busier = max(self.in_bits_per_second, self.out_bits_per_second)
        return busier / self.link_bits_per_second if self.link_bits_per_second else None


def traffic(host: HostRecord) -> Traffic | None:
    samples = host.samples[-NOW_SAMPLES:]
    seconds = sum(sample.get("seconds") or 0.0 for sample in samples)
    name = host.job_interface
    if not name or not seconds:
        return None
    counted = [sample.get("interfaces", {}).get(name) or {} for sample in samples]
    bits_in, bits_out = (8 * sum(each.get(way) or 0 for each in counted) for way in ("bytes_in", "bytes_out"))
    return Traffic(name, bits_in / seconds, bits_out / seconds, host.link_bits_per_second)


def cpu_percent(host: HostRecord) -> float:
    """The mean over all cores and the latest seconds."""
    return _mean_of(value for sample in host.samples[-NOW_SAMPLES:] for value in sample.get("cpu_percent") or [])


def _mean_of(values: Any) -> float:
    return mean(np.array([value for value in values if isinstance(value, int | float)], dtype=np.float64))
