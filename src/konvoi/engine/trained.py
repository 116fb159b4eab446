"""A trained model, read from its run directory alone: recipe.toml, checkpoints/, and what its task keeps there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from konvoi import registry
from konvoi.config.recipe import Recipe
from konvoi.cores import usable_cores
from konvoi.engine.checkpoint import Checkpoints, weights
from konvoi.engine.precision import Precision, fastest
from konvoi.errors import CheckpointError
from konvoi.memory import keep_memory
from konvoi.run_directory import RunDirectory


@dataclass(frozen=True)
class Trained:
    run: RunDirectory
    model: nn.Module
    recipe: Recipe
    device: torch.device
    precision: Precision
    checkpoints: tuple[str, ...]
    """Names of what was loaded; several where they were averaged."""

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Computes as the evaluations during training do, so that their scores are met again."""
        with torch.no_grad(), self.precision.autocast():
            yield


def load_trained(run: RunDirectory, checkpoint: str = "best") -> Trained:
    """checkpoint is best, last, average, or a checkpoint's name or path."""
    recipe = run.recipe()
    paths = Checkpoints(run.checkpoints, metric=recipe.evaluate.metric).choose(checkpoint)
    device = _use_whole_machine()
    model: nn.Module = registry.find("task", recipe.name_of("task")).open_model(recipe, run)
    try:
        model.load_state_dict(weights(paths))
    except (RuntimeError, KeyError):
        raise CheckpointError(f"{paths[0]} does not fit the model of {run.path}", hint="is it another run's?") from None
    name = recipe.train.precision if recipe.train.precision != "auto" else fastest(device)
    names = tuple(path.name for path in paths)
    return Trained(run, model.to(device).eval(), recipe, device, Precision(name, device), names)


def _use_whole_machine() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda")
    keep_memory()
    torch.set_num_threads(usable_cores())
    return torch.device("cpu")
