"""Numbers that stay sane: replicas equal bit for bit, and steps without a gradient counted."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from konvoi.errors import MachineError
from konvoi.sync import Team


def fingerprint(tensors: Iterable[Tensor]) -> int:
    """The same for the same bits, whatever the device; one that changed changes it."""
    total = 0
    for number, tensor in enumerate(tensors, start=1):
        bits = tensor.detach().contiguous().view(-1).view(torch.uint8)
        words = bits[: len(bits) // 4 * 4].view(torch.int32)
        rest = bits[len(bits) // 4 * 4 :]
        # Wraps around, on all workers alike.
        total += number * (int(words.sum(dtype=torch.int64)) + int(rest.sum(dtype=torch.int64)))
    return total


def check_equal(team: Team, own: int, step: int) -> None:
    """Raises where a worker's weights are not those of the others: most of them are taken to be right."""
    if team.size == 1:
        return
    found = team.gather((own, socket.gethostname()))
    (usual, count), *others = Counter(value for value, _ in found).most_common()
    if not others:
        return
    # Of two that differ nobody can say which is right.
    odd = [rank for rank, (value, _) in enumerate(found) if value != usual or 2 * count <= team.size]
    names = ", ".join(f"rank {rank} on {found[rank][1]}" for rank in odd)
    raise MachineError(
        f"step {step:,}: the weights of {names} are not those of the other workers, though nothing failed",
        hint="memory or a processor there computes wrongly; the last checkpoint was still right: --resume without it",
    )


@dataclass
class Lost:
    """Steps in a row that had no gradient: the same on all workers."""

    num_steps: int = 0
    first_position: int = 0

    def note(self, is_lost: bool, position: int) -> None:
        """Of a step whose micro-batches began at this position."""
        if is_lost and not self.num_steps:
            self.first_position = position
        self.num_steps = self.num_steps + 1 if is_lost else 0
