"""What there is to say about a set as a whole: too much of it bad, pictures under two classes, odd counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from konvoi.errors import DataError
from konvoi.folder import KeepsWorkError
from konvoi.images.index import Records
from konvoi.images.inputs import Inputs
from konvoi.images.pictures import MISLABELLED, TRAIN, VAL, Problem
from konvoi.images.sets import KnownImages

MAX_BAD_SHARE = 0.05
MAX_NAMED = 5


def check_share(num_good: int, problems: list[Problem], origin: str, folder: Path) -> None:
    """More than one in twenty left out: then it is the input that is wrong, not a file here and there.

    The lists of them, and all that was unpacked, stay in the folder.
    """
    num_all = num_good + len(problems)
    if num_all and len(problems) > MAX_BAD_SHARE * num_all:
        first = "; ".join(f"{problem.path}: {problem.why}" for problem in problems[:MAX_NAMED])
        lists = " and ".join(f"{kind}.tsv" for kind in sorted({problem.kind for problem in problems}))
        raise KeepsWorkError(
            f"{origin}: {len(problems):,} of {num_all:,} files are damaged or mislabelled; the first are {first}; "
            f"all are named in {lists} in {folder}",
            hint=f"get the pictures again, or remove what does not belong to the set; then remove {folder}",
        )


def check_splits(counts: dict[str, int], num_classes: int, origin: str) -> None:
    """Both splits and two classes are the least that a training needs."""
    empty = [split for split in (TRAIN, VAL) if counts[split] == 0]
    if empty:
        raise DataError(f"{origin} holds no pictures for {' and '.join(empty)}", hint="is it the right folder?")
    if num_classes < 2:
        raise DataError(f"{origin} holds a single class", hint="every class needs a folder of its own")


PathOf = Callable[[str, int], str]


def under_two_classes(records: dict[str, Records], classes: list[str], path_of: PathOf) -> list[Problem]:
    """Names every picture whose very content is also in another class; which of the two is right, nobody knows."""
    found = []
    for group in _equal_content(records):
        names = {classes[int(records[split][number]["class_number"])] for split, number in group}
        if len(names) > 1:
            paths = [path_of(split, number) for split, number in group]
            found += [_same_as(path, paths[1] if path == paths[0] else paths[0]) for path in paths]
    return found


def _same_as(path: str, other: str) -> Problem:
    return Problem(MISLABELLED, path, f"kept, but the same content lies in another class too: {other}")


def num_in_both_splits(records: dict[str, Records]) -> int:
    """Validation pictures that training sees as well."""
    groups = (Counter(split for split, _ in group) for group in _equal_content(records))
    return sum(counts[VAL] for counts in groups if len(counts) > 1)


def _equal_content(records: dict[str, Records]) -> Iterator[list[tuple[str, int]]]:
    """Groups of pictures with the same checksum, each as split and number."""
    num_train = len(records[TRAIN])
    checksums = np.concatenate([records[TRAIN]["checksum"], records[VAL]["checksum"]])
    order = np.lexsort((checksums[:, 1], checksums[:, 0]))
    for start, end in _runs(checksums[order]):
        numbers = sorted(int(number) for number in order[start:end])
        yield [(TRAIN, number) if number < num_train else (VAL, number - num_train) for number in numbers]


def _runs(rows: npt.NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
    """Where two or more equal rows follow one another: first and one past the last."""
    equal = np.concatenate([[False], (rows[1:] == rows[:-1]).all(axis=1), [False]]).astype(np.int8)
    steps = np.diff(equal)
    for start, end in zip(np.flatnonzero(steps == 1), np.flatnonzero(steps == -1), strict=True):
        yield int(start), int(end) + 1


def warnings_of(known: KnownImages, inputs: Inputs, records: dict[str, Records]) -> Iterator[str]:
    """What is odd, but no reason to stop."""
    for split, official in known.num_pictures.items():
        if len(records[split]) != official:
            yield f"{split} has {_counted(len(records[split]), 'picture', 'pictures')}, officially {official:,}"
    present = {split: set(np.unique(records[split]["class_number"]).tolist()) for split in records}
    num_classes = len(present[TRAIN] | present[VAL])
    if known.num_classes and num_classes != known.num_classes:
        yield f"there are {num_classes:,} classes, officially {known.num_classes:,}"
    for split in (TRAIN, VAL):
        if len(present[split]) < num_classes:
            num_empty = num_classes - len(present[split])
            yield f"{_counted(num_empty, 'class has', 'classes have')} no pictures in {split}"
    if num_doubled := num_in_both_splits(records):
        yield f"{_counted(num_doubled, f'picture of {VAL} is', f'pictures of {VAL} are')} in {TRAIN} too"
    if inputs.left_out:
        yield f"left out, being neither {TRAIN} nor {VAL}: {', '.join(inputs.left_out)}"


def _counted(number: int, one: str, many: str) -> str:
    return f"1 {one}" if number == 1 else f"{number:,} {many}"
