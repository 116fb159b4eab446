"""A table of set-ups: what each would take for the same training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from konvoi.plan.predict import Prediction, predict
from konvoi.plan.profile import Profile
from konvoi.plan.setup import Setup
from konvoi.plan.simulate import simulate
from konvoi.plan.traffic import Traffic

# A host without a network that matters: one worker alone sends nothing.
ALONE = "alone"


@dataclass(frozen=True)
class Job:
    """How much there is to train. More workers see the same data in fewer steps."""

    worker_steps: float | None = None
    """Steps times workers; None where the recipe's duration is a time, or nobody knows how long an epoch is."""
    seconds: float | None = None
    """The recipe's duration, where it is a time."""
    evaluate_every_steps: float | None = None
    num_evaluations: float | None = None
    """Where they are due by epochs, however many workers there are."""

    def hours(
        self, profile: Profile, prediction: Prediction, first_steps: int = 0, first_step_seconds: float = 0.0
    ) -> float | None:
        """The first steps may take another time than all that follow."""
        if self.worker_steps is None:
            return None if self.seconds is None else self.seconds / 3600
        steps = self.worker_steps / prediction.num_workers
        first = min(steps, first_steps)
        every = self.evaluate_every_steps
        count = steps / every if every else self.num_evaluations or 0.0
        evaluations = count * profile.evaluation_seconds / prediction.num_workers
        trained = first * first_step_seconds + (steps - first) * prediction.step_seconds
        return (trained + evaluations) / 3600


@dataclass(frozen=True)
class Outlook:
    """One row."""

    nodes: int
    gpus: int
    network: str
    sync: str
    prediction: Prediction
    tokens_per_second: float
    """Source and target tokens, or pictures."""
    hours: float | None
    cost: float | None

    @property
    def place(self) -> str:
        """4x2: four nodes of two; as it is written in the table."""
        return f"{self.nodes}x{self.gpus}" if self.gpus else str(self.nodes)

    def as_dict(self) -> dict[str, Any]:
        prediction = self.prediction
        return {
            "nodes": self.nodes,
            "gpus": self.gpus,
            "workers": prediction.num_workers,
            "network": self.network,
            "sync": self.sync,
            "step_seconds": prediction.step_seconds,
            "exposed_seconds": prediction.exposed_seconds,
            "parts": prediction.parts,
            "bound": prediction.bound,
            "per_second": self.tokens_per_second,
            "speed_up": prediction.speed_up,
            "efficiency": prediction.efficiency,
            "hours": self.hours,
            "cost": self.cost,
            "bytes_per_host_and_step": prediction.bytes_per_host,
        }


@dataclass(frozen=True)
class Planner:
    """What is the same in all rows."""

    profile: Profile
    job: Job
    price: float | None = None
    """Of a node and hour."""

    def rows(self, setups: Iterable[tuple[str, Setup]], traffics: Mapping[str, Traffic]) -> list[Outlook]:
        """Each set-up (with the name of its network) with each way to synchronise; one worker alone has none."""
        return [
            self.row(network, setup, sync, traffic)
            for network, setup in setups
            for sync, traffic in of_use(setup, traffics).items()
        ]

    def prediction(self, setup: Setup, traffic: Traffic) -> Prediction:
        """Hosts that differ, or steps that vary, are played through."""
        differ = setup.jitter > 0 or len(set(setup.hosts)) > 1
        return (simulate if differ else predict)(self.profile, setup, traffic)

    def hours(self, setup: Setup, traffic: Traffic, prediction: Prediction) -> float | None:
        count, first = traffic.first_steps or (0, traffic)
        if not count or setup.num_workers == 1:
            return self.job.hours(self.profile, prediction)
        return self.job.hours(self.profile, prediction, count, self.prediction(setup, first).step_seconds)

    def row(self, network: str, setup: Setup, sync: str, traffic: Traffic) -> Outlook:
        prediction = self.prediction(setup, traffic)
        hours, nodes = self.hours(setup, traffic, prediction), len(setup.hosts)
        workers = set(setup.workers_by_host)
        return Outlook(
            nodes=nodes,
            # 0 where the hosts differ in this, too.
            gpus=workers.pop() if len(workers) == 1 else 0,
            network=network,
            sync=sync,
            prediction=prediction,
            tokens_per_second=prediction.num_workers * self.profile.amount / prediction.step_seconds,
            hours=hours,
            cost=None if self.price is None or hours is None else self.price * nodes * hours,
        )


def of_use(setup: Setup, traffics: Mapping[str, Traffic]) -> dict[str, Traffic]:
    """One worker has nobody to talk to; where each host has one, or there is one host, nothing is to be told apart."""
    if setup.num_workers == 1:
        return {ALONE: next(iter(traffics.values()))}
    is_flat = setup.most_workers == 1 or len(setup.hosts) == 1
    several = {name: traffic for name, traffic in traffics.items() if not (is_flat and traffic.once_per_host)}
    return several or dict(traffics)
