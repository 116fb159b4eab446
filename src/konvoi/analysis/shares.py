"""Where the time of a run goes: a mean step of each rank by its parts, and the seconds around the steps.

Which steps count, and why: docs/diagnosis.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from konvoi.analysis.record import Floats, RankRecord, RunRecord, Steps

NAMES = ("compute", "network", "waiting", "input", "evaluation", "checkpointing", "start-up", "other")
# The first steps fill caches, open connections and ask for memory.
WARM_UP_STEPS = 5
# The longest steps are left out: one pause of the machine must not decide.
TRIMMED_SHARE = 0.02
MIN_STEPS_TO_TRIM = 10
# Seconds and bytes outside of these are a fault of whoever wrote them.
LEAST, MOST = 1e-9, 1e15


@dataclass(frozen=True)
class RankStep:
    """What a mean step of one rank holds, in seconds. compute + input + waiting + moving + other = step."""

    rank: int
    host: str
    compute: float
    input: float
    waiting: float
    """Stood still because another rank was not there yet."""
    moving: float
    """Stood still while bytes were on their way."""
    other: float
    before_exchange: float
    """Work until the gradients are exchanged: input, forward, backward."""
    communication: float
    """Gradients and agreement under way, also behind backward."""
    agreement_moving: float
    latency: float
    """What a collective of a few bytes takes when nothing else holds it up: the lower quartile of the agreements."""
    num_collectives: float
    """With the agreement."""
    num_bytes: float
    cpu: float
    run_delay: float
    amount: float
    """Target tokens or images of this rank alone; NaN where the events do not say."""

    @property
    def work(self) -> float:
        return self.compute + self.input + self.other

    @property
    def step(self) -> float:
        return self.work + self.waiting + self.moving


@dataclass(frozen=True)
class TimeShares:
    """All time that was looked at."""

    ranks: list[RankStep]
    """Empty where there is no step."""
    median_step_seconds: float
    num_steps: int
    num_usable_steps: int
    spread: float
    """Standard deviation of a step's seconds over their mean."""
    slowest_input: float
    """Seconds of a mean step that the rank which comes last to the exchange waited for its data."""
    steps: float
    evaluation: float
    checkpointing: float
    start_up: float
    unaccounted: float
    """Between the first and the last event, but in none of them."""
    num_evaluations: int
    """Of the whole run, also where only the latest steps are looked at."""
    num_checkpoints: int
    phases_known: bool
    communication_known: bool
    """False for several workers whose events do not tell the exchange from the backward pass."""
    sampled_only: bool

    @property
    def training(self) -> float:
        """All but the start-up."""
        return self.steps + self.evaluation + self.checkpointing + self.unaccounted

    @property
    def total(self) -> float:
        return self.training + self.start_up

    def of_step(self, name: str) -> float:
        """The share of a step, as a mean over the ranks: of_step("waiting")."""
        shares = [getattr(rank, name) / rank.step for rank in self.ranks if rank.step > 0]
        return float(np.mean(shares)) if shares else 0.0

    def shares(self) -> dict[str, float]:
        """Of the whole time, adding up to 1."""
        if self.total <= 0:
            return {**dict.fromkeys(NAMES, 0.0), "other": 1.0}
        in_steps = self.steps / self.total
        found = {
            "compute": in_steps * self.of_step("compute"),
            "network": in_steps * self.of_step("moving"),
            "waiting": in_steps * self.of_step("waiting"),
            "input": in_steps * self.of_step("input"),
            "evaluation": self.evaluation / self.total,
            "checkpointing": self.checkpointing / self.total,
            "start-up": self.start_up / self.total,
        }
        return {**found, "other": max(0.0, 1.0 - sum(found.values()))}


def time_shares(run: RunRecord, last_steps: int | None = None) -> TimeShares:
    """last_steps: only the latest; what lies around them then counts by its part in the whole run."""
    first = run.first.steps
    num_steps = min(len(first), last_steps or len(first))
    tables = _tables(run, last_steps)
    counted = tables[0]["step_seconds"] if tables else np.zeros(0)
    has_steps = len(counted) > 0
    return TimeShares(
        ranks=_rank_steps(run, tables) if has_steps else [],
        median_step_seconds=float(np.median(counted)) if has_steps else 0.0,
        num_steps=num_steps,
        num_usable_steps=len(counted),
        spread=float(counted.std() / counted.mean()) if has_steps and counted.mean() > 0 else 0.0,
        slowest_input=_slowest_input(tables) if has_steps else 0.0,
        num_evaluations=len(pauses(run.first.evaluations)),
        num_checkpoints=len(pauses(run.first.checkpoints)),
        phases_known=first.has("phases.forward"),
        communication_known=run.num_workers == 1 or first.has("communication.moving_seconds"),
        sampled_only=first.has("sampled"),
        **_sums(run.first, num_steps),
    )


