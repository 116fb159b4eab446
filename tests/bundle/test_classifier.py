"""A bundle says what is in a picture, without torch; what is no picture, or no bundle, is said in words."""

from __future__ import annotations

import io
import json
import math
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

from konvoi.bundle.classifier import MAX_BATCH, OnnxClassifier, open_classifier
from konvoi.bundle.format import Bundle, Description, Variant, open_bundle, write_description
from konvoi.bundle.picture_input import MAX_BYTES, MAX_PIXELS
from konvoi.errors import BundleError, DataError

SIZE, RESIZE = 8, 10
CLASSES = ("red", "green", "blue")
RED = (200, 180, 180)


def mean_colour(factor: float, size: int = SIZE) -> onnx.ModelProto:
    """A network that tells colours apart: its logits are the picture's mean red, green and blue, times a factor."""
    nodes = [
        helper.make_node("Cast", ["pixels"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["numbers", "sides"], ["means"], keepdims=0),
        helper.make_node("Mul", ["means", "factor"], ["logits"]),
    ]
    constants = [
        helper.make_tensor("sides", TensorProto.INT64, [2], [1, 2]),
        helper.make_tensor("factor", TensorProto.FLOAT, [1], [factor]),
    ]
    graph = helper.make_graph(
        nodes,
        "colours",
        [helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["pictures", size, size, 3])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["pictures", 3])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def made_bundle(folder: Path, models: dict[str, bytes], **changes: Any) -> Bundle:
    """float32 is the default."""
    folder.mkdir()
    for name, content in models.items():
        (folder / f"{name}.onnx").write_bytes(content)
    settings = {"size": SIZE, "resize": RESIZE, "classes": CLASSES, "left_out": {}, **changes.pop("settings", {})}
    variants = {name: Variant(f"{name}.onnx", len(content)) for name, content in models.items()}
    given = {"task": "classification", "name": "colours", "made_at": "", "konvoi": "0", "default": "float32"} | changes
    write_description(folder, Description(**given, variants=variants, settings=settings))
    return open_bundle(folder)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """float32 divides by 10, int8 by 20: so it can be seen which one answers."""
    models = {"float32": mean_colour(0.1).SerializeToString(), "int8": mean_colour(0.05).SerializeToString()}
    return made_bundle(tmp_path_factory.mktemp("bundles") / "colours", models)


@pytest.fixture(scope="module")
def classifier(bundle: Bundle) -> OnnxClassifier:
    return open_classifier(bundle)


def saved(picture: Image.Image, format: str = "PNG", **settings: object) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, format, **settings)
    return stream.getvalue()


def plain(colour: tuple[int, ...], mode: str = "RGB") -> Image.Image:
    return Image.new(mode, (20, 12), colour)


def test_the_likeliest_class_comes_first_with_its_probability(classifier: OnnxClassifier) -> None:
    (guesses,) = classifier.classify([saved(plain((180, 180, 200)))])
    # logits 18, 18, 20: 1 / (1 + 2 e^-2) for blue; equals stay in the order of the classes
    assert [guess.name for guess in guesses] == ["blue", "red", "green"]
    assert guesses[0].probability == pytest.approx(1 / (1 + 2 * math.exp(-2)), rel=1e-5)
    assert sum(guess.probability for guess in guesses) == pytest.approx(1)
    assert (classifier.name, classifier.classes) == ("colours", CLASSES)


def test_many_pictures_are_answered_in_their_order(classifier: OnnxClassifier) -> None:
    colours = [
        tuple(200 if channel == number % 3 else 50 for channel in range(3)) for number in range(2 * MAX_BATCH + 5)
    ]
    answers = classifier.classify([saved(plain(colour)) for colour in colours], num_classes=1)
    assert [guess.name for (guess,) in answers] == [CLASSES[number % 3] for number in range(2 * MAX_BATCH + 5)]
    assert classifier.classify([]) == []


def test_the_middle_is_seen(classifier: OnnxClassifier) -> None:
    picture = plain((0, 0, 255))
    # 20 x 12 with 10 px for the shorter side is 16.7 x 10; of that 8 x 8 in the middle: columns 5.2 to 14.8 are seen
    picture.paste((255, 0, 0), (5, 0, 15, 12))
    ((guess,),) = classifier.classify([saved(picture)], num_classes=1)
    assert guess.name == "red" and guess.probability > 0.99


