"""What is in a picture, by a bundle: ONNX Runtime on the CPU.

Shapes: N pictures, H height, W width, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from pydantic import BaseModel, Field, PositiveInt, ValidationError

from konvoi.bundle.format import Bundle
from konvoi.bundle.interfaces import Guess
from konvoi.bundle.picture_input import load_any_picture
from konvoi.cores import usable_cores
from konvoi.errors import BundleError
from konvoi.image_input.augment import Pixels

# What the graph's ends are called; konvoi/export/pictures.py gives them these names.
INPUT, OUTPUT = "pixels", "logits"
# Bounds the memory, however many pictures are asked about at once; more of them are no faster.
MAX_BATCH = 32
MAX_SIDE = 2048
ERRORS_ONLY = 3


class PictureSettings(BaseModel, frozen=True):
    """A classifier's part of Description.settings."""

    size: PositiveInt = Field(le=MAX_SIDE)
    """Pixels of the side of the square that the model sees."""
    resize: PositiveInt = Field(le=2 * MAX_SIDE)
    """The shorter side of a picture before that square is cut out of its middle."""
    classes: tuple[str, ...] = Field(min_length=1)


def open_classifier(bundle: Bundle, variant: str | None = None, threads: int | None = None) -> OnnxClassifier:
    """Raises BundleError where there is none, or not the one that the description promises."""
    if bundle.description.task != "classification":
        raise BundleError(
            f"{bundle.path} is no image classifier", hint=f'it is for {bundle.description.task}: konvoi translate "..."'
        )
    try:
        settings = PictureSettings.model_validate(bundle.description.settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, ("settings", *first["loc"])))
        raise BundleError(f"{bundle.path}: {place}: {first['msg']}", hint="export the run again") from None
    _, chosen = bundle.variant(variant)
    return OnnxClassifier(bundle.path / chosen.path, bundle.description.name, settings, threads)


class OnnxClassifier:
    """See interfaces.Classifier."""

    def __init__(self, model: Path, name: str, settings: PictureSettings, threads: int | None = None) -> None:
        self.name, self.classes = name, settings.classes
        self._settings = settings
        self._session = _session(model, threads or usable_cores())
        _check_ends(model, self._session, settings)

    def classify(self, pictures: Sequence[bytes], *, num_classes: int = 5) -> list[list[Guess]]:
        """See interfaces.Classifier."""
        guesses: list[list[Guess]] = []
        for first in range(0, len(pictures), MAX_BATCH):
            pixels_NHWC = np.stack([self.pixels(content) for content in pictures[first : first + MAX_BATCH]])
            guesses += likeliest(self.logits(pixels_NHWC), self.classes, num_classes)
        return guesses

    def pixels(self, content: bytes) -> Pixels:
        """What the model sees of a picture: [H,W,RGB]."""
        return load_any_picture(content, size=self._settings.size, resize=self._settings.resize)

    def logits(self, pixels_NHWC: Pixels) -> NDArray[np.float32]:
        """[N,C]"""
        logits_NC: NDArray[np.float32] = self._session.run([OUTPUT], {INPUT: pixels_NHWC})[0]
        return logits_NC

    def close(self) -> None:
        """Nothing is held that the collector would not free."""


def likeliest(logits_NC: NDArray[np.float32], classes: Sequence[str], num_classes: int) -> list[list[Guess]]:
    """For each picture its best classes, best first, with what softmax makes of all."""
    powers_NC = np.exp(logits_NC - logits_NC.max(axis=1, keepdims=True), dtype=np.float64)
    probabilities_NC = powers_NC / powers_NC.sum(axis=1, keepdims=True)
    order_NK = np.argsort(-logits_NC, axis=1, kind="stable")[:, :num_classes]
    return [
        [Guess(classes[number], float(probabilities[number])) for number in order.tolist()]
        for probabilities, order in zip(probabilities_NC, order_NK, strict=True)
    ]


def _session(model: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = ERRORS_ONLY
    # A thread that waits for work must leave its core to those that decode, serve, or run another model.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's own exceptions have no class in common
        problem = str(error).splitlines()[0]
        raise BundleError(f"{model} can't be opened: {problem}", hint="copy the bundle again") from None


def _check_ends(model: Path, session: onnxruntime.InferenceSession, settings: PictureSettings) -> None:
    """A stranger's file may be any network: it must take the pictures and give the classes that are described."""
    ends = [(end.name, end.type, end.shape[1:]) for end in (*session.get_inputs(), *session.get_outputs())]
    size, num_classes = settings.size, len(settings.classes)
    if ends != [(INPUT, "tensor(uint8)", [size, size, 3]), (OUTPUT, "tensor(float)", [num_classes])]:
        raise BundleError(
            f"{model} does not make {num_classes} classes out of {size} x {size} pixels", hint="export the run again"
        )
