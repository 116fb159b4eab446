"""konvoi train: what it writes, says and refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from konvoi.run_directory import RunDirectory


@pytest.fixture
def run_copy(trained_run, tmp_path):
    return Path(shutil.copytree(trained_run, tmp_path / "copy"))


def damage(checkpoint: Path) -> None:
    with (checkpoint / "model.safetensors").open("r+b") as file:
        file.seek(200)
        file.write(b"damaged")


def test_training_ends_with_the_words_people_know(training):
    path, result = training
    for words in ("time in all", "time per step", "target tokens/s", "source+target tokens/s", "validation loss"):
        assert words in result.stdout
    assert "BLEU" in result.stdout
    assert "chrF" in result.stdout
    assert f"konvoi eval {path}" in result.stdout
    # evaluate.samples = 2
    assert result.stdout.count("translation  ") == 2


def test_the_run_directory_is_self_contained(trained_run):
    run = RunDirectory.open(trained_run)
    assert run.summary()["status"] == "finished"
    assert run.summary()["steps"] == 20
    assert run.environment()["devices"]
    assert run.vocabulary_file.is_file()
    assert {path.name for path in run.checkpoints.glob("step-*")} == {"step-00000010", "step-00000020"}


def test_an_unknown_recipe_suggests_a_near_one(konvoi):
    result = konvoi("train", "dmeo")
    assert result.exit_code == 2
    assert 'error: there is no recipe "dmeo", did you mean "demo"?' in result.stderr
    assert "hint: " in result.stderr


def test_all_problems_of_a_recipe_come_at_once(konvoi):
    changes = ("train.duration=soon", "model.widht=3", "optim.beta1=7", "nonsense")
    result = konvoi("train", "demo", *(word for change in changes for word in ("--set", change)))
    assert result.exit_code == 2
    assert "4 problems" in result.stderr
    for words in ("train.duration", 'did you mean "width"?', "optim.beta1", "--set nonsense"):
        assert words in result.stderr


def test_a_directory_that_holds_another_run_is_left_alone(konvoi, tiny_recipe, trained_run):
    before = (trained_run / "summary.json").read_bytes()
    result = konvoi("train", tiny_recipe, "--run", trained_run)
    assert result.exit_code == 2
    assert "holds another run" in result.stderr
    assert (trained_run / "summary.json").read_bytes() == before


def test_no_workers_is_a_usage_error(konvoi):
    assert konvoi("train", "demo", "--workers", "0").exit_code == 2


def test_a_checkpoint_makes_sense_only_with_resume(konvoi):
    result = konvoi("train", "demo", "--checkpoint", "last")
    assert result.exit_code == 2
    assert "--resume" in result.stderr


def test_resume_without_a_run_says_so(konvoi, tiny_recipe, in_folder):
    result = konvoi("train", tiny_recipe, "--resume")
    assert result.exit_code == 2
    assert "there is no run of" in result.stderr


def test_resume_refuses_another_model_and_names_every_key(konvoi, tiny_recipe, trained_run):
    changes = ("--set", "model.width=64", "--set", "train.seed=7", "--set", "evaluate.metric=loss")
    result = konvoi("train", tiny_recipe, "--run", trained_run, "--resume", *changes)
    assert result.exit_code == 2
    assert "model.width: the run has 32, given is 64" in result.stderr
    assert "train.seed: the run has 1, given is 7" in result.stderr
    assert "evaluate.metric: the run has 'bleu', given is 'loss'" in result.stderr


def test_resume_goes_on_for_longer(konvoi, tiny_recipe, run_copy):
    longer = ("--set", 'train.duration="22 steps"', "--set", "checkpoint.keep=2")
    result = konvoi("train", tiny_recipe, "--run", run_copy, "--resume", *longer)
    assert result.exit_code == 0, result.stderr
    run = RunDirectory.open(run_copy)
    assert run.summary()["steps"] == 22
    assert str(run.recipe().train.duration) == "22 steps"
    assert "restart" in {event["kind"] for event in run.events_of()}


def test_resume_passes_over_a_damaged_checkpoint_and_says_so(konvoi, tiny_recipe, run_copy):
    (run_copy / "checkpoints" / "step-00000020" / "model.safetensors").write_bytes(b"cut")
    result = konvoi("train", tiny_recipe, "--run", run_copy, "--resume", "--set", 'train.duration="21 steps"')
    assert result.exit_code == 0, result.stderr
    assert "step-00000020 is damaged" in result.stderr and "going on from step-00000010" in result.stderr


def test_a_run_without_a_checkpoint_begins_anew(konvoi, tiny_recipe, run_copy):
    shutil.rmtree(run_copy / "checkpoints")
    (run_copy / "checkpoints").mkdir()
    (run_copy / "summary.json").write_text('{"status": "failed"}', encoding="utf-8")
    result = konvoi("train", tiny_recipe, "--run", run_copy, "--resume", "--set", 'train.duration="3 steps"')
    assert result.exit_code == 0, result.stderr
    assert "begins anew" in result.stderr
    assert RunDirectory.open(run_copy).summary()["steps"] == 3


def test_epochs_and_another_number_of_workers_do_not_go_together(konvoi, tiny_recipe, run_copy):
    changes = ("--workers", "2", "--set", 'train.duration="3 epochs"')
    result = konvoi("train", tiny_recipe, "--run", run_copy, "--resume", *changes)
    assert result.exit_code == 2
    assert "its duration is in epochs" in result.stderr
    assert str(RunDirectory.open(run_copy).recipe().train.duration) == "20 steps"


def test_a_finished_run_is_not_trained_again(konvoi, tiny_recipe, trained_run):
    result = konvoi("train", tiny_recipe, "--run", trained_run, "--resume")
    assert result.exit_code == 0
    assert "has finished" in result.stderr
    assert RunDirectory.open(trained_run).summary()["steps"] == 20


def test_a_damaged_checkpoint_names_the_intact_one_which_then_works(konvoi, tiny_recipe, run_copy):
    damage(run_copy / "checkpoints" / "step-00000020")
    resume = ("train", tiny_recipe, "--run", run_copy, "--resume")
    result = konvoi(*resume, "--checkpoint", "step-00000020")
    assert result.exit_code == 2
    assert "step-00000020 is damaged" in result.stderr
    assert f"konvoi train {tiny_recipe} --run {run_copy} --resume --checkpoint step-00000010" in result.stderr

    assert konvoi(*resume, "--checkpoint", "step-00000010").exit_code == 0
    # The damaged one was written anew on the way.
    assert konvoi("eval", run_copy, "--checkpoint", "step-00000020", "--json").exit_code == 0


def test_bad_data_files_give_one_clear_line(konvoi, tiny_recipe, tmp_path):
    short = tmp_path / "short.de"
    short.write_text("Ein Satz.\n")
    result = konvoi("train", tiny_recipe, "--run", tmp_path / "run", "--set", f"data.train_target={short}")
    assert result.exit_code == 2
    assert "2,000 lines but" in result.stderr
    assert len([line for line in result.stderr.splitlines() if line.startswith("error:")]) == 1
    assert not (tmp_path / "run").exists()


def test_a_run_that_breaks_is_marked_as_failed(konvoi, tiny_recipe, run_copy, monkeypatch):
    def broken(run):
        raise RuntimeError("broken")

    monkeypatch.setattr("konvoi.engine.loop.evaluate", broken)
    with pytest.raises(RuntimeError, match="broken"):
        konvoi("train", tiny_recipe, "--run", run_copy, "--resume", "--set", 'train.duration="30 steps"')
    assert RunDirectory.open(run_copy).summary()["status"] == "failed"


def test_ctrl_c_ends_in_good_order_and_says_how_to_resume(tiny_recipe, tmp_path):
    path = tmp_path / "run"
    command = [sys.executable, "-m", "konvoi", "train", str(tiny_recipe), "--run", str(path)]
    changes = ["--set", 'train.duration="100000 steps"', "--set", 'evaluate.every="100000 steps"']
    process = subprocess.Popen([*command, *changes], stderr=subprocess.PIPE, text=True, env=os.environ)
    events = path / "events" / "rank0.jsonl"
    while process.poll() is None and not (events.exists() and events.stat().st_size):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "--resume" in errors.splitlines()[-1]
    assert json.loads((path / "summary.json").read_text())["status"] == "interrupted"
    assert list((path / "checkpoints").glob("step-*"))
