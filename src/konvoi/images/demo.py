"""The pictures inside the package: unpacked once into class folders with an index, as any other set."""

from __future__ import annotations

import io
import lzma
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from konvoi.errors import DataError
from konvoi.images.image_set import ImageSet
from konvoi.images.inputs import Inputs
from konvoi.images.pictures import TRAIN, VAL, Batch, Picture, in_batches
from konvoi.images.prepare import prepare_inputs
from konvoi.images.sets import DEMO_IMAGES, find_images
from konvoi.stages import Report, silent

EMBEDDED_FILE = Path(__file__).parent / "embedded" / f"{DEMO_IMAGES}.u8.xz"
SIDE_PIXELS = 28

# Legend: C classes, N pictures of a class, H height, W width.
Pixels = npt.NDArray[np.uint8]


def make_demo_images(home: Path, report: Report = silent, to: Path | None = None) -> ImageSet:
    """The embedded pictures as a prepared set in `to`, or else under home; made now unless it is there already."""
    known = find_images(DEMO_IMAGES)
    inputs = Inputs(
        EMBEDDED_FILE.parent, archives=[EMBEDDED_FILE], from_archives=[_unpacked_batches], words=known.words
    )
    # One process: others would take longer to start than the work takes.
    return prepare_inputs(known, inputs, to=to, home=home, report=report, num_processes=1)


def embedded_pixels() -> dict[str, Pixels]:
    """The pictures of both splits, each [C,N,H,W]; the classes are in the order of sets.py."""
    known = find_images(DEMO_IMAGES)
    num_train, num_val = known.num_pictures[TRAIN], known.num_pictures[VAL]
    try:
        content = np.frombuffer(lzma.decompress(EMBEDDED_FILE.read_bytes()), np.uint8)
        pixels = content.reshape(num_train + num_val, SIDE_PIXELS, SIDE_PIXELS)
    except (lzma.LZMAError, ValueError) as error:
        raise DataError(f"{EMBEDDED_FILE} is damaged: {error}", hint="install Konvoi again") from None
    splits = {TRAIN: pixels[:num_train], VAL: pixels[num_train:]}
    return {split: part.reshape(known.num_classes, -1, SIDE_PIXELS, SIDE_PIXELS) for split, part in splits.items()}


def _unpacked_batches(folder: Path, report: Report) -> Iterator[Batch]:
    """All pictures as PNG, one after another in one hidden file: from there they are put in place like a tar's."""
    report(f"unpacking {EMBEDDED_FILE.name}")
    plain = folder / ".unpacked.png"
    pictures: list[Picture] = []
    with plain.open("wb") as stream:
        for split, class_name, name, content in _files():
            origin = f"{EMBEDDED_FILE.name}/{split}/{class_name}/{name}"
            pictures.append(Picture(split, class_name, name, origin, stream.tell(), len(content)))
            stream.write(content)
    yield from in_batches(EMBEDDED_FILE.parent, iter(pictures), plain)


def _files() -> Iterator[tuple[str, str, str, bytes]]:
    """Split, class, name and content of every PNG file."""
    for split, pixels_CNHW in embedded_pixels().items():
        for class_name, pixels_NHW in zip(find_images(DEMO_IMAGES).words, pixels_CNHW, strict=True):
            for number, pixels_HW in enumerate(pixels_NHW):
                yield split, class_name, f"{number:04}.png", _png(pixels_HW)


def _png(pixels_HW: Pixels) -> bytes:
    """Not compressed: a file takes a whole block anyway, and so its bytes do not depend on zlib's version."""
    stream = io.BytesIO()
    Image.fromarray(pixels_HW).save(stream, "PNG", compress_level=0)
    return stream.getvalue()
