"""Finds the input files of a recipe's [data] table, whatever the kind of set."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from konvoi.data.sets import OWN, SPLITS, KnownSet, find_set, locate
from konvoi.data.settings import Data
from konvoi.data.text import Pair, read_pairs, read_tsv_pairs
from konvoi.errors import DataError

# Text grows about so much when unpacked.
PACKING_FACTORS = {".gz": 3, ".xz": 5}


@dataclass(frozen=True)
class Inputs:
    """The pairs of each split that has files, and how many to split off for one that has none."""

    files: tuple[Path, ...]
    splits: dict[str, Callable[[], Iterator[Pair]]]
    num_dev: int = 0
    num_test: int = 0
    licence: str = "your own"
    citation: str = ""

    @property
    def text_bytes(self) -> int:
        """About how much text there is once unpacked."""
        return sum(path.stat().st_size * PACKING_FACTORS.get(path.suffix, 1) for path in self.files)


def find_inputs(data: Data, source: str, target: str, home: Path, from_folder: Path | None) -> Inputs:
    """Where the pairs come from, turned round where the set is trained the other way."""
    if source == target:
        raise DataError(f'source and target language are both "{source}"', hint="name two: --set task.target=de")
    if data.set == OWN:
        return _own(data)
    known = find_set(data.set)
    if {source, target} != {known.source, known.target}:
        raise DataError(
            f"{known.name} translates between {known.source} and {known.target}, not from {source} to {target}",
            hint=f"--set task.source={known.source} --set task.target={known.target}",
        )
    is_reversed = source != known.source
    return _embedded(known, is_reversed) if known.embedded else _from_files(known, home, from_folder, is_reversed)


def _own(data: Data) -> Inputs:
    given = {split: files for split in SPLITS if (files := data.own_files(split)) is not None}
    _check_files(given)
    return Inputs(
        files=tuple(chain.from_iterable(given.values())),
        splits={split: _reader(*files) for split, files in given.items()},
        num_dev=0 if "dev" in given else data.dev_pairs,
        num_test=0 if "test" in given else data.test_pairs,
    )


def _check_files(given: dict[str, tuple[Path, Path]]) -> None:
    """All missing files at once, under the names that the recipe gives them."""
    missing = [
        f"data.{split}_{side}: {path}"
        for split, files in given.items()
        for side, path in zip(("source", "target"), files, strict=True)
        if not (path.is_file() and os.access(path, os.R_OK))
    ]
    if missing:
        raise DataError(f"cannot read {', '.join(missing)}", hint="check the paths; each must be a file you may read")


def _embedded(known: KnownSet, is_reversed: bool) -> Inputs:
    def pairs() -> Iterator[Pair]:
        return _turned(read_tsv_pairs(known.embedded_path), is_reversed)

    num_dev, num_test = known.held_out
    return Inputs((known.embedded_path,), {"train": pairs}, num_dev, num_test, known.licence, known.citation)


def _from_files(known: KnownSet, home: Path, from_folder: Path | None, is_reversed: bool) -> Inputs:
    located = locate(known, home, from_folder)
    ordered = {split: files[::-1] if is_reversed else files for split, files in located.items()}
    return Inputs(
        files=tuple(chain.from_iterable(ordered.values())),
        splits={split: _reader(*files) for split, files in ordered.items()},
        licence=known.licence,
        citation=known.citation,
    )


def _reader(source_path: Path, target_path: Path) -> Callable[[], Iterator[Pair]]:
    return lambda: read_pairs(source_path, target_path)


def _turned(pairs: Iterator[Pair], is_reversed: bool) -> Iterator[Pair]:
    return ((target, source) for source, target in pairs) if is_reversed else pairs
