"""As ddp, with each gradient's matrix sent as the product of two narrow ones, and what that left out sent along later.

Vogels and others, 2019; by torch's hook, which takes three messages for a bucket: what it does not compress, then one
factor, then the other. Every worker computes the sent factors' product itself: with processors that round differently
the weights part by the last bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

import numpy as np
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future

from konvoi.config.section import Section
from konvoi.sync import Shapes, Team, Traffic, ddp
from konvoi.sync._in_order import InOrder
from konvoi.telemetry.timeline import Timeline

MESSAGES_PER_BUCKET = 3
# Of a processor, through all gradients: the error is added, two products make the factors and one their product, the
# error is kept. By itself it takes 15 times as long as one pass, at ranks of 2 to 32; in the calibration runs of
# benchmarks/network (16 November 2026), between messages, 20 times.
MESSAGE_PASSES = 20


class Config(ddp.Config):
    """The recipe's [sync] table."""

    name: Literal["powersgd"] = "powersgd"  # type: ignore[assignment]
    rank: PositiveInt = 8
    """Columns of the factors: a matrix of m x n is sent as rank x (m + n) values."""
    start_step: NonNegativeInt = 100
    """Steps that are exact before: the first gradients change fast."""
    min_compression_rate: PositiveFloat = 2.0
    """A matrix that would not get smaller by more than this is sent as it is."""
    warm_start: bool = True
    """Begin with the factors of the step before, not with random ones."""
    error_feedback: bool = True
    """Add what the factors left out to the next step's gradient."""


class Waiting:
    """A group whose sums have arrived when they are handed out.

    torch's hook goes on with a sum by a callback that holds the group. A sum that is still under way would call it on a
    thread of the group's, which may then be the last to hold it: it would wait for its own end, and abort the process.
    """

    def __init__(self, group: Any) -> None:
        self._group = group

    def size(self) -> int:
        return self._group.size()  # type: ignore[no-any-return]

    def allreduce(self, tensors: list[Tensor], options: Any) -> Any:
        work = self._group.allreduce(tensors, options)
        # Whoever asks for the sum is told why there is none.
        with suppress(RuntimeError):
            work.get_future().wait()
        return work


class Sync(ddp.Sync):
    config: Config
    sends_otherwise = True

    def __init__(self, config: Config, team: Team, timeline: Timeline) -> None:
        super().__init__(config, team, timeline)
        self.has_own = config.error_feedback
        # Of its own: a thread sends here, while the training one may have something to send as well (batch norm).
        group = team.another_group()
        self._power = PowerSGDState(
            group and Waiting(group),
            matrix_approximation_rank=config.rank,
            start_powerSGD_iter=2,
            min_compression_rate=config.min_compression_rate,
            use_error_feedback=config.error_feedback,
            warm_start=config.warm_start,
            # A gradient of nothing but zeros has no direction.
            orthogonalization_epsilon=1e-20,
        )
        # torch asks for two exact steps, lest DDP fill its buckets anew afterwards; settle() has made it do so.
        self._power.start_powerSGD_iter = config.start_step
        self._num_steps = 0
        """As torch's own count, but also of a worker that sends nothing itself: another one of its host does."""
        self._is_settled, self._fits = False, True
        self._in_order = InOrder() if team.size > 1 else None

    def send(self, bucket: Any) -> Future[Tensor]:
        if not self._is_settled:
            return super().send(bucket)
        assert self._in_order
        return self._in_order(lambda: self._average(bucket), bucket.buffer().device, self.timeline.collective())

    def _average(self, bucket: Any) -> Tensor:
        index, device = bucket.index(), bucket.buffer().device
        for memory in self._memories().values():
            if index in memory:
                # A checkpoint is read into the host's memory.
                memory[index] = memory[index].to(device)
        # Random numbers follow from step and bucket: nothing about them need be saved.
        self._power.rng = np.random.RandomState([self._power.iter, index])
        averaged: Tensor = powerSGD_hook(self._power, bucket).wait()
        if not averaged.sum().isfinite():
            # The step will be skipped, and must not come back with the next one.
            for memory in self._memories().values():
                memory.pop(index, None)
        return averaged

    def settle(self, one_pass: Callable[[], None]) -> None:
        """Always: what is remembered belongs to a bucket, and DDP fills its buckets anew after its first pass."""
        if self.team.size > 1:
            one_pass()
        if not self._fits:
            for memory in self._memories().values():
                memory.clear()
        self._is_settled = True

    def after_step(self, model: nn.Module, step: int) -> None:
        self._num_steps += 1

    def settings_of(self, step: int) -> Section:
        """Not by the step: a run that came from another way began to count where it did."""
        exact = ddp.Config(bucket_megabytes=self.config.bucket_megabytes)
        return exact if self._num_steps <= self.config.start_step else super().settings_of(step)

    def _memories(self) -> dict[str, dict[int, Tensor]]:
        """By bucket: both factors, and what they left out."""
        power = self._power
        return {"p": power.p_memory_dict, "q": power.q_memory_dict, "error": power.error_dict}

    def state(self) -> dict[str, Any]:
        return {"steps": self._power.iter, "buckets": self._buckets()}

    def load_state(self, state: dict[str, Any]) -> None:
        for memory in self._memories().values():
            # Of steps that do not count any more.
            memory.clear()
        self._power.iter = self._num_steps = state.get("steps", 0)
        self._fits = state.get("buckets") == self._buckets()

    def _buckets(self) -> list[float]:
        """What decides which gradients are remembered together, and as how many values."""
        return [self.config.bucket_megabytes, self.config.rank, self.config.min_compression_rate]

    def tensors(self) -> dict[str, Tensor]:
        return self._named("p", "q")

    def own_tensors(self) -> dict[str, Tensor]:
        return self._named("error")

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        for key, tensor in tensors.items():
            name, bucket = key.split(".")
            self._memories()[name][int(bucket)] = tensor

    load_own = load_tensors

    def _named(self, *names: str) -> dict[str, Tensor]:
        return {f"{name}.{bucket}": tensor for name in names for bucket, tensor in self._memories()[name].items()}

    def close(self) -> None:
        if self._in_order:
            self._in_order.close()


def traffic(config: Config, shapes: Shapes) -> Traffic:
    """After start_step; as ddp's until then."""
    exact = ddp.traffic(config, shapes)
    num_sent = sum(_num_sent(config, shape) for shape in shapes)
    return Traffic(
        4 * num_sent,
        num_messages=MESSAGES_PER_BUCKET * exact.num_messages,
        message_passes=MESSAGE_PASSES,
        first_steps=(config.start_step, exact),
    )


def _num_sent(config: Config, shape: Sequence[int]) -> int:
    """Values of a gradient that travel; everything but its first dimension counts as columns."""
    num_rows, num_columns = shape[0], math.prod(shape[1:])
    num_compressed = (num_rows + num_columns) * min(num_rows, num_columns, config.rank)
    num_whole = num_rows * num_columns
    return num_compressed if num_compressed * config.min_compression_rate < num_whole else num_whole
