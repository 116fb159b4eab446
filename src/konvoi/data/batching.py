"""Which sentences make up which micro-batch: by length, shuffled by seed and epoch, the same for every rank.

The training set is one endless sequence of micro-batches: epoch 0, epoch 1, ... A position in that sequence is all
that a checkpoint needs. Rank r of W takes positions p + r, p + r + W, ...; with another number of workers the same
sequence goes on from the same position.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from konvoi.data.tokens import Lengths, TokenFile, Tokens

Indices = NDArray[np.int32]

# Sentences per micro-batch and so tokens are a multiple of this, as matrix units like it.
SENTENCES_MULTIPLE = 8
# A bound for sources that are much longer than their translations.
SOURCE_TOKENS_PER_TARGET_TOKEN = 2
NO_LIMIT = 1 << 31


class BatchPlan:
    """The sequence of micro-batches; every rank computes the same one from the lengths alone."""

    def __init__(
        self, source_lengths: Lengths, target_lengths: Lengths, max_tokens: int, seed: int, max_length: int = NO_LIMIT
    ) -> None:
        self.source_lengths, self.target_lengths = source_lengths, target_lengths
        self.seed = seed
        is_kept = (source_lengths <= max_length) & (target_lengths <= max_length)
        self.kept: Indices = np.flatnonzero(is_kept).astype(np.int32)
        self._cuts = self._find_cuts(max_tokens) if len(self.kept) else [0]
        self._epochs: dict[int, list[Indices]] = {}

    def _find_cuts(self, max_tokens: int) -> list[int]:
        source, target = self.source_lengths[self.kept], self.target_lengths[self.kept]
        order = _by_length(source, target)
        return _cut(source[order], target[order], max_tokens)

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
        return int(self.target_lengths[self[position]].sum(dtype=np.int64))

    def micro_batches(self, epoch: int) -> list[Indices]:
        """All micro-batches of an epoch, in the order in which they are used."""
        random = np.random.default_rng([self.seed, epoch])
        order = self.kept.copy()
        random.shuffle(order)
        # Sorting keeps equal lengths in their shuffled order: who shares a micro-batch changes with every epoch.
        order = order[_by_length(self.source_lengths[order], self.target_lengths[order])]
        micro_batches = np.split(order, self._cuts[1:-1])
        return [micro_batches[i] for i in random.permutation(len(micro_batches))]

    def padding(self) -> float:
        """The share of padded positions, source and target together."""
        real = padded = 0
        for indices in self.micro_batches(0):
            for lengths in (self.source_lengths[indices], self.target_lengths[indices]):
                real += int(lengths.sum(dtype=np.int64))
                padded += int(lengths.max()) * len(lengths)
        return 1 - real / padded


def _by_length(source: Lengths, target: Lengths) -> NDArray[np.uint32]:
    """The order by target length, then source length, then place.

    Source lengths go up and down by turns, so that neighbours in different target lengths still have like sources.
    """
    most = int(source.max())
    turned = np.where(target % 2 == 0, source, -source.astype(np.int64)) + most
    # One number for all three: sorting it in place is faster than a sort by two keys, and takes a third of the memory.
    keys = target.astype(np.uint64) * np.uint64(2 * most + 1) + turned.astype(np.uint64)
    keys <<= np.uint64(32)
    keys |= np.arange(len(keys), dtype=np.uint32)
    keys.sort()
    return keys.astype(np.uint32)


def _cut(source: Lengths, target: Lengths, max_tokens: int) -> list[int]:
    """Boundaries in the sorted order such that no micro-batch exceeds max_tokens padded target tokens."""
    cuts = [0]
    while cuts[-1] < len(target):
        start = cuts[-1]
        count = _fitting(source[start:], target[start:], max_tokens)
        cuts.append(start + count)
    return cuts


def _fitting(source: Lengths, target: Lengths, max_tokens: int) -> int:
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
    return padded(file.read(indices), file.lengths[indices], pad)


def padded(tokens: Tokens, lengths: Lengths, pad: int) -> NDArray[np.int64]:
    """Sentences that lie one after another, each in a row of its own."""
    is_real = np.arange(int(lengths.max())) < lengths[:, None]
    rows = np.full(is_real.shape, pad, dtype=np.int64)
    rows[is_real] = tokens
    return rows
