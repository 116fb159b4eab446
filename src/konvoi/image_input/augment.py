"""Which part of a picture the model sees: a random one in training, the middle in evaluation.

What training sees of a picture follows from seed, epoch and the picture's number alone, so a run that is resumed, or
goes on with another number of workers, sees the same.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

# As torchvision's RandomResizedCrop has them, so that recipes carry over.
ASPECTS = (3 / 4, 4 / 3)
NUM_TRIES = 10
_LOG_ASPECTS = (math.log(ASPECTS[0]), math.log(ASPECTS[1]))
# A flip, two numbers a try and two for the place, 4 bytes each.
_NUM_DRAWS = 1 + 2 * NUM_TRIES + 2
_DRAWS = struct.Struct(f"<{_NUM_DRAWS}I")
_DRAW_RANGE = 2.0**32

# Of one picture [H,W,RGB], or of a micro-batch [N,H,W,RGB].
Pixels = NDArray[np.uint8]


class Box(NamedTuple):
    """A part of a picture, in pixels from its upper left corner; it may cut through pixels."""

    left: float
    top: float
    right: float
    bottom: float


class Look(NamedTuple):
    """The part of one picture that is shown, and how."""

    box: Box
    size: int
    """Pixels of the side of the square that it is resized to."""
    is_mirrored: bool = False
    is_exact: bool = True
    """Whether it must be as the reference (Pillow) has it, or may be whatever is as good and faster."""


class Looker(Protocol):
    """Decides what to show once the size of an upright picture is known."""

    def __call__(self, width: int, height: int) -> Look: ...


@dataclass(frozen=True)
class View:
    """How training looks at pictures."""

    size: int = 224
    """Pixels of the side of the square that the model sees."""
    min_area: float = 0.08
    """The least share of a picture's area that a random crop takes."""
    flip: bool = True
    """Whether half of the pictures are mirrored."""

    def of(self, seed: int, epoch: int, index: int) -> Looker:
        """How this epoch looks at one picture."""

        def look(width: int, height: int) -> Look:
            draws = _uniform(seed, epoch, index)
            is_mirrored = next(draws) < 0.5 and self.flip
            return Look(random_crop(width, height, self.min_area, draws), self.size, is_mirrored, is_exact=False)

        return look


@dataclass(frozen=True)
class CentreView:
    """How evaluation looks at pictures: the shorter side becomes `resize` pixels, then the middle is cut out."""

    size: int = 224
    resize: int = 256

    def __call__(self, width: int, height: int) -> Look:
        shorter = min(width, height)
        # Whole pixels, as if the picture had been resized and cut one after the other.
        resized_width, resized_height = (int(self.resize * side / shorter) for side in (width, height))
        left, top = (round((side - self.size) / 2) for side in (resized_width, resized_height))
        across, down = width / resized_width, height / resized_height
        box = Box(left * across, top * down, (left + self.size) * across, (top + self.size) * down)
        return Look(box, self.size)


def random_crop(width: int, height: int, min_area: float, draws: Iterator[float]) -> Box:
    """A random share of the area in a random aspect (both sides of 1 alike), or the middle where none fits."""
    for _ in range(NUM_TRIES):
        area = width * height * (min_area + (1 - min_area) * next(draws))
        low, high = _LOG_ASPECTS
        aspect = math.exp(low + (high - low) * next(draws))
        crop_width, crop_height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            left = int(next(draws) * (width - crop_width + 1))
            top = int(next(draws) * (height - crop_height + 1))
            return Box(left, top, left + crop_width, top + crop_height)
    return _middle(width, height)


def _middle(width: int, height: int) -> Box:
    """As much of the middle as the aspects allow."""
    crop_width = min(width, round(height * ASPECTS[1]))
    crop_height = min(height, round(width / ASPECTS[0]))
    left, top = (width - crop_width) // 2, (height - crop_height) // 2
    return Box(left, top, left + crop_width, top + crop_height)


def _uniform(seed: int, epoch: int, index: int) -> Iterator[float]:
    """Numbers from 0 up to below 1. A hash takes a tenth of the time of a numpy generator made for each picture."""
    digest = hashlib.shake_128(f"{seed} {epoch} {index}".encode()).digest(_DRAWS.size)
    return (number / _DRAW_RANGE for number in _DRAWS.unpack(digest))
