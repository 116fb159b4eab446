"""Official archives become class folders and an index."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fetch.spoil import MADE_UP_SIZES, spoilt_tar, with_size
from tests.images.make import (
    CLASSES,
    HEIGHT,
    NUM_VAL,
    WIDTH,
    Files,
    devkit,
    meta,
    picture,
    table,
    tar,
    train_files,
    val_files,
    val_labels,
    write_devkit,
    write_official,
    write_tree,
)
from tests.shared_data import shared_data

from konvoi.errors import DataError, MachineError
from konvoi.folder import work_folder
from konvoi.images import identity, look
from konvoi.images.archives import members, read_packed
from konvoi.images.identity import identify
from konvoi.images.image_set import ImageSet
from konvoi.images.inputs import Inputs
from konvoi.images.prepare import prepare_images
from konvoi.images.sets import DEVKIT_ARCHIVE, TRAIN_ARCHIVE, VAL_ARCHIVE
from konvoi.stages import silent


def make(folder: Path, home: Path, name: str = "imagenet", to: Path | None = None, num_processes: int = 1) -> ImageSet:
    return prepare_images(name, from_folder=folder, to=to, home=home, num_processes=num_processes)


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_official(tmp_path_factory.mktemp("official"))


def test_every_picture_lands_under_its_class(official: Path, tmp_path: Path) -> None:
    made = make(official, tmp_path)
    # 4 classes x 20 pictures; 24 validation pictures
    assert made.info["images"] == {"train": 80, "val": 24}
    for name in CLASSES:
        folder = made.folder / "train" / name
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == train_files(name)


def test_a_validation_picture_goes_to_the_class_of_its_label(official: Path, tmp_path: Path) -> None:
    made = make(official, tmp_path)
    # labels are 1, 2, 3, 4, 1, 2 ...: the sixth picture has label 2, the second class of the development kit
    path = made.folder / "val" / CLASSES[1] / "ILSVRC2012_val_00000006.JPEG"
    assert path.read_bytes() == picture(6)
    assert len(list((made.folder / "val").rglob("*.JPEG"))) == NUM_VAL


def test_the_index_says_class_size_and_checksum(official: Path, tmp_path: Path) -> None:
    made = make(official, tmp_path)
    content = train_files("n01440764")["n01440764_7.JPEG"]
    checksum = hashlib.blake2b(content, digest_size=16).hexdigest()
    row = ["train/n01440764/n01440764_7.JPEG", "n01440764", str(len(content)), str(WIDTH), str(HEIGHT), checksum]
    rows = table(made.folder / "train.tsv")
    assert row in rows
    assert rows == sorted(rows)
    total = sum(len(content) for name in CLASSES for content in train_files(name).values())
    assert made.info["bytes"]["train"] == total
    assert made.info["mean_size"]["train"] == {"width": WIDTH, "height": HEIGHT}


def test_entries_are_the_lines_of_the_index(official: Path, tmp_path: Path) -> None:
    made = make(official, tmp_path)
    for split, number in (("train", 80), ("val", 24)):
        entries = made.entries(split)
        assert len(entries) == number
        opened = [
            [one.path, made.classes[one.class_number], *map(str, (one.num_bytes, one.width, one.height)), one.checksum]
            for one in entries
        ]
        assert opened == table(made.folder / f"{split}.tsv")
        assert entries.class_numbers.tolist() == [one.class_number for one in entries]
    assert made.path(made.entries("val"), 3).is_file()


def test_classes_are_numbered_by_name_and_have_words(official: Path, tmp_path: Path) -> None:
    made = make(official, tmp_path)
    assert made.classes == sorted(CLASSES)
    assert table(made.folder / "classes.tsv")[3] == ["3", "n03888257", "parachute, chute"]


def test_the_index_does_not_depend_on_the_number_of_processes(official: Path, tmp_path: Path) -> None:
    one = make(official, tmp_path / "one", num_processes=1).folder
    two = make(official, tmp_path / "two", num_processes=2).folder
    names = sorted(path.name for path in one.iterdir() if path.is_file() and path.name != "info.json")
    assert len(names) == 7  # train and val as .tsv and .npy, classes, damaged, mislabelled
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in names)


def test_nothing_but_the_set_is_left(official: Path, tmp_path: Path) -> None:
    made = make(official, tmp_path)
    assert list(made.folder.rglob(".*")) == []
    assert list((tmp_path / "images").iterdir()) == [made.folder]


def test_the_second_time_nothing_is_done(official: Path, tmp_path: Path) -> None:
    first, stages = make(official, tmp_path), []
    again = prepare_images(
        "imagenet", from_folder=official, to=None, home=tmp_path, report=lambda stage, *_, **__: stages.append(stage)
    )
    assert (again.info, stages) == (first.info, [])


def test_archives_are_the_same_wherever_they_lie(official: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(official, moved)
    assert make(moved, tmp_path / "home").folder == make(official, tmp_path / "home").folder


def key_of(path: Path) -> str:
    return identify(Inputs(path.parent, archives=[path]), {}, silent).key


def test_an_archive_in_the_place_of_a_damaged_one_is_another(tmp_path: Path) -> None:
    path = tmp_path / TRAIN_ARCHIVE
    good = bytes(identity.WHOLE_BYTES + 1)
    # The middle is never read: only the time says that something changed.
    path.write_bytes(good[: 2 << 20] + b"damage" + good[(2 << 20) + 6 :])
    os.utime(path, ns=(0, 1_000))
    damaged = key_of(path)
    path.write_bytes(good)
    os.utime(path, ns=(0, 2_000))
    assert key_of(path) != damaged


def test_a_small_archive_is_known_by_its_content_alone(tmp_path: Path) -> None:
    path, content = tmp_path / VAL_ARCHIVE, bytes(identity.WHOLE_BYTES)
    keys = []
    for number, byte in enumerate((b"x", b"x", b"y")):
        path.write_bytes(content[: 2 << 20] + byte + content[(2 << 20) + 1 :])
        os.utime(path, ns=(0, number))
        keys.append(key_of(path))
    assert keys[0] == keys[1] != keys[2]


def test_another_label_makes_another_set(official: Path, tmp_path: Path) -> None:
    shutil.copytree(official, tmp_path / "other")
    write_devkit(tmp_path / "other", val_labels()[::-1])
    assert make(tmp_path / "other", tmp_path).folder != make(official, tmp_path).folder


def test_other_counts_than_the_official_ones_are_a_warning(official: Path, tmp_path: Path) -> None:
    warnings = make(official, tmp_path).info["warnings"]
    assert warnings == [
        "train has 80 pictures, officially 1,281,167",
        "val has 24 pictures, officially 50,000",
        "there are 4 classes, officially 1,000",
    ]


KILLED = """
import os, signal, sys
from pathlib import Path
from konvoi.images.prepare import prepare_images

