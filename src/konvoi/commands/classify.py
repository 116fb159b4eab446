"""konvoi classify: what is in a picture, by the likeliest classes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import typer

from konvoi.commands.output import aligned, print_json
from konvoi.engine.trained import Trained, load_trained
from konvoi.errors import DataError, RunError
from konvoi.image_input.decode import load_picture
from konvoi.images.check import DamagedPicture
from konvoi.images.pictures import looks_like_a_picture
from konvoi.run_directory import RunDirectory
from konvoi.tasks.classification import RESIZE_FACTOR, Normalise, words_of


def classify(path: Path, checkpoint: str, *, images: list[Path], num_classes: int, as_json: bool) -> None:
    trained = load_trained(RunDirectory.open(path), checkpoint)
    if trained.recipe.name_of("task") != "classification":
        raise RunError(f"{path} is no image classifier", hint=f'konvoi translate {path} "..."')
    results = [_classified(trained, picture, num_classes) for picture in _pictures(images)]
    if as_json:
        return print_json(results)
    typer.echo("\n\n".join(_words(one) for one in results))


def _pictures(images: list[Path]) -> Iterator[Path]:
    """All pictures named, and those in folders; a missing one is said before any work."""
    for path in images:
        if not path.exists():
            raise DataError(f"{path} does not exist", hint="name pictures, or folders of them")
    for path in images:
        yield from sorted(p for p in path.rglob("*") if looks_like_a_picture(p.name)) if path.is_dir() else [path]


def _classified(trained: Trained, path: Path, num_classes: int) -> dict[str, Any]:
    recipe: Any = trained.recipe
    size = recipe.batching.size
    try:
        pixels_HWC = load_picture(path, size=size, resize=recipe.evaluate.resize or round(size * RESIZE_FACTOR))
    except DamagedPicture as error:
        raise DataError(f"{path} can't be read as a picture: {error}", hint="give a JPEG or PNG file") from None
    images = torch.tensor(pixels_HWC).permute(2, 0, 1)[None].to(trained.device)
    with trained.inference():
        logits = trained.model(Normalise(trained.device)(images)).float()[0]
    words = words_of(trained.run)
    probabilities, numbers = logits.softmax(0).topk(min(num_classes, len(words)))
    classes = [
        {"class": words[int(number)], "probability": float(probability)}
        for probability, number in zip(probabilities, numbers, strict=True)
    ]
    return {"image": str(path), "classes": classes}


def _words(one: dict[str, Any]) -> str:
    rows = [(f"  {found['probability']:6.1%}", found["class"]) for found in one["classes"]]
    return f"{one['image']}\n{aligned(rows)}"
