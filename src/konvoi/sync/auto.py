"""Measures link and compute before the first step, asks the planner, and takes the most exact way that is fast enough.

Later it watches the workers' losses: where those of replicas that train apart differ by more than chance, the exchanges
come twice as often. A resumed run keeps what was chosen.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from konvoi import registry
from konvoi.config.section import Section
from konvoi.cores import usable_cores
from konvoi.plan.predict import Prediction, enough_of, predict
from konvoi.plan.profile import Profile
from konvoi.plan.setup import INSIDE_A_HOST, Host, Link, Setup
from konvoi.sync import Shapes, Team, Traffic, _base, ddp, diloco, fp16, hierarchical
from konvoi.sync._pace import tightened
from konvoi.telemetry.timeline import Timeline

# Passes to time; the fastest counts, since the first one warms up.
NUM_PASSES = 3
# A message that takes so long tells the rate of a link well enough.
ENOUGH_SECONDS, MOST_BYTES = 0.2, 64 << 20
# Packing and unpacking go through all values of a model, far more than a cache holds.
NUM_VALUES = 4_000_000


class Config(Section):
    """The recipe's [sync] table."""

    name: Literal["auto"] = "auto"
    efficiency: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Of linear, that is enough: the most exact way that reaches it is taken."""
    max_local_steps: PositiveInt = 32
    """diloco exchanges at least so often."""
    watch_steps: Annotated[int, Field(ge=2)] = 100
    """Steps over which the replicas' losses are compared."""
    tolerance: PositiveFloat = 0.02
    """A replica's loss may differ from the mean by this share before the exchanges come more often."""


