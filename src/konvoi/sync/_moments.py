"""Adam's second moments for workers that train apart: as if each had seen what all of them see.

Adam divides by the root of its gradients' mean square, which is mostly noise. In one K-th of the batch there is K times
as much of it: a worker alone takes steps that are shorter by the root of K than those of all together, and so does the
mean of them; of a word that only one has met, shorter still. That is most of what local steps cost at a moderate rate,
and with Muon, whose matrices hardly mind (docs/network.md). So a worker's second moments become the sum over all
workers. It knows its own exactly, and those of the others, as of the last exchange, by the means of a matrix's rows and
columns (as Adafactor does; Shazeer and Stern, 2018). The mean of K gradients has that sum for its mean square, divided
by the square of K: steps are longer by K.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from konvoi.sync import Shapes
from konvoi.sync._exchange import Exchanger, Steps, alone, known

# Through all second moments, for each exchange: means of rows, of columns, the new sum for the former one.
PASSES = 4
# Steps from one exchange to the next at the least: what they tell changes slowly, by 2 % a step where beta2 is 0.98.
EVERY = 32


@dataclass
class Pending:
    arrives_at: int
    mean: Future[Tensor]
    """Of all workers' margins."""
    sent: Tensor


def shareable(optimizer: Optimizer) -> list[nn.Parameter]:
    """What Adam updates: all or nothing, but of Muon what is not turned orthogonal."""
    groups = [group for group in optimizer.param_groups if "betas" in group and not group.get("is_hidden")]
    return [parameter for group in groups for parameter in group["params"]]


class Moments:
    """Margins are the means of all matrices' rows and columns, and vectors as they are, end to end."""

    def __init__(
        self, optimizer: Optimizer, num_workers: int, average: Callable[[Tensor], Steps], exchanger: Exchanger
    ) -> None:
        self.optimizer, self.num_workers = optimizer, num_workers
        self.parameters = shareable(optimizer)
        self._average, self._exchanger = average, exchanger
        self.others = torch.zeros(num_margins([parameter.shape for parameter in self.parameters]))
        """The sum over the other workers that was put in last."""
        self.others_at = 0
        self.pending: Pending | None = None

    def rate_factor(self, step: int) -> float:
        """The number of workers, and less by what Adam forgot of the others since they were put in.

        Others are taken to be like this one: as long as nothing is known of them the root of the number is left.
        """
        return math.sqrt(self.num_workers * self._num_in_it(step))

    def begin_apart(self) -> None:
        """So far they were of the mean of all gradients: in a worker's own there is so much more noise."""
        for moments in self._second_moments():
            moments.mul_(self.num_workers)

    def send(self, step: int, overlap: int) -> None:
        if self.pending:
            self.arrive(step)
        own = margins(self._second_moments()).sub_(self._others_now(step)).clamp_(min=0)
        mean = self._exchanger.submit(lambda: alone(self._average(own.clone())))
        self.pending = Pending(step + overlap, mean, own)

    def arrive(self, step: int) -> None:
        assert self.pending
        before = self._others_now(step)
        self.others = (self.num_workers * self.pending.mean.result() - self.pending.sent).clamp_(min=0)
        self.others_at = step
        self.pending = None
        put_in(self._second_moments(), before, self.others)

    def _others_now(self, step: int) -> Tensor:
        return self.others.to(self.parameters[0].device) * self._kept(step)

    def _kept(self, step: int) -> float:
        """Every step takes its share of it."""
        return self._beta2 ** (step - self.others_at)

    def _num_in_it(self, step: int) -> float:
        """Of how many workers the second moments are; early on, when all grow, others' are of an earlier time."""
        if not self.others_at:
            return 1.0
        grown = (1 - self._beta2**self.others_at) / (1 - self._beta2**step)
        return 1 + (self.num_workers - 1) * self._kept(step) * grown

    @property
    def _beta2(self) -> float:
        return float(self.optimizer.param_groups[0]["betas"][1])

    def _second_moments(self) -> list[Tensor]:
        """Zeros before the first step, which a worker may have skipped."""
        state = self.optimizer.state
        found = [state[p]["exp_avg_sq"] if state[p] else torch.zeros_like(p) for p in self.parameters]
        return [values.view(-1) if values.numel() == len(values) else values.view(len(values), -1) for values in found]

    def state(self, step: int) -> dict[str, Any]:
        arrives_at = self.pending.arrives_at if self.pending else None
        return {"others_at": self.others_at, "arrives_at": arrives_at, "num_in_it": self._num_in_it(step)}

    def tensors(self) -> dict[str, Tensor]:
        return {"moments.mean": self.pending.mean.result()} if self.pending else {}

    def own_tensors(self) -> dict[str, Tensor]:
        return {"moments.others": self.others} | ({"moments.sent": self.pending.sent} if self.pending else {})

    def restore(self, state: dict[str, Any], tensors: dict[str, Tensor], own: dict[str, Tensor]) -> None:
        """All of it; where the worker has nothing of its own, second moments become those of one worker again."""
        self.pending = None
        self.others, self.others_at = torch.zeros_like(self.others), 0
        if "moments.others" not in own:
            for moments in self._second_moments():
                moments.div_(state.get("num_in_it", 1.0))
            return
        device = self.parameters[0].device
        self.others, self.others_at = own["moments.others"].to(device), state["others_at"]
        if state["arrives_at"] is not None:
            mean = known(tensors["moments.mean"].to(device))
            self.pending = Pending(state["arrives_at"], mean, own["moments.sent"].to(device))


def num_margins(shapes: Shapes) -> int:
    sizes = [(shape[0], torch.Size(shape).numel()) for shape in shapes]
    return sum(size if size == rows else rows + size // rows for rows, size in sizes)


def margins(moments: Sequence[Tensor]) -> Tensor:
    """Of matrices and vectors."""
    return torch.cat([part for values in moments for part in _parts(values)])


def put_in(moments: Sequence[Tensor], before: Tensor, after: Tensor) -> None:
    """What others' margins stand for, in place of what they stood for before."""
    begin = 0
    for values in moments:
        size = sum(values.shape)
        old, new = before[begin : begin + size], after[begin : begin + size]
        if values.dim() == 1:
            values.add_(new - old)
        else:
            rows, columns = torch.split(torch.stack((new, old)), list(values.shape), dim=1)
            shares = rows / rows.mean(dim=1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
            shares[1].neg_()
            values.addmm_(shares.T, columns)
        # Rounding may lead below.
        values.clamp_(min=0)
        begin += size


def _parts(values: Tensor) -> list[Tensor]:
    return [values] if values.dim() == 1 else [values.mean(dim=1), values.mean(dim=0)]
