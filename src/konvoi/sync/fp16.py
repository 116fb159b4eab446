"""As ddp, with gradients in half precision on the wire: half the bytes, and a rounding of three digits."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor, distributed
from torch.futures import Future

from konvoi.sync import Shapes, Traffic, ddp


class Config(ddp.Config):
    """The recipe's [sync] table."""

    name: Literal["fp16"] = "fp16"  # type: ignore[assignment]
    scale: PositiveFloat = 4096.0
    """Gradients travel multiplied by this: half precision loses what is below 6e-8, and what is above 65,504.

    A gradient too large for it becomes infinite, and the step is skipped and counted.
    """


class Sync(ddp.Sync):
    config: Config
    sends_otherwise = True
    dtype = torch.float16

    @property
    def scale(self) -> float:
        return self.config.scale

    def send(self, bucket: Any) -> Future[Tensor]:
        gradients: Tensor = bucket.buffer()
        scale = self.scale
        half = (gradients * (scale / self.team.size)).to(self.dtype)
        ended = self.timeline.collective()

        # Without self: a thread of the group's calls it, which must not be the last to hold the group (powersgd).
        def widen(future: Future[list[Tensor]]) -> Tensor:
            ended()
            return gradients.copy_(future.value()[0]).mul_(1 / scale)

        work = distributed.all_reduce(half, group=self.team.group, async_op=True)
        future: Future[list[Tensor]] = work.get_future()
        return future.then(widen)


def traffic(config: Config, shapes: Shapes) -> Traffic:
    """As ddp's, in two bytes each."""
    return ddp.traffic(config, shapes, bytes_per_value=2)
