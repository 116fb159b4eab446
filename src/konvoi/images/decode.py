"""From the bytes of a picture to the pixels that the model sees: upright, RGB, cut and resized in one go."""

from __future__ import annotations

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from konvoi.images.augment import Box, CentreView, Looker
from konvoi.images.check import FORMATS, DamagedPicture

Pixels = NDArray[np.uint8]
WHITE = (255, 255, 255, 255)


class Turn(NamedTuple):
    """How a picture lies in its file: first its sides change places, then it is mirrored."""

    is_swapped: bool
    from_right: bool
    from_bottom: bool

    def stored(self, box: Box, width: int, height: int) -> Box:
        """Where a part of the upright picture lies in the file's, which has this width and height."""
        left, top, right, bottom = box
        if self.is_swapped:
            left, top, right, bottom = top, left, bottom, right
        if self.from_right:
            left, right = width - right, width - left
        if self.from_bottom:
            top, bottom = height - bottom, height - top
        return Box(left, top, right, bottom)

    def upright(self, pixels: Pixels) -> Pixels:
        pixels = pixels[:, ::-1] if self.from_right else pixels
        pixels = pixels[::-1] if self.from_bottom else pixels
        return pixels.transpose(1, 0, 2) if self.is_swapped else pixels


UPRIGHT = Turn(False, False, False)
# By the number that EXIF has for it.
TURNS = {
    1: UPRIGHT,
    2: Turn(False, True, False),
    3: Turn(False, True, True),
    4: Turn(False, False, True),
    5: Turn(True, False, False),
    6: Turn(True, False, True),
    7: Turn(True, True, True),
    8: Turn(True, True, False),
}


def load_picture(source: Path | bytes, *, size: int, resize: int) -> Pixels:
    """A file, or its bytes, as evaluation sees it: [size, size, RGB]; raises DamagedPicture."""
    return decoded(source if isinstance(source, bytes) else read_picture(source), CentreView(size, resize))


def read_picture(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DamagedPicture(f"cannot be read: {error.strerror}") from None


def decoded(content: bytes, looker: Looker) -> Pixels:
    """The pixels that are shown of a picture; raises DamagedPicture whatever a decoder stumbles over."""
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            return _decoded(picture, looker)
    except UnidentifiedImageError:
        raise DamagedPicture(f"not a picture ({', '.join(FORMATS)})") from None
    except Exception as error:  # whatever a decoder raises at bytes that may be anything
        raise DamagedPicture(str(error) or type(error).__name__) from None


def _decoded(picture: Image.Image, looker: Looker) -> Pixels:
    turn = UPRIGHT
    width, height = picture.size
    if picture.format == "JPEG":
        turn = _turn(picture)
    else:
        picture = ImageOps.exif_transpose(picture)
        width, height = picture.size
    look = looker(height, width) if turn.is_swapped else looker(width, height)
    box = turn.stored(look.box, width, height)
    if picture.format == "JPEG":
        picture.draft(None, _enough(box, look.size, width, height))
    pixels = np.asarray(_resized(_rgb(picture), box, width, height, look.size))
    pixels = turn.upright(pixels)
    return pixels[:, ::-1] if look.mirrored else pixels


def _turn(picture: Image.Image) -> Turn:
    """Pictures with odd metadata are shown as they lie."""
    if "exif" not in picture.info:
        return UPRIGHT
    try:
        return TURNS.get(picture.getexif().get(ExifTags.Base.Orientation, 1), UPRIGHT)
    except Exception:  # whatever the parser raises at bytes that may be anything
        return UPRIGHT


def _enough(box: Box, size: int, width: int, height: int) -> tuple[int, int]:
    """The least size of the whole picture in which the box still has as many pixels as are shown."""
    shrink = max(1.0, min(box.right - box.left, box.bottom - box.top) / size)
    return int(width / shrink), int(height / shrink)


def _resized(picture: Image.Image, box: Box, width: int, height: int, size: int) -> Image.Image:
    """The box of the whole picture, which may by now be decoded at a smaller scale; anti-aliased."""
    across, down = picture.width / width, picture.height / height
    scaled = (box.left * across, box.top * down, box.right * across, box.bottom * down)
    return picture.resize((size, size), Image.Resampling.BILINEAR, box=scaled)


def _rgb(picture: Image.Image) -> Image.Image:
    """As it would look on white paper."""
    if picture.mode == "RGB":
        return picture
    if picture.mode.startswith("I"):
        return _from_16_bits(picture)
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, WHITE), picture).convert("RGB")
    return picture.convert("RGB")


def _from_16_bits(picture: Image.Image) -> Image.Image:
    """The upper 8 bits. Pillow would cut all above 255 off, and leave a white picture."""
    values = np.asarray(picture).astype(np.int32) >> 8
    return Image.fromarray(values.clip(0, 255).astype(np.uint8)).convert("RGB")
