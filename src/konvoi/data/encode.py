"""Fourth stage: training text to tokens, a chunk at a time in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from konvoi.data.choose import DEV, DROPPED, FATES, TEST, Fates
from konvoi.data.count import training_text
from konvoi.data.sift import MAX_EXAMPLES, Examples, chunk_path, read_chunk, remember
from konvoi.data.subwords import Subwords
from konvoi.data.text import Pair
from konvoi.data.tokens import Tokens
from konvoi.data.word_encoder import WordEncoder

Side = tuple[Tokens, NDArray[np.int64]]


@dataclass
class EncodedChunk:
    """Tokens and sentence lengths of source and target; the text of what did not become training."""

    sides: list[Side]
    held_out: dict[str, list[Pair]] = field(default_factory=dict)
    examples: Examples = field(default_factory=dict)


@dataclass(frozen=True)
class EncodeChunk:
    """Encodes a chunk; the process keeps its table of words for the next one."""

    folder: Path
    vocabulary: Path

    def __call__(self, chunk: tuple[int, Fates]) -> EncodedChunk:
        number, fates = chunk
        encoded = EncodedChunk([self._side(number, suffix, fates) for suffix in (".source", ".target")])
        if fates.any():
            self._take_others(number, fates, encoded)
        return encoded

    def _side(self, number: int, suffix: str, fates: Fates) -> Side:
        encoder = _encoder(self.vocabulary)
        tokens: list[Tokens] = [np.zeros(0, np.uint16)]
        lengths: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        for text in training_text(self.folder, number, suffix, fates):
            block_tokens, block_lengths = encoder.encode(text)
            tokens.append(block_tokens)
            lengths.append(block_lengths)
        return np.concatenate(tokens), np.concatenate(lengths)

    def _take_others(self, number: int, fates: Fates, encoded: EncodedChunk) -> None:
        rows = np.load(chunk_path(self.folder, number, ".npy"), mmap_mode="r")["row"]
        sources, targets = (read_chunk(self.folder, number, suffix).split("\n") for suffix in (".source", ".target"))
        for fate in DROPPED:
            for i in np.flatnonzero(fates == fate)[:MAX_EXAMPLES]:
                remember(encoded.examples, FATES[fate], int(rows[i]), sources[i], targets[i])
        for fate in (DEV, TEST):
            encoded.held_out[FATES[fate]] = [(sources[i], targets[i]) for i in np.flatnonzero(fates == fate)]


@lru_cache(maxsize=1)
def _encoder(vocabulary: Path) -> WordEncoder:
    return WordEncoder(Subwords.load(vocabulary))
