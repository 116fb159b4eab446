"""Fills micro-batches with decoded pictures, in whatever process; what cannot be decoded is replaced and reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from konvoi.errors import DataError
from konvoi.image_input.augment import Pixels, View
from konvoi.image_input.decode import decoded, read_picture
from konvoi.image_input.plan import Indices, TrainPlan
from konvoi.images.check import DamagedPicture
from konvoi.images.image_set import ImageSet
from konvoi.images.pictures import TRAIN

# Single files are damaged; a disk that went away damages all of them.
MAX_DAMAGED_IN_A_ROW = 100


class Damaged(NamedTuple):
    """A picture that cannot be shown."""

    path: str
    why: str


class Filled(NamedTuple):
    """Which pictures a part of a micro-batch really holds, and what had to be left out for them."""

    indices: Indices
    damaged: list[Damaged]


class BatchFiller:
    """The training split, read picture by picture."""

    def __init__(self, image_set: ImageSet, plan: TrainPlan, seed: int) -> None:
        self.plan, self.seed = plan, seed
        self.root: Path = image_set.root
        self.entries = image_set.entries(TRAIN)

    def fill(self, pixels_NHWC: Pixels, position: int, view: View, first: int = 0) -> Filled:
        """Pictures of a micro-batch from the one numbered `first` on, as many as there is room for."""
        epoch, start = self.plan.start(position)
        indices = np.empty(len(pixels_NHWC), np.int64)
        damaged: list[Damaged] = []
        for row, pixels_HWC in enumerate(pixels_NHWC):
            indices[row] = self._fill_one(pixels_HWC, epoch, start + first + row, view, damaged)
        return Filled(indices, damaged)

    def _fill_one(self, pixels_HWC: Pixels, epoch: int, place: int, view: View, damaged: list[Damaged]) -> int:
        """The picture at this place of the epoch's order, or the next whole one: a batch keeps its size."""
        order = self.plan.order(epoch)
        for skipped in range(min(len(order), MAX_DAMAGED_IN_A_ROW)):
            index = int(order[(place + skipped) % len(order)])
            path = self.entries.path(index)
            try:
                pixels_HWC[:] = decoded(read_picture(self.root / path), view.of(self.seed, epoch, index))
                return index
            except DamagedPicture as damage:
                damaged.append(Damaged(path, str(damage)))
        raise DataError(
            f"{self.root}: {skipped + 1} pictures in a row cannot be decoded, the last is {damaged[-1].path}:"
            f" {damaged[-1].why}",
            hint="is the disk still there? Otherwise prepare the set again: konvoi data prepare lists what is damaged",
        )


class InThisProcess:
    """Decodes when asked, and never ahead."""

    def __init__(self, filler: BatchFiller, view_of: Callable[[int], View]) -> None:
        self.filler, self.view_of = filler, view_of

    def get(self, position: int) -> tuple[Pixels, Filled]:
        plan = self.filler.plan
        view = self.view_of(plan.start(position)[0])
        pixels_NHWC = np.empty((plan.num_images(position), view.size, view.size, 3), np.uint8)
        return pixels_NHWC, self.filler.fill(pixels_NHWC, position, view)

    def close(self) -> None:
        """There is nothing to end."""
