"""What a way to synchronise sends, and when: for the planner, the diagnosis and the report. Does not import torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Shapes = Sequence[Sequence[int]]
"""Of all trainable parameters."""


class HiddenShape(tuple[int, ...]):
    """Of a matrix inside the network, whose steps Muon turns orthogonal; only where Muon is what trains it."""


@dataclass(frozen=True)
class Traffic:
    payload_bytes: float
    """All that an exchange adds up over the workers, as it travels: 4 bytes for each fp32 gradient."""
    every_steps: int = 1
    num_messages: int = 1
    """In which the payload travels, one after another: buckets of gradients, fragments of a model."""
    hidden_by: Literal["backward", "steps"] = "backward"
    """What computes meanwhile: the rest of the backward pass, or the steps that follow."""
    overlap_steps: int = 0
    """A message may be under way for so many steps before anybody waits for it."""
    once_per_host: bool = False
    """The workers of a host add up among themselves first, and one message leaves for all of them."""
    is_direct: bool = False
    """Every worker first sends each other one its share, in turns; only the sums then go round a ring, as all else."""
    message_passes: float = 0.0
    """How often a processor goes through all values to make the messages and to read them; a GPU is done at once."""
    training_passes: float = 0.0
    """The same on the thread that trains, which computes nothing meanwhile."""
    first_steps: tuple[int, Traffic] | None = None
    """How many there are that send otherwise, and what; all else here is of those that follow."""

    def bytes_per_step(self, num_workers: int, num_hosts: int = 0) -> float:
        """What each worker sends on average, all steps alike: an all-reduce sends 2 (n - 1) / n of its payload.

        Where a host exchanges once, it is what leaves the host; as many hosts as workers unless given.
        """
        members = num_hosts or num_workers if self.once_per_host else num_workers
        return 2 * (members - 1) / members * self.payload_bytes / self.every_steps

    def bytes_out_per_step(self, workers_by_host: Sequence[int]) -> float:
        """What leaves a host for others, of the host that sends the most; on average, all steps alike."""
        if len(workers_by_host) < 2:
            return 0.0
        members = [1] * len(workers_by_host) if self.once_per_host else workers_by_host
        count = sum(members)
        # A ring enters and leaves each host once, however many workers it passes there.
        ring = count - 1
        shares = max(own * (count - own) for own in members) if self.is_direct else ring
        return (shares + ring) / count * self.payload_bytes / self.every_steps


def num_values(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes)


def num_hidden(shapes: Shapes) -> int:
    return num_values([shape for shape in shapes if isinstance(shape, HiddenShape)])
