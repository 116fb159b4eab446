"""Third stage: counts the words of the training text, which is all that learning a vocabulary needs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from konvoi.data.choose import TRAIN, Fates
from konvoi.data.sift import read_chunk

# A web corpus has ever more words that occur once, each some 200 bytes of memory: beyond this the rarest are forgotten.
MAX_COUNTED_WORDS = 1_000_000
# SentencePiece takes about 500 bytes a word; the words beyond this many are too rare to become pieces.
MAX_LEARNT_WORDS = 500_000
# The words of so many lines fit the processor's cache: splitting more at once is slower and takes more memory.
BLOCK_LINES = 2000

Words = dict[str, int]


@dataclass(frozen=True)
class CountWords:
    """Counts the words of a chunk, in a process of its own."""

    folder: Path

    def __call__(self, chunk: tuple[int, Fates]) -> Words:
        number, fates = chunk
        words: Counter[str] = Counter()
        for suffix in (".source", ".target"):
            for text in training_text(self.folder, number, suffix, fates):
                words.update(text.split())
        return dict(words)


def training_text(folder: Path, number: int, suffix: str, fates: Fates) -> Iterator[str]:
    """The training sentences of one side of a chunk, each ended by a line end, a few thousand at a time."""
    # Not splitlines(): it splits at more than "\n".
    lines = itertools.compress(read_chunk(folder, number, suffix).split("\n"), (fates == TRAIN).tolist())
    while block := list(itertools.islice(lines, BLOCK_LINES)):
        yield "\n".join(block) + "\n"


def add_up(counts: Iterable[Words], max_words: int = MAX_COUNTED_WORDS) -> Words:
    """The sum over all chunks; taken in the order of the corpus, it does not depend on the number of processes."""
    total: Words = {}
    for words in counts:
        for word, count in words.items():
            total[word] = total.get(word, 0) + count
        least = 1
        while len(total) > max_words:
            least += 1
            total = {word: count for word, count in total.items() if count >= least}
    return total


def most_frequent(words: Words, max_words: int = MAX_LEARNT_WORDS) -> list[tuple[str, int]]:
    """The words to learn from, in an order that depends on nothing else."""
    return sorted(words.items(), key=lambda item: (-item[1], item[0]))[:max_words]
