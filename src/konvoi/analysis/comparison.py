"""Runs against the first of them: speed-up, efficiency, time to the same score, cost, and the plain sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from konvoi.analysis.curve import Curve, score_curve
from konvoi.analysis.differences import Difference, Obstacle, differences, obstacles, remarks
from konvoi.analysis.length import epochs_done, steps_done
from konvoi.analysis.record import Floats, RunRecord
from konvoi.analysis.sessions import Session, active_seconds, sessions
from konvoi.analysis.wording import counted, metric_name
from konvoi.telemetry.units import speeds

AMOUNTS = {"target_tokens": "target tokens/s", "images": "images/s"}
# The first steps fill caches and ask for memory.
WARM_UP_STEPS = 5
NUM_CURVE_POINTS = 100
# Scores and losses closer than this are told as equal.
SAME_POINTS, SAME_LOSS = 0.05, 0.0005


@dataclass
class Standing:
    """One run, and where it stands against the first; None for what cannot be told."""

    run: RunRecord
    name: str
    workers: int
    hosts: int
    steps: int
    epochs: float | None
    seconds: float
    """From its first start to its last event, pauses between sessions left out."""
    curve: Curve
    score_seconds: Floats
    """When each score of the curve was known, start-up and evaluations included, pauses left out."""
    sessions: list[Session]
    speed: float | None = None
    speed_unit: str = ""
    cost: float | None = None
    speed_up: float | None = None
    efficiency: float | None = None
    """Speed-up over how many times as many workers."""
    score_at_common: float | None = None
    score_difference: float | None = None
    """At the same epochs, against the first; positive is higher."""
    seconds_to_same_score: float | None = None
    at_the_latest: bool = False
    """The same score was there at the first evaluation already."""
    time_ratio: float | None = None
    cost_to_same_score: float | None = None

    @property
    def last_score(self) -> float | None:
        return float(self.curve.values[-1]) if len(self.curve) else None

    @property
    def best_score(self) -> float | None:
        return self.curve.best if len(self.curve) else None


@dataclass
class Comparison:
    metric: str
    standings: list[Standing]
    same_score: float | None = None
    """The best that all of them reached."""
    common: float | None = None
    common_unit: str = "epochs"
    """Up to here all were evaluated; steps where the length of an epoch is not known."""
    differences: list[Difference] = field(default_factory=list)
    obstacles: list[Obstacle] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    """One for each run but the first."""

    def as_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "same_score": self.same_score,
            "common": {self.common_unit: self.common} if self.common is not None else None,
            "sentences": self.sentences,
            "not_comparable": [asdict(obstacle) for obstacle in self.obstacles],
            "remarks": self.remarks,
            "runs": [_standing_json(standing) for standing in self.standings],
            "differences": [asdict(difference) for difference in self.differences],
        }


def compare(runs: Sequence[RunRecord], price_per_hour: float | None = None) -> Comparison:
    """The price is that of one host for an hour."""
    metric = common_metric(runs)
    standings = [
        _standing(run, name, metric, price_per_hour) for run, name in zip(runs, unique_names(runs), strict=True)
    ]
    found = Comparison(metric, standings, obstacles=obstacles(runs), remarks=remarks(runs))
    found.differences = differences(runs)
    forbidden = {obstacle.forbids for obstacle in found.obstacles}
    if "everything" not in forbidden:
        _compare_speeds(standings)
        if "scores" not in forbidden:
            _compare_scores(found)
            _compare_times(found, price_per_hour)
    found.sentences = [sentence_of(found, standing) for standing in standings[1:]]
    return found


def common_metric(runs: Sequence[RunRecord]) -> str:
    """The first run's own where all evaluated runs have it, else the loss."""
    evaluated = [run for run in runs if run.evaluations]
    metric = runs[0].metric
    return metric if all(len(score_curve(run, metric)) for run in evaluated) else "loss"


