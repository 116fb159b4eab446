"""Who am I among the workers: from the environment that torchrun, mpirun or Slurm sets. Does not import torch."""

from __future__ import annotations

import os
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


# When the user's command began, for workers that were forked from it.
COMMAND_BEGAN = "KONVOI_COMMAND_BEGAN_AT"


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str = "none"


def from_environment(environment: Mapping[str, str] = os.environ) -> World:
    """The first launcher whose variables are all there; alone where there is none."""
    for launcher, names in LAUNCHERS.items():
        values = [environment.get(name, "") for name in names]
        if values[0] == "" or values[1] == "":
            continue
        try:
            rank, size, local_rank, local_size = (
                int(value or default) for value, default in zip(values, "0101", strict=True)
            )
        except ValueError:
            given = ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
            raise MachineError(f"{launcher}'s variables make no sense: {given}") from None
        return World(rank, size, local_rank, local_size, launcher)
    return World()


def began_at() -> float:
    """When the command of this process was given: its own start, or that of whoever launched it."""
    told = os.environ.get(COMMAND_BEGAN)
    return float(told) if told else float(psutil.Process().create_time())
