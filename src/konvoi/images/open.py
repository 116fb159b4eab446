"""The pictures that a recipe names: prepared already, or made ready now where that needs nobody's help."""

from __future__ import annotations

from pathlib import Path

from konvoi.errors import DataError
from konvoi.images.demo import make_demo_images
from konvoi.images.image_set import ImageSet, image_sets
from konvoi.images.prepare import prepare_images
from konvoi.images.sets import DEMO_IMAGES
from konvoi.stages import Report, silent


def open_images(name: str, folder: Path | None, home: Path, report: Report = silent) -> ImageSet:
    """The set of that name: in the folder given, else the newest prepared one."""
    # First, so that those of an earlier version of the package are not taken for them.
    if name == DEMO_IMAGES and folder is None:
        return make_demo_images(home, report)
    if found := find_images_of(name, folder, home):
        return found
    if folder is not None:
        return prepare_images(name, from_folder=folder, to=None, home=home, report=report)
    raise DataError(f"{name} is not prepared yet", hint=f"konvoi data prepare {name} --from DIR")


def find_images_of(name: str, folder: Path | None, home: Path) -> ImageSet | None:
    """The same, where it is there; nothing is made."""
    if folder is not None:
        return ImageSet.open(folder) if ImageSet.is_one(folder) else None
    found = [one for one in image_sets(home) if one.info["set"] == name]
    return max(found, key=lambda one: str(one.info["made_at"]), default=None)
