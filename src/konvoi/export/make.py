"""A run becomes a bundle: the task's own part, then what all bundles have; written beside and renamed."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Collection
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from konvoi import __version__
from konvoi.bundle.format import PRECISIONS, Bundle, Description, Variant, is_bundle, open_bundle, write_description
from konvoi.cores import usable_cores
from konvoi.errors import BundleError, MachineError
from konvoi.export.card import card
from konvoi.export.requirements import requirements
from konvoi.folder import work_folder
from konvoi.run_directory import RunDirectory
from konvoi.stages import Report, silent
from konvoi.telemetry.environment import processor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from konvoi.engine.trained import Trained

KEPT_OF_DATA = ("set", "licence", "citation", "source", "target", "pairs", "tokens", "images", "vocabulary_size")
# The first that is there is what a bundle uses unless told otherwise: the smallest and fastest.
PREFERRED = ("int8", "float32", "float16")


def make_bundle(
    path: Path,
    to: Path,
    checkpoint: str = "best",
    *,
    precisions: Collection[str] = ("float32", "int8"),
    sentences: Path | None = None,
    force: bool = False,
    report: Report = silent,
) -> Bundle:
    """Exports the run at `path` to the folder `to`, which is there only once all is verified."""
    run, to = RunDirectory.open(path), to.resolve()
    _check_precisions(precisions)
    _check_free(to, force)
    from konvoi.engine.trained import load_trained

    trained = load_trained(run, checkpoint)
    with _beside(to) as folder:
        task: Any = trained.recipe.name_of("task")
        variants, settings = _exported(task, trained, folder, precisions, sentences, report)
        description = _description(task, trained, variants, settings)
        (folder / "CARD.md").write_text(card(description, to.name), encoding="utf-8")
        (folder / "requirements.txt").write_text(requirements(task), encoding="utf-8")
        write_description(folder, description)
        # As whoever gets it will: what cannot be opened takes no one's place.
        bundle = open_bundle(folder)
    return Bundle(to, bundle.description, bundle.files)


def _exported(
    task: Literal["translation", "classification"],
    trained: Trained,
    folder: Path,
    precisions: Collection[str],
    sentences: Path | None,
    report: Report,
) -> tuple[dict[str, Variant], dict[str, Any]]:
    if task == "translation":
        from konvoi.export.translation import export_translation

        return export_translation(trained, folder, precisions, report, sentences=sentences)
    try:
        from konvoi.export.pictures import export_pictures
    except ModuleNotFoundError as missing:
        hint = "pip install 'konvoi[export]' here; where the bundle is used it is not needed"
        raise MachineError(f"exporting pictures needs the package {missing.name}", hint=hint) from None

    return export_pictures(trained, folder, precisions, report)


def _description(
    task: Literal["translation", "classification"],
    trained: Trained,
    variants: dict[str, Variant],
    settings: dict[str, Any],
) -> Description:
    run = trained.run
    machine = f"{processor()}, {usable_cores()} cores"
    return Description(
        task=task,
        name=_name(run),
        made_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        konvoi=__version__,
        variants=variants,
        default=next(name for name in PREFERRED if name in variants),
        settings={**settings, "checkpoints": list(trained.checkpoints)},
        scores=run.summary().get("scores", {}),
        data={key: value for key, value in run.data_content().items() if key in KEPT_OF_DATA},
        recipe=trained.recipe.to_toml(),
        measured_on=", ".join(filter(None, (settings.get("measured_on"), machine))),
    )


def _name(run: RunDirectory) -> str:
    """runs/demo-20261115-204512 -> demo"""
    return re.sub(r"-\d{8}-\d{6}(-\d+)?$", "", run.path.resolve().name)


def _check_precisions(precisions: Collection[str]) -> None:
    for name in precisions:
        if name not in PRECISIONS:
            raise BundleError(f'there is no precision "{name}"', hint=f"known: {', '.join(PRECISIONS)}")


def _check_free(to: Path, force: bool) -> None:
    """Only what is a bundle, and nothing else, may be replaced: --force on the wrong folder must not cost somebody's
    files."""
    if not to.exists():
        return
    if not is_bundle(to):
        raise BundleError(f"{to} exists", hint="name a folder that does not exist with --to")
    if not force:
        raise BundleError(f"{to} exists", hint="add --force to replace it, or name another with --to")
    open_bundle(to)


@contextmanager
def _beside(to: Path) -> Iterator[Path]:
    """An empty folder that takes the place of `to` in the end; nothing is left of it where that does not come."""
    folder = work_folder(to)
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    except OSError as error:
        raise MachineError(f"{to} cannot be made: {error.strerror}", hint="name another folder with --to") from None
    try:
        yield folder
        if to.exists():
            # Away in one go: at no moment is half of a bundle there.
            to.rename(former := folder.with_name(f"{folder.name}-former"))
            folder.rename(to)
            shutil.rmtree(former, ignore_errors=True)
        else:
            folder.rename(to)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
