"""Small pictures, and archives of the official layouts made of them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import scipy.io
from PIL import Image

from konvoi.images.devkit import LABELS_FILE, META_FILE
from konvoi.images.sets import DEVKIT_ARCHIVE, TRAIN_ARCHIVE, VAL_ARCHIVE

# In this order their labels are 1, 2, 3, 4: not the order of their names.
CLASSES = ["n03888257", "n01440764", "n02102040", "n03028079"]
WORDS = {"n03888257": "parachute, chute", "n01440764": "tench", "n02102040": "English springer", "n03028079": "church"}
TRAIN_PER_CLASS = 20
NUM_VAL = 24
WIDTH, HEIGHT = 40, 24

Files = dict[str, bytes]


def picture(seed: int, format: str = "JPEG", mode: str = "RGB", size: tuple[int, int] = (WIDTH, HEIGHT)) -> bytes:
    """Noise, so that no two pictures are the same."""
    channels = {"RGB": (3,), "L": (), "CMYK": (4,)}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], *channels), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels, mode).save(stream, format)
    return stream.getvalue()


def tar(files: Files | Iterable[tuple[str, bytes]]) -> bytes:
    """A plain tar file in the order given."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files.items() if isinstance(files, dict) else files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def train_files(class_name: str, num_pictures: int = TRAIN_PER_CLASS) -> Files:
    first = 1000 * (1 + sorted(CLASSES).index(class_name))
    return {f"{class_name}_{number}.JPEG": picture(first + number) for number in range(num_pictures)}


def val_files(num_pictures: int = NUM_VAL) -> Files:
    return {f"ILSVRC2012_val_{number:08}.JPEG": picture(number) for number in range(1, num_pictures + 1)}


def val_labels(num_pictures: int = NUM_VAL) -> list[int]:
    """1, 2, 3, 4, 1, 2, ..."""
    return [1 + number % len(CLASSES) for number in range(num_pictures)]


def meta(classes: list[str] = CLASSES) -> bytes:
    """meta.mat: the classes, and above them one that has children and no pictures."""
    names = ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children", "wordnet_height")
    rows = [(number, name, WORDS.get(name, name), "a gloss", 0, [], 0) for number, name in enumerate(classes, start=1)]
    rows.append((len(classes) + 1, "n00001740", "entity", "a gloss", len(classes), list(range(1, 5)), 1))
    synsets = np.zeros((len(rows), 1), [(name, "O") for name in (*names, "num_train_images")])
    for number, row in enumerate(rows):
        synsets[number, 0] = (*row, TRAIN_PER_CLASS)
    stream = io.BytesIO()
    scipy.io.savemat(stream, {"synsets": synsets})
    return stream.getvalue()


def devkit(labels: list[int]) -> Files:
    top = "ILSVRC2012_devkit_t12"
    lines = "".join(f"{label}\n" for label in labels)
    return {f"{top}/readme.txt": b"", f"{top}/data/{META_FILE}": meta(), f"{top}/data/{LABELS_FILE}": lines.encode()}


def write_devkit(folder: Path, labels: list[int]) -> None:
    stream = io.BytesIO(tar(devkit(labels)))
    with tarfile.open(folder / DEVKIT_ARCHIVE, "w:gz") as target, tarfile.open(fileobj=stream) as plain:
        for entry in plain:
            target.addfile(entry, plain.extractfile(entry))


def write_official(
    folder: Path,
    train: dict[str, Files] | None = None,
    val: Files | None = None,
    labels: list[int] | None = None,
) -> Path:
    """The three archives of ImageNet: 4 classes of 20 pictures, 24 validation pictures, unless told otherwise."""
    folder.mkdir(exist_ok=True)
    train = {name: train_files(name) for name in CLASSES} if train is None else train
    val = val_files() if val is None else val
    (folder / TRAIN_ARCHIVE).write_bytes(tar({f"{name}.tar": tar(files) for name, files in train.items()}))
    (folder / VAL_ARCHIVE).write_bytes(tar(val))
    write_devkit(folder, val_labels(len(val)) if labels is None else labels)
    return folder


def write_tree(folder: Path, files: Files) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def class_tree(prefix: str = "", num_pictures: int = 20, first: int = 0) -> Files:
    """prefix/cat/0.jpg, prefix/dog/0.jpg ..."""
    return {
        f"{prefix}{name}/{number}.jpg": picture(first + 10_000 * side + number)
        for side, name in enumerate(("cat", "dog"))
        for number in range(num_pictures)
    }


def table(path: Path) -> list[list[str]]:
    """The rows of a .tsv file, without its header."""
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
