"""konvoi classify: what is in a picture, by the likeliest classes; the same of a bundle and of a run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import typer

from konvoi.bundle.format import is_bundle, open_bundle
from konvoi.bundle.interfaces import Classifier, Guess
from konvoi.commands.output import aligned, print_json
from konvoi.errors import BundleError, DataError, RunError
from konvoi.image_input.decode import read_picture
from konvoi.images.check import DamagedPicture
from konvoi.images.pictures import looks_like_a_picture, shown

# Files in memory at a time.
CHUNK_PICTURES = 32


def classify(
    path: Path, checkpoint: str, *, images: list[Path], num_classes: int, variant: str | None = None, as_json: bool
) -> None:
    pictures = _pictures(images)
    classifier = open_model(path, checkpoint, variant)
    results = (_result(*one) for one in _classified(classifier, pictures, num_classes))
    if as_json:
        return print_json(list(results))
    for number, one in enumerate(results):
        typer.echo(("\n" if number else "") + _words(one))


def open_model(path: Path, checkpoint: str, variant: str | None) -> Classifier:
    """torch is imported for a run alone: where bundles are used there may be none."""
    if not is_bundle(path):
        if variant:
            raise RunError(f"{path} is a run: only bundles have variants", hint=f"konvoi export {path} --to DIR")
        from konvoi.export.run_classifier import open_run_classifier

        return open_run_classifier(path, checkpoint)
    if checkpoint != "best":
        raise BundleError(
            f"{path} is a bundle: it has no checkpoints", hint=f"konvoi export RUN --checkpoint {checkpoint}"
        )
    from konvoi.bundle.classifier import open_classifier

    return open_classifier(open_bundle(path), variant)


def _pictures(images: list[Path]) -> Iterator[Path]:
    """All pictures named, and those in folders; a missing one is said before any work."""
    for path in images:
        if not path.exists():
            raise DataError(f"{path} does not exist", hint="name pictures, or folders of them")
    return (picture for path in images for picture in (_in_folder(path) if path.is_dir() else [path]))


def _in_folder(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if looks_like_a_picture(path.name))


def _classified(
    classifier: Classifier, pictures: Iterator[Path], num_classes: int
) -> Iterator[tuple[Path, list[Guess]]]:
    while paths := list(islice(pictures, CHUNK_PICTURES)):
        contents = [_read(path) for path in paths]
        try:
            found = classifier.classify(contents, num_classes=num_classes)
        except DataError:
            # One of them is no picture: asked for one by one, it has a name.
            found = [_alone(classifier, *one, num_classes) for one in zip(paths, contents, strict=True)]
        yield from zip(paths, found, strict=True)


def _read(path: Path) -> bytes:
    try:
        return read_picture(path)
    except DamagedPicture as error:
        raise DataError(f"{path}: it {error}") from None


def _alone(classifier: Classifier, path: Path, content: bytes, num_classes: int) -> list[Guess]:
    try:
        return classifier.classify([content], num_classes=num_classes)[0]
    except DataError as error:
        raise DataError(f"{path}: {error.problem}", hint=error.hint) from None


def _result(path: Path, guesses: list[Guess]) -> dict[str, Any]:
    classes = [{"class": guess.name, "probability": guess.probability} for guess in guesses]
    return {"image": shown(str(path)), "classes": classes}


def _words(one: dict[str, Any]) -> str:
    rows = [(f"  {found['probability']:6.1%}", found["class"]) for found in one["classes"]]
    return f"{one['image']}\n{aligned(rows)}"
