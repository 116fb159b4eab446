"""The image classifier on the same loop: it learns, goes on exactly, and says what it sees."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

COLOURS = {"blue": (40, 60, 200), "green": (40, 180, 60), "red": (200, 50, 40)}
NUM_TRAIN, NUM_VAL = 24, 7

RECIPE = """# konvoi train colours.toml
[task]
name = "classification"

[data]
set = "image-folder"
folder = "{folder}"

[model]
name = "resnet"
depth = 18
stem = "small"
width = 8

[batching]
images = 16
size = 16
processes = 0

[optim]
name = "sgd"

[schedule]
name = "one-cycle"
learning_rate = 0.1

[train]
duration = "40 steps"
threads = 1
ema_decay = 0.9

[evaluate]
every = "20 steps"
"""


@pytest.fixture(scope="session")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noisy pictures of three colours, 20 x 24 pixels."""
    folder, draw = tmp_path_factory.mktemp("colours"), np.random.default_rng(1)
    for split, count in (("train", NUM_TRAIN), ("val", NUM_VAL)):
        for name, colour in COLOURS.items():
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.clip(draw.normal(colour, 40, (20, 24, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")
    return folder


@pytest.fixture(scope="session")
def recipe(colours: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "colours.toml"
    path.write_text(RECIPE.format(folder=colours))
    return path


@pytest.fixture(scope="session")
def seeing_run(konvoi, recipe, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "colours"
    result = konvoi("train", recipe, "--run", path)
    assert result.exit_code == 0, result.stderr
    assert "images/s" in result.stdout and f"konvoi classify {path} IMAGE" in result.stdout
    return path


def losses(run: Path) -> list[float]:
    events = [json.loads(line) for line in (run / "events" / "rank0.jsonl").read_text().splitlines()]
    return [event["loss"] for event in events if event["kind"] == "step"]


def test_it_learns(seeing_run):
    summary = json.loads((seeing_run / "summary.json").read_text())
    # one in three by chance
    assert summary["best"]["value"] >= 90.0
    # 3 classes: the right one is always among the five likeliest
    assert summary["scores"]["accuracy_5"] == 100.0
    assert summary["images_per_second"] > 0
    assert "target_tokens_per_second" not in summary


def test_a_killed_run_goes_on_exactly_in_mid_epoch(konvoi, recipe, seeing_run, tmp_path):
    # 72 pictures at 16 are 5 steps an epoch, the last one of 8: step 8 is in the midst of the second
    run = tmp_path / "run"
    settings = ["--set", "checkpoint.every=4 steps", "--set", "evaluate.every=40 steps", "--set", "checkpoint.keep=20"]
    assert konvoi("train", recipe, "--run", run, *settings).exit_code == 0
    straight = losses(run)
    for folder in (run / "checkpoints").glob("step-*"):
        if folder.name > "step-00000008":
            shutil.rmtree(folder)
    (run / "checkpoints" / "index.json").write_text('{"last": ["step-00000004", "step-00000008"], "best": []}')
    summary = run / "summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "status": "interrupted"}))
    resumed = konvoi("train", recipe, "--run", run, "--resume", *settings)
    assert resumed.exit_code == 0, resumed.stderr
    assert losses(run)[40:] == straight[8:]


def test_an_epoch_shows_every_picture_once(seeing_run):
    events = [json.loads(line) for line in (seeing_run / "events" / "rank0.jsonl").read_text().splitlines()]
    images = [event["images"] for event in events if event["kind"] == "step"]
    # 3 x 24 = 72 = 4 x 16 + 8
    assert images[:5] == [16, 16, 16, 16, 8]


def test_eval_gives_accuracies_and_a_confusion_table(konvoi, seeing_run):
    result = json.loads(konvoi("eval", seeing_run, "--json").stdout)
    assert result["images"] == 3 * NUM_VAL
    assert np.sum(result["confusion"]) == 3 * NUM_VAL
    # the diagonal over all
    assert result["accuracy_1"] == pytest.approx(100 * np.trace(result["confusion"]) / (3 * NUM_VAL))
    words = konvoi("eval", seeing_run).stdout
    assert "Acc@1" in words and "Acc@5" in words and "green" in words


def test_classify_names_the_likeliest_classes(konvoi, seeing_run, colours):
    picture = colours / "val" / "red" / "3.png"
    (one,) = json.loads(konvoi("classify", seeing_run, picture, "--json").stdout)
    assert one["classes"][0]["class"] == "red"
    assert sum(found["probability"] for found in one["classes"]) == pytest.approx(1, abs=1e-4)
    words = konvoi("classify", seeing_run, picture, colours / "val" / "blue", "--top", 1).stdout
    # the picture and the seven of the folder
    assert words.count(".png") == 1 + NUM_VAL


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["classify", "RUN", "nothing.png"], "does not exist"),
        (["translate", "RUN", "Hello."], "is no translator"),
        (["eval", "RUN", "--beam", "3"], "for translators"),
        (["eval", "RUN", "--split", "test"], "has no split"),
    ],
)
def test_mistakes_are_answered_in_words(konvoi, seeing_run, arguments, words):
    result = konvoi(*(seeing_run if word == "RUN" else word for word in arguments))
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_text_file_is_no_picture(konvoi, seeing_run, tmp_path):
    (tmp_path / "letter.png").write_text("Dear Sir")
    result = konvoi("classify", seeing_run, tmp_path / "letter.png")
    assert result.exit_code == 2
    assert "can't be read as a picture" in result.stderr


def test_a_translator_sees_nothing(konvoi, trained_run, colours):
    result = konvoi("classify", trained_run, colours / "val" / "red" / "3.png")
    assert result.exit_code == 2
    assert "is no image classifier" in result.stderr


def test_too_many_damaged_pictures_stop_the_run(konvoi, recipe, colours, tmp_path):
    """Damaged after the set was prepared: the index still names them."""
    copy = tmp_path / "copy"
    shutil.copytree(colours, copy)
    assert konvoi("data", "prepare", "image-folder", "--from", copy).exit_code == 0
    path = tmp_path / "copy.toml"
    path.write_text(RECIPE.format(folder=copy))
    settings = ["--set", "train.duration=6 steps", "--set", "evaluate.every=6 steps"]
    for name in ("0.png", "1.png"):
        damage(copy / "train" / "red" / name)
    # 2 of 72 are 2.8 %
    stopped = konvoi("train", path, "--run", tmp_path / "one", *settings)
    assert stopped.exit_code == 2
    assert "pictures can't be decoded" in stopped.stderr
    allowed = konvoi("train", path, "--run", tmp_path / "two", *settings, "--set", "data.max_damaged_share=0.05")
    assert allowed.exit_code == 0, allowed.stderr


def damage(picture):
    """As a disk does it: neither size nor time tells."""
    stamp = picture.stat()
    picture.write_bytes(b"\0" * stamp.st_size)
    os.utime(picture, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def test_a_damaged_picture_is_left_out_of_the_score_and_named(konvoi, colours, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(colours, copy)
    assert konvoi("data", "prepare", "image-folder", "--from", copy).exit_code == 0
    path = tmp_path / "copy.toml"
    path.write_text(RECIPE.format(folder=copy))
    num_pictures = len(list((copy / "val").glob("*/*.png")))
    damage(copy / "val" / "red" / "3.png")
    settings = ["--set", "train.duration=2 steps", "--set", "evaluate.every=2 steps"]
    stopped = konvoi("train", path, "--run", tmp_path / "one", *settings)
    assert stopped.exit_code == 2
    assert "1 pictures can't be decoded" in stopped.stderr
    run = tmp_path / "two"
    assert konvoi("train", path, "--run", run, *settings, "--set", "data.max_damaged_share=0.5").exit_code == 0
    events = [json.loads(line) for line in (run / "events" / "rank0.jsonl").read_text().splitlines()]
    (scores,) = [event for event in events if event["kind"] == "evaluation"]
    assert scores["images"] == num_pictures - 1
    assert [name for name, _ in scores["damaged"]] == ["val/red/3.png"]
    assert "damaged" not in json.loads((run / "summary.json").read_text())["scores"]
    assert "val/red/3.png" in konvoi("eval", run).stdout


def test_the_score_of_two_workers_is_that_of_their_checkpoint(konvoi, recipe, tmp_path):
    """Batch norm keeps statistics of its own on every worker: an evaluation together must use the saved ones."""
    settings = ["--set", "train.duration=10 steps", "--set", "evaluate.every=10 steps", "--set", "train.ema_decay=0.5"]
    command = [sys.executable, "-m", "konvoi", "train", recipe, "--run", tmp_path / "run", "--workers", "2", *settings]
    trained = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert trained.returncode == 0, trained.stderr
    scores = json.loads((tmp_path / "run" / "summary.json").read_text())["scores"]
    again = json.loads(konvoi("eval", tmp_path / "run", "--checkpoint", "last", "--json").stdout)
    assert again["loss"] == pytest.approx(scores["loss"], rel=1e-5)
    assert again["accuracy_1"] == scores["accuracy_1"]
