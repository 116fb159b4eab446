"""Pictures before they are looked at: where their bytes lie, and which split and class they claim."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol

TRAIN, VAL = "train", "val"
DAMAGED, MISLABELLED = "damaged", "mislabelled"
PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm")
# Neither can stand in a line of an index: control characters, and bytes that are not UTF-8.
UNWRITABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
BATCH_PICTURES = 500
WORDNET_ID = re.compile(r"n\d{8}")


class Problem(NamedTuple):
    """A file that is left out, or kept but named: its path as the user knows it, and why."""

    kind: str
    path: str
    why: str


class Picture(NamedTuple):
    """One file to look at."""

    split: str
    """train, val, or nothing where the split is still to be chosen."""
    class_name: str
    name: str
    """Its path inside the folder of its class."""
    origin: str
    """Its path as the user knows it; in a tree, relative to the tree."""
    offset: int
    num_bytes: int
    problem: Problem | None = None

    def without(self, kind: str, why: str) -> Picture:
        """The same picture, to be left out."""
        return self._replace(problem=Problem(kind, shown(self.origin), why))


class Batch(Protocol):
    """Pictures that one process looks at in one go."""

    @property
    def num_bytes(self) -> int: ...

    @property
    def archive(self) -> Path | None:
        """The tar file that the pictures lie in; nothing where they are files of a tree."""

    @property
    def root(self) -> Path: ...

    def pictures(self) -> list[Picture]: ...


@dataclass(frozen=True)
class Listed:
    """Pictures that are known one by one: files below root, or parts of a plain tar file."""

    root: Path
    listed: tuple[Picture, ...]
    archive: Path | None = None

    @property
    def num_bytes(self) -> int:
        return sum(picture.num_bytes for picture in self.listed)

    def pictures(self) -> list[Picture]:
        return list(self.listed)


def in_batches(root: Path, pictures: Iterator[Picture], archive: Path | None = None) -> Iterator[Batch]:
    """As many pictures at a time as one process looks at in one go."""
    while batch := tuple(islice(pictures, BATCH_PICTURES)):
        yield Listed(root, batch, archive)


def wrong_class(picture: Picture) -> str:
    """Why a name like n01440764_18.JPEG cannot belong to its class; nothing where it can."""
    name = PurePosixPath(picture.name).name
    named, underscore, _ = name.partition("_")
    if not (underscore and WORDNET_ID.fullmatch(named) and WORDNET_ID.fullmatch(picture.class_name)):
        return ""
    return "" if named == picture.class_name else f"named after {named}, but it lies in {picture.class_name}"


def is_hidden(name: str) -> bool:
    """.DS_Store, ._x.JPEG and their like: what systems leave behind."""
    return name.startswith(".")


def looks_like_a_picture(name: str) -> bool:
    return name.lower().endswith(PICTURE_SUFFIXES)


def shown(path: str) -> str:
    """A path that fits into one line."""
    return UNWRITABLE.sub(lambda match: repr(match[0])[1:-1], path)
