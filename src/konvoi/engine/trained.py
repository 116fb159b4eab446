"""A trained model, read from its run directory alone: recipe.toml, vocabulary.model, checkpoints/."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from konvoi import registry
from konvoi.config.recipe import Recipe
from konvoi.data.subwords import Subwords
from konvoi.engine.checkpoint import Checkpoints, weights
from konvoi.engine.precision import Precision, fastest
from konvoi.engine.setup import keep_memory, num_cores
from konvoi.errors import CheckpointError, RunError
from konvoi.run_directory import RunDirectory


@dataclass(frozen=True)
class Trained:
    model: nn.Module
    subwords: Subwords
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
    if not run.vocabulary_file.is_file():
        raise RunError(f"{run.vocabulary_file} is missing", hint="copy the whole run directory")
    subwords = Subwords.load(run.vocabulary_file)
    paths = Checkpoints(run.checkpoints, metric=recipe.evaluate.metric).choose(checkpoint)
    device = _use_whole_machine()
    model: nn.Module = registry.find("model", recipe.name_of("model")).Model(
        recipe.model, subwords.padded_size, pad=Subwords.PAD
    )
    try:
        model.load_state_dict(weights(paths))
    except (RuntimeError, KeyError):
        raise CheckpointError(f"{paths[0]} does not fit the model of {run.path}", hint="is it another run's?") from None
    name = recipe.train.precision if recipe.train.precision != "auto" else fastest(device)
    return Trained(
        model.to(device).eval(), subwords, recipe, device, Precision(name, device), tuple(path.name for path in paths)
    )


def _use_whole_machine() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda")
    keep_memory()
    torch.set_num_threads(num_cores())
    return torch.device("cpu")
