"""Trees of class folders: indexed where they are, split by content, linked or copied elsewhere."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.images.make import (
    CLASSES,
    Files,
    class_tree,
    picture,
    table,
    train_files,
    val_files,
    val_labels,
    write_devkit,
    write_tree,
)

from konvoi.errors import DataError
from konvoi.folder import work_folder
from konvoi.images import pictures
from konvoi.images.image_set import ImageSet, image_sets
from konvoi.images.look import Row
from konvoi.images.prepare import prepare_images
from konvoi.images.sets import DEVKIT_ARCHIVE
from konvoi.images.splits import SplitOff

NOBODY = 65534


def make(
    folder: Path, home: Path, name: str = "image-folder", to: Path | None = None, num_processes: int = 1
) -> ImageSet:
    return prepare_images(name, from_folder=folder, to=to, home=home, num_processes=num_processes)


def paths(made: ImageSet, split: str) -> list[str]:
    return [entry.path for entry in made.entries(split)]


def both_splits(val: str = "val") -> Files:
    """2 classes x 20 to train, 2 x 5 to validate."""
    return class_tree("train/") | class_tree(f"{val}/", 5, first=500)


def imagenet_tree(flat: bool) -> Files:
    files = {f"train/{c}/{name}": content for c in CLASSES for name, content in train_files(c).items()}
    for number, (name, content) in enumerate(val_files().items()):
        # labels are 1, 2, 3, 4, 1, ...
        files[f"val/{name}" if flat else f"val/{CLASSES[number % 4]}/{name}"] = content
    return files


def test_a_tree_stays_where_it_is_and_only_gets_an_index(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", both_splits())
    before = sorted(tree.rglob("*"))
    made = make(tree, tmp_path)
    assert sorted(tree.rglob("*")) == before
    assert made.root == tree
    assert not (made.folder / "train").exists()
    assert made.info["images"] == {"train": 40, "val": 10}
    assert paths(made, "val")[:2] == ["val/cat/0.jpg", "val/cat/1.jpg"]
    assert made.path(made.entries("val"), 0).read_bytes() == both_splits()["val/cat/0.jpg"]


@pytest.mark.parametrize("val", ["val", "valid", "test"])
def test_others_call_val_by_other_names(tmp_path: Path, val: str) -> None:
    made = make(write_tree(tmp_path / "tree", both_splits(val)), tmp_path)
    assert made.info["images"] == {"train": 40, "val": 10}
    assert paths(made, "val")[0] == f"{val}/cat/0.jpg"


def test_where_there_is_val_the_test_pictures_are_left_out_with_a_warning(tmp_path: Path) -> None:
    files = both_splits() | class_tree("test/", 3, first=900)
    made = make(write_tree(tmp_path / "tree", files), tmp_path)
    assert made.info["images"] == {"train": 40, "val": 10}
    assert made.info["warnings"] == ["left out, being neither train nor val: test"]


@pytest.mark.parametrize("prefix", ["", "train/"])
def test_without_val_five_percent_of_each_class_become_it(tmp_path: Path, prefix: str) -> None:
    made = make(write_tree(tmp_path / "tree", class_tree(prefix, 40)), tmp_path)
    # 5 % of 40 = 2 of each of the 2 classes
    assert made.info["images"] == {"train": 76, "val": 4}
    assert sorted(path.split("/")[-2] for path in paths(made, "val")) == ["cat", "cat", "dog", "dog"]
    assert sorted(paths(made, "train") + paths(made, "val")) == sorted(class_tree(prefix, 40))


def test_the_split_depends_on_content_not_on_names(tmp_path: Path) -> None:
    files = class_tree("", 40)
    renamed = {f"{path.split('/')[0]}/{999 - number}.jpg": files[path] for number, path in enumerate(files)}
    one = make(write_tree(tmp_path / "one", files), tmp_path)
    two = make(write_tree(tmp_path / "two", renamed), tmp_path)
    assert paths(one, "val") != paths(two, "val")
    for split in ("train", "val"):
        assert sorted(e.checksum for e in one.entries(split)) == sorted(e.checksum for e in two.entries(split))


def rows(class_name: str, checksums: list[str]) -> list[Row]:
    return [Row("", class_name, f"{n}.jpg", "", 1, 1, 1, checksum) for n, checksum in enumerate(checksums)]


def test_a_class_gives_at_least_one_picture_and_keeps_at_least_one() -> None:
    found = [*rows("two", ["b", "a"]), *rows("one", ["c", "c"])]
    split_off = SplitOff(found)
    # of a and b the lower goes; c and its copy are one picture, which stays
    assert [split_off.split_of(row) for row in found] == ["train", "val", "train", "train"]
    assert split_off.single_classes == ["one"]


def test_copies_of_a_picture_stay_together() -> None:
    found = rows("cat", ["a", "a", "b", "c"])
    split_off = SplitOff(found)
    assert [split_off.split_of(row) for row in found] == ["val", "val", "train", "train"]


def test_a_class_with_a_single_picture_is_a_warning(tmp_path: Path) -> None:
    made = make(write_tree(tmp_path / "tree", class_tree() | {"owl/0.jpg": picture(5)}), tmp_path)
    assert made.info["images"] == {"train": 39, "val": 2}
    assert made.info["warnings"] == [
        "classes with a single picture, which stays in train: owl",
        "1 class has no pictures in val",
    ]


def test_batches_and_processes_do_not_change_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = write_tree(tmp_path / "tree", class_tree())
    one = make(tree, tmp_path / "one").folder
    monkeypatch.setattr(pictures, "BATCH_PICTURES", 7)
    two = make(tree, tmp_path / "two", num_processes=2).folder
    for name in ("train.tsv", "val.tsv", "train.npy", "val.npy", "classes.tsv"):
        assert (one / name).read_bytes() == (two / name).read_bytes()


@pytest.mark.parametrize("flat", [False, True])
def test_an_extracted_imagenet_is_flat_or_in_class_folders(tmp_path: Path, flat: bool) -> None:
    tree = write_tree(tmp_path / "tree", imagenet_tree(flat))
    write_devkit(tree, val_labels())
    made = make(tree, tmp_path, "imagenet")
    assert made.root == tree
    assert made.info["images"] == {"train": 80, "val": 24}
    assert made.info["mislabelled"] == []
    sixth = next(entry for entry in made.entries("val") if entry.path.endswith("00000006.JPEG"))
    assert made.classes[sixth.class_number] == CLASSES[1]


def test_flat_validation_pictures_without_labels_lack_the_development_kit(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"lacks {DEVKIT_ARCHIVE} "):
        make(write_tree(tmp_path / "tree", imagenet_tree(flat=True)), tmp_path, "imagenet")


def test_too_few_labels_for_flat_pictures_are_an_error(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", imagenet_tree(flat=True))
    write_devkit(tree, val_labels(23))
    with pytest.raises(DataError, match="24 pictures, but the development kit only 23 labels"):
        make(tree, tmp_path, "imagenet")


def test_a_validation_picture_in_the_wrong_folder_is_named(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", imagenet_tree(flat=False))
    write_devkit(tree, val_labels())
    wrong = tree / "val" / CLASSES[2] / "ILSVRC2012_val_00000001.JPEG"
    (tree / "val" / CLASSES[0] / wrong.name).rename(wrong)
    # Of a picture with a name of its own, only its folder tells the class.
    renamed = tree / "val" / CLASSES[1] / "ILSVRC2012_val_00000002.JPEG"
    renamed.rename(renamed.with_name("my fish.JPEG"))
    made = make(tree, tmp_path, "imagenet")
    why = f"its label is {CLASSES[0]}, but it lies in {CLASSES[2]}"
    assert made.info["mislabelled"] == [{"path": f"val/{CLASSES[2]}/{wrong.name}", "why": why}]
    assert made.info["images"]["val"] == 23


def test_the_tree_of_imagenette_may_lie_one_folder_deeper(tmp_path: Path) -> None:
    write_tree(tmp_path / "from" / "imagenette2-160", imagenet_tree(flat=False))
    made = make(tmp_path / "from", tmp_path, "imagenette")
    assert made.root == tmp_path / "from" / "imagenette2-160"
    assert made.info["images"] == {"train": 80, "val": 24}


def test_odd_files_are_named_and_never_opened(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", class_tree("", 100))
    write_tree(tree, {"cat/notes.txt": b"my cats", "stray.jpg": picture(1), "README.md": b"#", "cat/.hidden": b""})
    os.mkfifo(tree / "cat" / "pipe.jpg")  # whoever opened it would wait for ever
    (tree / "cat" / "gone.jpg").symlink_to("nowhere")
    (tree / "cat" / "tab\t.jpg").write_bytes(picture(2))
    made = make(tree, tmp_path)
    reasons = dict(table(made.folder / "damaged.tsv"))
    assert sorted(reasons) == ["cat/gone.jpg", "cat/notes.txt", "cat/pipe.jpg", "cat/tab\\t.jpg"]
    assert reasons["cat/pipe.jpg"] == "no regular file"
    assert "No such file" in reasons["cat/gone.jpg"]
    assert made.info["mislabelled"] == [{"path": "stray.jpg", "why": "it lies in no class folder"}]
    assert sum(made.info["images"].values()) == 200


def test_links_to_pictures_and_folders_inside_a_class_count(tmp_path: Path) -> None:
    files = class_tree("", 19) | {"dog/small/19.jpg": picture(777)}
    tree = write_tree(tmp_path / "tree", files)
    (tmp_path / "elsewhere.jpg").write_bytes(picture(888))
    (tree / "cat" / "19.jpg").symlink_to(tmp_path / "elsewhere.jpg")
    made = make(tree, tmp_path, to=tmp_path / "to")
    assert sum(made.info["images"].values()) == 40
    placed = {path.relative_to(made.folder).as_posix() for path in made.folder.rglob("*.jpg")}
    assert placed == {*paths(made, "train"), *paths(made, "val")}
    assert {"cat/19.jpg", "dog/small/19.jpg"} <= {path.split("/", 1)[1] for path in placed}
    assert not any(path.is_symlink() for path in made.folder.rglob("*.jpg"))


def test_elsewhere_on_the_same_disk_pictures_are_hard_links(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", both_splits("valid"))
    made = make(tree, tmp_path / "home", to=tmp_path / "to")
    assert made.folder == made.root == tmp_path / "to"
    assert made.info["root"] is None
    assert not (tmp_path / "home").exists()
    assert paths(made, "val")[0] == "val/cat/0.jpg"
    for split in ("train", "val"):
        for entry in made.entries(split):
            original = tree / entry.path.replace("val/", "valid/")
            assert (made.folder / entry.path).samefile(original)


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    shared_memory = Path("/dev/shm")
    if not os.access(shared_memory, os.W_OK) or shared_memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system to write to")
    with tempfile.TemporaryDirectory(dir=shared_memory) as folder:
        yield Path(folder)


def test_on_another_disk_pictures_are_copies(tmp_path: Path, other_disk: Path) -> None:
    tree = write_tree(tmp_path / "tree", both_splits())
    made = make(tree, tmp_path, to=other_disk / "to", num_processes=2)
    placed = {
        path.relative_to(made.folder).as_posix(): path.read_bytes()
        for split in ("train", "val")
        for path in (made.folder / split).rglob("*")
        if path.is_file()
    }
    assert placed == both_splits()


KILLED = """
import os, signal, sys
from pathlib import Path
from konvoi.images.prepare import prepare_images

