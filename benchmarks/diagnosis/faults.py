"""From a case to what is done to its run: how fast a link, how many busy processes, how slow a disk."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cases import MODELS, Case
from inject import Fault

# One way, one after another, in a step: the first bucket's ring and the rest's, the agreement, TCP's slow start.
TRIPS_PER_OTHER_WORKER, TRIPS_TO_GET_GOING = 8, 4
# Weights and Adam's two moments; SGD has one.
TENSORS_PER_CHECKPOINT, BYTES_PER_NUMBER = 3, 4
NUM_CHECKPOINTS = 5


@dataclass(frozen=True)
class Healthy:
    """What the same training costs without a fault; read from a row of results.jsonl."""

    start_seconds: float
    step_seconds: float
    evaluation_seconds: float
    num_parameters: int


@dataclass(frozen=True)
class Setting:
    """Everything that a run of a case needs to know."""

    num_steps: int
    fault: Fault = field(default_factory=Fault)
    rate_megabits: float | None = None
    delay_seconds: float = 0.0
    num_hogs: int = 0
    """Busy processes on the culprit's host."""
    disk_megabytes_per_second: float | None = None
    overrides: dict[str, Any] = field(default_factory=dict)
    cause_seconds: float | None = None
    """What the cause takes of the run, where that follows from bytes or sleep; else it is measured."""

    def __str__(self) -> str:
        told = {
            "Mbit/s": self.rate_megabits or 0,
            "ms one way": self.delay_seconds * 1e3,
            "busy processes": self.num_hogs,
            "MB/s to disk": self.disk_megabytes_per_second or 0,
            "s late input": self.fault.loader_seconds,
            "s to open the data": self.fault.opening_seconds,
            "times the tokens": self.fault.batch_factor if self.fault.batch_factor != 1 else 0,
            "steps": self.num_steps,
        }
        return ", ".join(f"{value:.3g} {what}" for what, value in told.items() if value)


def setting_of(case: Case, healthy: Healthy | None) -> Setting:
    """A healthy case needs no measure of what healthy is."""
    if healthy is None:
        return Setting(case.num_steps)
    steps_seconds = case.num_steps * healthy.step_seconds
    added_seconds = case.strength * max(steps_seconds, healthy.start_seconds)
    return FAULTS[case.cause](case, healthy, added_seconds)


def ranks_per_core(num_workers: int) -> float:
    return num_workers / len({core for cores in cores_of(num_workers) for core in cores})


def cores_of(num_workers: int) -> list[list[int]]:
    """Of each worker: one each, or as many workers on every core; all on one where that cannot be."""
    usable = sorted(os.sched_getaffinity(0))
    fair = num_workers <= len(usable) or num_workers % len(usable) == 0
    return [[usable[rank % len(usable)] if fair else usable[0]] for rank in range(num_workers)]


def _link_rate(case: Case, healthy: Healthy, added_seconds: float) -> Setting:
    # Sent by each worker, and as much received: a ring all-reduce of fp32 gradients.
    share = 2 * (case.num_workers - 1) / case.num_workers
    megabits = case.num_steps * share * BYTES_PER_NUMBER * healthy.num_parameters * 8 / 1e6
    return Setting(case.num_steps, rate_megabits=megabits / added_seconds, cause_seconds=added_seconds)


def _link_delay(case: Case, healthy: Healthy, added_seconds: float) -> Setting:
    num_trips = TRIPS_TO_GET_GOING + TRIPS_PER_OTHER_WORKER * (case.num_workers - 1)
    return Setting(case.num_steps, delay_seconds=added_seconds / case.num_steps / num_trips)


def _slow_input(case: Case, healthy: Healthy, added_seconds: float) -> Setting:
    """Of all, or of the culprit; every second time it computes rather than waits."""
    seconds = added_seconds / case.num_steps
    # Loaders that compute on a shared core take turns.
    sharing = ranks_per_core(case.num_workers) if case.variant and case.culprit is None else 1
    fault = Fault(rank=case.culprit, loader_seconds=seconds / sharing, loader_computes=case.variant)
    # Pictures are asked for one by one, too, but loaded ahead by processes: what is slow is the handing over.
    return Setting(case.num_steps, fault=fault, cause_seconds=added_seconds)


def _busy_host(case: Case, healthy: Healthy, added_seconds: float) -> Setting:
    """With n busy processes beside it, a worker that computed for c seconds takes n * c longer."""
    own_seconds = case.num_steps * healthy.step_seconds / ranks_per_core(case.num_workers)
    return Setting(case.num_steps, num_hogs=math.ceil(added_seconds / own_seconds))


def _longer_batches(case: Case, healthy: Healthy, added_seconds: float) -> Setting:
    own_seconds = case.num_steps * healthy.step_seconds / ranks_per_core(case.num_workers)
    return Setting(case.num_steps, fault=Fault(rank=case.culprit, batch_factor=1 + added_seconds / own_seconds))


def _slow_disk(case: Case, healthy: Healthy, added_seconds: float) -> Setting:
    every = case.num_steps // NUM_CHECKPOINTS
    num_checkpoints = -(-case.num_steps // every)
    megabytes = num_checkpoints * TENSORS_PER_CHECKPOINT * BYTES_PER_NUMBER * healthy.num_parameters / 1e6
    return Setting(
        case.num_steps,
        disk_megabytes_per_second=megabytes / added_seconds,
        overrides={"checkpoint.every": f"{every} steps"},
        cause_seconds=added_seconds,
    )


def _evaluation(case: Case, healthy: Healthy, added_seconds: float) -> Setting:
    num_evaluations = max(2.0, added_seconds / healthy.evaluation_seconds)
    every = max(1, int(case.num_steps / num_evaluations))
    return Setting(case.num_steps, overrides={"evaluate.every": f"{every} steps"})


def _start_up(case: Case, healthy: Healthy, added_seconds: float) -> Setting:
    """Few steps; or data that opens slowly, by as much as the steps take and more."""
    if case.variant:
        return Setting(case.num_steps, fault=Fault(opening_seconds=added_seconds))
    return Setting(max(3, int(healthy.start_seconds / case.strength / healthy.step_seconds)))


def _nearly_healthy(case: Case, healthy: Healthy, added_seconds: float) -> Setting:
    return (_slow_input if case.number % 2 else _link_rate)(case, healthy, added_seconds)


FAULTS: dict[str, Callable[[Case, Healthy, float], Setting]] = {
    "nearly healthy": _nearly_healthy,
    "link rate": _link_rate,
    "link delay": _link_delay,
    "slow input": _slow_input,
    "busy host": _busy_host,
    "longer batches": _longer_batches,
    "slow input of one": _slow_input,
    "slow disk": _slow_disk,
    "evaluation": _evaluation,
    "start-up": _start_up,
}


def overrides_of(case: Case, setting: Setting) -> tuple[str, list[str]]:
    """The recipe and what is changed in it."""
    recipe, model, amount = MODELS[case.model]
    amount_key = "batching.images" if case.model == "images" else "batching.max_tokens"
    evaluation = {"evaluate.images": 256} if case.model == "images" else {"evaluate.max_sentences": 8}
    changes: dict[str, Any] = {
        **{f"model.{key}": value for key, value in model.items()},
        amount_key: int(amount / ranks_per_core(case.num_workers)),
        "train.duration": f"{setting.num_steps} steps",
        "train.workers": case.num_workers,
        "train.threads": 1,
        "train.seed": case.number,
        "evaluate.every": "1000 steps",
        "checkpoint.every": "1000 steps",
        **evaluation,
        **setting.overrides,
    }
    return recipe, [f"{key}={value}" for key, value in changes.items()]
