"""konvoi eval of an image classifier: accuracies, and which classes are taken for which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from konvoi import registry
from konvoi.commands.output import aligned, print_json
from konvoi.engine.trained import Trained
from konvoi.errors import UserError
from konvoi.sync import Team
from konvoi.tasks.classification import words_of
from konvoi.world import World


def evaluate_images(
    trained: Trained, *, split: str | None, files: tuple[Path, Path] | None, beam: int | None, as_json: bool
) -> None:
    if files or beam:
        raise UserError("--source, --target and --beam are for translators", hint=f"konvoi eval {trained.run.path}")
    module = registry.find("task", trained.recipe.name_of("task"))
    module.check_same(module.prepare(trained.recipe), trained.run)
    team = Team(World())
    settings = trained.recipe.evaluate
    settings = settings.model_copy(update={"split": split or settings.split})
    task = module.Task(trained.recipe.model_copy(update={"evaluate": settings}), trained.device, team)
    with trained.inference():
        scores, confusion = task.score(trained.model, team)
    result: dict[str, Any] = {
        "run": str(trained.run.path),
        "checkpoints": list(trained.checkpoints),
        "split": settings.split,
        **scores,
        "accuracy_1": confusion.accuracy_1,
        "accuracy_5": confusion.accuracy_5,
    }
    if as_json:
        return print_json({**result, "confusion": confusion.counts.tolist()})
    typer.echo(aligned(_rows(result)))
    typer.echo("\n" + confusion.table(words_of(trained.run)))


def _rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("checkpoint", " + ".join(result["checkpoints"])),
        ("pictures", f"{result['split']} split, {result['images']:,} pictures"),
        ("loss", f"{result['loss']:.3f}"),
        ("Acc@1", f"{result['accuracy_1']:.2f} %"),
        ("Acc@5", f"{result['accuracy_5']:.2f} %"),
        *(("can't be decoded", f"{path}: {why}") for path, why in result.get("damaged", [])),
    ]