def report(stage, done=0, total=None, unit="lines"):
    if stage == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    prepare_images("image-folder", from_folder=Path(sys.argv[1]), to=Path(sys.argv[2]), home=Path(), report=report,
                   num_processes=1)
"""


@pytest.mark.parametrize("stage", ["checking pictures", "placing pictures", "writing the index"])
def test_a_killed_preparation_elsewhere_goes_on_and_harms_no_original(tmp_path: Path, stage: str) -> None:
    files = class_tree("", 300)  # 600 pictures: two batches
    tree = write_tree(tmp_path / "tree", files)
    arguments = [sys.executable, "-c", KILLED, str(tree), str(tmp_path / "to"), stage]
    assert subprocess.run(arguments, timeout=240).returncode == -signal.SIGKILL
    assert not (tmp_path / "to").exists()
    made = make(tree, tmp_path, to=tmp_path / "to")
    assert made.info["images"] == {"train": 570, "val": 30}
    assert {path: (tree / path).read_bytes() for path in files} == files
    assert all(made.path(made.entries("train"), number).is_file() for number in range(570))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["to", "tree"]


def test_the_second_time_the_folder_is_simply_opened(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", both_splits())
    first = make(tree, tmp_path, to=tmp_path / "to")
    assert make(tree, tmp_path, to=tmp_path / "to").info == first.info


def test_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    made = make(write_tree(tmp_path / "tree", both_splits()), tmp_path, to=tmp_path / "to")
    assert len(list(made.folder.rglob("*.jpg"))) == 50


def test_a_folder_that_is_not_ours_is_never_touched(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", both_splits())
    for name in ("letter.txt", "info.json"):
        other = write_tree(tmp_path / f"with {name}", {name: b"{}"})
        with pytest.raises(DataError, match="is not empty and not ours"):
            make(tree, tmp_path, to=other)
        assert [path.name for path in other.iterdir()] == [name]


def test_nor_is_one_where_the_unfinished_work_would_lie(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", both_splits())
    other = write_tree(work_folder(tmp_path / "to"), {"letter.txt": b"dear"})
    with pytest.raises(DataError, match="in the way and not ours"):
        make(tree, tmp_path, to=tmp_path / "to")
    assert (other / "letter.txt").read_bytes() == b"dear"


def test_a_folder_with_other_pictures_of_ours_is_not_overwritten(tmp_path: Path) -> None:
    made = make(write_tree(tmp_path / "one", both_splits()), tmp_path, to=tmp_path / "to")
    with pytest.raises(DataError, match="holds a set of other pictures"):
        make(write_tree(tmp_path / "two", class_tree()), tmp_path, to=tmp_path / "to")
    assert ImageSet.open(tmp_path / "to").info == made.info


def test_unfinished_work_on_other_pictures_is_begun_anew(tmp_path: Path) -> None:
    one = write_tree(tmp_path / "one", class_tree())
    arguments = [sys.executable, "-c", KILLED, str(one), str(tmp_path / "to"), "writing the index"]
    assert subprocess.run(arguments, timeout=240).returncode == -signal.SIGKILL
    files = {path.replace("cat", "owl"): content for path, content in class_tree().items()}
    made = make(write_tree(tmp_path / "two", files), tmp_path, to=tmp_path / "to")
    assert made.classes == ["dog", "owl"]
    assert len(list(made.folder.rglob("*.jpg"))) == 40
    assert len(list(one.rglob("*.jpg"))) == 40


def test_the_folder_to_fill_may_not_lie_among_the_pictures(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", class_tree())
    with pytest.raises(DataError, match="lies inside the pictures themselves"):
        make(tree, tmp_path, to=tree / "prepared")


def test_a_changed_picture_makes_another_set(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", both_splits())
    first = make(tree, tmp_path).folder
    (tree / "train" / "cat" / "0.jpg").write_bytes(picture(4321))
    assert make(tree, tmp_path).folder != first
    assert [one.folder for one in image_sets(tmp_path)] == sorted([first, make(tree, tmp_path).folder])


def no_pictures(folder: Path) -> Path:
    (folder / "cat").mkdir(parents=True)
    (folder / "dog").mkdir()
    return folder


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda folder: folder, "does not exist"),
        (lambda folder: (folder.write_bytes(b"") and folder) or folder, "is a file, not a folder"),
        (no_pictures, "holds no pictures for train and val"),
        (lambda folder: write_tree(folder, {"a.jpg": picture(1)}), "holds no folders of classes"),
        (lambda folder: write_tree(folder, {"train/a.jpg": picture(1)}), "holds no folders of classes"),
        (lambda folder: write_tree(folder, {f"cat/{n}.jpg": picture(n) for n in range(4)}), "holds a single class"),
        (lambda folder: write_tree(folder, class_tree("train/") | {"val/cat/x.txt": b""}), "no pictures for val"),
        (lambda folder: write_tree(folder, {"c\nt/0.jpg": picture(1)}), "the name of a class holds"),
    ],
)
def test_a_folder_without_a_set_in_it_is_an_error_with_a_remedy(
    tmp_path: Path, build: Callable[[Path], Path], problem: str
) -> None:
    folder = build(tmp_path / "from")
    with pytest.raises(DataError, match=problem) as caught:
        make(folder, tmp_path)
    assert caught.value.hint
    assert not list(tmp_path.glob("images/*"))


@pytest.fixture
def as_an_ordinary_user() -> Iterator[None]:
    """The superuser may read everything."""
    user = os.geteuid()
    os.seteuid(user or NOBODY)
    yield
    os.seteuid(user)


@pytest.mark.parametrize("closed", ["tree", "tree/cat"])
def test_a_folder_that_cannot_be_read_is_an_error(as_an_ordinary_user: None, closed: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_tree(Path(folder) / "tree", class_tree())
        (Path(folder) / closed).chmod(0)
        try:
            with pytest.raises(DataError, match=f"cannot read .*{closed}") as caught:
                make(Path(folder) / "tree", Path(folder))
            assert caught.value.hint
        finally:
            (Path(folder) / closed).chmod(0o700)


def test_what_is_no_prepared_set_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no prepared set of pictures"):
        ImageSet.open(tmp_path)
    assert not ImageSet.is_one(tmp_path)


@pytest.mark.parametrize("name", ["train.tsv", "train.npy"])
def test_an_index_that_lost_its_end_is_not_opened(tmp_path: Path, name: str) -> None:
    made = make(write_tree(tmp_path / "tree", both_splits()), tmp_path)
    path = made.folder / name
    os.truncate(path, path.stat().st_size - 200)
    with pytest.raises(DataError, match="missing or damaged"):
        made.entries("train")
    path.unlink()
    with pytest.raises(DataError, match="missing or damaged"):
        made.entries("train")


def test_a_set_that_moved_is_opened_in_its_new_place(tmp_path: Path) -> None:
    made = make(write_tree(tmp_path / "tree", both_splits()), tmp_path, to=tmp_path / "to")
    shutil.move(made.folder, tmp_path / "moved")
    moved = ImageSet.open(tmp_path / "moved")
    assert moved.path(moved.entries("val"), 0).is_file()
    with pytest.raises(DataError, match='no split "test"'):
        moved.entries("test")