def throughput(run: RunRecord) -> tuple[float | None, str]:
    """Of all workers together over the steps, without the first few; what the summary says where there is no step."""
    for key, unit in AMOUNTS.items():
        amounts, seconds = run.steps[key], run.steps["step_seconds"]
        known = np.isfinite(amounts) & (seconds > 0)
        if known.any():
            skipped = min(WARM_UP_STEPS, int(known.sum()) // 5)
            return float(amounts[known][skipped:].sum() / seconds[known][skipped:].sum()), unit
    words, value = next(speeds(run.summary), ("", None))
    return (value or None), words


def loss_curve(standing: Standing) -> tuple[Floats, Floats, Floats]:
    """Training loss as means over equal stretches: steps, seconds, losses."""
    steps = standing.run.steps.where(np.isfinite(standing.run.steps["loss"]))
    if not len(steps):
        return np.zeros(0), np.zeros(0), np.zeros(0)
    seconds = active_seconds(standing.sessions, steps["time"])
    starts = np.unique(np.linspace(0, len(steps), min(NUM_CURVE_POINTS, len(steps)), endpoint=False).astype(int))
    sizes = np.diff([*starts, len(steps)])
    means = [np.add.reduceat(column, starts) / sizes for column in (steps.numbers, seconds, steps["loss"])]
    return means[0], means[1], means[2]


def sentence_of(found: Comparison, standing: Standing) -> str:
    """two nodes: 1.86x as fast, 0.3 points lower after the same epochs; same score after 0.61 of the time"""
    parts = []
    if standing.speed_up is not None:
        parts.append(f"{standing.speed_up:.2f}x as fast")
    if standing.score_difference is not None:
        parts.append(f"{_difference_words(found, standing.score_difference)} after the same {found.common_unit}")
    text = ", ".join(parts)
    if standing.time_ratio is not None:
        latest = "at the latest " if standing.at_the_latest else ""
        text += f"{'; ' if text else ''}same score {latest}after {standing.time_ratio:.2f} of the time"
    return f"{_subject(found, standing)}: {text or 'cannot be compared with the first run'}"


def unique_names(runs: Sequence[RunRecord]) -> list[str]:
    """Two runs of one name lie in different folders."""
    names = [run.name for run in runs]
    return [run.name if names.count(run.name) == 1 else str(run.path) for run in runs]


def _standing(run: RunRecord, name: str, metric: str, price_per_hour: float | None) -> Standing:
    found = sessions(run)
    seconds, hosts = sum(session.seconds for session in found), int(run.summary.get("hosts") or 1)
    speed, unit = throughput(run)
    curve = score_curve(run, metric)
    return Standing(
        run=run,
        name=name,
        workers=run.num_workers,
        hosts=hosts,
        steps=steps_done(run),
        epochs=epochs_done(run),
        seconds=seconds,
        curve=curve,
        score_seconds=active_seconds(found, curve.times),
        sessions=found,
        speed=speed,
        speed_unit=unit,
        cost=_cost(seconds, hosts, price_per_hour),
    )


def _cost(seconds: float, hosts: int, price_per_hour: float | None) -> float | None:
    return None if price_per_hour is None else price_per_hour * hosts * seconds / 3600


def _compare_speeds(standings: list[Standing]) -> None:
    first = standings[0]
    for standing in standings:
        if first.speed and standing.speed and standing.speed_unit == first.speed_unit:
            standing.speed_up = standing.speed / first.speed
            standing.efficiency = standing.speed_up * first.workers / standing.workers


def _compare_scores(found: Comparison) -> None:
    """At the last moment that all evaluated runs share."""
    evaluated = [standing for standing in found.standings if len(standing.curve)]
    if len(evaluated) < 2:
        return
    by_epochs = all(standing.curve.epochs is not None for standing in evaluated)
    found.common_unit = "epochs" if by_epochs else "steps"
    alongs = [_along(standing.curve, found.common_unit) for standing in evaluated]
    found.common = float(min(along[-1] for along in alongs))
    for standing, along in zip(evaluated, alongs, strict=True):
        # A run that was first evaluated later has no score for this moment.
        if along[0] <= found.common:
            standing.score_at_common = float(np.interp(found.common, along, standing.curve.values))
    first = found.standings[0].score_at_common
    for standing in evaluated:
        if first is not None and standing.score_at_common is not None:
            standing.score_difference = standing.score_at_common - first


def _along(curve: Curve, unit: str) -> Floats:
    return curve.epochs if unit == "epochs" and curve.epochs is not None else curve.steps


def _compare_times(found: Comparison, price_per_hour: float | None) -> None:
    evaluated = [standing for standing in found.standings if len(standing.curve)]
    if len(evaluated) < 2:
        return
    sign = evaluated[0].curve.sign
    found.same_score = float(sign * min(sign * standing.curve.best for standing in evaluated))
    for standing in evaluated:
        seconds = standing.curve.reached_at(found.same_score, standing.score_seconds)
        standing.seconds_to_same_score = seconds
        standing.at_the_latest = bool(sign * standing.curve.values[0] >= sign * found.same_score)
        standing.cost_to_same_score = _cost(seconds or 0.0, standing.hosts, price_per_hour)
    base = found.standings[0].seconds_to_same_score
    for standing in evaluated:
        if base and standing.seconds_to_same_score is not None:
            standing.time_ratio = standing.seconds_to_same_score / base


def _difference_words(found: Comparison, difference: float) -> str:
    is_loss = found.standings[0].curve.sign < 0
    if abs(difference) < (SAME_LOSS if is_loss else SAME_POINTS):
        return "as good"
    direction = "lower" if difference < 0 else "higher"
    if is_loss:
        return f"{metric_name(found.metric)} {abs(difference):.3f} {direction}"
    return f"{abs(difference):.1f} points {direction}"


def _subject(found: Comparison, standing: Standing) -> str:
    """What sets it apart, if that names it alone: its hosts, else its workers, else its name."""
    for key, noun in (("hosts", "node"), ("workers", "worker")):
        values = [getattr(other, key) for other in found.standings]
        if values.count(getattr(standing, key)) == 1:
            return counted(getattr(standing, key), noun)
    return standing.name


def _standing_json(standing: Standing) -> dict[str, Any]:
    kept = {
        key: value for key, value in vars(standing).items() if key not in ("run", "curve", "score_seconds", "sessions")
    }
    curve, (steps, seconds, losses) = standing.curve, loss_curve(standing)
    return {
        **kept,
        "path": str(standing.run.path),
        "status": standing.run.status,
        "last_score": standing.last_score,
        "best_score": standing.best_score,
        "scores": {
            "steps": curve.steps.tolist(),
            "epochs": curve.epochs.tolist() if curve.epochs is not None else None,
            "seconds": standing.score_seconds.tolist(),
            "values": curve.values.tolist(),
        },
        "training_loss": {"steps": steps.tolist(), "seconds": seconds.tolist(), "values": losses.tolist()},
    }
