"""Exact: gradients are averaged over all workers in every step, in buckets, while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import PositiveFloat
from torch import Tensor, distributed, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from konvoi.config.section import Section
from konvoi.sync import Team
from konvoi.telemetry.timeline import Timeline


class Config(Section):
    """The recipe's [sync] table."""

    name: Literal["ddp"] = "ddp"
    bucket_megabytes: PositiveFloat = 25.0
    """Gradients are sent as soon as so many are ready."""
    static_graph: bool = False
    """Promise that every step uses the same parameters."""


class Sync:
    sends_otherwise = False
    """Whether `_send` differs from what DDP does by itself."""

    def __init__(self, config: Config, team: Team, timeline: Timeline) -> None:
        self.config, self.team, self.timeline = config, team, timeline
        self.num_averaged = team.size

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.team.size == 1:
            return model
        wrapped = DistributedDataParallel(
            model,
            bucket_cap_mb=self.config.bucket_megabytes,
            gradient_as_bucket_view=True,
            static_graph=self.config.static_graph,
            # Batch norm trains by its own batch; its running statistics matter at an evaluation, which sends them.
            forward_sync_buffers=False,
        )
        if self.timeline.is_on or self.sends_otherwise:
            # Without annotations, which torch compares with classes and finds to be strings.
            wrapped.register_comm_hook(None, lambda state, bucket: self._send(bucket))
        return wrapped

    def _send(self, bucket: Any) -> Future[Tensor]:
        """What DDP does without a hook, bit for bit; with one, the timeline learns of it."""
        ended = self.timeline.collective()

        def average(future: Future[list[Tensor]]) -> Tensor:
            ended()
            return future.value()[0]

        gradients = bucket.buffer().mul_(1 / self.team.size)
        future: Future[list[Tensor]] = distributed.all_reduce(gradients, async_op=True).get_future()
        return future.then(average)

    def settle(self, one_pass: Callable[[], None]) -> None:
        """Makes a resumed run add up gradients in the same order as one that was never stopped.

        DDP fills its buckets anew after its first backward pass, and a gradient's place in them decides which worker's
        part comes first in its sum. Three numbers or more round differently in another order; two do not.
        """
        if self.team.size > 2:
            one_pass()

    @contextmanager
    def micro_step(self, model: nn.Module, is_last: bool) -> Iterator[None]:
        """Only the last micro-batch of a step sends; no_sync must be around the forward pass too."""
        if is_last or not isinstance(model, DistributedDataParallel):
            yield
        else:
            with model.no_sync():
                yield

    def after_step(self, model: nn.Module, step: int) -> None:
        """Nothing: the gradients were equal, so the weights are."""

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


def bytes_per_step(config: Config, num_parameters: int, num_workers: int) -> float:
    """Sent by each worker: a ring all-reduce of fp32 gradients."""
    return 2 * (num_workers - 1) / num_workers * 4 * num_parameters
