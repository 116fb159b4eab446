"""Any picture becomes upright RGB; what is no whole picture is said to be damaged."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.Image import Transpose
from tests.shared_data import shared_data

from konvoi.image_input import fast_jpeg
from konvoi.image_input.augment import Box, Look, Pixels
from konvoi.image_input.decode import decoded, load_picture, read_picture
from konvoi.images.check import DamagedPicture

RED, GREEN, BLUE, YELLOW = (220, 30, 30), (30, 200, 30), (30, 30, 220), (220, 220, 40)
SIZE = 32
# What turns an upright picture into one that has to be turned by this EXIF number to be upright.
UNDONE = {
    1: [],
    2: [Transpose.FLIP_LEFT_RIGHT],
    3: [Transpose.ROTATE_180],
    4: [Transpose.FLIP_TOP_BOTTOM],
    5: [Transpose.TRANSPOSE],
    6: [Transpose.ROTATE_90],
    7: [Transpose.TRANSVERSE],
    8: [Transpose.ROTATE_270],
}


class Whole:
    """Shows all of a picture."""

    def __init__(self, is_exact: bool) -> None:
        self.is_exact = is_exact

    def __call__(self, width: int, height: int) -> Look:
        return Look(Box(0, 0, width, height), SIZE, is_exact=self.is_exact)


def scene() -> Image.Image:
    """96 x 64: red and green above, blue and yellow below."""
    pixels = np.empty((64, 96, 3), np.uint8)
    pixels[:32, :48], pixels[:32, 48:], pixels[32:, :48], pixels[32:, 48:] = RED, GREEN, BLUE, YELLOW
    return Image.fromarray(pixels)


def saved(picture: Image.Image, format: str, **settings: object) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, format, **settings)
    return stream.getvalue()


def corners(pixels: Pixels) -> list[list[int]]:
    """The mean colours of the four quarters, without the pixels at their borders."""
    half = len(pixels) // 2
    quarters = [pixels[y + 4 : y + half - 4, x + 4 : x + half - 4] for y in (0, half) for x in (0, half)]
    return [quarter.reshape(-1, 3).mean(axis=0).round().astype(int).tolist() for quarter in quarters]


def assert_colours(pixels: Pixels, expected: list[tuple[int, ...]], tolerance: int = 6) -> None:
    assert pixels.shape == (SIZE, SIZE, 3) and pixels.dtype == np.uint8
    assert np.abs(np.array(corners(pixels)) - np.array(expected)).max() <= tolerance, corners(pixels)


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize(
    "format, settings",
    [
        ("JPEG", {"quality": 95}),
        ("JPEG", {"quality": 95, "subsampling": 0, "progressive": True}),
        ("PNG", {}),
        ("WEBP", {"lossless": True}),
        ("BMP", {}),
        ("TIFF", {}),
        ("PPM", {}),
    ],
)
def test_every_format_shows_its_colours(format: str, settings: dict[str, object], is_exact: bool) -> None:
    content = saved(scene(), format, **settings)
    assert_colours(decoded(content, Whole(is_exact)), [RED, GREEN, BLUE, YELLOW])


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("number", UNDONE)
@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF"])
def test_a_turned_picture_is_upright(format: str, number: int, is_exact: bool) -> None:
    picture = scene()
    for step in UNDONE[number]:
        picture = picture.transpose(step)
    exif = Image.Exif()
    exif[0x0112] = number
    pixels = decoded(saved(picture, format, exif=exif), Whole(is_exact))
    assert_colours(pixels, [RED, GREEN, BLUE, YELLOW], tolerance=12)


@pytest.mark.parametrize("is_exact", [True, False])
def test_a_part_of_a_turned_picture_is_the_part_of_the_upright_one(is_exact: bool) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    content = saved(scene().transpose(Transpose.ROTATE_90), "JPEG", exif=exif, quality=95)
    # The right half, from a quarter of the height on: half green above, half yellow below.
    pixels = decoded(content, lambda width, height: Look(Box(48, 16, 96, 48), SIZE, True, is_exact))
    assert_colours(pixels, [GREEN, GREEN, YELLOW, YELLOW], tolerance=12)


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_a_mirrored_look_has_left_and_right_changed(format: str, is_exact: bool) -> None:
    pixels = decoded(saved(scene(), format), lambda w, h: Look(Box(0, 0, w, h), SIZE, True, is_exact))
    assert_colours(pixels, [GREEN, RED, YELLOW, BLUE], tolerance=12)


@pytest.mark.parametrize("is_exact", [True, False])
def test_odd_metadata_leaves_a_picture_as_it_lies(is_exact: bool) -> None:
    content = saved(scene(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff nonsense")
    assert_colours(decoded(content, Whole(is_exact)), [RED, GREEN, BLUE, YELLOW], tolerance=12)


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_grey_becomes_three_equal_colours(format: str, is_exact: bool) -> None:
    grey = scene().convert("L")
    pixels = decoded(saved(grey, format), Whole(is_exact))
    assert (pixels == pixels[:, :, :1]).all()
    # 0.299 red + 0.587 green + 0.114 blue
    assert_colours(pixels, [(87,) * 3, (130,) * 3, (52,) * 3, (199,) * 3])


@pytest.mark.parametrize("is_exact", [True, False])
def test_inks_become_light(is_exact: bool) -> None:
    content = saved(scene().convert("CMYK"), "JPEG", quality=95)
    assert b"Adobe" in content
    assert_colours(decoded(content, Whole(is_exact)), [RED, GREEN, BLUE, YELLOW], tolerance=10)


def test_a_palette_is_looked_up() -> None:
    content = saved(scene().convert("P", palette=Image.Palette.ADAPTIVE), "GIF")
    assert_colours(decoded(content, Whole(True)), [RED, GREEN, BLUE, YELLOW])


def test_what_is_transparent_is_white() -> None:
    picture = scene().convert("RGBA")
    picture.paste((0, 0, 0, 0), (0, 0, 48, 32))
    assert_colours(decoded(saved(picture, "PNG"), Whole(True)), [(255, 255, 255), GREEN, BLUE, YELLOW])


def test_a_transparent_palette_colour_is_white() -> None:
    picture = Image.new("P", (96, 64), 0)
    picture.putpalette([0, 0, 0, *BLUE])
    picture.paste(1, (48, 0, 96, 64))
    content = saved(picture, "PNG", transparency=0)
    assert_colours(decoded(content, Whole(True)), [(255, 255, 255), BLUE, (255, 255, 255), BLUE])


def test_16_bits_keep_their_upper_8() -> None:
    values = np.full((64, 96), 0x1234, np.uint16)
    values[:, 48:] = 0xC0FF
    dark, light = (0x12,) * 3, (0xC0,) * 3
    assert_colours(decoded(saved(Image.fromarray(values), "PNG"), Whole(True)), [dark, light, dark, light], tolerance=0)


def test_black_and_white_becomes_black_and_white() -> None:
    picture = Image.new("1", (96, 64), 1)
    picture.paste(0, (0, 0, 48, 64))
    black, white = (0,) * 3, (255,) * 3
    assert_colours(decoded(saved(picture, "PNG"), Whole(True)), [black, white, black, white], tolerance=0)


def smooth(width: int, height: int) -> Image.Image:
    """Colours that change slowly, with some noise."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 17), np.cos(y / 23), np.sin((x + y) / 31)]
    pixels = 127 + 90 * np.stack(waves, axis=2) + np.random.default_rng(1).normal(0, 8, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def reference(content: bytes, box: Box, size: int) -> Pixels:
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    return np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR, box=box))


