"""Fills micro-batches with decoded pictures, in whatever process; what cannot be decoded is replaced and reported."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from konvoi.errors import DataError
from konvoi.images.augment import View
from konvoi.images.check import DamagedPicture
from konvoi.images.decode import Pixels, decoded, read_picture
from konvoi.images.image_set import ImageSet
from konvoi.images.pictures import TRAIN
from konvoi.images.plan import Indices, TrainPlan

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
