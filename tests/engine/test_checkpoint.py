"""Checkpoints: whole or not there, found damaged before they are used, and no more of them than asked for."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.processes import Trainings, checkpoint_steps

from konvoi.engine import checkpoint as module
from konvoi.engine.checkpoint import Checkpoint, Checkpoints, NoRoomError, check_room, damage, load, weights
from konvoi.errors import CheckpointError, MachineError
from konvoi.folder import read_json, write_json


def checkpoint(step: int, value: float = 0.0, size: int = 3) -> Checkpoint:
    tensors = {
        "model": {"weight": torch.full((size,), value)},
        "optimizer": {"0.step": torch.tensor(float(step))},
    }
    return Checkpoint(step, {"step": step, "position": 2 * step}, tensors)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path).save(checkpoint(5, value=1.5))
    loaded = load(path)
    assert (path.name, loaded.step, loaded.state) == (step_name(5), 5, {"step": 5, "position": 10})
    assert loaded.tensors["model"]["weight"].tolist() == [1.5, 1.5, 1.5]
    assert loaded.tensors["optimizer"]["0.step"].item() == 5


def test_the_latest_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3, 4):
        checkpoints.save(checkpoint(step))
    assert names(tmp_path) == [step_name(3), step_name(4)]
    assert checkpoints.last().name == step_name(4)


@pytest.mark.parametrize(
    ("metric", "best"),
    # Of the scores 30, 10, 40, 20, 25 the two best are the highest BLEU, or the lowest losses.
    [("bleu", [3, 1]), ("loss", [2, 4])],
)
def test_the_best_are_kept_beside_the_latest(tmp_path: Path, metric: str, best: list[int]) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1, keep_best=2, metric=metric)
    for step, score in enumerate([30.0, 10.0, 40.0, 20.0, 25.0], start=1):
        checkpoints.rank_by_score(checkpoints.save(checkpoint(step)), score)
    assert names(tmp_path) == [step_name(step) for step in sorted([*best, 5])]
    assert [entry["checkpoint"] for entry in checkpoints.index()["best"]] == [step_name(step) for step in best]
    assert checkpoints.best().name == step_name(best[0])


def test_of_equal_scores_the_earlier_is_better(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3, metric="bleu")
    for step in (1, 2):
        checkpoints.rank_by_score(checkpoints.save(checkpoint(step)), 20.0)
    assert checkpoints.best().name == step_name(1)


def test_a_score_that_is_no_number_is_never_the_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3, metric="loss")
    for step, score in ((1, 5.0), (2, float("nan"))):
        checkpoints.rank_by_score(checkpoints.save(checkpoint(step)), score)
    assert checkpoints.best().name == step_name(1)


def test_without_scores_the_last_is_the_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(checkpoint(1))
    assert checkpoints.best() == checkpoints.last()


def test_checkpoints_are_chosen_by_word_by_name_or_by_path(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2, metric="bleu")
    for step, score in ((1, 30.0), (2, 10.0), (3, 20.0)):
        checkpoints.rank_by_score(checkpoints.save(checkpoint(step)), score)
    chosen = {word: [path.name for path in checkpoints.choose(word)] for word in ("best", "last", "average")}
    assert chosen == {"best": [step_name(1)], "last": [step_name(3)], "average": [step_name(2), step_name(3)]}
    assert checkpoints.choose(step_name(2)) == checkpoints.choose(str(tmp_path / step_name(2)))


def test_the_average_of_checkpoints_by_hand(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step, value in ((1, 1.0), (2, 4.0), (3, 7.0)):
        checkpoints.save(checkpoint(step, value))
    # (1 + 4 + 7) / 3 = 4
    assert weights(checkpoints.choose("average"))["weight"].tolist() == pytest.approx([4.0, 4.0, 4.0])


def test_the_moving_average_is_preferred_to_the_weights(tmp_path: Path) -> None:
    both = checkpoint(1, value=1.0)
    both.tensors["ema"] = {"weight": torch.tensor([9.0])}
    assert weights([Checkpoints(tmp_path).save(both)])["weight"].tolist() == [9.0]


def test_a_folder_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    for word in ("best", "last", "average"):
        with pytest.raises(CheckpointError, match="holds no checkpoint"):
            Checkpoints(tmp_path).choose(word)


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": flip_a_byte,
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "emptied": lambda path: path.write_bytes(b""),
    "removed": lambda path: path.unlink(),
}


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json", "checksums.json"])
def test_every_damage_to_every_file_is_found_and_a_whole_checkpoint_named(tmp_path: Path, how: str, file: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2, 3):
        path = checkpoints.save(checkpoint(step))
    DAMAGES[how](path / file)
    with pytest.raises(CheckpointError, match=f"{step_name(3)} is damaged") as caught:
        checkpoints.choose("last")
    assert step_name(2) in caught.value.hint and "intact" in caught.value.hint
    assert [path.name for path in checkpoints.intact()] == [step_name(2), step_name(1)]


def test_a_missing_checkpoint_is_found_too(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    shutil.rmtree(checkpoints.save(checkpoint(1)))
    with pytest.raises(CheckpointError, match="is missing") as caught:
        checkpoints.choose("last")
    assert caught.value.hint == "no other checkpoint is intact"


def test_checksums_that_leave_out_the_weights_do_not_pass(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path).save(checkpoint(1))
    (path / "checksums.json").write_text("{}")
    assert damage(path) == "damaged (checksums.json names no model.safetensors)"


def test_a_damaged_checkpoint_is_replaced_when_its_step_comes_again(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path).save(checkpoint(1))
    flip_a_byte(path / "model.safetensors")
    Checkpoints(tmp_path).save(checkpoint(1))
    assert damage(path) == ""
    assert [entry.name for entry in tmp_path.iterdir()] in (["index.json", path.name], [path.name, "index.json"])


def test_what_a_killed_run_left_half_written_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".step-00000003.4711"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    Checkpoints(tmp_path).save(checkpoint(4))
    assert not left.exists()


def test_a_run_goes_on_from_the_newest_checkpoint_that_is_intact_and_says_so(trainings: Trainings) -> None:
    run = trainings.trained()
    flip_a_byte(run.checkpoints / step_name(12) / "model.safetensors")
    assert trainings.train(run, resume=True) == "finished"
    told = [event for event in run.events_of(0) if event["kind"] == "fault"]
    assert [event["message"] for event in told] == [
        "step-00000012 is damaged (model.safetensors differs from its checksum); going on from step-00000010"
    ]
    assert damage(run.checkpoints / step_name(12)) == ""


def test_a_damaged_checkpoint_that_was_asked_for_by_name_is_not_replaced(trainings: Trainings) -> None:
    run = trainings.trained()
    flip_a_byte(run.checkpoints / step_name(12) / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors differs from its checksum") as caught:
        trainings.train(run, resume=True, checkpoint=step_name(12))
    assert step_name(10) in caught.value.hint


def test_where_no_checkpoint_is_intact_the_run_is_not_resumed(trainings: Trainings) -> None:
    run = trainings.trained("checkpoint.keep=1")
    for folder in run.checkpoints.glob("step-*"):
        flip_a_byte(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="damaged") as caught:
        trainings.train(run, resume=True)
    assert caught.value.hint == "no other checkpoint is intact"


def test_a_full_disk_frees_the_oldest_but_never_the_last_nor_the_best(tiny_disk: Path) -> None:
    # Each takes some 0.3 MB of 2, of which 1 stays free: the fourth has no room but that of another.
    checkpoints = Checkpoints(tiny_disk, keep=9, metric="loss")
    for step in (1, 2, 3):
        path = checkpoints.save(checkpoint(step, size=SMALL))
        if step == 1:
            checkpoints.rank_by_score(path, 1.0)
    checkpoints.save(checkpoint(4, size=SMALL))
    assert (checkpoints.freed, names(tiny_disk)) == ([step_name(2)], [step_name(1), step_name(3), step_name(4)])
    with pytest.raises(MachineError, match="no space left"):
        checkpoints.save(checkpoint(5, size=TOO_LARGE))
    assert names(tiny_disk) == [step_name(1), step_name(4)]
    assert [damage(tiny_disk / name) for name in names(tiny_disk)] == ["", ""]


def test_a_run_keeps_as_many_as_its_recipe_says(trainings: Trainings) -> None:
    # Nothing is learnt, so the first evaluation stays the best.
    settings = ("schedule.learning_rate=1e-12", "evaluate.every=2 steps", "evaluate.max_sentences=1")
    run = trainings.trained(*settings, "checkpoint.every=2 steps", "checkpoint.keep=2", "train.duration=8 steps")
    assert checkpoint_steps(run) == [2, 6, 8]
    assert run.summary()["best"]["checkpoint"] == step_name(2)
    index = json.loads((run.checkpoints / "index.json").read_text())
    assert index["last"] == [step_name(6), step_name(8)]
    assert [entry["checkpoint"] for entry in index["best"]] == [step_name(2)]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = os.geteuid() == 0 and shutil.which("mount")
    if not mounted or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder]).returncode:
        pytest.skip("a disk that is really full needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", folder], check=True)


# 4 bytes each: 4 MB
TOO_LARGE = 1_000_000
SMALL = 75_000


def test_a_full_disk_is_told_before_anything_is_written(tiny_disk: Path) -> None:
    with pytest.raises(MachineError, match=r"no space left for a checkpoint of 4\.0 MB, 2\.1 MB are free") as caught:
        Checkpoints(tiny_disk).save(checkpoint(1, size=TOO_LARGE))
    assert "checkpoint.keep" in caught.value.hint
    assert list(tiny_disk.iterdir()) == []


def test_room_is_wanted_for_all_that_are_kept_and_one_more(tiny_disk: Path) -> None:
    check_room(tiny_disk, 500_000, num_kept=1)
    said = r"no space left for 5 checkpoints of 0\.5 MB \(those that are kept and one more\): 2\.5 MB, 2\.1 MB are free"
    with pytest.raises(MachineError, match=said):
        check_room(tiny_disk, 500_000, num_kept=4)


def test_a_disk_that_fills_while_we_write_leaves_no_half_checkpoint(
    tiny_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tiny_disk)
    whole = checkpoints.save(checkpoint(1))
    monkeypatch.setattr(module, "has_room", lambda folder, needed_bytes: True)
    with pytest.raises(MachineError, match=r"no space left for a checkpoint of 4\.0 MB"):
        checkpoints.save(checkpoint(2, size=TOO_LARGE))
    assert sorted(path.name for path in tiny_disk.iterdir()) == ["index.json", whole.name]
    assert checkpoints.last() == whole and damage(whole) == ""


def test_whoever_goes_back_gives_up_what_came_after(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3, keep_best=2, metric="bleu")
    for step, bleu in ((1, 10.0), (2, 30.0), (3, 20.0)):
        checkpoints.rank_by_score(checkpoints.save(checkpoint(step)), bleu)
    checkpoints.forget_after(1)
    checkpoints.rank_by_score(checkpoints.save(checkpoint(2, value=1.0)), 15.0)
    assert [path.name for path in checkpoints.choose("average")] == [step_name(1), step_name(2)]
    assert checkpoints.index()["best"][0] == {"checkpoint": step_name(2), "metric": "bleu", "value": 15.0}
    assert names(tmp_path) == [step_name(1), step_name(2)]


def test_whoever_goes_back_to_one_of_the_best_finds_it_again_after_the_next_fault(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1, metric="bleu")
    for step, bleu in ((1, 30.0), (2, 10.0), (3, 20.0)):
        checkpoints.rank_by_score(checkpoints.save(checkpoint(step)), bleu)
    assert checkpoints.index()["last"] == [step_name(3)]
    checkpoints.forget_after(1)
    assert checkpoints.newest_intact() == (tmp_path / step_name(1), "")
    checkpoints.save(checkpoint(2))
    assert names(tmp_path) == [step_name(1), step_name(2)]


def test_a_run_that_goes_on_from_another_folder_keeps_what_it_began_with(trainings: Trainings, tmp_path: Path) -> None:
    run = trainings.trained()
    shutil.copytree(run.checkpoints / step_name(12), tmp_path / step_name(12))
    shutil.rmtree(run.checkpoints)
    with trainings.built(run, resume=True, checkpoint=str(tmp_path / step_name(12))):
        assert Checkpoints(run.checkpoints).newest_intact() == (run.checkpoints / step_name(12), "")


@pytest.mark.parametrize("name", ["/dev/zero", "../secret", "pipe", "link"])
def test_checksums_that_lead_elsewhere_are_damage_and_nothing_is_read(tmp_path: Path, name: str) -> None:
    path = Checkpoints(tmp_path).save(checkpoint(1))
    (tmp_path / "secret").write_text("mine")
    os.mkfifo(path / "pipe")
    (path / "link").symlink_to("/dev/zero")
    write_json(path / "checksums.json", {**read_json(path / "checksums.json"), name: "0"})
    assert damage(path) == f"damaged ({name} is missing)"


def test_a_disk_without_room_for_the_index_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(checkpoint(1))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "write_json", full)
    with pytest.raises(NoRoomError):
        checkpoints.save(checkpoint(2))
    assert checkpoints.newest_intact()[0].name == step_name(1)


def test_a_host_whose_index_is_damaged_goes_on_with_what_another_one_had(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(checkpoint(1))
    (tmp_path / "index.json").write_text("")
    checkpoints.forget_after(2)
    assert checkpoints.index() == {"last": [], "best": []}
    checkpoints.save(checkpoint(2))
    assert checkpoints.newest_intact() == (tmp_path / step_name(2), "")
