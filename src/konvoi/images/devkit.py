"""ImageNet's development kit: which class a validation picture shows, and what the classes are called."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from konvoi.errors import DataError
from konvoi.images.archives import read_packed
from konvoi.images.pictures import MISLABELLED, VAL, Picture
from konvoi.images.sets import DEVKIT_ARCHIVE, find_images

META_FILE = "meta.mat"
LABELS_FILE = "ILSVRC2012_validation_ground_truth.txt"
EXTRACTED_FOLDER = "ILSVRC2012_devkit_t12"
# Far above what the real ones need.
MAX_FILE_BYTES = 64 << 20
VALIDATION_NAME = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")


class Unlabelled(Exception):
    """Why a validation picture has no class."""


@dataclass(frozen=True)
class Devkit:
    """Labels of the validation pictures in the order of their numbers, and the classes that they mean."""

    labels: tuple[int, ...]
    class_of_label: dict[int, str]
    words: dict[str, str]

    def class_of(self, name: str) -> str:
        """The class of a validation picture; raises Unlabelled where the kit does not tell."""
        match = VALIDATION_NAME.fullmatch(name)
        if match is None:
            raise Unlabelled("no label: its name is not ILSVRC2012_val_<8 digits>.JPEG")
        number = int(match[1])
        if not 1 <= number <= len(self.labels):
            raise Unlabelled(f"no label: it is number {number}, and there are {len(self.labels):,} labels")
        label = self.labels[number - 1]
        if label not in self.class_of_label:
            raise Unlabelled(f"label {label} is none of the {len(self.class_of_label):,} classes")
        return self.class_of_label[label]


def labelled(picture: Picture, devkit: Devkit) -> Picture:
    """The picture with the class that the development kit gives it."""
    if picture.problem is not None:
        return picture
    try:
        return picture._replace(class_name=devkit.class_of(picture.name))
    except Unlabelled as why:
        return picture.without(MISLABELLED, str(why))


def agreeing(picture: Picture, devkit: Devkit) -> Picture:
    """Where the development kit is at hand too, a validation picture must lie in the folder of its label."""
    if picture.problem is not None or picture.split != VAL:
        return picture
    try:
        class_name = devkit.class_of(Path(picture.name).name)
    except Unlabelled:
        # Renamed, most likely; its folder says what it shows.
        return picture
    if class_name == picture.class_name:
        return picture
    return picture.without(MISLABELLED, f"its label is {class_name}, but it lies in {picture.class_name}")


def check_labels(num_pictures: int, devkit: Devkit, place: Path) -> None:
    """Fewer labels than pictures: then no label can be trusted."""
    if num_pictures > len(devkit.labels):
        raise DataError(
            f"{place} holds {num_pictures:,} pictures, but the development kit only {len(devkit.labels):,} labels",
            hint=f"{DEVKIT_ARCHIVE} and the validation pictures must be of the same year and whole",
        )


def devkit_place(folder: Path) -> Path | None:
    """The kit's archive, or the folder that it was extracted to, where there is one."""
    candidates = (folder / DEVKIT_ARCHIVE, folder / EXTRACTED_FOLDER / "data")
    return next((path for path in candidates if path.exists()), None)


def devkit_files(place: Path) -> list[Path]:
    """All files that the kit's content depends on."""
    return [place / META_FILE, place / LABELS_FILE] if place.is_dir() else [place]


def read_devkit(place: Path) -> Devkit:
    """Reads the archive or the extracted folder."""
    content = _content(place)
    missing = [name for name in (META_FILE, LABELS_FILE) if name not in content]
    if missing:
        raise DataError(f"{place} holds no {' and no '.join(missing)}", hint=_hint())
    class_of_label, words = _classes(content[META_FILE], place)
    return Devkit(_labels(content[LABELS_FILE], place), class_of_label, words)


def _content(place: Path) -> dict[str, bytes]:
    if place.is_dir():
        return {path.name: path.read_bytes() for path in devkit_files(place) if path.is_file()}
    return read_packed(place, (META_FILE, LABELS_FILE), MAX_FILE_BYTES)


def _hint() -> str:
    return f"get {DEVKIT_ARCHIVE} (tasks 1 and 2) again from {find_images('imagenet').source}"


def _labels(content: bytes, place: Path) -> tuple[int, ...]:
    try:
        return tuple(int(line) for line in content.split())
    except ValueError as error:
        raise DataError(f"{place}: {LABELS_FILE} is no list of numbers ({error})", hint=_hint()) from None


def _classes(content: bytes, place: Path) -> tuple[dict[int, str], dict[str, str]]:
    """Class by label, and words by class; only leaves of the tree of classes have pictures of their own."""
    try:
        leaves = [synset for synset in _synsets(content) if int(synset["num_children"]) == 0]
        class_of_label = {int(synset["ILSVRC2012_ID"]): str(synset["WNID"]) for synset in leaves}
        return class_of_label, {str(synset["WNID"]): str(synset["words"]) for synset in leaves}
    except Exception as error:  # a damaged MATLAB file makes scipy raise nearly anything
        raise DataError(f"{place}: {META_FILE} cannot be read ({error})", hint=_hint()) from None


def _synsets(content: bytes) -> list[Any]:
    # Here, since only ImageNet's archives need it.
    import scipy.io  # type: ignore[import-untyped, unused-ignore]

    return list(np.atleast_1d(scipy.io.loadmat(io.BytesIO(content), squeeze_me=True)["synsets"]))
