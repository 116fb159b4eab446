"""Micro-batches of decoded pictures for training, read ahead in processes of their own; and those for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from konvoi.image_input.ahead import ReadAhead
from konvoi.image_input.augment import CentreView, Pixels, View
from konvoi.image_input.batches import BatchFiller, InThisProcess
from konvoi.image_input.decode import decoded, read_picture
from konvoi.image_input.plan import Indices, TrainPlan
from konvoi.images.check import DamagedPicture
from konvoi.images.image_set import ImageSet
from konvoi.images.pictures import TRAIN

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Pictures:
    """A micro-batch in host memory: images uint8 [N,3,H,W], whose bytes lie as [N,H,W,3]; labels int64 [N]."""

    images: Tensor
    labels: Tensor


class TrainInput:
    """The training pictures of one rank, by position; the same whatever the number of ranks and processes."""

    def __init__(
        self,
        image_set: ImageSet,
        plan: TrainPlan,
        view_of: Callable[[int], View],
        seed: int,
        *,
        stride: int,
        num_processes: int,
        num_ahead: int = 4,
    ) -> None:
        self._class_numbers = image_set.entries(TRAIN).class_numbers
        self._damaged: dict[str, str] = {}
        if num_processes == 0:
            self._reader: InThisProcess | ReadAhead = InThisProcess(BatchFiller(image_set, plan, seed), view_of)
        else:
            self._reader = ReadAhead(
                image_set, plan, view_of, seed, stride=stride, num_processes=num_processes, num_ahead=num_ahead
            )

    @property
    def damaged(self) -> list[tuple[str, str]]:
        """The pictures that were replaced so far, each once: path below the root of the set, and why."""
        return list(self._damaged.items())

    def get(self, position: int) -> Pictures:
        """Any position; those that a rank asks for next, stride apart, are being decoded meanwhile.

        The images are valid until the next call but one: then others are decoded into the same memory.
        """
        pixels, filled = self._reader.get(position)
        self._damaged.update(filled.damaged)
        return _pictures(pixels, self._class_numbers[filled.indices])

    def close(self) -> None:
        """Ends the processes; they also end with this one, or when nobody holds the input any more."""
        self._reader.close()

    def __enter__(self) -> TrainInput:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EvaluationInput:
    """One rank's share of a split, in batches: every picture exactly once over all ranks."""

    def __init__(
        self, image_set: ImageSet, split: str, size: int, resize: int, rank: int, num_ranks: int, batch: int
    ) -> None:
        assert resize >= size
        self.image_set, self.entries = image_set, image_set.entries(split)
        self.view, self.batch = CentreView(size, resize), batch
        self.mine = np.arange(rank, len(self.entries), num_ranks)
        self._damaged: dict[str, str] = {}

    @property
    def damaged(self) -> list[tuple[str, str]]:
        """The pictures that were left out so far, each once: path below the root of the set, and why."""
        return list(self._damaged.items())

    def __iter__(self) -> Iterator[Pictures]:
        for first in range(0, len(self.mine), self.batch):
            yield self._read(self.mine[first : first + self.batch])

    def _read(self, indices: Indices) -> Pictures:
        pixels = np.empty((len(indices), self.view.size, self.view.size, 3), np.uint8)
        whole: list[int] = []
        for index in indices.tolist():
            if self._read_one(pixels[len(whole)], index):
                whole.append(index)
        return _pictures(pixels[: len(whole)], self.entries.class_numbers[whole])

    def _read_one(self, pixels_HWC: Pixels, index: int) -> bool:
        path = self.entries.path(index)
        try:
            pixels_HWC[:] = decoded(read_picture(self.image_set.root / path), self.view)
        except DamagedPicture as damage:
            self._damaged[path] = str(damage)
            return False
        return True


def _pictures(pixels_NHWC: Pixels, class_numbers: NDArray[np.int32]) -> Pictures:
    import torch

    images = torch.from_numpy(pixels_NHWC).permute(0, 3, 1, 2)
    return Pictures(images, torch.from_numpy(class_numbers.astype(np.int64)))
