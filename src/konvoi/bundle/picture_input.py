"""From the bytes of anybody's picture to the pixels that a model sees; what would fill the memory is never decoded."""

from __future__ import annotations

import io
import warnings

from PIL import Image

from konvoi.errors import DataError
from konvoi.image_input.augment import Pixels
from konvoi.image_input.decode import load_picture
from konvoi.images.check import FORMATS, DamagedPicture

MAX_BYTES = 64 << 20
# Cameras of phones stay below it. It bounds the memory: 200 MB as RGB, a few times that where it is transparent.
MAX_PIXELS = 1 << 26
_SMALLER = "make it smaller: a model sees a few hundred pixels of each side"


def load_any_picture(content: bytes, *, size: int, resize: int) -> Pixels:
    """As evaluation sees it: [size, size, RGB]. Raises DataError for what is no whole picture, or a huge one."""
    if len(content) > MAX_BYTES:
        raise DataError(f"it has {len(content) / 1e6:,.0f} MB, more than {MAX_BYTES / 1e6:,.0f} MB", hint=_SMALLER)
    if _num_pixels(content) > MAX_PIXELS:
        raise DataError(f"it has more than {MAX_PIXELS / 1e6:.0f} million pixels", hint=_SMALLER)
    try:
        return load_picture(content, size=size, resize=resize)
    except DamagedPicture as error:
        raise DataError(f"it can't be read as a picture: {error}", hint="give a JPEG or PNG file") from None


def _num_pixels(content: bytes) -> float:
    """As the head of the file has it; 0 where it has no head: decoding says what is wrong."""
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            return picture.width * picture.height
    except Image.DecompressionBombError:
        return float("inf")
    except Exception:  # whatever a decoder raises at bytes that may be anything
        return 0
