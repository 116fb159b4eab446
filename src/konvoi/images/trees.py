"""Trees of class folders: which files there are, in an order that does not depend on the file system."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from konvoi.errors import DataError
from konvoi.images.devkit import Devkit, agreeing, check_labels, labelled
from konvoi.images.pictures import (
    DAMAGED,
    MISLABELLED,
    TRAIN,
    UNWRITABLE,
    Picture,
    is_hidden,
    looks_like_a_picture,
    shown,
)

VAL_NAMES = ("val", "valid", "validation", "test")


class Found(NamedTuple):
    """A file of a tree: its picture, and when it was changed last."""

    picture: Picture
    changed_ns: int


# All files of one split of a tree; asked twice, once to know the tree and once to look at the pictures.
Listing = Callable[[], Iterator[Found]]


def class_folders(root: Path, folder: Path, split: str, devkit: Devkit | None = None) -> Iterator[Found]:
    """The files of folder/<class>/ for every class, those deeper down included."""
    for entry in _entries(folder):
        if entry.is_dir():
            _check_class_name(entry)
            yield from _files(root, Path(entry.path), split, entry.name, devkit)
        elif looks_like_a_picture(entry.name):
            yield _stray(root, entry, split)


def flat_folder(root: Path, folder: Path, split: str, devkit: Devkit) -> Iterator[Found]:
    """Validation pictures side by side, whose classes are in the development kit."""
    num_pictures = 0
    for found in _files(root, folder, split, "", None):
        num_pictures += 1
        yield found._replace(picture=labelled(found.picture, devkit))
    check_labels(num_pictures, devkit, folder)


def has_class_folders(folder: Path) -> bool:
    return folder.is_dir() and any(entry.is_dir() for entry in _entries(folder))


def tree_root(folder: Path) -> Path:
    """The folder itself, or the only folder in it where that one holds train/."""
    if (folder / TRAIN).is_dir():
        return folder
    inner = [Path(entry.path) for entry in _entries(folder) if entry.is_dir()]
    holding = [path for path in inner if (path / TRAIN).is_dir()]
    return holding[0] if len(holding) == 1 else folder


def val_folder(root: Path) -> Path | None:
    """val/, or what others call it."""
    return next((root / name for name in VAL_NAMES if has_class_folders(root / name)), None)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if not is_hidden(entry.name)), key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(
            f"cannot read the folder {folder}: {error.strerror}", hint="name a folder that you may read"
        ) from None


def _check_class_name(entry: os.DirEntry[str]) -> None:
    if UNWRITABLE.search(entry.name):
        raise DataError(
            f"{shown(entry.path)}: the name of a class holds a control character or is not UTF-8",
            hint="rename this folder",
        )


def _files(root: Path, folder: Path, split: str, class_name: str, devkit: Devkit | None) -> Iterator[Found]:
    """All files below one folder, which is that of a class."""
    prefix_length = len(str(folder)) + 1
    origin_length = len(str(root)) + 1
    for entry in _below(folder):
        name, origin = entry.path[prefix_length:], entry.path[origin_length:]
        found = _found(entry, Picture(split, class_name, name, origin, 0, 0))
        yield found if devkit is None else found._replace(picture=agreeing(found.picture, devkit))


def _below(folder: Path) -> Iterator[os.DirEntry[str]]:
    for entry in _entries(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _below(Path(entry.path))
        else:
            yield entry


def _found(entry: os.DirEntry[str], picture: Picture) -> Found:
    """Says what is known without opening: a pipe, for one, must never be opened."""
    try:
        status = entry.stat()
    except OSError as error:
        return Found(picture.without(DAMAGED, f"cannot be read: {error.strerror}"), 0)
    picture = picture._replace(num_bytes=status.st_size)
    if not stat.S_ISREG(status.st_mode):
        picture = picture.without(DAMAGED, "no regular file")
    elif UNWRITABLE.search(picture.origin):
        picture = picture.without(DAMAGED, "its name holds a control character or is not UTF-8")
    return Found(picture, status.st_mtime_ns)


def _stray(root: Path, entry: os.DirEntry[str], split: str) -> Found:
    picture = Picture(split, "", entry.name, str(Path(entry.path).relative_to(root)), 0, 0)
    return _found(entry, picture.without(MISLABELLED, "it lies in no class folder"))
