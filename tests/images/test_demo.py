"""The pictures inside the package: what is embedded, what it becomes under home, and that it can be made again."""

from __future__ import annotations

import gzip
import lzma
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.images.make import table

from konvoi.errors import DataError
from konvoi.folder import work_folder
from konvoi.images import demo
from konvoi.images.demo import EMBEDDED_FILE, embedded_pixels, make_demo_images
from konvoi.images.image_set import ImageSet, image_sets
from konvoi.images.prepare import prepare_images

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "demo" / "make_images.py"
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    """Shared by the tests that only read it."""
    return make_demo_images(tmp_path_factory.mktemp("home"))


def content(folder: Path) -> dict[str, bytes]:
    """All files by their path, but for the one that tells the time."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "info.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_each_of_ten_classes_has_600_pictures_to_train_and_200_to_validate(made: ImageSet) -> None:
    for split, num_per_class in (("train", 600), ("val", 200)):
        counts = Counter(entry.class_number for entry in made.entries(split))
        assert counts == dict.fromkeys(range(10), num_per_class)
    # 10 x 600 and 10 x 200
    assert made.info["images"] == {"train": 6000, "val": 2000}
    assert made.info["damaged"] == made.info["mislabelled"] == made.info["warnings"] == []


def test_classes_have_names_for_folders_and_words_for_people(made: ImageSet) -> None:
    rows = table(made.folder / "classes.tsv")
    assert [row[1] for row in rows] == made.classes == sorted(path.name for path in (made.folder / "val").iterdir())
    words = {name: word for _, name, word in rows}
    assert words["t-shirt-top"] == "T-shirt/top"
    assert words["ankle-boot"] == "ankle boot"
    assert all(words.values())


def test_every_file_is_a_grey_png_of_28_by_28_with_the_embedded_pixels(made: ImageSet) -> None:
    pixels = embedded_pixels()
    # Fashion-MNIST's labels: 0 is a T-shirt, 9 an ankle boot.
    for label, name in ((0, "t-shirt-top"), (5, "sandal"), (9, "ankle-boot")):
        for split, last in (("train", 599), ("val", 199)):
            with Image.open(made.folder / split / name / f"{last:04}.png") as picture:
                assert (picture.format, picture.mode, picture.size) == ("PNG", "L", (28, 28))
                assert np.array_equal(np.asarray(picture), pixels[split][label, last])
    sizes = {(entry.width, entry.height) for split in ("train", "val") for entry in made.entries(split)}
    assert sizes == {(28, 28)}


def test_the_classes_look_like_what_they_are_called() -> None:
    # A T-shirt is as wide at its sleeves as a picture; trousers are two legs, with light between them further down.
    mean_CHW = embedded_pixels()["train"].mean(axis=1)
    t_shirt, trouser, sandal, bag = (mean_CHW[label] for label in (0, 1, 5, 8))
    assert trouser[24, 13:15].mean() < trouser[24, 10:12].mean()
    assert t_shirt[24, 13:15].mean() > t_shirt[24, 3:5].mean()
    # A sandal is flat: nothing of it in the uppermost rows; a bag fills the middle.
    assert sandal[:4].mean() < 5 < bag[14].mean()


def test_no_picture_is_there_twice(made: ImageSet) -> None:
    checksums = {entry.checksum for split in ("train", "val") for entry in made.entries(split)}
    assert len(checksums) == 6000 + 2000


def test_the_index_finds_every_file(made: ImageSet) -> None:
    entries = made.entries("val")
    assert all(made.path(entries, number).stat().st_size == entry.num_bytes for number, entry in enumerate(entries))
    assert [one.folder for one in image_sets(made.folder.parents[1])] == [made.folder]


def test_the_files_are_those_that_prepare_makes_of_the_same_class_folders(made: ImageSet, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for split in ("train", "val"):
        shutil.copytree(made.folder / split, tree / split)
    prepared = prepare_images("image-folder", from_folder=tree, to=tmp_path / "to", home=tmp_path, num_processes=1)
    assert prepared.info.keys() == made.info.keys()
    expected, found = content(prepared.folder), content(made.folder)
    # A plain folder knows no words for its classes.
    del expected["classes.tsv"], found["classes.tsv"]
    assert found == expected


def test_a_second_call_makes_nothing(made: ImageSet) -> None:
    home, before = made.folder.parents[1], made.folder.stat()
    stages: list[str] = []
    second = make_demo_images(home, lambda stage, *_, **__: stages.append(stage))
    assert second.info == made.info
    assert stages == []
    # A folder that was made anew would have another number.
    assert made.folder.stat().st_ino == before.st_ino


def test_another_home_gets_the_same_bytes_under_the_same_name_even_after_an_interruption(
    made: ImageSet, tmp_path: Path
) -> None:
    def killed(stage: str, done: int = 0, total: int | None = None, unit: str = "lines") -> None:
        if stage == "checking pictures" and total and done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_demo_images(tmp_path, killed)
    final = tmp_path / "images" / made.folder.name
    assert work_folder(final).exists() and not final.exists()
    assert content(make_demo_images(tmp_path).folder) == content(made.folder)


@pytest.mark.parametrize(
    "spoilt",
    [
        pytest.param(EMBEDDED_FILE.read_bytes()[:-9], id="cut short"),
        pytest.param(b"?" + EMBEDDED_FILE.read_bytes(), id="no xz"),
        pytest.param(lzma.compress(bytes(7_999 * 28 * 28)), id="a picture too few"),
    ],
)
def test_a_damaged_package_is_named(spoilt: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / EMBEDDED_FILE.name
    path.write_bytes(spoilt)
    monkeypatch.setattr(demo, "EMBEDDED_FILE", path)
    with pytest.raises(DataError, match=f"{path} is damaged") as error:
        make_demo_images(tmp_path / "home")
    assert "install" in error.value.hint


def test_the_embedded_file_is_small_enough_to_ship() -> None:
    assert EMBEDDED_FILE.stat().st_size < 4_000_000


def test_a_notice_lies_beside_the_pictures() -> None:
    notice = (EMBEDDED_FILE.parent / "NOTICE").read_text(encoding="utf-8")
    assert notice.startswith(f"{EMBEDDED_FILE.name}: 8,000 ")
    words = " ".join(notice.split())
    for part in (
        "Copyright (c) 2017 Zalando SE",
        "https://github.com/zalandoresearch/fashion-mnist",
        "Permission is hereby granted, free of charge",
        "shall be included in all copies or substantial portions",
        'THE SOFTWARE IS PROVIDED "AS IS"',
        "Changes:",
    ):
        assert part in words


def test_the_script_makes_the_embedded_file_again(tmp_path: Path) -> None:
    if not DEBIAN_FOLDER.is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    target = tmp_path / "made.xz"
    done = subprocess.run([sys.executable, str(SCRIPT), str(target)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Unpacked: another version of liblzma may pack the same bytes in another way.
    assert lzma.decompress(target.read_bytes()) == lzma.decompress(EMBEDDED_FILE.read_bytes())


def test_the_script_takes_the_first_pictures_of_each_class_in_the_order_of_the_file(tmp_path: Path) -> None:
    # Labels 9, 8 ... 0, 9, 8 ...: picture n has the label 9 - n % 10 and n // 10 pictures of its class before it.
    for name, num_pictures in (("train", 6100), ("t10k", 2050)):
        numbers = np.arange(num_pictures, dtype=">u4")
        pictures = np.zeros((num_pictures, 28 * 28), np.uint8)
        pictures[:, :4] = numbers.view(np.uint8).reshape(-1, 4)
        labels = (9 - numbers % 10).astype(np.uint8)
        write_idx(tmp_path / f"{name}-images-idx3-ubyte.gz", pictures.reshape(-1, 28, 28))
        write_idx(tmp_path / f"{name}-labels-idx1-ubyte.gz", labels)
    chosen: bytes = runpy.run_path(str(SCRIPT))["slice_of"](tmp_path)
    pixels = np.frombuffer(chosen, np.uint8).reshape(-1, 28 * 28)
    numbers = pixels[:, :4].copy().view(">u4")[:, 0]
    train = [9 - label + 10 * number for label in range(10) for number in range(600)]
    val = [9 - label + 10 * number for label in range(10) for number in range(200)]
    assert numbers.tolist() == train + val


def write_idx(path: Path, values: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> None:
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(header + values.tobytes(), compresslevel=1))
