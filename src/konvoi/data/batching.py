"""Which sentences make up which micro-batch: by length, shuffled by seed and epoch, the same for every rank.

The training set is one endless sequence of micro-batches: epoch 0, epoch 1, ... A position in that sequence is all
that a checkpoint needs. Rank r of W takes positions p + r, p + r + W, ...; with another number of workers the same
sequence goes on from the same position.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from konvoi.data.tokens import TokenFile

Indices = NDArray[np.int64]

# Sentences per micro-batch and so tokens are a multiple of this, as matrix units like it.
SENTENCES_MULTIPLE = 8
# A bound for sources that are much longer than their translations.
SOURCE_TOKENS_PER_TARGET_TOKEN = 2


class BatchPlan:
    """The sequence of micro-batches; every rank computes the same one from the lengths alone."""

    def __init__(
        self, source_lengths: NDArray[np.int32], target_lengths: NDArray[np.int32], max_tokens: int, seed: int
    ) -> None:
        self.source_lengths, self.target_lengths = source_lengths, target_lengths
        self.seed = seed
        order = self._by_length(np.arange(len(target_lengths)))
        self._cuts = _cut(source_lengths[order], target_lengths[order], max_tokens)
        self._epochs: dict[int, list[Indices]] = {}

    @property
    def num_per_epoch(self) -> int:
        """Micro-batches in an epoch; the same in each, since shuffling leaves the sorted lengths as they are."""
        return len(self._cuts) - 1

    def __getitem__(self, position: int) -> Indices:
        """The sentences of a micro-batch, counted from the start of training."""
        epoch, number = divmod(position, self.num_per_epoch)
        if epoch not in self._epochs:
            # A step can reach over the end of an epoch: the one before stays as long.
            self._epochs = {e: batches for e, batches in self._epochs.items() if e == epoch - 1}
            self._epochs[epoch] = self.micro_batches(epoch)
        return self._epochs[epoch][number]

    def num_targets(self, position: int) -> int:
        """Target tokens of a micro-batch, known to all ranks without a message."""
        return int(self.target_lengths[self[position]].sum())

    def micro_batches(self, epoch: int) -> list[Indices]:
        """All micro-batches of an epoch, in the order in which they are used."""
        random = np.random.default_rng([self.seed, epoch])
        # Sorting keeps equal lengths in their shuffled order: who shares a micro-batch changes with every epoch.
        order = self._by_length(random.permutation(len(self.target_lengths)))
        micro_batches = np.split(order, self._cuts[1:-1])
        return [micro_batches[i] for i in random.permutation(len(micro_batches))]

    def padding(self) -> float:
        """The share of padded positions, source and target together."""
        real = padded = 0
        for indices in self.micro_batches(0):
            for lengths in (self.source_lengths[indices], self.target_lengths[indices]):
                real += int(lengths.sum())
                padded += int(lengths.max()) * len(lengths)
        return 1 - real / padded

    def _by_length(self, order: Indices) -> Indices:
        source, target = self.source_lengths[order], self.target_lengths[order]
        # Up and down by turns, so that neighbours in different target lengths still have like sources.
        turned = np.where(target % 2 == 0, source, -source)
        return order[np.lexsort((turned, target))]


def _cut(source: NDArray[np.int32], target: NDArray[np.int32], max_tokens: int) -> list[int]:
    """Boundaries in the sorted order such that no micro-batch exceeds max_tokens padded target tokens."""
    cuts = [0]
    while cuts[-1] < len(target):
        start = cuts[-1]
        count = _fitting(source[start:], target[start:], max_tokens)
        cuts.append(start + count)
    return cuts


def _fitting(source: NDArray[np.int32], target: NDArray[np.int32], max_tokens: int) -> int:
    count = min(len(target), max(1, max_tokens // int(target[0])))
    while count > 1:
        longest = max(int(target[count - 1]), -(-int(source[:count].max()) // SOURCE_TOKENS_PER_TARGET_TOKEN))
        if count * longest <= max_tokens:
            break
        count = min(count - 1, max(1, max_tokens // longest))
    is_rest = count == len(target)
    if count > SENTENCES_MULTIPLE and not is_rest:
        count -= count % SENTENCES_MULTIPLE
    return count


def gather(file: TokenFile, indices: Indices, pad: int) -> NDArray[np.int64]:
    """The sentences as one padded array [sentences, longest]."""
    lengths = file.lengths[indices]
    columns = np.arange(int(lengths.max()))
    is_real = columns < lengths[:, None]
    where = np.where(is_real, file.offsets[indices][:, None] + columns, 0)
    return np.where(is_real, file.tokens[where], pad).astype(np.int64)
