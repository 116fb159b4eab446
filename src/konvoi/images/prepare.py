"""Archives or a tree of pictures to train/<class>/, val/<class>/ and an index; done once per input files."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from konvoi.errors import DataError
from konvoi.folder import make_once, work_folder, write_json
from konvoi.images import judge
from konvoi.images.identity import Identity, identify
from konvoi.images.image_set import CLASSES_FILE, IMAGES_FOLDER, INFO_FILE, KIND, ImageSet, read_info
from konvoi.images.index import Entries, Records, write_index
from konvoi.images.inputs import Inputs, find_inputs
from konvoi.images.look import Row, look_at_all, read_marks
from konvoi.images.pictures import DAMAGED, MISLABELLED, TRAIN, VAL, Problem
from konvoi.images.place import Move, place_all
from konvoi.images.sets import KnownImages, find_images
from konvoi.images.splits import SplitOff
from konvoi.stages import Report, silent

# Raise it when the meaning of the files changes: older sets are then prepared anew.
FORMAT_VERSION = 1
# In an unfinished folder: that it is ours, and for which inputs.
KEY_FILE = ".konvoi-images"
# A line of the index, its record and its part of a mark.
INDEX_BYTES_PER_PICTURE = 500
MEAN_PICTURE_BYTES = 100_000


def prepare_images(
    name: str,
    *,
    from_folder: Path,
    to: Path | None,
    home: Path,
    report: Report = silent,
    num_processes: int | None = None,
) -> ImageSet:
    """The prepared set of these pictures; made now unless it is there already.

    Archives are unpacked into `to`, or else into home. A tree stays where it is and only gets an index in home,
    unless `to` is given.
    """
    known = find_images(name)
    with _readable():
        inputs = find_inputs(known, from_folder.expanduser().resolve())
    return prepare_inputs(known, inputs, to=to, home=home, report=report, num_processes=num_processes)


def prepare_inputs(
    known: KnownImages,
    inputs: Inputs,
    *,
    to: Path | None,
    home: Path,
    report: Report = silent,
    num_processes: int | None = None,
) -> ImageSet:
    """The same, of pictures that were found already."""
    with _readable():
        identity = identify(inputs, {"set": known.name, "format": FORMAT_VERSION}, report)
    target = to.expanduser().resolve() if to is not None else None
    if target is not None:
        _check_target(target, inputs, identity.key)
    final = target or home / IMAGES_FOLDER / f"{known.name}-{identity.key}"
    copies = target is not None or bool(inputs.archives)
    preparation = _Preparation(known, inputs, identity, copies, num_processes, report)
    make_once(final, preparation.run, needed_bytes=_needed_bytes(inputs, identity, copies), report=report)
    return ImageSet.open(final)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Says what may not be read, instead of an errno."""
    try:
        yield
    except PermissionError as error:
        raise DataError(
            f"cannot read {error.filename}: {error.strerror}", hint="ask its owner to let you read it"
        ) from None


def _needed_bytes(inputs: Inputs, identity: Identity, copies: bool) -> int:
    input_bytes = sum(path.stat().st_size for path in inputs.archives) + identity.tree_bytes
    index_bytes = INDEX_BYTES_PER_PICTURE * input_bytes // MEAN_PICTURE_BYTES
    return index_bytes + (input_bytes if copies else 0)


def _check_target(target: Path, inputs: Inputs, key: str) -> None:
    """A folder that we are asked to fill is new, empty, or ours; what others put there is never touched."""
    if inputs.trees and target.is_relative_to(inputs.root):
        raise DataError(f"{target} lies inside the pictures themselves", hint="name a folder outside of them")
    if target.exists() and not _is_empty(target):
        info = read_info(target)
        if info is None:
            raise DataError(f"{target} is not empty and not ours", hint="name a new or an empty folder")
        if info["key"] != key:
            raise DataError(f"{target} holds a set of other pictures: {info['set']}", hint="name another folder")
    elif target.exists():
        _make_way(target)
    work = work_folder(target)
    if work.exists() and not _is_empty(work) and not (work / KEY_FILE).exists() and read_info(work) is None:
        raise DataError(f"{work} is in the way and not ours", hint="remove it, or name another folder")


def _make_way(folder: Path) -> None:
    """An empty folder gives its name to the one that is made beside it."""
    try:
        folder.rmdir()
    except OSError as error:
        raise DataError(
            f"cannot put a new folder in the place of {folder}: {error.strerror}", hint="name a folder inside it"
        ) from None


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and next(folder.iterdir(), None) is None


