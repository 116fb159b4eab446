"""Second stage: what only the whole corpus can tell: duplicates, and which pairs become dev and test.

A sentence often has several translations: splitting by line would put one into training and another into test. So
dev and test are split off by source sentence: those with the lowest keys, the same ones whatever their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from konvoi.data.clean import KEPT, Cleaning, Tally
from konvoi.data.sift import chunk_path, read_records
from konvoi.errors import DataError

# What becomes of a clean pair; the first is training.
FATES = ("train", "duplicate", "near_duplicate", "leak", "dev", "test")
TRAIN, DUPLICATE, NEAR_DUPLICATE, LEAK, DEV, TEST = range(len(FATES))
DROPPED = (DUPLICATE, NEAR_DUPLICATE, LEAK)

Fates = NDArray[np.uint8]
Keys = NDArray[np.uint64]


def choose_fates(folder: Path, num_chunks: int, cleaning: Cleaning, num_dev: int, num_test: int) -> Fates:
    """The fate of every clean pair, in the order of the corpus."""
    sources = read_records(folder, num_chunks, "source")
    fates = np.zeros(len(sources), dtype=np.uint8)
    if cleaning.remove_duplicates:
        fates[~_is_first(read_records(folder, num_chunks, "pair"))] = DUPLICATE
    if cleaning.remove_near_duplicates:
        keys = read_records(folder, num_chunks, "near")
        kept = np.flatnonzero(fates == TRAIN)
        fates[kept[~_is_first(keys[kept])]] = NEAR_DUPLICATE
    if num_dev + num_test:
        _check_enough(int((fates == TRAIN).sum()), num_dev + num_test)
        _split_off(fates, sources, num_dev, num_test)
    return fates


def tally_fates(folder: Path, num_chunks: int, fates: Fates) -> Tally:
    """Pairs, bytes and words of each fate."""
    tally = Tally()
    for number, part in enumerate(split_by_chunk(folder, num_chunks, fates)):
        sizes = np.load(chunk_path(folder, number, ".npy"), mmap_mode="r")["sizes"]
        for fate in np.unique(part):
            chosen = part == fate
            tally.add_many(_reason(int(fate)), int(chosen.sum()), *map(int, sizes[chosen].sum(axis=0, dtype=np.int64)))
    return tally


def split_by_chunk(folder: Path, num_chunks: int, fates: Fates) -> Iterator[Fates]:
    """The fates of each chunk's pairs."""
    start = 0
    for number in range(num_chunks):
        end = start + len(np.load(chunk_path(folder, number, ".npy"), mmap_mode="r"))
        yield fates[start:end]
        start = end


def _reason(fate: int) -> str:
    return {TRAIN: KEPT, DEV: "held_out", TEST: "held_out"}.get(fate, FATES[fate])


def _is_first(keys: Keys) -> NDArray[np.bool_]:
    """Whether a key did not stand before."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    is_first = np.ones(len(keys), dtype=bool)
    is_first[order[1:]] = ordered[1:] != ordered[:-1]
    return is_first


def _split_off(fates: Fates, sources: Keys, num_dev: int, num_test: int) -> None:
    """A held-out sentence keeps its first translation; the others would leak into training."""
    lowest = np.unique(sources[fates == TRAIN])[: num_dev + num_test]
    chosen = np.flatnonzero((fates == TRAIN) & np.isin(sources, lowest))
    is_first = _is_first(sources[chosen])
    fates[chosen] = LEAK
    chosen = chosen[is_first]
    fates[chosen] = np.where(np.isin(sources[chosen], lowest[:num_test]), TEST, DEV)


def _check_enough(num_pairs: int, num_held_out: int) -> None:
    """More than half of a corpus is too much to hold out, and nobody wants it without being told."""
    if 2 * num_held_out > num_pairs:
        fitting = max(1, num_pairs // 20)
        raise DataError(
            f"{num_pairs:,} clean training pairs are too few to split off {num_held_out:,} for dev and test",
            hint="give more text; own text may also come with dev and test files, or with "
            f"--set data.dev_pairs={fitting} --set data.test_pairs={fitting}",
        )
