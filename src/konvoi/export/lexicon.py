"""Which pieces can translate which: a vocabulary map, learnt from the training pairs.

With it CTranslate2's output layer computes, for a batch of sentences, only the pieces that they can need: in a small
model that layer is most of the work. The probabilities are those of IBM model 1 (Brown et al. 1993); its first
round begins with Dice's coefficient, so that one round is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from konvoi.bundle.translator import VOCABULARY_MAP_FILE
from konvoi.data.prepared import PreparedSet
from konvoi.data.subwords import Subwords
from konvoi.data.tokens import TokenFile

# More pairs teach little more about pieces.
MAX_PAIRS = 200_000
PAIRS_AT_ONCE = 10_000
# Long sentences say little about which piece is which, and cost the product of their lengths.
MAX_PIECES = 80
# For each piece of the source, and the most frequent of the target, which any sentence may need. Of 32, 64, 128
# candidates the first lost 0.10 BLEU of 37.94, the others 0.06 and 0.05; the last took 20 % more time (Multi30k,
# 2026-11-16).
NUM_CANDIDATES, NUM_ALWAYS = 64, 256

Ints = NDArray[np.integer[Any]]
Table = Any
"""A sparse matrix: a row for each piece of the source, a column for each of the target."""


def write(prepared: PreparedSet, folder: Path) -> None:
    """vmap.txt into the folder of a variant."""
    text = as_text(prepared.subwords, *learn(prepared))
    (folder / VOCABULARY_MAP_FILE).write_text(text, encoding="utf-8", newline="\n")


def learn(prepared: PreparedSet) -> tuple[Table, Ints]:
    """How likely each piece of the source brings each piece of the target; and how often the target's pieces occur."""
    size = prepared.subwords.size
    meetings = sparse.csr_array((size, size))
    sources, targets = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for source, target in _chunks(prepared):
        met_source, met_target = (_occurrences(side, size) for side in (source, target))
        meetings += met_source.T @ met_target
        sources += np.asarray(met_source.sum(axis=0)).astype(np.int64)
        targets += np.asarray(met_target.sum(axis=0)).astype(np.int64)
    table = _dice(meetings, sources, targets)
    return sum((_expected(table, *chunk) for chunk in _chunks(prepared)), sparse.csr_array((size, size))), targets


def as_text(subwords: Subwords, table: Table, frequency: Ints) -> str:
    """As CTranslate2 reads it: a piece, a tab, its candidates with blanks between; no piece is "always"."""
    pieces = subwords.pieces(range(subwords.size))
    specials = [Subwords.UNK, Subwords.BOS, Subwords.EOS]
    always = [*specials, *np.argsort(-frequency, kind="stable")[:NUM_ALWAYS].tolist()]
    lines = [f"\t{_listed(pieces, always)}"]
    for number, piece in enumerate(pieces):
        if not any(letter.isspace() for letter in piece):
            # Itself first: names and numbers stay what they are.
            lines.append(f"{piece}\t{_listed(pieces, [number, *_best(table, number)])}")
    return "".join(f"{line}\n" for line in lines)


def _listed(pieces: list[str], numbers: list[int]) -> str:
    return " ".join(pieces[number] for number in dict.fromkeys(numbers) if not any(map(str.isspace, pieces[number])))


def _best(table: Table, number: int) -> list[int]:
    start, end = table.indptr[number : number + 2]
    order = np.argsort(-table.data[start:end], kind="stable")[:NUM_CANDIDATES]
    return [int(column) for column in table.indices[start:end][order]]


def _chunks(prepared: PreparedSet) -> Iterator[tuple[list[Ints], list[Ints]]]:
    """Pairs from all over the corpus, some thousand at a time, without the end of the sentence."""
    files = prepared.split("train")
    count = min(len(files[0]), MAX_PAIRS)
    chosen = np.linspace(0, len(files[0]) - 1, count).astype(np.int64)
    is_short = (files[0].lengths[chosen] <= MAX_PIECES) & (files[1].lengths[chosen] <= MAX_PIECES)
    chosen = chosen[is_short]
    for start in range(0, len(chosen), PAIRS_AT_ONCE):
        source, target = (_sentences(file, chosen[start : start + PAIRS_AT_ONCE]) for file in files)
        yield source, target


def _sentences(file: TokenFile, indices: Ints) -> list[Ints]:
    ends = file.lengths[indices].astype(np.int64).cumsum()
    return [tokens[:-1] for tokens in np.split(file.read(indices).astype(np.int64), ends[:-1])]


def _occurrences(sentences: list[Ints], size: int) -> Table:
    """1 where a sentence (row) holds a piece (column)."""
    rows = np.repeat(np.arange(len(sentences)), [len(sentence) for sentence in sentences])
    columns = np.concatenate(sentences)
    found = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(sentences), size))
    found.data[:] = 1.0
    return found


def _dice(meetings: Table, sources: Ints, targets: Ints) -> Table:
    """2 x together / (one + other)"""
    table = meetings.tocoo()
    together = 2 * table.data / (sources[table.row] + targets[table.col])
    return sparse.csr_array((together, (table.row, table.col)), shape=table.shape)


def _expected(table: Table, sources: list[Ints], targets: list[Ints]) -> Table:
    """How often each piece of the source accounts for each of the target, if the table is right."""
    num_sources = np.array([len(sentence) for sentence in sources])
    num_targets = np.array([len(sentence) for sentence in targets])
    # All pieces of a source for the first piece of its target, for the second...
    rows = np.concatenate([np.tile(source, count) for source, count in zip(sources, num_targets, strict=True)])
    repeats = np.repeat(num_sources, num_targets)
    columns = np.repeat(np.concatenate(targets), repeats)
    places = np.repeat(np.arange(len(repeats)), repeats)
    weights = np.asarray(table[rows, columns]).ravel()
    weights /= np.bincount(places, weights)[places]
    return sparse.csr_array((weights, (rows, columns)), shape=table.shape)
