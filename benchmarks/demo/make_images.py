"""Makes the pictures that ship with Konvoi out of Fashion-MNIST: a part of it, evenly over its ten classes.

    python benchmarks/demo/make_images.py src/konvoi/images/embedded/demo-images.u8.xz

The four idx files are those of Debian's package dataset-fashion-mnist, or of the set's own repository (--from).
Of each class the first pictures are taken, in the order of the files (which is random already): for validation
from the official test files, for training from the training files (no two of their 70,000 pictures are the same).
The result is their bytes and nothing else, train before val, class after class.

Bytes per picture on 1,000 of them, 2026-11-16: xz 370, WebP (lossless, a mosaic) 372, xz of differences to the pixel
above 382, PNG (a mosaic) 391, bzip2 400, npz 430, JPEG 2000 (lossless) 498. So: xz, which needs no library to read.
"""

from __future__ import annotations

import argparse
import gzip
import lzma
from pathlib import Path

import numpy as np

from konvoi.images.demo import SIDE_PIXELS, Pixels
from konvoi.images.sets import DEMO_IMAGES, find_images

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
OFFICIAL_NAMES = {"train": "train", "val": "t10k"}
# Measured 2026-11-16: more literal context is worth 0.3 %, alignment (pb) nothing.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]


def read_idx(path: Path) -> Pixels:
    """An idx file of bytes: two zeros, type 8, the number of sides, each side as 4 bytes, then the values."""
    content = gzip.decompress(path.read_bytes())
    if content[:3] != b"\0\0\x08":
        raise SystemExit(f"{path} is no idx file of bytes")
    num_sides = content[3]
    sides = np.frombuffer(content, ">u4", num_sides, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * num_sides).reshape(sides)


def read_split(folder: Path, split: str) -> tuple[Pixels, Pixels]:
    """Pictures [N,H,W] and labels [N] of train or val."""
    name = OFFICIAL_NAMES[split]
    pictures = read_idx(folder / f"{name}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{name}-labels-idx1-ubyte.gz")
    assert pictures.shape == (len(labels), SIDE_PIXELS, SIDE_PIXELS), pictures.shape
    return pictures, labels


def first_of_each_class(pictures: Pixels, labels: Pixels, num_per_class: int) -> bytes:
    """The bytes of the first pictures of class 0, then of class 1 ..."""
    classes = [pictures[labels == class_number][:num_per_class] for class_number in np.unique(labels)]
    assert all(len(chosen) == num_per_class for chosen in classes)
    return np.concatenate(classes).tobytes()


def slice_of(folder: Path) -> bytes:
    """All chosen pictures, uncompressed."""
    known = find_images(DEMO_IMAGES)
    return b"".join(
        first_of_each_class(*read_split(folder, split), num_pictures // known.num_classes)
        for split, num_pictures in known.num_pictures.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="the .u8.xz file to write")
    parser.add_argument("--from", dest="folder", type=Path, default=DEBIAN_FOLDER, help="the folder of the idx files")
    arguments = parser.parse_args()
    arguments.target.write_bytes(lzma.compress(slice_of(arguments.folder), filters=FILTERS))
    print(f"{arguments.target}: {arguments.target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
