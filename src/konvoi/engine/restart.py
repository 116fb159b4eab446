"""Going on from a checkpoint: whose it is, and how it comes to all."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from konvoi.engine import checkpoint as checkpoints
from konvoi.engine.checkpoint import Checkpoint, Checkpoints
from konvoi.errors import UserError
from konvoi.run_directory import RunDirectory
from konvoi.sync import Team
from konvoi.world import LAST_STEP_AT

# What a run is told after a fault to go on from.
RESTARTS = ("newest", "spare")


@dataclass(frozen=True)
class Source:
    """The checkpoint that all go on from."""

    path: Path
    """On the host of the rank that has it."""
    rank: int
    damaged: str = ""
    """What is wrong with later ones."""


def is_keeper(directory: RunDirectory, team: Team) -> bool:
    """Whether this worker writes what all have in common: one on every disk, so that no host takes it along."""
    meeting = team.from_first(uuid.uuid4().hex)
    # Each host's first leaves its number; who finds a lower one shares that worker's disk.
    token = directory.checkpoints / f".{meeting}-{team.rank:06d}"
    is_candidate = team.rank == 0 or team.world.local_rank == 0
    if is_candidate:
        directory.checkpoints.mkdir(parents=True, exist_ok=True)
        token.touch()
    team.sum([0.0])
    found = sorted(path.name for path in directory.checkpoints.glob(f".{meeting}-*")) if is_candidate else []
    team.sum([0.0])
    if is_candidate:
        token.unlink()
    return found[:1] == [token.name]


def choose(stored: Checkpoints, name: str, team: Team, keeps: bool) -> Source | None:
    """The newest that any host has by this name, verified; None where nobody has any at all: it begins anew.

    A host that was away has a "spare" one, perhaps of a history that the others gave up: only where they have none.
    """
    found: Path | UserError | None = None
    damaged, is_any = "", name in (*RESTARTS, "last")
    if keeps:
        try:
            if not is_any:
                found = stored.choose(name)[0]
            elif stored.index()["last"]:
                found, damaged = stored.newest_intact()
        except UserError as error:
            # Another host may have one that is whole.
            found = error
    everyones = team.gather((found, damaged, name == "spare"))
    paths = [
        (not is_spare, one.name, -rank, one, problem)
        for rank, (one, problem, is_spare) in enumerate(everyones)
        if isinstance(one, Path)
    ]
    if paths:
        _, _, minus_rank, path, problem = max(paths)
        return Source(path, -minus_rank, problem)
    if errors := [one for one, _, _ in everyones if isinstance(one, UserError)]:
        raise errors[0]
    return None


def load(source: Source, team: Team) -> Checkpoint:
    """For everyone: what is in it, then tensor by tensor."""
    loaded = checkpoints.load(source.path) if team.rank == source.rank else None
    outline = team.from_one(source.rank, loaded and _each_tensor(loaded, lambda tensor: tensor.to("meta")))
    assert outline
    whole = loaded or _each_tensor(outline, lambda tensor: torch.empty_like(tensor, device="cpu"))
    # As bytes: gloo does not know every type.
    flat = (t.view(-1).view(torch.uint8) for tensors in whole.tensors.values() for t in tensors.values())
    team.follow(source.rank, flat)
    return whole


def _each_tensor(checkpoint: Checkpoint, change: Callable[[torch.Tensor], torch.Tensor]) -> Checkpoint:
    tensors = {file: {n: change(t) for n, t in named.items()} for file, named in checkpoint.tensors.items()}
    return replace(checkpoint, tensors=tensors)


def stalled() -> dict[str, float]:
    """How long no step was made, where a fault broke off the run."""
    last_step_at = os.environ.get(LAST_STEP_AT)
    return {"stall_seconds": round(time.time() - float(last_step_at), 3)} if last_step_at else {}
