"""Is this a whole picture? Looks at its bytes and says its size, or what is wrong with it."""

from __future__ import annotations

import hashlib
import io
import warnings
from typing import NamedTuple

from PIL import Image, UnidentifiedImageError

# Others are not asked: Pillow would start an external program for some of them.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
# Bounds the memory of a process; a file that is larger is no picture to train on.
MAX_PICTURE_BYTES = 256 << 20
CHECKSUM_BYTES = 16
# Decoders take zeros for grey pixels, but a file that ends in a block of them was reserved and never filled.
BLOCK_BYTES = 512
JPEG_END = b"\xff\xd9"


class Facts(NamedTuple):
    """What a look at a whole picture tells."""

    width: int
    height: int


class DamagedPicture(Exception):
    """Why these bytes are not a whole picture."""


def look_at(content: bytes) -> Facts:
    """Decodes the whole picture once; raises DamagedPicture where that is not possible.

    JPEG is decoded at an eighth of its size and in grey: every coded byte is still read, so a cut is found, while
    most of the arithmetic falls away. Bytes that changed in the middle often decode to something and stay unnoticed.
    """
    if not content:
        raise DamagedPicture("empty")
    try:
        # Odd metadata makes Pillow warn; the pixels are what matters.
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            facts = Facts(*picture.size)
            picture.draft("L", (1, 1))
            picture.load()
            if picture.format == "JPEG" and _ends_in_zeros(content):
                raise DamagedPicture("truncated: it ends in zeros")
    except DamagedPicture:
        raise
    except UnidentifiedImageError:
        raise DamagedPicture(f"not a picture ({', '.join(FORMATS)})") from None
    except Exception as error:  # whatever a decoder raises at bytes that may be anything
        raise DamagedPicture(str(error) or type(error).__name__) from None
    return facts


def _ends_in_zeros(content: bytes) -> bool:
    """A block of zeros at the end, and no end of the picture before it."""
    filled = content.rstrip(b"\0")
    return len(content) - len(filled) >= BLOCK_BYTES and not filled.endswith(JPEG_END)


def checksum(content: bytes) -> str:
    """BLAKE2b of 128 bits, 32 hex digits."""
    return hashlib.blake2b(content, digest_size=CHECKSUM_BYTES).hexdigest()
