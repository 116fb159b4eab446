"""Official archives as batches of pictures, which are read where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path, PurePosixPath

from konvoi.errors import DataError
from konvoi.images.archives import Member, members, unpacked
from konvoi.images.devkit import Devkit
from konvoi.images.pictures import (
    MISLABELLED,
    TRAIN,
    UNWRITABLE,
    VAL,
    Batch,
    ClassTar,
    Listed,
    Picture,
    checked_member,
    each_name_once,
    is_hidden,
    looks_like_a_picture,
)
from konvoi.images.sets import DEVKIT_ARCHIVE
from konvoi.images.trees import labelled
from konvoi.stages import Report

BATCH_PICTURES = 500


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


def flat_tar(archive: Path, devkit: Devkit, folder: Path, report: Report) -> Iterator[Batch]:
    """ILSVRC2012_img_val.tar: pictures side by side, whose classes are in the development kit."""
    report(f"indexing {archive.name}")
    found = [_side_by_side(member, archive) for member in sorted(members(archive))]
    pictures = [labelled(picture, devkit) for picture in found if not is_hidden(picture.name)]
    check_labels(len(pictures), devkit, archive)
    yield from in_batches(archive.parent, each_name_once(iter(pictures)), archive)


def _side_by_side(member: Member, archive: Path) -> Picture:
    name = PurePosixPath(member.path).name
    picture = Picture(VAL, "", name, f"{archive.name}/{member.path}", member.offset, member.num_bytes)
    return checked_member(picture, member)


def check_labels(num_pictures: int, devkit: Devkit, place: Path) -> None:
    """Fewer labels than pictures: then no label can be trusted."""
    if num_pictures > len(devkit.labels):
        raise DataError(
            f"{place} holds {num_pictures:,} pictures, but the development kit only {len(devkit.labels):,} labels",
            hint=f"{DEVKIT_ARCHIVE} and the validation pictures must be of the same year and whole",
        )


def tar_of_classes(archive: Path, folder: Path, report: Report) -> Iterator[Batch]:
    """imagenette2-160.tgz: <top>/train/<class>/ and <top>/val/<class>/."""
    plain = unpacked(archive, folder, report)
    report(f"indexing {archive.name}")
    found = (_in_class_folder(member, archive) for member in sorted(members(plain, name=str(archive))))
    pictures = (picture for picture in found if picture is not None)
    yield from in_batches(archive.parent, each_name_once(pictures), plain)


def _in_class_folder(member: Member, archive: Path) -> Picture | None:
    """A picture by the last three parts of its path; nothing for what is no picture of a split."""
    *_, split, class_name, name = ("", "", "", *PurePosixPath(member.path).parts)
    picture = Picture(split, class_name, name, f"{archive.name}/{member.path}", member.offset, member.num_bytes)
    if is_hidden(name):
        return None
    if split in (TRAIN, VAL):
        return checked_member(picture, member)
    return picture.without(MISLABELLED, "it lies in no class folder") if looks_like_a_picture(name) else None


def in_batches(root: Path, pictures: Iterator[Picture], archive: Path | None = None) -> Iterator[Batch]:
    """As many pictures at a time as one process looks at in one go."""
    while batch := tuple(islice(pictures, BATCH_PICTURES)):
        yield Listed(root, batch, archive)
