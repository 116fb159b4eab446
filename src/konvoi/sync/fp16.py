"""As ddp, with gradients in half precision on the wire: half the bytes, and a rounding of three digits."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor, distributed
from torch.futures import Future

from konvoi.sync import ddp


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

    def _send(self, bucket: Any) -> Future[Tensor]:
        gradients: Tensor = bucket.buffer()
        half = (gradients * (self.config.scale / self.team.size)).to(torch.float16)
        ended = self.timeline.collective()

        def widen(future: Future[list[Tensor]]) -> Tensor:
            ended()
            return gradients.copy_(future.value()[0]).mul_(1 / self.config.scale)

        future: Future[list[Tensor]] = distributed.all_reduce(half, async_op=True).get_future()
        return future.then(widen)


def bytes_per_step(config: Config, num_parameters: int, num_workers: int) -> float:
    """Sent by each worker: a ring all-reduce of fp16 gradients."""
    return ddp.bytes_per_step(config, num_parameters, num_workers) / 2
