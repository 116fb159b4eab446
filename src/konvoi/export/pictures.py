"""An image classifier becomes ONNX, is compared with the trained model on real pictures, and timed.

Shapes: N pictures, H height, W width, C classes.
"""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import nn

from konvoi.bundle.classifier import MAX_BATCH, OnnxClassifier, PictureSettings
from konvoi.bundle.format import Variant
from konvoi.engine.trained import Trained
from konvoi.errors import BundleError, DataError
from konvoi.evaluate.accuracy import Confusion
from konvoi.export.onnx_graph import quantise, write_onnx
from konvoi.image_input.augment import Pixels
from konvoi.image_input.decode import read_picture
from konvoi.image_input.pipeline import EvaluationInput
from konvoi.images.check import DamagedPicture, look_at
from konvoi.images.image_set import ImageSet
from konvoi.images.pictures import TRAIN
from konvoi.stages import Report, silent
from konvoi.tasks.classification import RESIZE_FACTOR, Normalise, check_same, prepare, words_of

FLOAT32, INT8 = "float32", "int8"
# Of the largest logit. Rounding makes a hundredth of it, and only classes that are as close can change places.
TOLERANCE = 1e-3
MAX_LOST_POINTS = 0.5
# Of a larger split every so-manyth: half a point is then still ten pictures.
MAX_COMPARED = 2000
NUM_CALIBRATION = 256
NUM_TIMED = 64
NUM_TIMED_ALONE = 16
TIMED_ROUNDS = 3

Labels = NDArray[np.int64]


def export_pictures(
    trained: Trained, folder: Path, precisions: Collection[str], report: Report = silent
) -> tuple[dict[str, Variant], dict[str, Any]]:
    """Puts float32.onnx and int8.onnx into the folder, where they were asked for and pass: variants, settings.

    settings["left_out"] says of every other precision that was asked for why it is not there.
    """
    settings = settings_of(trained)
    pictures = Pictures(_image_set(trained, report), settings)
    model, split = copy.deepcopy(trained.model).cpu().eval(), _split(trained)
    files = _written(model, pictures, folder, INT8 in precisions, report)
    classifiers = {name: OnnxClassifier(file, "", settings) for name, file in files.items()}
    compared = compare(model, classifiers, pictures, split, report)
    left_out = {name: "is not for pictures" for name in precisions if name not in (FLOAT32, INT8)} | judge(compared)
    for name in files.keys() - set(precisions) | left_out.keys() & files.keys():
        files.pop(name).unlink()
    if not files:
        raise BundleError(f"nothing is left to export: {left_out}", hint="ask for float32, too")
    report("timing")
    speeds = measure_speeds({name: classifiers[name] for name in files}, pictures.encoded(split, NUM_TIMED))
    variants = {name: _variant(file, compared.confusions[name], speeds[name]) for name, file in files.items()}
    return variants, {
        **settings.model_dump(mode="json"),
        "input": "uint8 [pictures, height, width, RGB]; normalising is part of the graph",
        "measured_on": f"{split}, {compared.trained.num_images:,} pictures",
        "max_logit_difference": compared.difference,
        "left_out": left_out,
    }


def settings_of(trained: Trained) -> PictureSettings:
    recipe: Any = trained.recipe
    size: int = recipe.batching.size
    resize: int = recipe.evaluate.resize or round(size * RESIZE_FACTOR)
    try:
        return PictureSettings(size=size, resize=resize, classes=tuple(words_of(trained.run)))
    except ValidationError as error:
        problem = "; ".join(f"{detail['loc'][0]}: {detail['msg']}" for detail in error.errors())
        raise BundleError(f"its pictures do not fit into a bundle: {problem}") from None


def _split(trained: Trained) -> str:
    settings: Any = trained.recipe.evaluate
    return str(settings.split)


def _image_set(trained: Trained, report: Report) -> ImageSet:
    image_set = prepare(trained.recipe, report)
    check_same(image_set, trained.run)
    return image_set


def _written(model: nn.Module, pictures: Pictures, folder: Path, with_int8: bool, report: Report) -> dict[str, Path]:
    """The graphs, by precision; those in 8 bits are made from float32, which is therefore always there."""
    report("writing float32")
    files = {FLOAT32: folder / "float32.onnx"}
    write_onnx(model, pictures.settings.size, files[FLOAT32])
    if with_int8:
        report("quantising")
        files[INT8] = folder / "int8.onnx"
        quantise(files[FLOAT32], files[INT8], (pixels for pixels, _ in pictures.batches(TRAIN, NUM_CALIBRATION)))
    return files


