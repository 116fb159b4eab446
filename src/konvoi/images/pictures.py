"""Pictures before they are looked at: where their bytes lie, and which split and class they claim."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol

from konvoi.images.archives import Member, readable_members

TRAIN, VAL = "train", "val"
DAMAGED, MISLABELLED = "damaged", "mislabelled"
PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm")
# Neither can stand in a line of an index: control characters, and bytes that are not UTF-8.
UNWRITABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
# What file systems take.
MAX_NAME_BYTES = 255
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


@dataclass(frozen=True)
class ClassTar:
    """The tar file of one class, inside a larger one; read where it lies."""

    root: Path
    archive: Path
    member: Member
    split: str
    class_name: str

    @property
    def num_bytes(self) -> int:
        return self.member.num_bytes

    def pictures(self) -> list[Picture]:
        """Where the tar file is damaged: those before the damage, and in the place of the others one that says so."""
        start, end = self.member.offset, self.member.offset + self.member.num_bytes
        name = f"{self.archive.name}/{self.member.path}"
        inner, why = readable_members(self.archive, start, end)
        found = (_of_member(member, self.split, self.class_name, name) for member in inner)
        pictures = list(each_name_once(picture for picture in found if not is_hidden(picture.name)))
        if why:
            lost = Picture(self.split, self.class_name, "", name, start, 0)
            pictures.append(lost.without(DAMAGED, f"cut short or damaged: {shown(why)}"))
        return pictures


def _of_member(member: Member, split: str, class_name: str, archive_name: str) -> Picture:
    name = PurePosixPath(member.path).name
    picture = Picture(split, class_name, name, f"{archive_name}/{member.path}", member.offset, member.num_bytes)
    return checked_member(picture, member)


def checked_member(picture: Picture, member: Member) -> Picture:
    """Links, devices and paths that lead elsewhere are never unpacked."""
    path = PurePosixPath(member.path)
    if not member.is_regular:
        return picture.without(DAMAGED, "no regular file")
    if ".." in path.parts or path.is_absolute():
        return picture.without(DAMAGED, "its path leads out of the archive")
    if UNWRITABLE.search(member.path) or any(len(part.encode()) > MAX_NAME_BYTES for part in path.parts):
        return picture.without(DAMAGED, "its name cannot be used: control characters, not UTF-8, or too long")
    return picture


def each_name_once(pictures: Iterator[Picture]) -> Iterator[Picture]:
    """A second file of the same name would silently take the place of the first."""
    seen = set()
    for picture in pictures:
        place = (picture.split, picture.class_name, picture.name)
        yield picture.without(DAMAGED, "a second file of this name") if place in seen else picture
        seen.add(place)


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
