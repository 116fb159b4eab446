"""From the bytes of a picture to the pixels that the model sees: upright, RGB, cut and resized in one go."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from konvoi.image_input import fast_jpeg
from konvoi.image_input.augment import Box, CentreView, Look, Looker, Pixels
from konvoi.images.check import FORMATS, DamagedPicture

WHITE = (255, 255, 255, 255)
EXIF_MARK = b"Exif\0\0"
# It stands in one of the first segments, and none is longer.
EXIF_WITHIN_BYTES = 1 << 17
# Decoding at a half, quarter or eighth of the size shows in the result unless twice the pixels are left for the resize.
EXACT_GAP = 2


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
        # Odd metadata makes Pillow warn; the pixels are what matters.
        with warnings.catch_warnings(action="ignore"):
            pixels = _decoded_fast(content, looker)
            return _decoded_with_pillow(content, looker) if pixels is None else pixels
    except UnidentifiedImageError:
        raise DamagedPicture(f"not a picture ({', '.join(FORMATS)})") from None
    except Exception as error:  # whatever a decoder raises at bytes that may be anything
        raise DamagedPicture(str(error) or type(error).__name__) from None


def _decoded_fast(content: bytes, looker: Looker) -> Pixels | None:
    """Nothing where only Pillow will do."""
    size = fast_jpeg.size_of(content)
    if size is None:
        return None
    turn = _turn_in(content)
    look, box = _placed(looker, turn, *size)
    pixels = None if look.is_exact else fast_jpeg.shown(content, box, *size, look.size)
    return None if pixels is None else _finished(pixels, turn, look)


def _decoded_with_pillow(content: bytes, looker: Looker) -> Pixels:
    with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
        if picture.format != "JPEG":
            upright = _rgb(ImageOps.exif_transpose(picture))
            look, box = _placed(looker, UPRIGHT, *upright.size)
            return _finished(_resized(upright, box, *upright.size, look.size), UPRIGHT, look)
        width, height = picture.size
        turn = _turn(picture)
        look, box = _placed(looker, turn, width, height)
        picture.draft(None, _enough(box, look, width, height))
        return _finished(_resized(_rgb(picture), box, width, height, look.size), turn, look)


def _placed(looker: Looker, turn: Turn, width: int, height: int) -> tuple[Look, Box]:
    """What to show of the upright picture, and where that lies in the file's, which has this width and height."""
    look = looker(height, width) if turn.is_swapped else looker(width, height)
    return look, turn.stored(look.box, width, height)


def _finished(pixels: Pixels, turn: Turn, look: Look) -> Pixels:
    pixels = turn.upright(pixels)
    return pixels[:, ::-1] if look.is_mirrored else pixels


def _turn_in(content: bytes) -> Turn:
    """The turn of a JPEG picture, which Pillow is asked for only where the file has something to say about it."""
    if content.find(EXIF_MARK, 0, EXIF_WITHIN_BYTES) < 0:
        return UPRIGHT
    with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
        return _turn(picture)


def _turn(picture: Image.Image) -> Turn:
    """Pictures with odd metadata are shown as they lie."""
    if "exif" not in picture.info:
        return UPRIGHT
    try:
        return TURNS.get(picture.getexif().get(ExifTags.Base.Orientation, 1), UPRIGHT)
    except Exception:  # whatever the parser raises at bytes that may be anything
        return UPRIGHT


def _enough(box: Box, look: Look, width: int, height: int) -> tuple[int, int]:
    """The least size of the whole picture in which the box still has the pixels that are needed."""
    needed = look.size * (EXACT_GAP if look.is_exact else 1)
    shrink = max(1.0, min(box.right - box.left, box.bottom - box.top) / needed)
    return int(width / shrink), int(height / shrink)


def _resized(picture: Image.Image, box: Box, width: int, height: int, size: int) -> Pixels:
    """The box of the whole picture, which may by now be decoded at a smaller scale; anti-aliased."""
    across, down = picture.width / width, picture.height / height
    scaled = (box.left * across, box.top * down, box.right * across, box.bottom * down)
    return np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR, box=scaled))


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
