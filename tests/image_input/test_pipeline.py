"""Pictures for training and evaluation: the same by any number of processes, and nothing left behind."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.images.make import Files, picture, write_tree

from konvoi.errors import DataError, MachineError
from konvoi.image_input import batches
from konvoi.image_input.augment import View
from konvoi.image_input.pipeline import EvaluationInput, Pictures, TrainInput
from konvoi.image_input.plan import TrainPlan
from konvoi.images.image_set import ImageSet
from konvoi.images.prepare import prepare_images

NUM_PER_CLASS = 13
BATCH = 8
SEED = 5
# Only against a hang: nothing here takes as long when all is well.
PATIENCE_SECONDS = 30


def made(folder: Path, num_val: int = 5) -> ImageSet:
    """3 classes x 13 pictures to train on, 3 x 5 to evaluate with; another size for every picture."""
    files: Files = {}
    for number, name in enumerate(("cat", "dog", "elk")):
        for split, count in (("train", NUM_PER_CLASS), ("val", num_val)):
            for i in range(count):
                seed = 1000 * number + 100 * (split == "val") + i
                files[f"{split}/{name}/{i:02}.jpg"] = picture(seed, size=(40 + i, 60 - i))
    tree = write_tree(folder / "tree", files)
    return prepare_images("image-folder", from_folder=tree, to=None, home=folder / "home", num_processes=1)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    """Shared by the tests that only read it."""
    return made(tmp_path_factory.mktemp("pictures"))


def growing(epoch: int) -> View:
    return View(size=16 + 8 * epoch)


def plan_of(image_set: ImageSet, batch: int = BATCH) -> TrainPlan:
    return TrainPlan(len(image_set.entries("train")), batch, SEED)


def opened(
    image_set: ImageSet,
    num_processes: int = 0,
    stride: int = 1,
    view_of: Callable[[int], View] = growing,
    num_ahead: int = 3,
    batch: int = BATCH,
) -> TrainInput:
    plan = plan_of(image_set, batch)
    return TrainInput(image_set, plan, view_of, SEED, stride=stride, num_processes=num_processes, num_ahead=num_ahead)


def assert_same(one: Pictures, other: Pictures) -> None:
    assert torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)


def shown_once(image_set: ImageSet) -> list[Pictures]:
    """Two epochs and a half, decoded in this process."""
    with opened(image_set) as here:
        return [here.get(position) for position in range(13)]


@pytest.fixture(scope="module")
def expected(pictures: ImageSet) -> list[Pictures]:
    return shown_once(pictures)


def test_images_are_bytes_in_channels_last_memory_and_labels_are_the_classes(
    pictures: ImageSet, expected: list[Pictures]
) -> None:
    # 39 pictures: 4 batches of 8 and one of 7; the next epoch is larger by 8 pixels.
    assert [tuple(one.images.shape) for one in expected[:6]] == [(8, 3, 16, 16)] * 4 + [(7, 3, 16, 16), (8, 3, 24, 24)]
    plan = plan_of(pictures)
    for position, one in enumerate(expected):
        assert one.images.dtype == torch.uint8 and one.labels.dtype == torch.int64
        assert one.images.is_contiguous(memory_format=torch.channels_last)
        epoch, first = plan.start(position)
        indices = plan.order(epoch)[first : first + plan.num_images(position)]
        assert one.labels.tolist() == [pictures.entries("train")[int(i)].class_number for i in indices]


def test_a_picture_is_shown_as_a_crop_of_itself(tmp_path: Path) -> None:
    """Every file has one colour, its own, so that the colour tells which file it was."""
    files = write_tree(tmp_path / "tree", {})
    for number in range(20):
        folder = files / "train" / ("even", "odd")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (30, 20), (10 * number, 0, 0)).save(folder / f"{number:02}.png")
    (files / "val" / "even").mkdir(parents=True)
    (files / "val" / "odd").mkdir(parents=True)
    for number in (100, 101):
        Image.new("RGB", (30, 20), (0, 0, number)).save(files / "val" / ("even", "odd")[number % 2] / "1.png")
    image_set = prepare_images("image-folder", from_folder=files, to=None, home=tmp_path / "home", num_processes=1)
    with opened(image_set, batch=20) as here:
        shown = here.get(0)
    numbers = [int(image[0].float().mean()) // 10 for image in shown.images]
    assert sorted(numbers) == list(range(20))
    assert shown.labels.tolist() == [number % 2 for number in numbers]
    paths = [image_set.entries("train").path(int(index)) for index in plan_of(image_set, 20).order(0)]
    assert numbers == [int(Path(path).stem) for path in paths]


@pytest.mark.parametrize("num_processes", [1, 2])
def test_any_number_of_processes_shows_the_same(
    pictures: ImageSet, expected: list[Pictures], num_processes: int
) -> None:
    with opened(pictures, num_processes) as ahead:
        for position in range(13):
            assert_same(ahead.get(position), expected[position])


def test_two_ranks_with_strides_show_what_one_shows(pictures: ImageSet, expected: list[Pictures]) -> None:
    with opened(pictures, 1, stride=2) as first, opened(pictures, 1, stride=2) as second:
        for position in range(12):
            assert_same((first, second)[position % 2].get(position), expected[position])


def test_a_resumed_run_goes_on_in_mid_epoch_exactly(pictures: ImageSet, expected: list[Pictures]) -> None:
    with opened(pictures, 2) as resumed:
        for position in range(7, 13):
            assert_same(resumed.get(position), expected[position])


def test_any_other_position_is_served_too(pictures: ImageSet, expected: list[Pictures]) -> None:
    with opened(pictures, 2) as ahead:
        for position in (4, 0, 12, 12, 3, 4, 11, 0, 1):
            assert_same(ahead.get(position), expected[position])


def test_what_was_given_out_stays_until_the_next_get_but_one(pictures: ImageSet) -> None:
    with opened(pictures, 1) as ahead:
        before = ahead.get(0)
        kept = before.images.clone()
        for position in range(1, 30):
            now = ahead.get(position)
            # Long enough for what is ahead to be decoded, if it were to be decoded into this memory.
            time.sleep(0.01)
            assert torch.equal(before.images, kept)
            before, kept = now, now.images.clone()


def test_seeds_change_what_is_seen_of_a_picture(pictures: ImageSet, expected: list[Pictures]) -> None:
    plan = plan_of(pictures)
    with TrainInput(pictures, plan, growing, SEED + 1, stride=1, num_processes=0) as other:
        shown = other.get(0)
    assert torch.equal(shown.labels, expected[0].labels)
    assert not torch.equal(shown.images, expected[0].images)


@pytest.fixture
def damaged(tmp_path: Path) -> ImageSet:
    """Two of the training pictures were damaged after the set had been prepared, and one of the others."""
    image_set = made(tmp_path)
    (image_set.root / "train/cat/03.jpg").write_bytes(b"no picture")
    (image_set.root / "train/dog/07.jpg").unlink()
    (image_set.root / "val/elk/02.jpg").write_bytes(b"")
    return image_set


@pytest.mark.parametrize("num_processes", [0, 2])
def test_a_damaged_picture_is_replaced_by_the_next_of_the_order(damaged: ImageSet, num_processes: int) -> None:
    entries, plan = damaged.entries("train"), plan_of(damaged)
    paths = [entries.path(int(index)) for index in plan.order(0)]
    bad = {paths.index("train/cat/03.jpg"), paths.index("train/dog/07.jpg")}
    assert all((place + 1) % 39 not in bad for place in bad), "this seed has them one after the other"
    expected = [entries[int(plan.order(0)[(place + (place in bad)) % 39])].class_number for place in range(39)]
    with opened(damaged, num_processes) as given:
        shown = [given.get(position) for position in range(5)]
        assert torch.cat([one.labels for one in shown]).tolist() == expected
        assert [len(one.labels) for one in shown] == [8, 8, 8, 8, 7]
        assert dict(given.damaged).keys() == {"train/cat/03.jpg", "train/dog/07.jpg"}
        assert dict(given.damaged)["train/dog/07.jpg"] == "cannot be read: No such file or directory"
        # The next epoch finds the same two, which are listed once.
        for position in range(5, 10):
            given.get(position)
        assert len(given.damaged) == 2


def test_damaged_pictures_are_replaced_alike_by_any_number_of_processes(damaged: ImageSet) -> None:
    expected = shown_once(damaged)
    with opened(damaged, 2) as ahead:
        for position in range(13):
            assert_same(ahead.get(position), expected[position])


@pytest.mark.parametrize("num_processes", [0, 1])
def test_where_no_picture_is_left_the_user_is_told(tmp_path: Path, num_processes: int) -> None:
    image_set = made(tmp_path)
    shutil.rmtree(image_set.root / "train")
    with opened(image_set, num_processes) as given, pytest.raises(DataError, match="39 pictures in a row") as caught:
        given.get(0)
    assert "cannot be read" in caught.value.problem and caught.value.hint


def test_a_long_row_of_damaged_pictures_is_not_searched_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "MAX_DAMAGED_IN_A_ROW", 4)
    image_set = made(tmp_path)
    shutil.rmtree(image_set.root / "train")
    with opened(image_set) as given, pytest.raises(DataError, match="4 pictures in a row"):
        given.get(0)


@pytest.mark.parametrize("num_ranks, batch", [(1, 4), (2, 4), (3, 100), (4, 1), (16, 4)])
def test_evaluation_shows_every_picture_exactly_once_over_all_ranks(
    pictures: ImageSet, num_ranks: int, batch: int
) -> None:
    entries = pictures.entries("val")
    whole = next(iter(EvaluationInput(pictures, "val", 16, 18, rank=0, num_ranks=1, batch=100)))
    assert whole.labels.tolist() == [entry.class_number for entry in entries]
    for rank in range(num_ranks):
        given = EvaluationInput(pictures, "val", 16, 18, rank=rank, num_ranks=num_ranks, batch=batch)
        shown = list(given)
        assert all(len(one.labels) == batch for one in shown[:-1])
        images = torch.cat([one.images for one in shown]) if shown else whole.images[:0]
        assert torch.equal(images, whole.images[rank::num_ranks])
    assert num_ranks < 16 or not shown


def test_evaluation_leaves_damaged_pictures_out_and_lists_them(damaged: ImageSet) -> None:
    given = EvaluationInput(damaged, "val", 16, 18, rank=0, num_ranks=1, batch=5)
    shown = list(given)
    # The elks are the last five.
    assert [len(one.labels) for one in shown] == [5, 5, 4]
    assert shown[-1].images.shape == (4, 3, 16, 16)
    assert given.damaged == [("val/elk/02.jpg", "not a picture (JPEG, PNG, WEBP, GIF, BMP, TIFF, PPM)")]


def test_evaluation_sees_the_middle_as_pillow_resizes_it(pictures: ImageSet) -> None:
    shown = next(iter(EvaluationInput(pictures, "val", 16, 20, rank=0, num_ranks=1, batch=1)))
    with Image.open(pictures.root / pictures.entries("val").path(0)) as file:
        # 40 x 60 becomes 20 x 30; its middle begins at (20 - 16) / 2 = 2 and (30 - 16) / 2 = 7.
        middle = np.asarray(file.resize((20, 30), Image.Resampling.BILINEAR))[7:23, 2:18]
    assert np.abs(shown.images[0].permute(1, 2, 0).numpy().astype(int) - middle)[2:-2, 2:-2].max() <= 1


def children() -> list[int]:
    """Processes that decode for this one."""
    return decoding_for(os.getpid())


def decoding_for(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"decoding_process" in command and f'"parent": {parent},'.encode() in command:
            found.append(int(folder.name))
    return found


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.02)


def shared_descriptors() -> list[str]:
    """The sockets of this process and its memory without a name."""
    gc.collect()
    links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sorted(link for link in links if link.startswith(("socket:", "/memfd:")))


needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs Linux's /proc")


@needs_proc
def test_closing_ends_the_processes_and_frees_all_descriptors(pictures: ImageSet) -> None:
    before = shared_descriptors()
    with opened(pictures, 2) as ahead:
        ahead.get(0)
        assert len(children()) == 2
        assert len(shared_descriptors()) > len(before)
    assert children() == []
    assert shared_descriptors() == before
    ahead.close()


@needs_proc
def test_an_input_that_nobody_holds_ends_its_processes(pictures: ImageSet) -> None:
    ahead = opened(pictures, 1)
    kept = ahead.get(0)
    total = int(kept.images.sum())
    del ahead
    gc.collect()
    assert children() == []
    # Its memory lives as long as the tensor.
    assert int(kept.images.sum()) == total


@needs_proc
def test_the_processes_import_no_torch_and_ignore_ctrl_c(pictures: ImageSet, expected: list[Pictures]) -> None:
    with opened(pictures, 1) as ahead:
        ahead.get(0)
        (child,) = children()
        assert "torch" not in Path(f"/proc/{child}/maps").read_text()
        os.kill(child, signal.SIGINT)
        for position in range(1, 8):
            assert_same(ahead.get(position), expected[position])
        assert children() == [child]


@needs_proc
def test_a_killed_process_is_said_to_be_one(pictures: ImageSet) -> None:
    with opened(pictures, 2, num_ahead=1) as ahead:
        ahead.get(0)
        for child in children():
            os.kill(child, signal.SIGKILL)
        with pytest.raises(MachineError, match=re.escape("exit codes: -9, -9")):
            for position in range(1, 5):
                ahead.get(position)


@needs_proc
def test_one_killed_process_of_two_is_noticed_too(pictures: ImageSet) -> None:
    with opened(pictures, 2) as ahead:
        ahead.get(0)
        stopped, killed = children()
        os.kill(stopped, signal.SIGSTOP)
        os.kill(killed, signal.SIGKILL)
        try:
            with pytest.raises(MachineError, match="decodes pictures ended"):
                # The other one goes on only after the loss was noticed: nothing is decoded meanwhile.
                for position in range(1, 9):
                    ahead.get(position)
        finally:
            if stopped in children():
                os.kill(stopped, signal.SIGCONT)


PROGRAM = """
import os, sys, time
from pathlib import Path
from konvoi.images.image_set import ImageSet
from konvoi.image_input.augment import View
from konvoi.image_input.pipeline import TrainInput
from konvoi.image_input.plan import TrainPlan
image_set = ImageSet.open(Path(sys.argv[1]))
plan = TrainPlan(len(image_set.entries("train")), 8, 1)
given = TrainInput(image_set, plan, lambda epoch: View(32), 1, stride=1, num_processes=2)
given.get(0)
fork = os.fork() if "fork" in sys.argv else -1
while fork == 0:
    time.sleep(1)
