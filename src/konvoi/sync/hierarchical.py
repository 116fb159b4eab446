"""Exact inside a host, where it costs little, and any of the other ways between the hosts, by one worker of each.

Gradients are added up inside a host, exchanged by the host's first worker, and handed out inside the host. With diloco
between the hosts, the workers of a host are one worker to it: they train as with ddp, and the first exchanges for all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from types import ModuleType
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, SerializeAsAny
from torch import Tensor, distributed, nn
from torch.futures import Future

from konvoi import registry
from konvoi.config.recipe import check_section
from konvoi.config.section import Section
from konvoi.errors import did_you_mean
from konvoi.sync import Shapes, Team, Traffic, _base, ddp, diloco
from konvoi.sync._exchange import Averager, Steps, Wire
from konvoi.sync._in_order import InOrder
from konvoi.telemetry.timeline import NoTimeline, Timeline

BETWEEN = ("ddp", "fp16", "bf16", "powersgd", "diloco")


def _checked(table: Any) -> Section:
    """A [sync.between] table, checked as [sync] is."""
    if isinstance(table, Section):
        return table
    if not isinstance(table, dict):
        raise ValueError("must be a table")
    name = table.get("name", "ddp")
    if name not in BETWEEN:
        raise ValueError(f'name: is "{name}"{did_you_mean(str(name), BETWEEN)} (allowed: {", ".join(BETWEEN)})')
    section, problems = check_section("between", registry.find("sync", name).Config, table)
    if section is None:
        raise ValueError("; ".join(problems))
    return section


class Config(Section):
    """The recipe's [sync] table."""

    name: Literal["hierarchical"] = "hierarchical"
    between: Annotated[SerializeAsAny[Section], BeforeValidator(_checked)] = ddp.Config()
    """Between the hosts: a table as [sync] itself, { name = "fp16" }."""

    @property
    def module(self) -> ModuleType:
        way: Any = self.between
        return registry.find("sync", way.name)


def Sync(config: Config, team: Team, timeline: Timeline) -> _base.Sync:
    way: _base.Sync
    if isinstance(config.between, diloco.Config):
        way = LocalSteps(config.between, team, timeline)
    else:
        assert isinstance(config.between, ddp.Config)
        way = Gradients(config.between, team, timeline)
    way.chosen = config
    return way


class Gradients(ddp.Sync):
    """On a thread of its own: the messages of a bucket follow each other, and so do the buckets, on all workers."""

    sends_otherwise = True

    def __init__(self, config: ddp.Config, team: Team, timeline: Timeline) -> None:
        super().__init__(config, team, timeline)
        self.local, self.across, self.num_hosts = _parts(team)
        # The timeline is told of the whole, by all workers alike.
        self.between: ddp.Sync = registry.find("sync", config.name).Sync(config, self.across, NoTimeline())
        self.has_own = self.between.has_own
        self._in_order = InOrder() if team.size > 1 else None

    def send(self, bucket: Any) -> Future[Tensor]:
        assert self._in_order
        return self._in_order(lambda: self._average(bucket), bucket.buffer().device, self.timeline.collective())

    def _average(self, bucket: Any) -> Tensor:
        # The hosts' sums are averaged over the hosts: together that is the mean over all workers.
        gradients: Tensor = bucket.buffer().mul_(self.num_hosts / self.team.size)
        if self.local.size > 1:
            distributed.reduce(gradients, group=self.local.group, group_dst=0)
        if self.across.size > 1:
            self.between.send(bucket).wait()
        self.local.follow_first([gradients])
        return gradients

    def settle(self, one_pass: Callable[[], None]) -> None:
        """Always: what is between the hosts may need it, and the others must take part."""
        if self.team.size > 1:
            one_pass()
        self.between.settle(lambda: None)

    def after_step(self, model: nn.Module, step: int) -> None:
        self.between.after_step(model, step)

    def settings_of(self, step: int) -> Section:
        return Config(between=self.between.settings_of(step))

    def state(self) -> dict[str, Any]:
        return self.between.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self.between.load_state(state)

    def tensors(self) -> dict[str, Tensor]:
        return self.between.tensors()

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self.between.load_tensors(tensors)

    def own_tensors(self) -> dict[str, Tensor]:
        """Where a host's first worker keeps something, the others say that they were there: all are needed to go on."""
        own = self.between.own_tensors()
        return {"here": torch.ones(1), **own} if self.has_own else own

    def load_own(self, tensors: dict[str, Tensor]) -> None:
        self.between.load_own({name: tensor for name, tensor in tensors.items() if name != "here"})

    def close(self) -> None:
        self.between.close()
        if self._in_order:
            self._in_order.close()


class LocalSteps(diloco.Sync):
    """All workers of a host take the same outer steps; only the first of them averages with the other hosts."""

    def __init__(self, config: diloco.Config, team: Team, timeline: Timeline) -> None:
        super().__init__(config, team, timeline)
        self.local, self.across, self.num_replicas = _parts(team)
        self.weight = self.local.size * self.num_replicas / team.size
        self.inside = ddp.Sync(ddp.Config(), self.local, timeline)

    def wrap(self, model: nn.Module) -> nn.Module:
        return self.inside.wrap(super().wrap(model))

    def settle(self, one_pass: Callable[[], None]) -> None:
        self.inside.settle(one_pass)

    def settings_of(self, step: int) -> Section:
        return Config(between=super().settings_of(step))

    def in_host(self, model: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        return self.inside.micro_step(model, is_last)

    def new_averagers(self, sizes: list[int], wire: Wire, keeps_rest: bool = True) -> list[Averager]:
        # Groups of their own, since the gradients of the next steps are under way meanwhile.
        local, across = self.local.another_group(), self.across.another_group()
        return [_HostAverager(size, self.across.size, wire, across, local, keeps_rest) for size in sizes]


class _HostAverager(Averager):
    """The mean over the hosts, for all workers of this one. To one who is not the host's first, there is one host."""

    def __init__(self, num_values: int, num_hosts: int, wire: Any, across: Any, local: Any, keeps_rest: bool) -> None:
        super().__init__(num_values, num_hosts, wire, across, keeps_rest)
        self.local = local

    def __call__(self, values: Tensor) -> Steps:
        return (yield from self._handed_out((yield from super().__call__(values))))

    def exactly(self, values: Tensor) -> Steps:
        return (yield from self._handed_out((yield from super().exactly(values))))

    def _handed_out(self, mean: Tensor) -> Steps:
        if self.local is not None:
            yield [distributed.broadcast(mean, group=self.local, group_src=0, async_op=True)]
        return mean


def _parts(team: Team) -> tuple[Team, Team, int]:
    """The workers of this host; the first ones of all hosts, where this is one, or this one alone; how many hosts."""
    hosts = team.ranks_by_host()
    others = [[rank] for ranks in hosts for rank in ranks[1:]]
    return team.part(hosts), team.part([[ranks[0] for ranks in hosts], *others]), len(hosts)


def traffic(config: Config, shapes: Shapes) -> Traffic:
    """What is sent between the hosts, once for each; inside a host the gradients go around besides."""
    return _once_per_host(config.module.traffic(config.between, shapes))


def _once_per_host(sent: Traffic) -> Traffic:
    if sent.hidden_by == "backward":
        # The thread that exchanges does it all, and scales the gradients once more.
        sent = replace(sent, message_passes=1 + sent.message_passes + sent.training_passes, training_passes=0)
    if sent.first_steps:
        count, first = sent.first_steps
        sent = replace(sent, first_steps=(count, _once_per_host(first)))
    return replace(sent, once_per_host=True)
