"""Looking at pictures, a batch at a time in any process, and the marks that say which batches are done.

A mark holds what was seen in a batch. It is written last and renamed, so a killed process leaves whole marks only,
and whoever comes next skips these batches.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from konvoi.folder import write_whole
from konvoi.images.check import MAX_PICTURE_BYTES, DamagedPicture, checksum, look_at
from konvoi.images.pictures import DAMAGED, MISLABELLED, Batch, Picture, Problem, shown, wrong_class
from konvoi.parallel import ordered_map
from konvoi.stages import BYTES, Report

MARKS_FOLDER = ".done"


class Row(NamedTuple):
    """A whole picture."""

    split: str
    class_name: str
    name: str
    origin: str
    """Its path in the tree; empty where it came out of an archive and lies in its place already."""
    num_bytes: int
    width: int
    height: int
    checksum: str


@dataclass(frozen=True)
class Task:
    """One batch, where its pictures go and where its mark is written."""

    batch: Batch
    folder: Path
    number: int

    @property
    def mark(self) -> Path:
        return self.folder / MARKS_FOLDER / f"{self.number:08}.json"


def look_at_all(
    batches: Iterable[Batch], folder: Path, total_bytes: int, num_processes: int | None, report: Report
) -> None:
    """Every batch has its mark afterwards; those that have one already are skipped."""
    (folder / MARKS_FOLDER).mkdir(exist_ok=True)
    skipped_bytes = 0

    def remaining() -> Iterator[Task]:
        nonlocal skipped_bytes
        for number, batch in enumerate(batches):
            task = Task(batch, folder, number)
            if task.mark.exists():
                skipped_bytes += batch.num_bytes
            else:
                yield task

    seen_bytes = 0
    for num_bytes in ordered_map(look_at_batch, remaining(), num_processes):
        seen_bytes += num_bytes
        report("checking pictures", skipped_bytes + seen_bytes, total_bytes, BYTES)


def look_at_batch(task: Task) -> int:
    """Looks at all pictures of a batch, writes those of an archive to their place, then the mark."""
    seen = [_look(picture, task) for picture in task.batch.pictures()]
    rows = [one for one in seen if isinstance(one, Row)]
    problems = [one for one in seen if isinstance(one, Problem)]
    write_whole(task.mark, json.dumps({"rows": rows, "problems": problems}))
    return task.batch.num_bytes


def _look(picture: Picture, task: Task) -> Row | Problem:
    if picture.problem is not None:
        return picture.problem
    if why := wrong_class(picture):
        return Problem(MISLABELLED, shown(picture.origin), why)
    try:
        content = _read(picture, task.batch)
        width, height = look_at(content)
    except DamagedPicture as damage:
        return Problem(DAMAGED, shown(picture.origin), shown(str(damage)))
    from_tree = task.batch.archive is None
    if not from_tree:
        _write(task.folder / picture.split / picture.class_name / picture.name, content)
    origin = picture.origin if from_tree else ""
    facts = (len(content), width, height, checksum(content))
    return Row(picture.split, picture.class_name, picture.name, origin, *facts)


def _read(picture: Picture, batch: Batch) -> bytes:
    if picture.num_bytes > MAX_PICTURE_BYTES:
        raise DamagedPicture(f"larger than {MAX_PICTURE_BYTES >> 20} MiB")
    path = batch.root / picture.origin if batch.archive is None else batch.archive
    try:
        with path.open("rb") as stream:
            stream.seek(picture.offset)
            return stream.read(picture.num_bytes)
    except OSError as error:
        raise DamagedPicture(f"cannot be read: {error.strerror}") from None


def _write(path: Path, content: bytes) -> None:
    """Under its own name at once: without the mark, the next process writes it again."""
    try:
        path.write_bytes(content)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


class Seen(NamedTuple):
    """What a mark says."""

    rows: list[Row]
    problems: list[Problem]


def read_marks(folder: Path) -> Iterator[Seen]:
    """What was seen, batch by batch, in the order of the batches."""
    for path in sorted((folder / MARKS_FOLDER).glob("[!.]*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        yield Seen([Row(*row) for row in content["rows"]], [Problem(*one) for one in content["problems"]])
