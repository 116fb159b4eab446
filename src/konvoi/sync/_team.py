"""All workers of a run, or some, as one of them sees it: sums and gathers of small things."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch

# Before a group is made, since DDP would import it afterwards: the group of that time is the default of its arguments,
# and would be kept for good.
import torch.distributed.nn.functional
from torch import distributed

from konvoi.errors import MachineError
from konvoi.world import World

T = TypeVar("T")
# Long: others wait in a collective while the first rank saves, and at the start while data is opened. Longer than the
# watchdog's, which can say who is missing.
COLLECTIVE_TIMEOUT = timedelta(hours=2)


class Team:
    """Collectives that work alike for one process and for many."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rank, self.size = world.rank, world.size
        self._parts: Sequence[Sequence[int]] = [range(self.size)]
        """Of the whole run, by the ranks of their members: this team and those beside it."""
        self.group: Any = None
        """For torch's collectives; None is the whole run."""
        if self.size > 1:
            # Gloo for small things on the CPU, NCCL for gradients on GPUs.
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            distributed.init_process_group(backend, rank=self.rank, world_size=self.size, timeout=COLLECTIVE_TIMEOUT)

    @property
    def place(self) -> list[int]:
        """Of how many workers it is, and on its host which of how many."""
        return [self.size, self.world.local_rank, self.world.local_size]

    def part(self, parts: Sequence[Sequence[int]]) -> Team:
        """The part in which this worker is, as a team of its own. The whole team asks for it, with the same parts."""
        own = next(ranks for ranks in parts if self.rank in ranks)
        part = copy.copy(self)
        part.rank, part.size, part._parts = own.index(self.rank), len(own), parts
        part.group = part.another_group()
        return part

    def another_group(self) -> Any:
        """A second way between the same workers, whose exchanges do not queue up behind those of the first."""
        # Whoever is not in a group must take part in making it: torch numbers groups in the order of their making.
        groups = [distributed.new_group(ranks, timeout=COLLECTIVE_TIMEOUT) for ranks in self._parts if len(ranks) > 1]
        if groups:
            # Who has its connections may be done with all its work while another still waits for the first of them.
            distributed.barrier()
        return next((group for group in groups if group is not distributed.GroupMember.NON_GROUP_MEMBER), None)

    def ranks_by_host(self) -> list[list[int]]:
        """Of the whole run. A host's ranks follow one another, as torchrun counts them."""
        hosts: list[list[int]] = []
        places = self.gather((self.world.local_rank, self.world.local_size))
        for rank, (local_rank, _) in enumerate(places):
            if local_rank == 0:
                hosts.append([])
            hosts[-1].append(rank)
        if any(places[rank][1] != len(ranks) for ranks in hosts for rank in ranks):
            raise MachineError(
                "the ranks of a host's workers do not follow one another",
                hint="fill one host after the other: srun --distribution=block, mpirun --map-by slot",
            )
        return hosts

    def workers_by_host(self) -> list[int]:
        """How many each host of the whole run has, the most first; in whatever order their ranks are."""
        hosts_with = Counter(self.gather(self.world.local_rank))
        return [sum(count > host for count in hosts_with.values()) for host in range(hosts_with[0])]

    def rows(self, values: Sequence[float]) -> list[list[float]]:
        """Everyone's numbers, by rank; as many from each."""
        return self.begin_rows(values)()

    def begin_rows(self, values: Sequence[float]) -> Callable[[], list[list[float]]]:
        """The same, sent now and waited for later, by the function that it returns."""
        if self.size == 1:
            return lambda: [list(values)]
        own = torch.tensor(values, dtype=torch.float64)
        rows = [torch.empty_like(own) for _ in range(self.size)]
        work = distributed.all_gather(rows, own, group=self.group, async_op=True)

        def wait() -> list[list[float]]:
            work.wait()
            return [row.tolist() for row in rows]

        return wait

    def sum(self, values: Sequence[float]) -> list[float]:
        """Element by element over all ranks."""
        return [sum(column) for column in zip(*self.rows(values), strict=True)]

    def gather(self, value: T) -> list[T]:
        """Everyone's value, by rank."""
        if self.size == 1:
            return [value]
        values: list[T] = [value] * self.size
        distributed.all_gather_object(values, value, group=self.group)
        return values

    def from_first(self, value: T) -> T:
        """The first rank's value, for everyone."""
        return self.from_one(0, value)

    def from_one(self, rank: int, value: T) -> T:
        """That rank's value, for everyone."""
        if self.size == 1:
            return value
        values = [value]
        distributed.broadcast_object_list(values, group=self.group, group_src=rank)
        return values[0]

    def follow_first(self, tensors: Iterable[torch.Tensor]) -> None:
        """Everyone's tensors become those of the first rank."""
        self.follow(0, tensors)

    def follow(self, rank: int, tensors: Iterable[torch.Tensor]) -> None:
        if self.size > 1:
            for tensor in tensors:
                distributed.broadcast(tensor, group=self.group, group_src=rank)

    def close(self) -> None:
        """The threads of a group end as soon as nobody holds it. They must: one that lets go of a tensor while the
        interpreter ends aborts the process.
        """
        if self.size > 1 and distributed.is_initialized():
            distributed.destroy_process_group(self.group)
