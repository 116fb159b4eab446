"""Splits dev and test off by source sentence, so that none of their sentences is in training.

A sentence often has several translations: splitting by line would put one into training and another into test.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator

from konvoi.data.clean import CleaningCounts
from konvoi.data.text import Pair
from konvoi.errors import DataError


class Choice:
    """Picks the sentences with the lowest hashes while they stream by: the same ones whatever their order."""

    def __init__(self, num_dev: int, num_test: int) -> None:
        self.num_dev, self.num_test = num_dev, num_test
        self._heap: list[tuple[int, str]] = []
        self._chosen: set[str] = set()

    def watch(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """Passes pairs on and remembers the sentences to hold out."""
        for pair in pairs:
            self._consider(pair[0])
            yield pair

    def _consider(self, sentence: str) -> None:
        rank = -int.from_bytes(hashlib.blake2b(sentence.encode(), digest_size=8).digest(), "big")
        wanted = self.num_dev + self.num_test
        is_full = len(self._heap) >= wanted
        if wanted == 0 or sentence in self._chosen or (is_full and (rank, sentence) <= self._heap[0]):
            return
        self._chosen.add(sentence)
        if not is_full:
            heapq.heappush(self._heap, (rank, sentence))
        else:
            self._chosen.discard(heapq.heapreplace(self._heap, (rank, sentence))[1])

    def splits(self) -> dict[str, str]:
        """The split of each sentence held out; test takes the lowest hashes."""
        ordered = [sentence for _, sentence in sorted(self._heap, reverse=True)]
        return {sentence: "test" if i < self.num_test else "dev" for i, sentence in enumerate(ordered)}


def separate(
    pairs: Iterable[Pair], split_of: dict[str, str], held_out: dict[str, list[Pair]], counts: CleaningCounts
) -> Iterator[Pair]:
    """Yields the training pairs; a held-out sentence keeps its first translation, the others would leak."""
    taken: set[str] = set()
    for pair in pairs:
        split = split_of.get(pair[0])
        if split is None:
            yield pair
        elif pair[0] in taken:
            counts.hold_back("leak")
        else:
            taken.add(pair[0])
            held_out[split].append(pair)
            counts.hold_back("held_out")


def check_enough(num_pairs: int, num_held_out: int) -> None:
    """More than half of a corpus is too much to hold out, and nobody wants it without being told."""
    if 2 * num_held_out > num_pairs:
        fitting = max(1, num_pairs // 20)
        raise DataError(
            f"{num_pairs:,} clean training pairs are too few to split off {num_held_out:,} for dev and test",
            hint=f"give dev and test files, or: --set data.dev_pairs={fitting} --set data.test_pairs={fitting}",
        )