def report(stage, done=0, total=None, unit="lines"):
    if stage == "checking pictures":
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    prepare_images("imagenet", from_folder=Path(sys.argv[1]), to=None, home=Path(sys.argv[2]), report=report,
                   num_processes=int(sys.argv[3]))
"""


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_killed_preparation_goes_on_where_it_stopped(official: Path, tmp_path: Path, num_processes: int) -> None:
    program = tmp_path / "killed.py"
    program.write_text(KILLED)
    arguments = [sys.executable, str(program), str(official), str(tmp_path), str(num_processes)]
    assert subprocess.run(arguments, timeout=240).returncode == -signal.SIGKILL
    (unfinished,) = (tmp_path / "images").glob(".*.unfinished")
    done = sorted(unfinished.glob(".done/*.json"))
    assert done
    first_class = unfinished / "train" / sorted(CLASSES)[0]
    times = {path.name: path.stat().st_mtime_ns for path in first_class.iterdir()}
    made = make(official, tmp_path)
    finished = {path.name: path.stat().st_mtime_ns for path in (made.folder / "train" / first_class.name).iterdir()}
    assert finished == times  # not written a second time
    whole = make(official, tmp_path / "at once")
    for name in ("train.tsv", "train.npy", "val.tsv", "val.npy", "classes.tsv"):
        assert (made.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_a_kill_between_the_last_word_and_the_rename_costs_nothing(official: Path, tmp_path: Path) -> None:
    made = make(official, tmp_path)
    made.folder.rename(work_folder(made.folder))
    stages: list[str] = []
    again = prepare_images(
        "imagenet", from_folder=official, to=None, home=tmp_path, report=lambda stage, *_, **__: stages.append(stage)
    )
    assert (again.info, stages) == (made.info, [])


def test_a_full_disk_is_explained_and_the_work_is_kept(
    official: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = look._write

    def fail_in_val(path: Path, content: bytes) -> None:
        if "val" in path.parts:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(look, "_write", fail_in_val)
        with pytest.raises(MachineError, match="no space left"):
            make(official, tmp_path)
    (unfinished,) = (tmp_path / "images").glob(".*.unfinished")
    assert len(list(unfinished.glob(".done/*.json"))) == len(CLASSES)
    assert make(official, tmp_path).info["images"] == {"train": 80, "val": 24}


def test_damaged_pictures_are_named_and_left_out(tmp_path: Path) -> None:
    train = {name: train_files(name) for name in CLASSES}
    train["n01440764"]["n01440764_3.JPEG"] = b""
    train["n02102040"]["n02102040_4.JPEG"] = picture(77)[:300]
    val = val_files()
    val["ILSVRC2012_val_00000005.JPEG"] = b"<html>404</html>"
    made = make(write_official(tmp_path / "from", train, val), tmp_path)
    # 80 - 2 and 24 - 1
    assert made.info["images"] == {"train": 78, "val": 23}
    reasons = dict(table(made.folder / "damaged.tsv"))
    assert list(reasons) == made.info["damaged"]
    assert reasons[f"{TRAIN_ARCHIVE}/n01440764.tar/n01440764_3.JPEG"] == "empty"
    assert "truncated" in reasons[f"{TRAIN_ARCHIVE}/n02102040.tar/n02102040_4.JPEG"].lower()
    assert "not a picture" in reasons[f"{VAL_ARCHIVE}/ILSVRC2012_val_00000005.JPEG"]
    assert len(reasons) == 3
    assert not (made.folder / "train" / "n01440764" / "n01440764_3.JPEG").exists()
    assert not list((made.folder / "val").rglob("*00000005*"))


def test_mislabelled_pictures_are_named_and_left_out(tmp_path: Path) -> None:
    train = {name: train_files(name) for name in CLASSES}
    train["n01440764"]["n02102040_99.JPEG"] = picture(99)
    val = val_files() | {"odd.JPEG": picture(98)}
    labels = val_labels(len(val))
    labels[1] = 5  # the class above the four, which has no pictures of its own
    labels[2] = 0
    made = make(write_official(tmp_path / "from", train, val, labels), tmp_path)
    assert made.info["images"] == {"train": 80, "val": 22}
    reasons = {one["path"]: one["why"] for one in made.info["mislabelled"]}
    assert reasons == {
        f"{TRAIN_ARCHIVE}/n01440764.tar/n02102040_99.JPEG": "named after n02102040, but it lies in n01440764",
        f"{VAL_ARCHIVE}/ILSVRC2012_val_00000002.JPEG": "label 5 is none of the 4 classes",
        f"{VAL_ARCHIVE}/ILSVRC2012_val_00000003.JPEG": "label 0 is none of the 4 classes",
        f"{VAL_ARCHIVE}/odd.JPEG": "no label: its name is not ILSVRC2012_val_<8 digits>.JPEG",
    }
    assert dict(table(made.folder / "mislabelled.tsv")) == reasons


def test_the_same_picture_under_two_classes_stays_in_both_and_is_named(tmp_path: Path) -> None:
    train = {name: train_files(name) for name in CLASSES}
    train["n01440764"]["n01440764_50.JPEG"] = train["n02102040"]["n02102040_0.JPEG"]
    # twice in the same class is nothing to name
    train["n03028079"]["n03028079_50.JPEG"] = train["n03028079"]["n03028079_0.JPEG"]
    made = make(write_official(tmp_path / "from", train), tmp_path)
    assert made.info["images"]["train"] == 82
    one, two = "train/n01440764/n01440764_50.JPEG", "train/n02102040/n02102040_0.JPEG"
    assert [found["path"] for found in made.info["mislabelled"]] == [one, two]
    assert made.info["mislabelled"][0]["why"].endswith(two)
    assert made.info["mislabelled"][1]["why"].endswith(one)


def test_a_validation_picture_that_is_in_training_too_is_a_warning(tmp_path: Path) -> None:
    train = {name: train_files(name) for name in CLASSES}
    train[CLASSES[0]][f"{CLASSES[0]}_90.JPEG"] = val_files()["ILSVRC2012_val_00000001.JPEG"]
    made = make(write_official(tmp_path / "from", train), tmp_path)
    assert "1 picture of val is in train too" in made.info["warnings"]
    assert made.info["mislabelled"] == []


def test_too_many_bad_files_are_an_error_that_names_the_first_five(tmp_path: Path) -> None:
    train = {name: train_files(name) for name in CLASSES}
    for number in range(6):  # 6 of 104 = 5.8 %
        train["n01440764"][f"n01440764_{number}.JPEG"] = b""
    with pytest.raises(DataError, match="6 of 104 files are damaged or mislabelled") as caught:
        make(write_official(tmp_path / "from", train), tmp_path)
    assert caught.value.problem.count(": empty") == 5
    assert caught.value.hint


def test_too_many_bad_files_are_listed_beside_the_work_which_is_kept(tmp_path: Path) -> None:
    train = {name: train_files(name) for name in CLASSES}
    for number in range(5):
        train["n01440764"][f"n01440764_{number}.JPEG"] = b""
    train["n01440764"]["n02102040_99.JPEG"] = picture(99)  # 5 + 1 of 105 = 5.7 %
    folder = write_official(tmp_path / "from", train)
    with pytest.raises(DataError, match=r"all are named in damaged\.tsv and mislabelled\.tsv in ") as caught:
        make(folder, tmp_path)
    (unfinished,) = (tmp_path / "images").iterdir()
    assert caught.value.problem.endswith(str(unfinished))
    names = [f"n01440764_{number}.JPEG" for number in range(5)]
    assert table(unfinished / "damaged.tsv") == [[f"{TRAIN_ARCHIVE}/n01440764.tar/{name}", "empty"] for name in names]
    assert [Path(path).name for path, _ in table(unfinished / "mislabelled.tsv")] == ["n02102040_99.JPEG"]
    # 80 - 5 and 24 pictures were unpacked; the second time they are not looked at again.
    times = {path: path.stat().st_mtime_ns for path in unfinished.rglob("*.JPEG")}
    assert len(times) == 99
    with pytest.raises(DataError, match="6 of 105 files"):
        make(folder, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in unfinished.rglob("*.JPEG")} == times


def test_five_of_a_hundred_bad_files_are_borne(tmp_path: Path) -> None:
    train = {name: train_files(name) for name in CLASSES}
    for number in range(5):  # 5 of 104 = 4.8 %
        train["n01440764"][f"n01440764_{number}.JPEG"] = b""
    assert len(make(write_official(tmp_path / "from", train), tmp_path).info["damaged"]) == 5


def test_all_missing_archives_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        make(tmp_path, tmp_path)
    assert all(name in caught.value.problem for name in (TRAIN_ARCHIVE, VAL_ARCHIVE, DEVKIT_ARCHIVE))
    assert "image-net.org" in caught.value.hint
    assert "registration" in caught.value.hint


def test_only_what_is_missing_is_named(official: Path, tmp_path: Path) -> None:
    shutil.copy(official / VAL_ARCHIVE, tmp_path)
    with pytest.raises(DataError) as caught:
        make(tmp_path, tmp_path)
    assert TRAIN_ARCHIVE in caught.value.problem
    assert DEVKIT_ARCHIVE in caught.value.problem
    assert VAL_ARCHIVE not in caught.value.problem


def cut(path: Path, num_bytes: int) -> None:
    os.truncate(path, num_bytes)


@pytest.mark.parametrize("archive", [TRAIN_ARCHIVE, VAL_ARCHIVE, DEVKIT_ARCHIVE])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_an_archive_that_is_cut_short_is_an_error(official: Path, tmp_path: Path, archive: str, share: float) -> None:
    folder = tmp_path / "from"
    shutil.copytree(official, folder)
    # The last tenth of a small tar file may be the zeros after its end.
    with tarfile.open(folder / archive) as tar_file:
        end = (folder / archive).stat().st_size if archive == DEVKIT_ARCHIVE else tar_file.getmembers()[-1].offset_data
    cut(folder / archive, int(share * end))
    with pytest.raises(DataError, match=f"{archive} is cut short") as caught:
        make(folder, tmp_path)
    assert caught.value.hint
    assert not list(tmp_path.glob("images/*"))


def test_a_cut_between_two_files_is_found_too(official: Path, tmp_path: Path) -> None:
    folder = tmp_path / "from"
    shutil.copytree(official, folder)
    with tarfile.open(folder / VAL_ARCHIVE) as archive:
        border = archive.getmembers()[10].offset
    cut(folder / VAL_ARCHIVE, border)
    with pytest.raises(DataError, match="no end mark, 10 files"):
        make(folder, tmp_path)


def test_a_spoilt_header_in_the_middle_is_not_taken_for_the_end(official: Path, tmp_path: Path) -> None:
    folder = tmp_path / "from"
    shutil.copytree(official, folder)
    with tarfile.open(folder / VAL_ARCHIVE) as archive:
        header = archive.getmembers()[10].offset
    with (folder / VAL_ARCHIVE).open("r+b") as stream:
        stream.seek(header)
        stream.write(b"\xff" * 512)
    with pytest.raises(DataError, match=f"{VAL_ARCHIVE} is cut short, damaged"):
        make(folder, tmp_path)


@pytest.mark.parametrize("num_processes", [1, 2])
@pytest.mark.parametrize("num_whole", [0, 10])
def test_a_class_that_is_cut_short_is_named_and_does_not_run_into_the_next(
    tmp_path: Path, num_whole: int, num_processes: int
) -> None:
    whole = {f"{name}.tar": tar(train_files(name)) for name in sorted(CLASSES)}
    first = next(iter(whole))
    with tarfile.open(fileobj=io.BytesIO(whole[first])) as archive:
        # Behind the header of the next picture, or at the very beginning.
        end = archive.getmembers()[num_whole].offset_data if num_whole else 0
    whole[first] = whole[first][:end]
    folder = write_official(tmp_path / "from")
    (folder / TRAIN_ARCHIVE).write_bytes(tar(whole))
    made = make(folder, tmp_path, num_processes=num_processes)
    # What lies before the cut is kept, and three classes of 20 are whole.
    assert made.info["images"]["train"] == num_whole + 3 * 20
    ((path, why),) = table(made.folder / "damaged.tsv")
    assert path == f"{TRAIN_ARCHIVE}/{first}"
    assert f"{num_whole} files before byte" in why


def test_a_spoilt_header_in_a_class_costs_the_rest_of_that_class_only(tmp_path: Path) -> None:
    folder = write_official(tmp_path / "from")
    with tarfile.open(folder / TRAIN_ARCHIVE) as outer:
        inner = next(entry for entry in outer if entry.name == "n02102040.tar")
        stream = outer.extractfile(inner)
        assert stream is not None
        with tarfile.open(fileobj=stream) as archive:
            header = inner.offset_data + archive.getmembers()[7].offset
    with (folder / TRAIN_ARCHIVE).open("r+b") as damaged:
        damaged.seek(header)
        damaged.write(b"\xff" * 512)
    made = make(folder, tmp_path)
    # 7 of 20 are left of one class.
    assert made.info["images"]["train"] == 80 - 13
    assert made.info["damaged"] == [f"{TRAIN_ARCHIVE}/n02102040.tar"]


def test_fewer_labels_than_pictures_are_an_error(tmp_path: Path) -> None:
    folder = write_official(tmp_path / "from", labels=val_labels(20))
    with pytest.raises(DataError, match="24 pictures, but the development kit only 20 labels"):
        make(folder, tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("data/ILSVRC2012_validation_ground_truth.txt", b"one\ntwo\n", "no list of numbers"),
        ("data/meta.mat", b"MATLAB 5.0 or so" * 20, "meta.mat cannot be read"),
        ("data/meta.mat", meta()[:500], "meta.mat cannot be read"),
        ("data/meta.mat", None, "holds no meta.mat"),
    ],
)
def test_a_development_kit_that_says_nothing_is_an_error(
    official: Path, tmp_path: Path, name: str, content: bytes | None, problem: str
) -> None:
    for archive in (TRAIN_ARCHIVE, VAL_ARCHIVE):
        shutil.copy(official / archive, tmp_path)
    files = devkit(val_labels())
    files[f"ILSVRC2012_devkit_t12/{name}"] = content or b""
    if content is None:
        del files[f"ILSVRC2012_devkit_t12/{name}"]
    write_tree(tmp_path, files)
    with pytest.raises(DataError, match=problem):
        make(tmp_path, tmp_path)


def test_the_development_kit_may_be_extracted(official: Path, tmp_path: Path) -> None:
    for archive in (TRAIN_ARCHIVE, VAL_ARCHIVE):
        shutil.copy(official / archive, tmp_path)
    write_tree(tmp_path, devkit(val_labels()))
    made = make(tmp_path, tmp_path)
    packed = make(official, tmp_path)
    assert (made.folder / "val.tsv").read_bytes() == (packed.folder / "val.tsv").read_bytes()


def entry(name: str, type: bytes = tarfile.REGTYPE, link: str = "", content: bytes = b"") -> tuple[object, bytes]:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.size = type, link, len(content)
    return found, content


def test_an_archive_cannot_write_elsewhere_nor_through_links(tmp_path: Path) -> None:
    evil = [
        entry("n01440764_100.JPEG", tarfile.SYMTYPE, "/etc/passwd"),
        entry("n01440764_101.JPEG", tarfile.LNKTYPE, "n01440764_1.JPEG"),
        entry("n01440764_102.JPEG", tarfile.CHRTYPE),
        entry("../../n01440764_103.JPEG", content=picture(103)),
        entry("/n01440764_104.JPEG", content=picture(104)),
        entry("n01440764_1.JPEG", content=picture(105)),
        entry("n01440764_\n106.JPEG", content=picture(106)),
        entry("._n01440764_107.JPEG", content=b"what a Mac leaves behind"),
        entry("sub/n01440764_108.JPEG", content=picture(108)),
    ]
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        good = [entry(name, content=content) for name, content in train_files("n01440764", 20).items()]
        for found, content in [*good, *evil]:
            archive.addfile(found, io.BytesIO(content))
    train = {f"{name}.tar": tar(train_files(name, 40)) for name in CLASSES}
    folder = write_official(tmp_path / "from")
    (folder / TRAIN_ARCHIVE).write_bytes(tar(train | {"n01440764.tar": stream.getvalue()}))
    before = {path for path in tmp_path.rglob("*") if "images" not in path.parts}
    made = make(folder, tmp_path)
    reasons = {Path(path).name: why for path, why in table(made.folder / "damaged.tsv")}
    assert reasons == {
        "n01440764_100.JPEG": "no regular file",
        "n01440764_101.JPEG": "no regular file",
        "n01440764_102.JPEG": "no regular file",
        "n01440764_103.JPEG": "its path leads out of the archive",
        "n01440764_104.JPEG": "its path leads out of the archive",
        "n01440764_1.JPEG": "a second file of this name",
        "n01440764_\\n106.JPEG": "its name cannot be used: control characters, not UTF-8, or too long",
    }
    assert {path for path in tmp_path.rglob("*") if "images" not in path.relative_to(tmp_path).parts} == before
    unpacked = made.folder / "train" / "n01440764"
    # The first of a name stays; a folder inside the tar of a class does not matter: 20 + 1
    assert (unpacked / "n01440764_1.JPEG").read_bytes() == train_files("n01440764")["n01440764_1.JPEG"]
    assert len(list(unpacked.iterdir())) == 21
    assert all(path.is_file() and not path.is_symlink() for path in unpacked.iterdir())


def imagenette_files() -> Files:
    train = {f"imagenette2-160/train/{c}/{name}": data for c in CLASSES for name, data in train_files(c).items()}
    val = {f"imagenette2-160/val/{CLASSES[n % 4]}/{name}": data for n, (name, data) in enumerate(val_files().items())}
    return train | val | {"imagenette2-160/noisy_imagenette.csv": b"path,label\n"}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_the_archive_of_imagenette_is_packed_or_plain(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "from"
    folder.mkdir()
    plain = tar(imagenette_files())
    name = "imagenette2-160.tar" if mode == "w" else "imagenette2-160.tgz"
    with tarfile.open(folder / name, mode) as archive, tarfile.open(fileobj=io.BytesIO(plain)) as source:
        for found in source:
            archive.addfile(found, source.extractfile(found))
    made = make(folder, tmp_path, "imagenette")
    assert made.info["images"] == {"train": 80, "val": 24}
    assert (made.info["damaged"], made.info["mislabelled"]) == ([], [])
    assert table(made.folder / "classes.tsv")[0] == ["0", "n01440764", "tench"]
    assert (made.folder / "train" / "n01440764" / "n01440764_7.JPEG").read_bytes() == train_files("n01440764")[
        "n01440764_7.JPEG"
    ]
    assert list(made.folder.rglob(".*")) == []


@pytest.mark.parametrize(("num_bytes", "problem"), [(5000, "cut short"), (None, "more than 20 times its size")])
def test_a_packed_archive_that_is_cut_or_a_bomb_is_an_error(
    tmp_path: Path, num_bytes: int | None, problem: str
) -> None:
    folder = tmp_path / "from"
    folder.mkdir()
    path = folder / "imagenette2-160.tgz"
    with tarfile.open(path, "w:gz") as archive:
        # 30 MB of zeros shrink to 30 kB: 20 x (30 kB + 1 MiB) are allowed
        content = bytes(30_000_000) if num_bytes is None else os.urandom(20_000)
        found = tarfile.TarInfo("imagenette2-160/train/n01440764/x.JPEG")
        found.size = len(content)
        archive.addfile(found, io.BytesIO(content))
    if num_bytes is not None:
        cut(path, num_bytes)
    with pytest.raises(DataError, match=problem):
        make(folder, tmp_path, "imagenette")
    assert list((tmp_path / "images").iterdir()) == []


def test_two_archives_of_imagenette_are_one_too_many(tmp_path: Path) -> None:
    for name in ("imagenette2-160.tar", "imagenette2-320.tgz"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError, match=r"several archives: imagenette2-160.tar, imagenette2-320.tgz"):
        make(tmp_path, tmp_path, "imagenette")


def test_an_unknown_set_has_a_near_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match='did you mean "imagenet"'):
        make(tmp_path, tmp_path, "imagnet")


def test_real_pictures_in_the_official_layout(tmp_path: Path) -> None:
    train: dict[str, Files] = {}
    val: list[tuple[str, bytes]] = []
    with tarfile.open(shared_data("imagenette2-160.tar")) as archive:
        for found in archive:
            _, split, class_name, name = found.name.split("/")
            files = train.setdefault(class_name, {})
            if split == "train" and name.startswith("n") and class_name in CLASSES and len(files) < 12:
                files[name] = archive.extractfile(found).read()  # type: ignore[union-attr]
            elif split == "val" and class_name in CLASSES and len(val) < 12:
                val.append((class_name, archive.extractfile(found).read()))  # type: ignore[union-attr]
    labels = [1 + CLASSES.index(class_name) for class_name, _ in val]
    pictures = {f"ILSVRC2012_val_{number:08}.JPEG": data for number, (_, data) in enumerate(val, start=1)}
    wanted = {name: files for name, files in train.items() if files}
    made = make(write_official(tmp_path / "from", wanted, pictures, labels), tmp_path, num_processes=2)
    # 4 classes x 12
    assert made.info["images"] == {"train": 48, "val": 12}
    assert (made.info["damaged"], made.info["mislabelled"]) == ([], [])
    assert {entry.width for entry in made.entries("train")} == {160}


def spoilt_tars() -> Iterator[bytes]:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in ("a", "b" * 120, "c"):
            found = tarfile.TarInfo(name)
            found.size = 80
            archive.addfile(found, io.BytesIO(b"one\n" * 20))
    for seed in range(300):
        yield spoilt_tar(stream.getvalue(), seed)


def test_whatever_is_damaged_the_error_is_ours(tmp_path: Path) -> None:
    path, num_refused = tmp_path / "x.tar", 0
    for content in spoilt_tars():
        path.write_bytes(content)
        for read in (members, lambda path: read_packed(path, ("a", "c"), 100)):
            try:
                read(path)
            except DataError:
                num_refused += 1
    # Dates and owners may change without harm.
    assert num_refused > 100


@pytest.mark.parametrize("size", MADE_UP_SIZES)
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_made_up_size_is_damage(tmp_path: Path, size: bytes, kind: bytes) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(with_size(tar({"a": b"x" * 80, "b": b"x" * 80}), 1024, size, kind))
    with pytest.raises(DataError, match=r"x\.tar is cut short, damaged .*, 1 file before byte 1,024"):
        members(path)
    with pytest.raises(DataError, match=r"x\.tar is cut short, damaged"):
        read_packed(path, ("a", "b"), 100)
