"""Finds the input files of a recipe's [data] table, whatever the kind of set."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from konvoi.data.fingerprint import digest
from konvoi.data.settings import OWN_SPLITS, Data
from konvoi.data.text import Pair, form_of, read_rows, reading_of
from konvoi.errors import DataError
from konvoi.fetch.sets import OWN, KnownSet, find_set, locate

# Text grows about so much when unpacked.
PACKING_FACTORS = {".gz": 3, ".xz": 5, ".zst": 4}

# Becomes part of file names.
LANGUAGE = re.compile(r"[A-Za-z0-9_-]+")
LANGUAGES_HINT = "task.source and task.target name them in a recipe, --source-language and --target-language elsewhere"

Files = tuple[Path, ...]
"""One file that holds both sides of each pair, or the source's and the target's."""


@dataclass(frozen=True)
class Inputs:
    """The files of each split that has some, and how many pairs to split off for one that has none."""

    splits: dict[str, list[Files]]
    """The parts of a split are read one after another."""
    languages: tuple[str, str]
    """In the order in which the files hold them."""
    is_turned: bool = False
    """Trained from the second language to the first."""
    num_dev: int = 0
    num_test: int = 0
    licence: str = "your own"
    citation: str = ""

    @property
    def files(self) -> list[Path]:
        return [path for parts in self.splits.values() for files in parts for path in files]

    @property
    def text_bytes(self) -> int:
        """About how much text there is once unpacked."""
        return sum(path.stat().st_size * PACKING_FACTORS.get(path.suffix, 1) for path in self.files)

    def content(self, home: Path) -> dict[str, Any]:
        """What the files hold and how they are read; else their names and places don't matter."""
        return {
            split: [[form_of(files), *([reading_of(path), digest(path, home)] for path in files)] for files in parts]
            for split, parts in self.splits.items()
        }

    def read(self, split: str) -> Iterator[Pair]:
        """All pairs of a split in the order of training; a line that can't be read is an error."""
        for files in self.splits[split]:
            for pair in read_rows(files, self.languages):
                yield pair[::-1] if self.is_turned else pair


def find_inputs(data: Data, source: str, target: str, home: Path, from_folder: Path | None) -> Inputs:
    """Where the pairs come from, turned round where the set is trained the other way."""
    if source == target:
        raise DataError(f'source and target language are both "{source}"', hint=LANGUAGES_HINT)
    for language in (source, target):
        if not LANGUAGE.fullmatch(language):
            raise DataError(f'"{language}" is no language code', hint="letters, digits, - and _, as in en or pt-br")
    if data.set == OWN:
        return _own(data, (source, target))
    known = find_set(data.set)
    if {source, target} != {known.source, known.target}:
        raise DataError(
            f"{known.name} translates between {known.source} and {known.target}, not from {source} to {target}",
            hint=LANGUAGES_HINT,
        )
    return _known(known, home, from_folder, is_turned=source != known.source)


def _known(known: KnownSet, home: Path, from_folder: Path | None, is_turned: bool) -> Inputs:
    splits: dict[str, list[Files]] = {"train": [(known.embedded_path,)]}
    num_dev, num_test = known.held_out
    return Inputs(
        splits=splits if known.embedded else locate(known, home, from_folder),
        languages=(known.source, known.target),
        is_turned=is_turned,
        num_dev=num_dev,
        num_test=num_test,
        licence=known.licence,
        citation=known.citation,
    )


def _own(data: Data, languages: tuple[str, str]) -> Inputs:
    given = {split: files for split in OWN_SPLITS if (files := data.own_files(split))}
    _check_files(given)
    return Inputs(
        splits={split: [files] for split, files in given.items()},
        languages=languages,
        num_dev=0 if "dev" in given else data.dev_pairs,
        num_test=0 if "test" in given else data.test_pairs,
    )


def _check_files(given: dict[str, Files]) -> None:
    """All missing files at once, under the names that the recipe gives them."""
    missing = [
        f"data.{split}_{side}: {path}"
        for split, files in given.items()
        for side, path in zip(("source", "target") if len(files) == 2 else ("file",), files, strict=True)
        if not (path.is_file() and os.access(path, os.R_OK))
    ]
    if missing:
        raise DataError(f"cannot read {', '.join(missing)}", hint="check the paths; each must be a file you may read")