class _Preparation:
    """The steps of one preparation, in the order of run()."""

    def __init__(
        self,
        known: KnownImages,
        inputs: Inputs,
        identity: Identity,
        copies: bool,
        num_processes: int | None,
        report: Report,
    ) -> None:
        self.known, self.inputs, self.identity, self.copies = known, inputs, identity, copies
        self.num_processes, self.report = num_processes, report
        self.problems: list[Problem] = []
        self.warnings: list[str] = []

    def run(self, folder: Path) -> None:
        self.folder = folder
        self._clear_what_is_of_others()
        if read_info(folder) is None:
            self._look()
            self._choose_val()
            lines = self._collect()
            self._place(sum(map(len, lines.values())))
            info = self._describe(self._write_indices(lines))
            # Last and in one go: where it is, all else is there.
            write_json(folder / INFO_FILE, info)
        # What was of use on the way only is hidden.
        _remove(folder.glob(".*"))

    def _clear_what_is_of_others(self) -> None:
        """Unfinished work on other pictures is of no use here."""
        mark, info = self.folder / KEY_FILE, read_info(self.folder)
        key = info["key"] if info else mark.read_text() if mark.exists() else ""
        if key != self.identity.key:
            _remove(self.folder.iterdir())
        mark.write_text(self.identity.key)

    def _look(self) -> None:
        from_archives = self.inputs.archive_batches(self.folder, self.report)
        total_bytes = sum(batch.num_bytes for batch in from_archives) + self.identity.tree_bytes
        batches = chain(from_archives, self.inputs.tree_batches())
        look_at_all(batches, self.folder, total_bytes, self.num_processes, self.report)

    def _rows(self) -> Iterator[Row]:
        return chain.from_iterable(seen.rows for seen in read_marks(self.folder))

    def _choose_val(self) -> None:
        self.split_off = SplitOff(self._rows()) if self.inputs.split_off else None
        if self.split_off and self.split_off.single_classes:
            names = ", ".join(self.split_off.single_classes[: judge.MAX_NAMED])
            self.warnings.append(f"classes with a single picture, which stays in {TRAIN}: {names}")

    def _split(self, row: Row) -> str:
        return self.split_off.split_of(row) if self.split_off else row.split

    def _path(self, row: Row) -> str:
        """Where the index says that a picture lies."""
        return f"{self._split(row)}/{row.class_name}/{row.name}" if self.copies else row.origin

    def _collect(self) -> dict[str, list[str]]:
        """The sorted lines of each index, once it is clear that the input is what it should be."""
        lines: dict[str, list[str]] = {TRAIN: [], VAL: []}
        for row in self._rows():
            numbers = f"{row.num_bytes}\t{row.width}\t{row.height}\t{row.checksum}"
            lines[self._split(row)].append(f"{self._path(row)}\t{row.class_name}\t{numbers}\n")
        self.problems = sorted(chain.from_iterable(seen.problems for seen in read_marks(self.folder)))
        self._write_problems([])
        judge.check_share(sum(map(len, lines.values())), self.problems, str(self.inputs.root), self.folder)
        self.classes = sorted({line.split("\t")[1] for split in lines for line in lines[split]})
        judge.check_splits({split: len(lines[split]) for split in lines}, len(self.classes), str(self.inputs.root))
        for split in lines:
            lines[split].sort()
        return lines

    def _place(self, num_pictures: int) -> None:
        if self.copies and self.inputs.trees:
            chunks = (self._moves(seen.rows) for seen in read_marks(self.folder))
            place_all(chunks, num_pictures, self.num_processes, self.report)

    def _moves(self, rows: list[Row]) -> list[Move]:
        return [Move(self.inputs.root / row.origin, self.folder / self._path(row)) for row in rows if row.origin]

    def _write_indices(self, lines: dict[str, list[str]]) -> dict[str, Records]:
        self.report("writing the index")
        numbers = {name: number for number, name in enumerate(self.classes)}
        records = {split: write_index(self.folder / split, lines[split], numbers) for split in lines}
        words = {name: " ".join(self.inputs.words.get(name, "").split()) for name in self.classes}
        rows = [f"{number}\t{name}\t{words[name]}" for name, number in numbers.items()]
        _write_table(self.folder / CLASSES_FILE, "number\tclass\twords", rows)
        return records

    def _write_problems(self, doubled: list[Problem]) -> tuple[list[Problem], list[Problem]]:
        """Lists what is damaged and what is mislabelled."""
        damaged = [one for one in self.problems if one.kind == DAMAGED]
        mislabelled = [*(one for one in self.problems if one.kind == MISLABELLED), *doubled]
        for kind, found in ((DAMAGED, damaged), (MISLABELLED, mislabelled)):
            _write_table(self.folder / f"{kind}.tsv", "path\twhy", [f"{one.path}\t{one.why}" for one in found])
        return damaged, mislabelled

    def _describe(self, records: dict[str, Records]) -> dict[str, Any]:
        entries = {split: Entries(self.folder / split) for split in records}
        doubled = judge.under_two_classes(records, self.classes, lambda split, number: entries[split].path(number))
        damaged, mislabelled = self._write_problems(doubled)
        return {
            "kind": KIND,
            "version": FORMAT_VERSION,
            "set": self.known.name,
            "key": self.identity.key,
            "root": None if self.copies else str(self.inputs.root),
            "classes": len(self.classes),
            "images": {split: len(records[split]) for split in records},
            "bytes": {split: int(records[split]["num_bytes"].sum()) for split in records},
            "mean_size": {split: _mean_size(records[split]) for split in records},
            "damaged": [one.path for one in damaged],
            "mislabelled": [{"path": one.path, "why": one.why} for one in mislabelled],
            "warnings": [*self.warnings, *judge.warnings_of(self.known, self.inputs, records)],
            "licence": self.known.licence,
            "citation": self.known.citation,
            "files": [str(path) for path in self.inputs.files] or [str(self.inputs.root)],
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def _mean_size(records: Records) -> dict[str, float]:
    return {side: round(float(np.mean(records[side])), 1) for side in ("width", "height")}


def _write_table(path: Path, header: str, rows: list[str]) -> None:
    path.write_bytes("".join(f"{row}\n" for row in (header, *rows)).encode())


def _remove(paths: Iterable[Path]) -> None:
    for path in list(paths):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
