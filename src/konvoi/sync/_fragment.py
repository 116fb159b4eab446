"""A part of the model that the workers exchange by itself, with what is shared of it and what is under way."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from konvoi.sync._exchange import known

# In the optimiser's state.
MOMENTUM = "momentum_buffer"


class OuterStep(NamedTuple):
    """Made by the thread that exchanges, so that nobody waits for it; it counts when the fragment arrives."""

    shared: Tensor
    momentum: Tensor | None = None

    def named(self, prefix: str = "") -> dict[str, Tensor]:
        return {prefix + name: tensor for name, tensor in self._asdict().items() if tensor is not None}

    @classmethod
    def read(cls, prefix: str, tensors: dict[str, Tensor], device: torch.device) -> Self:
        found = {name: tensors.get(prefix + name) for name in cls._fields}
        return cls(**{name: tensor.to(device, copy=True) for name, tensor in found.items() if tensor is not None})


class Sent(NamedTuple):
    """What this worker had of a fragment when it left; overwritten once it is known how far to move from there."""

    weights: Tensor
    momentum: Tensor | None
    """Of its optimiser, where it travels as well."""


class Arrival(NamedTuple):
    """By how much this worker moves, found out by the thread that exchanges as well."""

    outer: OuterStep
    move: Tensor
    """From the weights that it had to those that are shared now."""
    momentum_move: Tensor | None
    """Likewise from its momentum to the mean of all workers'."""


@dataclass
class Pending:
    """A fragment under way."""

    sent_at: int
    arrives_at: int
    copied: Future[Any]
    """Until then neither weights nor momentum may change."""
    arrival: Future[Arrival]


class Stretch:
    """Of all given parameters laid end to end, one part of so many."""

    def __init__(self, parameters: list[nn.Parameter], number: int, count: int) -> None:
        total = sum(parameter.numel() for parameter in parameters)
        begin, end = total * number // count, total * (number + 1) // count
        self.pieces: list[tuple[nn.Parameter, int, int]] = []
        self.num_values = end - begin
        offset = 0
        for parameter in parameters:
            first, last = max(begin - offset, 0), min(end - offset, parameter.numel())
            if first < last:
                self.pieces.append((parameter, first, last))
            offset += parameter.numel()

    def cut(self, values: Tensor) -> tuple[Tensor, ...]:
        """A view for each piece."""
        return torch.split(values, [last - first for _, first, last in self.pieces])


class Fragment(Stretch):
    """With the weights that are shared of it."""

    def __init__(self, parameters: list[nn.Parameter], number: int, count: int) -> None:
        super().__init__(parameters, number, count)
        self.shared = self.own()
        self.momentum: Tensor | None = None
        self.pending: Pending | None = None

    def own(self) -> Tensor:
        """This worker's weights, a copy."""
        return torch.cat(list(self._weights()))

    def set_own(self, values: Tensor) -> None:
        for own, new in zip(self._weights(), self.cut(values), strict=True):
            own.copy_(new)

    def move_by(self, values: Tensor) -> None:
        for own, value in zip(self._weights(), self.cut(values), strict=True):
            own.add_(value)

    def outer_step(self, mean: Tensor, rate: float, momentum: float) -> OuterStep:
        """Nesterov's. The mean of what the workers moved by becomes the new weights; nothing else is changed yet."""
        if not momentum:
            return OuterStep(torch.sub(self.shared, mean, alpha=rate, out=mean))
        new_momentum = mean.clone() if self.momentum is None else (self.momentum * momentum).add_(mean)
        shared = torch.sub(self.shared, mean, alpha=rate, out=mean).sub_(new_momentum, alpha=rate * momentum)
        return OuterStep(shared, new_momentum)

    def tensors(self) -> dict[str, Tensor]:
        """What all have in common; what has not arrived is waited for here, and takes effect when it would have."""
        found = OuterStep(self.shared, self.momentum).named()
        return found | self.pending.arrival.result().outer.named("next_") if self.pending else found

    def own_tensors(self) -> dict[str, Tensor]:
        """What is this worker's alone."""
        if not self.pending:
            return {"own": self.own()}
        _, move, momentum_move = self.pending.arrival.result()
        found = {"own": self.own(), "move": move, "momentum_move": momentum_move}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def restore(self, tensors: dict[str, Tensor], own: dict[str, Tensor], sent_and_arrives_at: list[int]) -> None:
        """Without what is its own a worker begins at the shared weights, as all know that they will be."""
        device = self.shared.device
        is_under_way = bool(sent_and_arrives_at)
        self.shared, self.momentum = OuterStep.read("next_" if is_under_way and not own else "", tensors, device)
        self.set_own(own.get("own", self.shared))
        # A former version wrote something else: then what was under way goes with the next exchange.
        if is_under_way and "move" in own:
            arrival = Arrival(OuterStep.read("next_", tensors, device), own["move"], own.get("momentum_move"))
            sent_at, arrives_at = sent_and_arrives_at
            self.pending = Pending(sent_at, arrives_at, known(None), known(arrival))

    def _weights(self) -> Iterator[Tensor]:
        return (parameter.data.view(-1)[first:last] for parameter, first, last in self.pieces)


class Momentum(Stretch):
    """Muon's, of the matrices that it turns orthogonal; it travels with a fragment's weights."""

    def __init__(self, optimizer: Optimizer, number: int, count: int) -> None:
        self.optimizer = optimizer
        super().__init__(hidden(optimizer), number, count)

    def own(self) -> Tensor:
        """This worker's, a copy; zeros where it has made no step yet."""
        parts = [
            buffer if buffer is not None else torch.zeros(n, device=device) for buffer, n, device in self._buffers()
        ]
        return torch.cat(parts)

    def move_by(self, values: Tensor, num_steps: int) -> None:
        """From what this worker had to the mean; of both, the steps since then have kept a part."""
        share_kept = next(group["momentum"] for group in self.optimizer.param_groups if group.get("is_hidden"))
        for (buffer, _, _), value in zip(self._buffers(), self.cut(values), strict=True):
            if buffer is not None:
                buffer.add_(value, alpha=share_kept**num_steps)

    def _buffers(self) -> Iterator[tuple[Tensor | None, int, torch.device]]:
        """Of each piece; looked up each time, since a resumed optimiser has others."""
        for parameter, first, last in self.pieces:
            buffer = self.optimizer.state.get(parameter, {}).get(MOMENTUM)
            yield None if buffer is None else buffer.view(-1)[first:last], last - first, parameter.device


def part_of(tensors: dict[str, Tensor], number: int, device: torch.device) -> dict[str, Tensor]:
    """What a checkpoint holds of one fragment, without its number."""
    prefix = f"{number}."
    return {key.removeprefix(prefix): tensor.to(device) for key, tensor in tensors.items() if key.startswith(prefix)}


def hidden(optimizer: Optimizer) -> list[nn.Parameter]:
    """What Muon turns orthogonal; nothing of other optimisers."""
    return [p for group in optimizer.param_groups if group.get("is_hidden") for p in group["params"]]
