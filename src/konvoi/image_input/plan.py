"""Which pictures make up which micro-batch: shuffled by seed and epoch, the same for every rank.

The training set is one endless sequence of micro-batches: epoch 0, epoch 1, ... A position in that sequence is all
that a checkpoint needs. Rank r of W takes positions p + r, p + r + W, ...; with another number of workers the same
sequence goes on from the same position.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class TrainPlan:
    """Every picture exactly once an epoch; the last micro-batch of an epoch may be smaller than the others."""

    def __init__(self, num_images: int, images_per_batch: int, seed: int) -> None:
        assert num_images > 0 and images_per_batch > 0
        self.num_all_images, self.images_per_batch, self.seed = num_images, images_per_batch, seed
        self._orders: dict[int, Indices] = {}

    @property
    def num_per_epoch(self) -> int:
        """Micro-batches in an epoch."""
        return -(-self.num_all_images // self.images_per_batch)

    def num_images(self, position: int) -> int:
        """Pictures of a micro-batch, known to all ranks without a message."""
        _, first = self.start(position)
        return min(self.images_per_batch, self.num_all_images - first)

    def start(self, position: int) -> tuple[int, int]:
        """The epoch of a micro-batch, and where it begins in the order of that epoch."""
        epoch, number = divmod(position, self.num_per_epoch)
        return epoch, number * self.images_per_batch

    def order(self, epoch: int) -> Indices:
        """All pictures in the order in which an epoch shows them."""
        if epoch not in self._orders:
            # A step, and what is read ahead of it, can reach over the end of an epoch: its neighbours stay as long.
            self._orders = {e: order for e, order in self._orders.items() if abs(e - epoch) == 1}
            self._orders[epoch] = np.random.default_rng([self.seed, epoch]).permutation(self.num_all_images)
        return self._orders[epoch]
