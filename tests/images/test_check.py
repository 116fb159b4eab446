"""Whole pictures and damaged ones."""

from __future__ import annotations

import hashlib
import io

import pytest
from PIL import Image
from tests.images.make import picture

from konvoi.images.check import DamagedPicture, checksum, look_at

WHOLE = picture(1, size=(100, 60))


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_the_size_is_that_of_the_picture_not_of_the_reduced_one(format: str) -> None:
    assert look_at(picture(1, format, size=(100, 60))) == (100, 60)


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_grey_and_print_colours_are_pictures_too(mode: str) -> None:
    assert look_at(picture(1, mode=mode)) == (40, 24)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b"<html>not found</html>", "not a picture"),
        (bytes(5000), "not a picture"),
        (WHOLE[:100], "."),
        (WHOLE[: len(WHOLE) // 2], "truncated"),
        (WHOLE[:-2], "truncated"),
        (WHOLE[: len(WHOLE) // 2] + bytes(len(WHOLE) // 2), "truncated"),
        (picture(1, "PNG")[:-100], "."),
        (picture(1, "PNG")[:200] + b"\x00\x01" + picture(1, "PNG")[202:], "."),
    ],
    ids=["empty", "a page", "zeros", "a head", "half", "no end mark", "zeros for the rest", "short PNG", "spoilt PNG"],
)
def test_damage_is_named(content: bytes, why: str) -> None:
    with pytest.raises(DamagedPicture, match=why):
        look_at(content)


def test_zeros_after_the_end_of_a_picture_do_no_harm() -> None:
    assert look_at(WHOLE + bytes(2000)) == (100, 60)


def test_a_format_that_needs_an_external_program_is_not_asked() -> None:
    stream = io.BytesIO()
    Image.new("RGB", (10, 10)).save(stream, "EPS")
    with pytest.raises(DamagedPicture, match="not a picture"):
        look_at(stream.getvalue())


def test_a_picture_that_would_fill_the_memory_is_refused() -> None:
    # A header that promises 60,000 x 60,000 pixels: more than twice what Pillow takes without complaint.
    header = b"P6 60000 60000 255\n"
    with pytest.raises(DamagedPicture, match="exceeds limit"):
        look_at(header + bytes(1000))


def test_the_checksum_is_128_bits_of_blake2b() -> None:
    assert checksum(b"konvoi") == hashlib.blake2b(b"konvoi", digest_size=16).hexdigest()
    assert len(checksum(b"")) == 32
