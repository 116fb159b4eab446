"""A few pictures of an evaluation with what the model made of them, for the report. Does not import torch."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

# Enough to see what is on it; some 3 kB.
MAX_SIDE, QUALITY = 128, 80


class PictureSamples:
    """Takes pictures at equal distances: a split is in the order of its classes."""

    def __init__(self, count: int, num_pictures: int, class_words: Sequence[str]) -> None:
        self.class_words = class_words
        self._every = max(1, num_pictures // count) if count else num_pictures + 1
        self._count, self._num_seen = count, 0
        self.samples: list[dict[str, Any]] = []

    def add(
        self, images_NHWC: NDArray[np.uint8], labels: NDArray[np.int64], probabilities: NDArray[np.float32]
    ) -> None:
        first, self._num_seen = self._num_seen, self._num_seen + len(labels)
        for place in range(-first % self._every, len(labels), self._every):
            if len(self.samples) < self._count:
                self.samples.append(self._sample(images_NHWC[place], int(labels[place]), probabilities[place]))

    def _sample(self, image: NDArray[np.uint8], label: int, probabilities: NDArray[np.float32]) -> dict[str, Any]:
        guess = int(probabilities.argmax())
        return {
            "class": self.class_words[label],
            "guess": self.class_words[guess],
            "probability": round(float(probabilities[guess]), 4),
            "jpeg": base64.b64encode(_small_jpeg(image)).decode(),
        }


def _small_jpeg(image: NDArray[np.uint8]) -> bytes:
    if max(image.shape[:2]) > MAX_SIDE:
        scale = MAX_SIDE / max(image.shape[:2])
        height, width = (max(1, round(scale * side)) for side in image.shape[:2])
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA).astype(np.uint8)
    encoded: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality=QUALITY)
    return encoded
