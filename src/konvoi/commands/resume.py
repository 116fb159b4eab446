"""What may change when a run goes on: how long and how often, never what is trained."""

from __future__ import annotations

from typing import Any

import typer

from konvoi.config.recipe import Recipe
from konvoi.engine.checkpoint import Checkpoints
from konvoi.errors import CheckpointError, RunError
from konvoi.folder import write_json, write_whole
from konvoi.run_directory import RunDirectory

MAY_CHANGE = {f"train.{key}" for key in ("duration", "time_budget", "workers", "patience", "log_every", "threads")}
MAY_CHANGE_IN = ("checkpoint", "evaluate", "faults")
# The best so far was chosen by it, and a loss does not compare with a BLEU.
MAY_NOT_CHANGE = "evaluate.metric"
# Where one of these changes, a finished run has more to do.
ENDINGS = {"train.duration", "train.time_budget", "train.patience"}

Differences = dict[str, tuple[Any, Any]]


def differences(stored: Recipe, given: Recipe) -> Differences:
    """{"train.seed": (1, 2)}: what the run has, what was given now."""
    old, new = _flat(stored), _flat(given)
    return {key: (old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key)}


def compare(run: RunDirectory, given: Recipe) -> Differences:
    """What was given now and is not in the run's recipe; refuses, all at once, what may not change."""
    changes = differences(run.recipe(), given)
    refused = [key for key in changes if not _may_change(key)]
    if refused:
        lines = "\n".join(f"  {_words(key, changes[key])}" for key in refused)
        raise RunError(
            f"{run.path} was begun with another recipe:\n{lines}",
            hint="repeat what the run was begun with (--set ...), or begin a new one without --resume",
        )
    if "train.workers" in changes and "epoch" in (given.train.duration.unit, run.recipe().train.duration.unit):
        raise RunError(
            f"{run.path}: its duration is in epochs, whose number of steps changes with train.workers",
            hint='keep --workers as it was, or give the whole in steps: --set train.duration="... steps"',
        )
    return changes


def adopt(run: RunDirectory, given: Recipe, changes: Differences) -> None:
    """Writes the changes into the run's recipe, once nothing else can fail."""
    if not changes:
        return
    write_whole(run.recipe_file, given.to_toml())
    if run.summary().get("status") == "finished":
        write_json(run.summary_file, {**run.summary(), "status": "interrupted"})
    for key in changes:
        typer.echo(_words(key, changes[key]), err=True)


def is_done(run: RunDirectory, changes: Differences) -> bool:
    """Whether there is nothing left to train."""
    return run.summary().get("status") == "finished" and not ENDINGS & changes.keys()


def key_of_ending(run: RunDirectory) -> str:
    """What to raise so that a finished run goes on."""
    endings = {"early_stop": "train.patience", "time_budget": "train.time_budget"}
    return endings.get(run.summary().get("ending", ""), "train.duration")


def has_no_checkpoint(run: RunDirectory) -> bool:
    return not any(run.checkpoints.glob("step-*"))


def check_checkpoint(run: RunDirectory, name: str | None, command: str) -> None:
    """Before any worker starts; the hint is the command that goes on from one that is whole. Without a name it is the
    newest of those: damaged ones are passed over."""
    checkpoints = Checkpoints(run.checkpoints)
    try:
        checkpoints.choose(name) if name else checkpoints.newest_intact()
    except CheckpointError as error:
        others = [path.name for path in checkpoints.intact()]
        hint = f"{others[0]} is intact: {command} --checkpoint {others[0]}" if others else error.hint
        raise CheckpointError(error.problem, hint) from None


def _may_change(key: str) -> bool:
    return key != MAY_NOT_CHANGE and (key in MAY_CHANGE or key.partition(".")[0] in MAY_CHANGE_IN)


def _words(key: str, values: tuple[Any, Any]) -> str:
    old, new = ("not set" if value is None else repr(value) for value in values)
    return f"{key}: the run has {old}, given is {new}"


def _flat(recipe: Recipe) -> dict[str, Any]:
    tables = recipe.model_dump(mode="json")
    return {f"{section}.{key}": value for section, table in tables.items() for key, value in table.items()}