def difference(one: Pixels, other: Pixels) -> float:
    return float(np.abs(one.astype(int) - other.astype(int)).mean())


@pytest.mark.parametrize("is_exact, most", [(True, 0.5), (False, 2.0)])
@pytest.mark.parametrize("part", [Box(0, 0, 640, 480), Box(80, 40, 560, 440), Box(160, 160, 288, 288)])
def test_what_is_shown_is_near_to_pillow_at_full_size(part: Box, is_exact: bool, most: float) -> None:
    content = saved(smooth(640, 480), "JPEG", quality=95)
    pixels = decoded(content, lambda width, height: Look(part, 128, is_exact=is_exact))
    assert difference(pixels, reference(content, part, 128)) < most


@pytest.mark.parametrize("is_exact", [True, False])
def test_a_fine_grid_becomes_grey_instead_of_a_pattern(is_exact: bool) -> None:
    """Without anti-aliasing it would be black or white, or stripes of both."""
    pixels = np.zeros((512, 512, 3), np.uint8)
    pixels[::2, ::2] = pixels[1::2, 1::2] = 255
    content = saved(Image.fromarray(pixels), "JPEG", quality=95)
    shown = decoded(content, lambda width, height: Look(Box(0, 0, width, height), 100, is_exact=is_exact))
    assert abs(float(shown.mean()) - 127.5) < 4
    assert shown.std() < 8