print(os.getpid(), fork, flush=True)
while "stay" in sys.argv:
    given.get(1)
"""


@pytest.fixture
def start(pictures: ImageSet) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, str(pictures.folder), *arguments]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def shared_memory_files() -> set[str]:
    return set(os.listdir("/dev/shm")) if Path("/dev/shm").exists() else set()


@needs_proc
@pytest.mark.parametrize("forks", [False, True], ids=["alone", "with a fork that lives on"])
def test_nothing_is_left_of_a_parent_that_was_killed(start: Callable[..., subprocess.Popen[str]], forks: bool) -> None:
    before = shared_memory_files()
    process = start("stay", *(["fork"] if forks else []))
    assert process.stdout is not None
    _, fork = map(int, process.stdout.readline().split())
    assert len(decoding_for(process.pid)) == 2
    process.kill()
    process.wait()
    try:
        wait_until(lambda: not decoding_for(process.pid), "the end of the decoding processes")
    finally:
        if forks:
            os.kill(fork, signal.SIGKILL)
    assert not {name for name in shared_memory_files() - before if "konvoi" in name}


@needs_proc
def test_a_program_that_just_ends_leaves_nothing_and_says_nothing(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    process = start()
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, errors) == (0, "")
    assert decoding_for(int(output.split()[0])) == []
