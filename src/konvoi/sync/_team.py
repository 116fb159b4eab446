"""All workers of a run, as one of them sees it: sums and gathers of small things."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed

from konvoi.world import World

T = TypeVar("T")
# Long: others wait in a collective while the first rank saves, and at the start while data is opened.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)


class Team:
    """Collectives that work alike for one process and for many."""

    def __init__(self, world: World) -> None:
        self.rank, self.size = world.rank, world.size
        if self.size > 1:
            # Gloo for small things on the CPU, NCCL for gradients on GPUs.
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            distributed.init_process_group(backend, rank=self.rank, world_size=self.size, timeout=COLLECTIVE_TIMEOUT)

    def rows(self, values: Sequence[float]) -> list[list[float]]:
        """Everyone's numbers, by rank; as many from each."""
        if self.size == 1:
            return [list(values)]
        own = torch.tensor(values, dtype=torch.float64)
        rows = [torch.empty_like(own) for _ in range(self.size)]
        distributed.all_gather(rows, own)
        return [row.tolist() for row in rows]

    def sum(self, values: Sequence[float]) -> list[float]:
        """Element by element over all ranks."""
        return [sum(column) for column in zip(*self.rows(values), strict=True)]

    def gather(self, value: T) -> list[T]:
        """Everyone's value, by rank."""
        if self.size == 1:
            return [value]
        values: list[T] = [value] * self.size
        distributed.all_gather_object(values, value)
        return values

    def from_first(self, value: T) -> T:
        """The first rank's value, for everyone."""
        if self.size == 1:
            return value
        values = [value]
        distributed.broadcast_object_list(values, src=0)
        return values[0]

    def follow_first(self, tensors: Iterable[torch.Tensor]) -> None:
        """Everyone's tensors become those of the first rank."""
        if self.size > 1:
            for tensor in tensors:
                distributed.broadcast(tensor, src=0)

    def close(self) -> None:
        if self.size > 1 and distributed.is_initialized():
            distributed.destroy_process_group()