@pytest.mark.parametrize(
    ("content", "means"),
    [
        (saved(plain(RED), "JPEG", quality=95), RED),
        (saved(plain(RED).convert("P")), RED),
        (saved(Image.new("L", (9, 9), 77)), (77, 77, 77)),
        # 255 - ink
        (saved(plain((55, 75, 75, 0), "CMYK"), "JPEG", quality=100), RED),
        # 128 / 255 of (100, 0, 0) on white: 255 - 0.5 x 155 and 255 - 0.5 x 255
        (saved(plain((100, 0, 0, 128), "RGBA")), (177, 127, 127)),
        (saved(plain(RED), "GIF"), RED),
        (saved(plain(RED), "WEBP", lossless=True), RED),
    ],
    ids=["jpeg", "palette", "grey", "cmyk", "transparent", "gif", "webp"],
)
def test_any_kind_of_picture_is_seen_as_it_looks(
    classifier: OnnxClassifier, content: bytes, means: tuple[int, int, int]
) -> None:
    pixels_HWC = classifier.pixels(content)
    assert pixels_HWC.shape == (SIZE, SIZE, 3)
    assert np.abs(pixels_HWC.reshape(-1, 3).mean(axis=0) - means).max() <= 3


def test_a_turned_picture_is_upright(classifier: OnnxClassifier) -> None:
    lying = plain((0, 0, 0))
    lying.paste((255, 255, 255), (0, 0, 10, 12))
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels_HWC = classifier.pixels(saved(lying, "JPEG", exif=exif))
    # what lay to the left is above
    assert pixels_HWC[:3].mean() > 250 and pixels_HWC[-3:].mean() < 5


NOISE = Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 40, 3), dtype=np.uint8))


@pytest.mark.parametrize(
    "content",
    [b"", b"Dear Sir", saved(NOISE, "JPEG")[:-600], saved(NOISE)[:-600], b"\xff\xd8\xff" + b"\0" * 99, b"<svg/>"],
    ids=["empty", "text", "cut jpeg", "cut png", "hollow jpeg", "svg"],
)
def test_what_is_no_whole_picture_is_said_to_be_none(classifier: OnnxClassifier, content: bytes) -> None:
    with pytest.raises(DataError, match="can't be read as a picture"):
        classifier.classify([saved(plain(RED)), content])


def png_head(width: int, height: int) -> bytes:
    """A PNG file that ends where its pixels would begin."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk)) + b"\0\0\0\4IDAT"


@pytest.mark.parametrize("height", [MAX_PIXELS // 8192 + 1, 1_000_000])
def test_a_huge_picture_is_refused_before_its_pixels_are_read(classifier: OnnxClassifier, height: int) -> None:
    with pytest.raises(DataError, match="more than 67 million pixels"):
        classifier.classify([png_head(8192, height)])
    # One row less is allowed, and then the pixels are missed.
    with pytest.raises(DataError, match="can't be read"):
        classifier.classify([png_head(8192, MAX_PIXELS // 8192)])


def test_a_huge_file_is_refused(classifier: OnnxClassifier) -> None:
    with pytest.raises(DataError, match="67 MB"):
        classifier.classify([saved(plain(RED)) + bytes(MAX_BYTES)])


def test_another_variant_answers_where_it_is_asked_for(bundle: Bundle) -> None:
    ((guess,),) = open_classifier(bundle, "int8", threads=1).classify([saved(plain((200, 180, 180)))], num_classes=1)
    # logits 10, 9, 9
    assert guess.probability == pytest.approx(1 / (1 + 2 * math.exp(-1)), rel=1e-5)
    with pytest.raises(BundleError, match='has no "float16"'):
        open_classifier(bundle, "float16")


@pytest.mark.parametrize(
    ("content", "settings", "words"),
    [
        (b"no network", {}, r"float32.onnx can't be opened"),
        (b"", {}, r"float32.onnx can't be opened"),
        (mean_colour(1, size=9).SerializeToString(), {}, "3 classes out of 8 x 8 pixels"),
        (mean_colour(1).SerializeToString(), {"classes": ("red", "green")}, "2 classes out of"),
        (mean_colour(1).SerializeToString(), {"classes": ()}, "settings.classes"),
        (mean_colour(1).SerializeToString(), {"size": "large"}, "settings.size"),
        (mean_colour(1).SerializeToString(), {"size": 10**9}, "settings.size"),
        (mean_colour(1).SerializeToString(), {"resize": 0}, "settings.resize"),
    ],
)
def test_a_bundle_that_is_not_what_it_says_is_refused(
    tmp_path: Path, content: bytes, settings: dict[str, Any], words: str
) -> None:
    bundle = made_bundle(tmp_path / "made", {"float32": content}, settings=settings)
    with pytest.raises(BundleError, match=words):
        open_classifier(bundle)


def test_a_network_can_not_read_files_of_the_machine(tmp_path: Path) -> None:
    """ONNX lets weights lie in other files; those of a stranger's bundle must not lie outside of it."""
    (tmp_path / "secret").write_bytes(struct.pack("f", 0.1))
    model = mean_colour(0.1)
    factor = next(tensor for tensor in model.graph.initializer if tensor.name == "factor")
    factor.ClearField("float_data")
    factor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "../secret"), ("length", "4")):
        entry = factor.external_data.add()
        entry.key, entry.value = key, value
    bundle = made_bundle(tmp_path / "made", {"float32": model.SerializeToString()})
    with pytest.raises(BundleError, match="can't be opened"):
        open_classifier(bundle)