@dataclass(frozen=True)
class Pictures:
    """Of a prepared set: some of a split, spread evenly, as evaluation sees them. Damaged ones are passed over."""

    image_set: ImageSet
    settings: PictureSettings

    def batches(self, split: str, limit: int) -> Iterator[tuple[Pixels, Labels]]:
        """uint8 [N,H,W,RGB] and their classes [N]."""
        given = EvaluationInput(
            self.image_set,
            split,
            size=self.settings.size,
            resize=self.settings.resize,
            rank=0,
            num_ranks=self._stride(split, limit),
            batch=MAX_BATCH,
        )
        for batch in given:
            if len(batch.labels):
                yield batch.images.permute(0, 2, 3, 1).numpy(), batch.labels.numpy()

    def encoded(self, split: str, limit: int) -> list[bytes]:
        """The files."""
        entries = self.image_set.entries(split)
        numbers = range(0, len(entries), self._stride(split, limit))
        whole = []
        for number in numbers:
            with contextlib.suppress(DamagedPicture):
                content = read_picture(self.image_set.path(entries, number))
                look_at(content)
                whole.append(content)
        return whole

    def _stride(self, split: str, limit: int) -> int:
        return -(-len(self.image_set.entries(split)) // limit)


@dataclass(frozen=True)
class Compared:
    trained: Confusion
    confusions: dict[str, Confusion]
    """By precision."""
    difference: float
    """The largest between a logit of float32 and the trained model's."""
    largest: float
    """Of the trained model's logits."""


def compare(
    model: nn.Module, classifiers: dict[str, OnnxClassifier], pictures: Pictures, split: str, report: Report = silent
) -> Compared:
    """All of them on the same pictures."""
    trained, *others = (Confusion(len(pictures.settings.classes)) for _ in range(1 + len(classifiers)))
    confusions, normalise = dict(zip(classifiers, others, strict=True)), Normalise(torch.device("cpu"))
    differences, magnitudes = [], []
    for pixels_NHWC, labels in pictures.batches(split, MAX_COMPARED):
        report("comparing", trained.num_images, unit="pictures")
        with torch.no_grad():
            expected_NC = model(normalise(torch.from_numpy(pixels_NHWC).permute(0, 3, 1, 2))).numpy()
        logits = {name: classifier.logits(pixels_NHWC) for name, classifier in classifiers.items()}
        trained.add(labels, expected_NC)
        for name, confusion in confusions.items():
            confusion.add(labels, logits[name])
        differences.append(np.abs(logits[FLOAT32] - expected_NC).max())
        magnitudes.append(np.abs(expected_NC).max())
    if not differences:
        raise DataError(f"{pictures.image_set.folder}: no picture of {split} can be read", hint="prepare the set again")
    # numpy's maximum: a number that is none stays one.
    return Compared(trained, confusions, float(np.max(differences)), float(np.max(magnitudes)))


def judge(compared: Compared) -> dict[str, str]:
    """Why a precision can't be used; float32 must be usable."""
    if not compared.difference <= TOLERANCE * compared.largest:
        raise BundleError(
            f"the exported model differs from the trained one: by {compared.difference:.2g} in logits of up to"
            f" {compared.largest:.2g}",
            hint="did the training diverge? Else choose another --checkpoint, and please report it",
        )
    left_out = {}
    for name, confusion in compared.confusions.items():
        lost = compared.trained.accuracy_1 - confusion.accuracy_1
        if lost > MAX_LOST_POINTS:
            left_out[name] = f"loses {lost:.2f} points of Acc@1 {compared.trained.accuracy_1:.2f}"
    return left_out


def measure_speeds(classifiers: dict[str, OnnxClassifier], pictures: Sequence[bytes]) -> dict[str, tuple[float, float]]:
    """Seconds for one picture alone, pictures per second of many; from the file's bytes to the classes, medians."""
    alone: dict[str, list[float]] = {name: [] for name in classifiers}
    together: dict[str, list[float]] = {name: [] for name in classifiers}
    for classifier in classifiers.values():
        _seconds(classifier, pictures)
    for _ in range(TIMED_ROUNDS):
        # By turns: a busy moment of the machine meets all alike.
        for name, classifier in classifiers.items():
            alone[name] += [_seconds(classifier, [picture]) for picture in pictures[:NUM_TIMED_ALONE]]
            together[name].append(_seconds(classifier, pictures) / len(pictures))
    return {name: (statistics.median(alone[name]), 1 / statistics.median(together[name])) for name in classifiers}


def _seconds(classifier: OnnxClassifier, pictures: Sequence[bytes]) -> float:
    started = time.perf_counter()
    classifier.classify(pictures)
    return time.perf_counter() - started


def _variant(file: Path, confusion: Confusion, speeds: tuple[float, float]) -> Variant:
    scores = {"accuracy_1": confusion.accuracy_1, "accuracy_5": confusion.accuracy_5}
    return Variant(file.name, file.stat().st_size, scores, *speeds)
