"""What a folder holds of a set: official archives, an extracted tree, or what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from konvoi.errors import DataError
from konvoi.images.archives import PACKED_SUFFIXES
from konvoi.images.devkit import Devkit, devkit_files, devkit_place, read_devkit
from konvoi.images.pictures import TRAIN, VAL, Batch, in_batches, is_hidden
from konvoi.images.sets import (
    DEVKIT_ARCHIVE,
    IMAGENET,
    IMAGENETTE,
    TRAIN_ARCHIVE,
    VAL_ARCHIVE,
    KnownImages,
)
from konvoi.images.tar_batches import flat_tar, tar_of_classes, tar_of_tars
from konvoi.images.trees import (
    Listing,
    class_folders,
    flat_folder,
    has_class_folders,
    tree_root,
    val_folder,
)
from konvoi.stages import Report

# Given the folder where a packed archive may be unpacked.
MakeBatches = Callable[[Path, Report], Iterator[Batch]]


@dataclass
class Inputs:
    """The pictures of a set, as batches in an order that never changes, and what they depend on."""

    root: Path
    """The tree, or the folder that holds the archives."""
    trees: list[Listing] = field(default_factory=list)
    archives: list[Path] = field(default_factory=list)
    from_archives: list[MakeBatches] = field(default_factory=list)
    other_files: list[Path] = field(default_factory=list)
    words: dict[str, str] = field(default_factory=dict)
    split_off: bool = False
    """Whether val is still to be taken from train."""
    left_out: list[str] = field(default_factory=list)
    """Folders that belong to no split."""

    @property
    def files(self) -> list[Path]:
        """Archives and labels."""
        return [*self.archives, *self.other_files]

    def archive_batches(self, folder: Path, report: Report) -> list[Batch]:
        """All at once, so that a spoilt archive is found before the long work."""
        return [batch for make_batches in self.from_archives for batch in make_batches(folder, report)]

    def tree_batches(self) -> Iterator[Batch]:
        """One by one: a list of all files of ImageNet would fill the memory."""
        for tree in self.trees:
            yield from in_batches(self.root, (found.picture for found in tree()))


def find_inputs(known: KnownImages, folder: Path) -> Inputs:
    """What the folder holds of this set; all that is missing is named at once."""
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise DataError(f"{folder} {problem}", hint="--from names the folder that holds the pictures or archives")
    if known.name == IMAGENET:
        return _imagenet(known, folder)
    if known.name == IMAGENETTE:
        return _imagenette(known, folder)
    return _image_folder(known, folder)


def _imagenet(known: KnownImages, folder: Path) -> Inputs:
    inputs = Inputs(tree_root(folder))
    place = devkit_place(folder)
    devkit = read_devkit(place) if place is not None else None
    if devkit is not None and place is not None:
        inputs.words = devkit.words
        inputs.other_files = devkit_files(place)
    missing = [*_imagenet_train(inputs, folder), *_imagenet_val(inputs, folder, devkit)]
    if missing:
        raise DataError(
            f"{folder} lacks {', '.join(missing)}",
            hint=f"get them from {known.source}, or name a folder with train/<class>/ and val/<class>/",
        )
    return inputs


def _imagenet_train(inputs: Inputs, folder: Path) -> Iterator[str]:
    """Adds the training pictures; yields the archive that would have given them."""
    archive, tree = folder / TRAIN_ARCHIVE, inputs.root / TRAIN
    if archive.is_file():
        inputs.archives.append(archive)
        inputs.from_archives.append(partial(tar_of_tars, archive))
    elif has_class_folders(tree):
        inputs.trees.append(partial(class_folders, inputs.root, tree, TRAIN))
    else:
        yield TRAIN_ARCHIVE


def _imagenet_val(inputs: Inputs, folder: Path, devkit: Devkit | None) -> Iterator[str]:
    """Adds the validation pictures; yields the archives that would have given them and their labels."""
    archive, tree = folder / VAL_ARCHIVE, inputs.root / VAL
    is_flat = tree.is_dir() and any(tree.iterdir())
    if not archive.is_file() and has_class_folders(tree):
        inputs.trees.append(partial(class_folders, inputs.root, tree, VAL, devkit))
        return
    if not archive.is_file() and not is_flat:
        yield VAL_ARCHIVE
    if devkit is None:
        yield f"{DEVKIT_ARCHIVE} (the labels of the validation pictures)"
    elif archive.is_file():
        inputs.archives.append(archive)
        inputs.from_archives.append(partial(flat_tar, archive, devkit))
    else:
        inputs.trees.append(partial(flat_folder, inputs.root, tree, VAL, devkit))


def _imagenette(known: KnownImages, folder: Path) -> Inputs:
    suffixes = (".tar", *PACKED_SUFFIXES)
    archives = sorted(path for path in folder.glob("imagenette*") if path.name.endswith(suffixes) and path.is_file())
    if len(archives) > 1:
        names = ", ".join(path.name for path in archives)
        raise DataError(f"{folder} holds several archives: {names}", hint="leave only one of them in this folder")
    inputs = Inputs(tree_root(folder), words=known.words)
    if archives:
        inputs.archives.append(archives[0])
        inputs.from_archives.append(partial(tar_of_classes, archives[0]))
        return inputs
    val = val_folder(inputs.root)
    if not has_class_folders(inputs.root / TRAIN) or val is None:
        raise DataError(
            f"{folder} holds neither an archive imagenette2*.tgz (or .tar) nor train/<class>/ and val/<class>/",
            hint=f"get {known.source}",
        )
    _add_tree(inputs, val)
    return inputs


def _image_folder(known: KnownImages, folder: Path) -> Inputs:
    inputs = Inputs(tree_root(folder))
    train = inputs.root / TRAIN
    if has_class_folders(train):
        _add_tree(inputs, val_folder(inputs.root))
    elif has_class_folders(folder) and not train.exists():
        inputs.trees.append(partial(class_folders, folder, folder, ""))
        inputs.split_off = True
    else:
        raise DataError(f"{folder} holds no folders of classes", hint=f"expected are {known.source}")
    return inputs


def _add_tree(inputs: Inputs, val: Path | None) -> None:
    """train/ and val/; without val/, a part of train/ becomes it."""
    train = inputs.root / TRAIN
    inputs.split_off = val is None
    inputs.trees.append(partial(class_folders, inputs.root, train, "" if val is None else TRAIN))
    if val is not None:
        inputs.trees.append(partial(class_folders, inputs.root, val, VAL))
    inputs.left_out = sorted(path.name for path in inputs.root.iterdir() if _is_left_out(path, {train, val}))


def _is_left_out(path: Path, used: set[Path | None]) -> bool:
    return path not in used and not is_hidden(path.name) and has_class_folders(path)
