"""Official archives as batches of pictures, which are read where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from konvoi.images.archives import Member, members, readable_members, unpacked
from konvoi.images.devkit import Devkit, check_labels, labelled
from konvoi.images.pictures import (
    DAMAGED,
    MISLABELLED,
    TRAIN,
    UNWRITABLE,
    VAL,
    Batch,
    Picture,
    in_batches,
    is_hidden,
    looks_like_a_picture,
    shown,
)
from konvoi.stages import Report

# What file systems take.
MAX_NAME_BYTES = 255


def tar_of_tars(archive: Path, folder: Path, report: Report) -> Iterator[Batch]:
    """ILSVRC2012_img_train.tar: a tar file per class."""
    report(f"indexing {archive.name}")
    strays = []
    for member in sorted(members(archive)):
        path = PurePosixPath(member.path)
        if is_hidden(path.name):
            continue
        if path.suffix == ".tar" and member.is_regular and not UNWRITABLE.search(path.name):
            yield ClassTar(archive.parent, archive, member, TRAIN, path.stem)
        else:
            picture = Picture(TRAIN, "", path.name, f"{archive.name}/{path}", 0, 0)
            strays.append(picture.without(MISLABELLED, "it is no tar file of a class"))
    yield from in_batches(archive.parent, iter(strays), archive)


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
        pictures = list(_each_name_once(picture for picture in found if not is_hidden(picture.name)))
        if why:
            lost = Picture(self.split, self.class_name, "", name, start, 0)
            pictures.append(lost.without(DAMAGED, f"cut short or damaged: {shown(why)}"))
        return pictures


def flat_tar(archive: Path, devkit: Devkit, folder: Path, report: Report) -> Iterator[Batch]:
    """ILSVRC2012_img_val.tar: pictures side by side, whose classes are in the development kit."""
    report(f"indexing {archive.name}")
    found = [_of_member(member, VAL, "", archive.name) for member in sorted(members(archive))]
    pictures = [labelled(picture, devkit) for picture in found if not is_hidden(picture.name)]
    check_labels(len(pictures), devkit, archive)
    yield from in_batches(archive.parent, _each_name_once(iter(pictures)), archive)


def tar_of_classes(archive: Path, folder: Path, report: Report) -> Iterator[Batch]:
    """imagenette2-160.tgz: <top>/train/<class>/ and <top>/val/<class>/."""
    plain = unpacked(archive, folder, report)
    report(f"indexing {archive.name}")
    found = (_in_class_folder(member, archive) for member in sorted(members(plain, name=str(archive))))
    pictures = (picture for picture in found if picture is not None)
    yield from in_batches(archive.parent, _each_name_once(pictures), plain)


def _in_class_folder(member: Member, archive: Path) -> Picture | None:
    """A picture by the last three parts of its path; nothing for what is no picture of a split."""
    *_, split, class_name, name = ("", "", "", *PurePosixPath(member.path).parts)
    picture = Picture(split, class_name, name, f"{archive.name}/{member.path}", member.offset, member.num_bytes)
    if is_hidden(name):
        return None
    if split in (TRAIN, VAL):
        return _checked(picture, member)
    return picture.without(MISLABELLED, "it lies in no class folder") if looks_like_a_picture(name) else None


def _of_member(member: Member, split: str, class_name: str, archive_name: str) -> Picture:
    name = PurePosixPath(member.path).name
    picture = Picture(split, class_name, name, f"{archive_name}/{member.path}", member.offset, member.num_bytes)
    return _checked(picture, member)


def _checked(picture: Picture, member: Member) -> Picture:
    """Links, devices and paths that lead elsewhere are never unpacked."""
    path = PurePosixPath(member.path)
    if not member.is_regular:
        return picture.without(DAMAGED, "no regular file")
    if ".." in path.parts or path.is_absolute():
        return picture.without(DAMAGED, "its path leads out of the archive")
    if UNWRITABLE.search(member.path) or any(len(part.encode()) > MAX_NAME_BYTES for part in path.parts):
        return picture.without(DAMAGED, "its name cannot be used: control characters, not UTF-8, or too long")
    return picture


def _each_name_once(pictures: Iterator[Picture]) -> Iterator[Picture]:
    """A second file of the same name would silently take the place of the first."""
    seen = set()
    for picture in pictures:
        place = (picture.split, picture.class_name, picture.name)
        yield picture.without(DAMAGED, "a second file of this name") if place in seen else picture
        seen.add(place)
