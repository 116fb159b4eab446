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
from konvoi.sync import Shapes, Team, Traffic, _base, num_values
from konvoi.telemetry.timeline import Timeline


class Config(Section):
    """The recipe's [sync] table."""

    name: Literal["ddp"] = "ddp"
    bucket_megabytes: PositiveFloat = 25.0
    """Gradients are sent as soon as so many are ready."""
    static_graph: bool = False
    """Promise that every step uses the same parameters."""


class Sync(_base.Sync):
    sends_otherwise = False
    """Whether `send` differs from what DDP does by itself."""
    has_own = False
    """Whether each worker keeps something of its own for a checkpoint."""

    def __init__(self, config: Config, team: Team, timeline: Timeline) -> None:
        super().__init__(config, team, timeline)
        self.config = config

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.team.size == 1:
            return model
        wrapped = DistributedDataParallel(
            model,
            process_group=self.team.group,
            bucket_cap_mb=self.config.bucket_megabytes,
            gradient_as_bucket_view=True,
            static_graph=self.config.static_graph,
            # Batch norm trains by its own batch; its running statistics matter at an evaluation, which sends them.
            forward_sync_buffers=False,
        )
        if self.timeline.is_on or self.sends_otherwise:
            # Without annotations, which torch compares with classes and finds to be strings.
            wrapped.register_comm_hook(None, lambda state, bucket: self.send(bucket))
        return wrapped

    def send(self, bucket: Any) -> Future[Tensor]:
        """The mean over the team, in the bucket's own memory.

        Here what DDP does without a hook, bit for bit; with one, the timeline learns of it.
        """
        ended = self.timeline.collective()

        def average(future: Future[list[Tensor]]) -> Tensor:
            ended()
            return future.value()[0]

        gradients = bucket.buffer().mul_(1 / self.team.size)
        work = distributed.all_reduce(gradients, group=self.team.group, async_op=True)
        future: Future[list[Tensor]] = work.get_future()
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


def traffic(config: Config, shapes: Shapes, bytes_per_value: float = 4) -> Traffic:
    """fp32 gradients, in buckets."""
    num_buckets = max(1, round(4 * num_values(shapes) / (config.bucket_megabytes * 1024**2)))
    # Gradients are divided before they leave; smaller ones are also rounded, and widened when they are back.
    training_passes, message_passes = (1, 0) if bytes_per_value == 4 else (2, 2)
    return Traffic(
        bytes_per_value * num_values(shapes),
        num_messages=num_buckets,
        message_passes=message_passes,
        training_passes=training_passes,
    )