@pytest.mark.parametrize("is_exact", [True, False])
def test_stripes_become_grey_where_only_one_side_shrinks(is_exact: bool) -> None:
    """The height needs every line, so the decoder cannot shrink the picture: 512 columns are left for 32 pixels."""
    pixels = np.zeros((64, 512, 3), np.uint8)
    pixels[:, ::2] = 255
    content = saved(Image.fromarray(pixels), "JPEG", quality=95)
    shown = decoded(content, lambda width, height: Look(Box(0, 0, 490, 32), 32, is_exact=is_exact))
    assert abs(float(shown.mean()) - 127.5) < 4
    assert shown.std() < 16


@pytest.mark.parametrize("is_exact, most", [(True, 0.5), (False, 2.5)])
def test_real_pictures_are_near_to_pillow_at_full_size(is_exact: bool, most: float) -> None:
    with tarfile.open(shared_data("imagenette2-160.tar")) as archive:
        files = [member for member in (archive.next() for _ in range(60)) if member and member.isfile()]
        contents = [archive.extractfile(member).read() for member in files]  # type: ignore[union-attr]
    assert len(contents) >= 20
    differences = []
    for content in contents:
        width, height = Image.open(io.BytesIO(content)).size
        part = Box(8, 8, width - 8, height - 8)
        pixels = decoded(content, lambda width, height, part=part: Look(part, 128, is_exact=is_exact))
        differences.append(difference(pixels, reference(content, part, 128)))
    assert sum(differences) / len(differences) < most


def test_ordinary_pictures_take_the_fast_way_and_inks_do_not() -> None:
    for mode, is_fast in (("RGB", True), ("L", True), ("CMYK", False)):
        content = saved(scene().convert(mode), "JPEG")
        assert (fast_jpeg.size_of(content) == (96, 64)) == is_fast
    assert fast_jpeg.size_of(saved(scene(), "PNG")) is None


@pytest.mark.parametrize("size, decoded_side", [(64, 64), (65, 128), (128, 128), (500, 512), (700, 512)])
def test_the_fast_way_decodes_no_more_than_it_needs(
    size: int, decoded_side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides: list[int] = []
    decode = fast_jpeg.simplejpeg.decode_jpeg

    def watched(*arguments: object, **settings: object) -> Pixels:
        pixels: Pixels = decode(*arguments, **settings)
        sides.append(len(pixels))
        return pixels

    monkeypatch.setattr(fast_jpeg.simplejpeg, "decode_jpeg", watched)
    content = saved(smooth(512, 512), "JPEG")
    decoded(content, lambda width, height: Look(Box(0, 0, width, height), size, is_exact=False))
    assert sides == [decoded_side]


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize(
    "content, why",
    [
        (b"", "not a picture"),
        (b"no picture at all" * 100, "not a picture"),
        (saved(smooth(200, 200), "JPEG")[:4000], "truncated"),
        (saved(smooth(200, 200), "PNG")[:4000], "truncated"),
        (saved(scene(), "JPEG")[:100], "."),
    ],
    ids=["empty", "text", "cut JPEG", "cut PNG", "cut header"],
)
def test_a_damaged_picture_is_said_to_be_one(content: bytes, why: str, is_exact: bool) -> None:
    with pytest.raises(DamagedPicture, match=why):
        decoded(content, Whole(is_exact))


@pytest.mark.parametrize("is_exact", [True, False])
def test_rubbish_after_a_whole_picture_does_not_damage_it(is_exact: bool) -> None:
    content = saved(scene(), "JPEG", quality=95) + b"rubbish" * 100
    assert_colours(decoded(content, Whole(is_exact)), [RED, GREEN, BLUE, YELLOW], tolerance=12)


def test_a_missing_file_is_damaged_too(tmp_path: Path) -> None:
    with pytest.raises(DamagedPicture, match="cannot be read: No such file"):
        read_picture(tmp_path / "none.jpg")


def test_a_file_and_its_bytes_are_loaded_as_evaluation_sees_them(tmp_path: Path) -> None:
    path = tmp_path / "scene.png"
    path.write_bytes(saved(scene(), "PNG"))
    pixels = load_picture(path, size=32, resize=64)
    assert pixels.shape == (32, 32, 3)
    assert np.array_equal(pixels, load_picture(path.read_bytes(), size=32, resize=64))
    # 64 pixels high already: the middle without any resizing, from (96 - 32) / 2 = 32 and (64 - 32) / 2 = 16 on.
    assert np.array_equal(pixels, np.asarray(scene())[16:48, 32:64])