def test_a_translator_sees_nothing(tmp_path: Path) -> None:
    settings = {"source": "en", "target": "de", "beam": 4, "length_penalty": 0.6}
    bundle = made_bundle(tmp_path / "made", {"float32": b"x"}, task="translation", settings=settings)
    with pytest.raises(BundleError, match="is no image classifier"):
        open_classifier(bundle)


def test_the_command_needs_no_torch(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "blue.png").write_bytes(saved(plain((0, 0, 255))))
    program = "import sys; sys.modules['torch'] = None; from konvoi.cli import main; main()"
    command = [sys.executable, "-c", program, "classify", bundle.path, tmp_path / "blue.png", "--top", "1", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    (one,) = json.loads(result.stdout)
    assert one["image"] == str(tmp_path / "blue.png")
    assert [found["class"] for found in one["classes"]] == ["blue"]


def test_the_command_shows_the_pictures_of_a_folder(konvoi, bundle, tmp_path, monkeypatch):
    monkeypatch.setattr("konvoi.commands.classify.CHUNK_PICTURES", 2)
    for number in range(5):
        colour = tuple(255 if channel == number % 3 else 0 for channel in range(3))
        (tmp_path / f"{number}.png").write_bytes(saved(plain(colour)))
    (tmp_path / "notes.txt").write_text("no picture, and not taken for one")
    parts = konvoi("classify", bundle.path, tmp_path, "--top", "2").stdout.removesuffix("\n").split("\n\n")
    assert [part.split("\n")[0] for part in parts] == [str(tmp_path / f"{number}.png") for number in range(5)]
    assert parts[1].split("\n")[1] == "  100.0%  green"
    assert all(part.count("\n") == 2 for part in parts)


def test_the_command_names_the_one_that_is_no_picture(konvoi, bundle, tmp_path):
    for name in ("a.png", "b.png", "c.png"):
        (tmp_path / name).write_bytes(saved(plain(RED)) if name != "b.png" else b"Dear Sir")
    result = konvoi("classify", bundle.path, tmp_path)
    assert result.exit_code == 2
    assert f"{tmp_path / 'b.png'}: it can't be read as a picture" in result.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--variant", "float16"], "it has float32, int8"),
        (["--checkpoint", "last"], "it has no checkpoints"),
    ],
)
def test_mistakes_with_a_bundle_are_answered_in_words(konvoi, bundle, tmp_path, options, words):
    (tmp_path / "a.png").write_bytes(saved(plain(RED)))
    result = konvoi("classify", bundle.path, tmp_path / "a.png", *options)
    assert result.exit_code == 2
    assert words in result.stderr
