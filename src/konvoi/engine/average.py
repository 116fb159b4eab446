"""A moving average of the weights, which often scores better than the weights themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MovingAverage:
    """decay grows from 0.1 on as (1 + step) / (10 + step), so that the random start is soon forgotten."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        # Parameters and running statistics, but no counters.
        state = {name: value for name, value in model.state_dict(keep_vars=True).items() if value.is_floating_point()}
        self.names, self.parameters = list(state), list(state.values())
        self.average = [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.average, list(self.parameters), 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model holds the average inside this block, and its own weights after it."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for parameter, average in zip(self.parameters, self.average, strict=True):
            parameter.data, average.data = average.data, parameter.data

    def tensors(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.average, strict=True))

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        for name, average in zip(self.names, self.average, strict=True):
            average.copy_(tensors[name])