def _sums(rank: RankRecord, num_steps: int) -> dict[str, float]:
    """Seconds in the latest steps and around them."""
    steps = rank.steps.last(num_steps) if num_steps else Steps()
    is_whole = num_steps == len(rank.steps)
    part = 1.0 if is_whole else num_steps / len(rank.steps)
    sums = {
        "steps": float(positive(steps["step_seconds"]).sum()),
        "evaluation": part * sum(pauses(rank.evaluations).values()),
        "checkpointing": part * sum(pauses(rank.checkpoints).values()),
        "start_up": _start_up(rank) if is_whole else 0.0,
    }
    return {**sums, "unaccounted": max(0.0, _wall_seconds(rank) - sum(sums.values())) if is_whole else 0.0}


def _tables(run: RunRecord, last_steps: int | None) -> list[dict[str, Floats]]:
    """For each comparable rank its columns, over the same steps."""
    usable = _usable(run, _common_steps(run), last_steps)
    tables = [_columns(run, rank, usable) for rank in _comparable(run)]
    kept = _kept(tables) if tables else slice(None)
    return [{name: column[kept] for name, column in table.items()} for table in tables]


def _comparable(run: RunRecord) -> list[RankRecord]:
    """The ranks that took most of the steps; one that died early says nothing about the rest."""
    enough = len(run.first.steps) / 2
    return [rank for rank in run.ranks.values() if len(rank.steps) and len(rank.steps) >= enough]


def _common_steps(run: RunRecord) -> list[int]:
    """Those of which every comparable rank tells its seconds, in order."""
    timed = [
        set(rank.steps.numbers[np.isfinite(rank.steps["step_seconds"])].astype(int).tolist())
        for rank in _comparable(run)
    ]
    return sorted(set.intersection(*timed)) if timed else []


