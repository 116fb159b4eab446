"""Who am I among the workers: from the environment that torchrun, mpirun or Slurm sets. Does not import torch."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from konvoi.errors import MachineError

# rank, number of workers, rank on this host, workers on this host
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "mpirun": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
}
NUM_HOSTS = {"torchrun": "GROUP_WORLD_SIZE", "slurm": "SLURM_STEP_NUM_NODES"}
# Steps from here on are none of srun's: the batch script itself, an interactive shell.
FIRST_RESERVED_STEP = 0xFFFFFFF0

# Of a worker, where a host before it may be missing; and when a run that a fault broke off made its last step.
SEAT = "KONVOI_SEAT"
LAST_STEP_AT = "KONVOI_LAST_STEP_AT"
# When the user's command began, for workers that were forked from it.
COMMAND_BEGAN = "KONVOI_COMMAND_BEGAN_AT"


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str = "none"
    num_hosts: int = 1
    """mpirun does not say it: then it is right where all hosts have as many workers."""
    own_seat: int | None = None

    @property
    def seat(self) -> int:
        """What its files are called by: its rank while all hosts are there, and after some are lost."""
        return self.rank if self.own_seat is None else self.own_seat


def from_environment(environment: Mapping[str, str] = os.environ) -> World:
    """The first launcher whose variables are all there; alone where there is none."""
    for launcher, names in LAUNCHERS.items():
        if environment.get(names[0]) and environment.get(names[1]):
            return _world(launcher, _slurm_step(environment) if launcher == "slurm" else environment)
    return World()


def interface_towards(address: str) -> str:
    """The interface through which this host sends to an address or name; the one that has it, where it is our own."""
    family, _, _, _, place = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        # Sends nothing: the kernel only chooses the way.
        probe.connect(place)
        own = probe.getsockname()[0]
    # An own address is sent to through loopback, but belongs to another interface.
    interfaces = {
        one.address.partition("%")[0]: interface
        for interface, addresses in psutil.net_if_addrs().items()
        for one in addresses
    }
    # All of 127.0.0.0/8 is loopback's, though only 127.0.0.1 is listed.
    return interfaces[own if own in interfaces else "127.0.0.1"]


def began_at() -> float:
    """When the command of this process was given: its own start, or that of whoever launched it."""
    told = os.environ.get(COMMAND_BEGAN)
    return float(told) if told else float(psutil.Process().create_time())


def _world(launcher: str, environment: Mapping[str, str]) -> World:
    given = {name: environment.get(name, "") for name in LAUNCHERS[launcher]}
    try:
        rank, size, local_rank, local_size = (
            int(value or default) for value, default in zip(given.values(), "0101", strict=True)
        )
        num_hosts = int(environment.get(NUM_HOSTS.get(launcher, "")) or 0)
    except ValueError:
        rank = size = local_rank = local_size = num_hosts = -1
    if not (0 <= local_rank <= rank < size and local_rank < local_size <= size):
        values = ", ".join(f"{name}={value}" for name, value in given.items())
        raise MachineError(
            f"{launcher}'s variables make no sense: {values}", hint="let the launcher set them, and set none by hand"
        )
    seat = environment.get(SEAT, "")
    own_seat = int(seat) if seat.isdecimal() else None
    return World(rank, size, local_rank, local_size, launcher, num_hosts or -(-size // local_size), own_seat)


def _slurm_step(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of this step, with the workers of this very node; refuses a process that srun did not start."""
    step = environment.get("SLURM_STEP_ID", "")
    if not step.isdecimal() or int(step) >= FIRST_RESERVED_STEP:
        raise MachineError(
            f"this is Slurm's job {environment.get('SLURM_JOB_ID', '')} of {environment['SLURM_NTASKS']} tasks,"
            " but srun did not start this process: it would wait for the others for ever",
            hint="put srun before the command, in the batch script too: srun konvoi worker RECIPE",
        )
    names = {"SLURM_NTASKS": "SLURM_STEP_NUM_TASKS", "SLURM_TASKS_PER_NODE": "SLURM_STEP_TASKS_PER_NODE"}
    # The job's numbers may be others than those of srun -n.
    told = {**environment, **{job: environment[own] for job, own in names.items() if environment.get(own)}}
    counts = tasks_per_node(told.get("SLURM_TASKS_PER_NODE", ""))
    node = int(told.get("SLURM_NODEID") or 0)
    return {**told, "SLURM_NTASKS_PER_NODE": str(counts[node])} if node < len(counts) else told


def tasks_per_node(text: str) -> list[int]:
    """2(x3),1 -> [2, 2, 2, 1]"""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, times in found for _ in range(int(times or 1))]
