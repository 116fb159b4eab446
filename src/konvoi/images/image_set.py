"""A prepared set of pictures: where they lie, their index, and what there is to say about them.

info.json  classes.tsv  train.tsv  train.npy  val.tsv  val.npy  damaged.tsv  mislabelled.tsv
train/<class>/  val/<class>/  (not where a tree was left in its place)
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from konvoi.errors import DataError
from konvoi.images.index import Entries
from konvoi.images.pictures import TRAIN, VAL

INFO_FILE = "info.json"
CLASSES_FILE = "classes.tsv"
IMAGES_FOLDER = "images"
# Tells our info.json from that of others.
KIND = "konvoi images"


class ImageSet:
    """Opens what prepare_images() wrote; reads only what is asked for."""

    def __init__(self, folder: Path, info: dict[str, Any]) -> None:
        self.folder = folder
        self.info = info

    @classmethod
    def open(cls, folder: Path) -> ImageSet:
        """Reads info.json of a prepared folder."""
        info = read_info(folder)
        if info is None:
            raise DataError(f"{folder} is no prepared set of pictures", hint="konvoi data prepare makes one")
        return cls(folder, {**info, "folder": str(folder)})

    @staticmethod
    def is_one(folder: Path) -> bool:
        return read_info(folder) is not None

    @property
    def root(self) -> Path:
        """What the paths of the index start from: the folder itself, or the tree that was left in its place."""
        return Path(self.info["root"]) if self.info["root"] else self.folder

    def entries(self, split: str) -> Entries:
        """The index of train or val."""
        if split not in (TRAIN, VAL):
            raise DataError(f'{self.folder} has no split "{split}"', hint=f"it has {TRAIN} and {VAL}")
        return Entries(self.folder / split)

    def path(self, entries: Entries, number: int) -> Path:
        """Where a picture lies."""
        return self.root / entries.path(number)

    @property
    def classes(self) -> list[str]:
        """The names of the classes by their number."""
        return [name for name, _ in self._classes]

    @property
    def words(self) -> list[str]:
        """What they are called; the name itself where the set has no other word."""
        return [words or name for name, words in self._classes]

    @cached_property
    def _classes(self) -> list[tuple[str, str]]:
        try:
            lines = (self.folder / CLASSES_FILE).read_text(encoding="utf-8").split("\n")
            rows = [line.split("\t") for line in lines[1:-1]]
            return [(row[1], row[2]) for row in rows]
        except (OSError, ValueError, IndexError):
            raise DataError(
                f"{self.folder / CLASSES_FILE} is missing or damaged",
                hint="remove this folder and prepare the set again",
            ) from None


def read_info(folder: Path) -> dict[str, Any] | None:
    """info.json of a prepared set of pictures; nothing where there is none of ours."""
    try:
        info = json.loads((folder / INFO_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return info if isinstance(info, dict) and info.get("kind") == KIND else None


def image_sets(home: Path) -> list[ImageSet]:
    """All prepared sets of pictures under home, by name."""
    folders = sorted(path.parent for path in (home / IMAGES_FOLDER).glob(f"[!.]*/{INFO_FILE}"))
    return [ImageSet.open(folder) for folder in folders if ImageSet.is_one(folder)]