class Sync(_base.Sync):
    """All but the choice is left to the way that was chosen."""

    way: Any

    def __init__(self, config: Config, team: Team, timeline: Timeline) -> None:
        super().__init__(config, team, timeline)
        self.config = config
        self._losses: deque[Sequence[float]] = deque(maxlen=config.watch_steps)
        self._tightens_after = 0
        """The step; 0 for none to come."""
        self._choose(ddp.Config())

    def _choose(self, chosen: Section) -> None:
        self.chosen = chosen
        self.way = registry.find("sync", name_of(chosen)).Sync(chosen, self.team, self.timeline)

    def probe(self, one_pass: Callable[[], None], num_passes: int, shapes: Shapes) -> None:
        """One that was resumed has chosen already, unless by one worker alone, who had nothing to choose."""
        if self.team.size == 1 or self.message:
            return
        setup = self._setup()
        compute_seconds = num_passes * self._seconds_of(one_pass)
        profile = self._profile(compute_seconds, num_passes, setup, shapes)
        tried = [
            (config, predict(profile, setup, registry.find("sync", name_of(config)).traffic(config, shapes)))
            for config in candidates(self.config.max_local_steps, 1 < len(setup.hosts) < self.team.size)
        ]
        # The first one's choice is everybody's: what fits one's own figures may not be what the others would take.
        config, prediction = self.team.from_first(first_that_reaches(self.config.efficiency, tried))
        self.message = reason(setup, compute_seconds, config, prediction, tried[0])
        self._choose(config)

    def _profile(self, compute_seconds: float, num_passes: int, setup: Setup, shapes: Shapes) -> Profile:
        """Of the worker as it is among all others: the cores that they share are in what was timed."""
        profile = Profile(
            compute_seconds / 3,
            compute_seconds * 2 / 3,
            shapes=tuple(tuple(shape) for shape in shapes),
            micro_batches=num_passes,
        )
        if torch.cuda.is_available():
            return profile
        vector = torch.zeros(NUM_VALUES)
        # Of the host that has the fewest cores.
        cores, threads = min(self.team.gather((usable_cores(), torch.get_num_threads())))
        return replace(
            profile,
            seconds_per_pass=self._seconds_of(lambda: vector + vector) / NUM_VALUES,
            on_processor=True,
            threads=threads,
            cores=max(cores, setup.most_workers * threads),
        )

    def _setup(self) -> Setup:
        link = self._link()
        hosts = tuple(Host(link, len(ranks)) for ranks in self.team.ranks_by_host())
        # Of several hosts it is what was measured between them; what is inside one is faster.
        inside = link if len(hosts) == 1 else INSIDE_A_HOST
        return Setup(hosts, inside=inside, wire_overhead=1.0)

    def _link(self) -> Link:
        """A ring of all workers crosses every link once, so that its pace is the slowest link's."""
        num_hops = 2 * (self.team.size - 1)
        round_seconds = min(self._all_reduce_seconds(4) for _ in range(5)) / num_hops
        num_bytes, seconds = 1 << 18, 0.0
        while seconds < ENOUGH_SECONDS and num_bytes < MOST_BYTES:
            num_bytes *= 4
            seconds = self._all_reduce_seconds(num_bytes)
        sent = num_hops / self.team.size * num_bytes
        return Link(sent / max(seconds - num_hops * round_seconds, 1e-6), 2 * round_seconds)

    def _all_reduce_seconds(self, num_bytes: int) -> float:
        values = torch.zeros(num_bytes // 4, device="cuda" if torch.cuda.is_available() else "cpu")

        def exchange() -> None:
            distributed.all_reduce(values)

        return self._seconds_of(exchange, times=1)

    def _seconds_of(self, task: Callable[[], object], times: int = NUM_PASSES) -> float:
        """As the slowest worker sees it."""
        found = []
        for _ in range(times):
            self.team.sum([0.0])
            started = time.perf_counter()
            task()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            found.append(max(seconds for (seconds,) in self.team.rows([time.perf_counter() - started])))
        return min(found)

    def heard(self, step: int, losses: Sequence[float]) -> str:
        """All workers hear the same, so that all decide alike."""
        if not isinstance(self.way, diloco.Sync):
            return ""
        if self._losses and len(self._losses[-1]) != len(losses):
            # Other workers than before.
            self._losses.clear()
        if all(map(math.isfinite, losses)):
            self._losses.append(losses)
        if len(self._losses) < self.config.watch_steps:
            return ""
        apart = spread(self._losses)
        if apart <= self.config.tolerance or self._tightens_after or self.way.local_steps == 1:
            return ""
        self._losses.clear()
        # A worker that is stopped hears of a step sooner than one that goes on: the step's number makes both do alike.
        self._tightens_after = step + self.agreement_lag
        local_steps = tightened(self.way.local_steps)
        every = "every step" if local_steps == 1 else f"every {local_steps} steps"
        return f"step {step:,}: the replicas' losses part by {apart:.1%}, so they exchange {every} from now on"

    @property
    def may_differ(self) -> bool:
        return True

    @property
    def agreement_lag(self) -> int:  # type: ignore[override]
        return int(self.way.agreement_lag)

    @property
    def replicas_differ(self) -> bool:  # type: ignore[override]
        return bool(self.way.replicas_differ)

    def use(self, optimizer: Optimizer) -> None:
        self.way.use(optimizer)

    def rate_factor(self, step: int) -> float:
        return float(self.way.rate_factor(step))

    def momentum_span(self, step: int) -> float:
        return float(self.way.momentum_span(step))

    def wrap(self, model: nn.Module) -> nn.Module:
        wrapped: nn.Module = self.way.wrap(model)
        return wrapped

    def settle(self, one_pass: Callable[[], None]) -> None:
        self.way.settle(one_pass)

    def micro_step(self, model: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = self.way.micro_step(model, is_last)
        return context

    def after_step(self, model: nn.Module, step: int) -> None:
        if 0 < self._tightens_after < step:
            self._tightens_after = 0
            self.way.tighten()
        self.way.after_step(model, step)

    def settings_of(self, step: int) -> Section:
        settings: Section = self.way.settings_of(step)
        return settings

    def finish(self, step: int) -> bool:
        return bool(self.way.finish(step))

    def shared(self) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = self.way.shared()
        return context

    def state(self) -> dict[str, Any]:
        return {
            "chosen": self.chosen.model_dump(mode="json"),
            "was_measured": bool(self.message),
            "way": self.way.state(),
            "losses": [list(row) for row in self._losses],
            "tightens_after": self._tightens_after,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        if not state.get("was_measured", True):
            # By one worker alone, who had nothing to choose. What was chosen since then begins from its weights.
            self.way.load_state({})
            self._losses.clear()
            self._tightens_after = 0
            return
        table = state["chosen"]
        if table != self.chosen.model_dump(mode="json"):
            self._choose(registry.find("sync", table["name"]).Config.model_validate(table))
        self.way.load_state(state["way"])
        self._losses = deque(state["losses"], self.config.watch_steps)
        self._tightens_after = state.get("tightens_after", 0)
        self.message = f"sync: {words_for(self.chosen)}, as chosen before"

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.way.tensors())

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self.way.load_tensors(tensors)

    def own_tensors(self) -> dict[str, Tensor]:
        return dict(self.way.own_tensors())

    def load_own(self, tensors: dict[str, Tensor]) -> None:
        self.way.load_own(tensors)

    def rewound(self) -> None:
        self.way.rewound()

    def close(self) -> None:
        self.way.close()


def name_of(config: Section) -> str:
    return str(config.name)  # type: ignore[attr-defined]


def candidates(max_local_steps: int, has_full_hosts: bool) -> Iterator[Section]:
    """The most exact first. Where hosts have several workers, one of each speaks for them."""
    ways: list[Section] = [ddp.Config(), fp16.Config()]
    for local_steps, wire in diloco.USUAL:
        if local_steps <= max_local_steps:
            ways.append(diloco.Config(local_steps=local_steps, wire=wire))
    for way in ways:
        yield hierarchical.Config(between=way) if has_full_hosts else way


def first_that_reaches(efficiency: float, tried: Sequence[tuple[Section, Prediction]]) -> tuple[Section, Prediction]:
    """Where none does, the first that is nearly the fastest."""
    enough = enough_of((prediction.efficiency for _, prediction in tried), efficiency)
    return next(one for one in tried if one[1].efficiency >= enough)


def words_for(config: Section) -> str:
    if isinstance(config, hierarchical.Config):
        return f"{words_for(config.between)} between the hosts"
    if isinstance(config, diloco.Config):
        return f"diloco with {config.local_steps} local steps ({config.wire})"
    return name_of(config)


def reason(
    setup: Setup,
    compute_seconds: float,
    config: Section,
    prediction: Prediction,
    exact: tuple[Section, Prediction],
) -> str:
    megabits = 8e-6 * setup.hosts[0].link.bytes_per_second
    found = f"sync: {words_for(config)}, {prediction.efficiency:.0%} of linear expected"
    measured = f"link {megabits:,.0f} Mbit/s, compute {compute_seconds:.2f} s a step"
    if config == exact[0]:
        return f"{found} ({measured})"
    return f"{found}; {words_for(exact[0])} would reach {exact[1].efficiency:.0%} ({measured})"


def spread(losses: Sequence[Sequence[float]]) -> float:
    """How far the replica that differs most is from the mean, as a share of it; 0 where chance may explain it.

    Each step's batches differ, so a difference counts from three times its standard error on.
    """
    centres = [statistics.fmean(row) for row in losses]
    whole = statistics.fmean(centres)
    furthest = 0.0
    for column in zip(*losses, strict=True):
        differences = [value - centre for value, centre in zip(column, centres, strict=True)]
        mean, error = statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(len(differences))
        if abs(mean) > 3 * error:
            furthest = max(furthest, abs(mean) / whole)
    return furthest


def traffic(config: Config, shapes: Shapes) -> Traffic:
    """At the most: what it begins with where the links are fast."""
    return ddp.traffic(ddp.Config(), shapes)