def _usable(run: RunRecord, numbers: list[int], last_steps: int | None) -> list[int]:
    """Without warm-up; on a GPU only those whose phases were measured on the device."""
    beginnings = [numbers[0] - 1] if numbers else []
    beginnings += [step for event in run.first.restarts if isinstance(step := event.get("step"), int)]
    warm_up = min(WARM_UP_STEPS, len(numbers) // 5)
    cold = {step for begin in beginnings for step in range(begin + 1, begin + 1 + warm_up)}
    usable = _steady(run, [step for step in numbers if step not in cold] or numbers)
    steps = run.first.steps
    if steps.has("sampled"):
        sampled = set(steps.numbers[steps["sampled"] > 0].astype(int).tolist())
        usable = [step for step in usable if step in sampled] or usable
    return usable[-last_steps:] if last_steps else usable


def _steady(run: RunRecord, usable: list[int]) -> list[int]:
    """After an evaluation or a checkpoint the ranks begin at different times; enough steps must stay."""
    after = {step + 1 for rank in run.ranks.values() for step in (*pauses(rank.evaluations), *pauses(rank.checkpoints))}
    steady = [step for step in usable if step not in after]
    return steady if 2 * len(steady) >= len(usable) else usable


def _columns(run: RunRecord, rank: RankRecord, usable: list[int]) -> dict[str, Floats]:
    """Of the usable steps; waiting for another rank's evaluation or checkpoint is taken out of the step after it."""
    wanted = set(usable)
    steps = rank.steps.where(np.array([number in wanted for number in rank.steps.numbers.tolist()], dtype=bool))
    phase = {name: positive(steps[f"phases.{name}"]) for name in ("data", "forward", "backward", "optimiser")}
    exposed = positive(steps["phases.exposed_communication"]) + positive(steps["phases.agreement"])
    waiting = np.minimum(positive(steps["communication.waiting_seconds"]), exposed)
    paused = np.minimum(waiting, _longerpauses(run, rank, steps))
    compute = phase["forward"] + phase["backward"] + phase["optimiser"]
    known = compute + phase["data"] + exposed
    other = np.maximum(0.0, positive(steps["step_seconds"]) - known)
    return {
        "step_seconds": known + other - paused,
        "compute": compute,
        "input": phase["data"],
        "waiting": waiting - paused,
        "moving": exposed - waiting,
        "other": other,
        "before_exchange": phase["data"] + phase["forward"] + phase["backward"],
        "communication": np.maximum(0.0, positive(steps["communication.seconds"]) - paused),
        "agreement_moving": positive(steps["communication.agreement_moving_seconds"]),
        "num_collectives": positive(steps["communication.num_collectives"]),
        "num_bytes": positive(steps.bytes_sent),
        "cpu": positive(steps["cpu_seconds"]),
        "run_delay": positive(steps["run_delay_seconds"]),
        "amount": steps["own_target_tokens"] if steps.has("own_target_tokens") else steps["own_images"],
    }


def _longerpauses(run: RunRecord, rank: RankRecord, steps: Steps) -> Floats:
    """For each step: by how much another rank's evaluation and checkpoint before it outlasted this rank's own."""
    gaps = {0: 0.0}
    for kind in ("evaluations", "checkpoints"):
        own = pauses(getattr(rank, kind))
        for other in run.ranks.values():
            for step, seconds in pauses(getattr(other, kind)).items():
                gaps[step + 1] = max(gaps.get(step + 1, 0.0), seconds - own.get(step, 0.0))
    return np.array([gaps.get(int(number), 0.0) for number in steps.numbers], dtype=np.float64)


def _kept(tables: list[dict[str, Floats]]) -> Any:
    """The steps that stay when the longest are left out, the same for all ranks."""
    longest = np.max([table["step_seconds"] for table in tables], axis=0)
    if len(longest) < MIN_STEPS_TO_TRIM:
        return slice(None)
    num_dropped = math.ceil(TRIMMED_SHARE * len(longest))
    return np.sort(np.argsort(longest, kind="stable")[:-num_dropped])


def _rank_steps(run: RunRecord, tables: list[dict[str, Floats]]) -> list[RankStep]:
    ranks = [
        RankStep(
            rank=rank.rank,
            host=rank.host,
            latency=float(np.percentile(table["agreement_moving"], 25)),
            **{key: _mean(values) for key, values in table.items() if key != "step_seconds"},
        )
        for rank, table in zip(_comparable(run), tables, strict=True)
    ]
    return ranks if len(ranks) < run.num_workers else _explained(ranks, tables)


def _explained(ranks: list[RankStep], tables: list[dict[str, Floats]]) -> list[RankStep]:
    """Only another rank's longer work makes a rank wait: a longer exchange without it is the network's."""
    before = np.array([table["before_exchange"] for table in tables])
    after = np.array([table["compute"] + table["input"] + table["other"] for table in tables]) - before
    late = (before.max(axis=0) - before + after.max(axis=0) - after).mean(axis=1)
    waiting = [min(rank.waiting, float(bound)) for rank, bound in zip(ranks, late, strict=True)]
    return [
        replace(rank, waiting=waits, moving=rank.moving + rank.waiting - waits)
        for rank, waits in zip(ranks, waiting, strict=True)
    ]


def _slowest_input(tables: list[dict[str, Floats]]) -> float:
    """In each step another rank may be the last."""
    last = np.argmax([table["before_exchange"] for table in tables], axis=0)
    inputs = np.array([table["input"] for table in tables])
    return float(inputs[last, np.arange(len(last))].mean())


def pauses(events: Iterable[dict[str, Any]]) -> dict[int, float]:
    """Seconds by step; one that was repeated after a resume as it went the last time."""
    return {event["step"]: _seconds(event.get("seconds")) for event in events if isinstance(event.get("step"), int)}


def _start_up(rank: RankRecord) -> float:
    return sum(_seconds(event.get("seconds")) for event in rank.started)


def _wall_seconds(rank: RankRecord) -> float:
    """From the command to the last event; 0 where it isn't known, or where a resume leaves a gap of unknown length."""
    if len(rank.started) != 1 or rank.restarts:
        return 0.0
    event = rank.started[0]
    return _seconds(rank.last_event_at) - _seconds(event.get("time")) + _seconds(event.get("seconds"))


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and LEAST < value < MOST else 0.0


def positive(values: Floats) -> Floats:
    return np.where((values > LEAST) & (values < MOST), values, 0.0)


def _mean(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else math.nan
