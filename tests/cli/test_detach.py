"""konvoi train --detach on this machine, and attach and stop of what it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from konvoi.commands.attach import View
from konvoi.commands.detach import LocalJob
from konvoi.run_directory import RunDirectory

# Only against a hang: nothing here takes as long when all is well.
PATIENCE_SECONDS = 120
ENDLESS = ("--set", 'train.duration="100000 steps"', "--set", 'evaluate.every="100000 steps"')


def start(*words: object) -> subprocess.Popen[str]:
    """konvoi WORDS in a process of its own, as from a shell."""
    command = [sys.executable, "-m", "konvoi", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def command(*words: object) -> subprocess.CompletedProcess[str]:
    process = start(*words)
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    return subprocess.CompletedProcess(list(words), process.returncode, output, errors)


def wait_until(is_so: Callable[[], Any]) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.05)


def has_steps(run: Path) -> bool:
    return any(event["kind"] == "step" for event in RunDirectory(run).events_of())


@pytest.fixture
def endless(tiny_recipe: Path, tmp_path: Path) -> Iterator[tuple[Path, LocalJob]]:
    """Two workers in the background that would train for hours."""
    path = tmp_path / "the run"
    done = command("train", tiny_recipe, "--run", path, "--workers", 2, "--detach", *ENDLESS)
    assert done.returncode == 0, done.stderr
    job = LocalJob.of(path)
    assert job
    try:
        wait_until(lambda: has_steps(path) or not job.is_alive())
        assert job.is_alive(), job.log.read_text()
        yield path, job
    finally:
        job.stop(now=True)


def test_a_detached_training_goes_on_after_its_command_and_attach_sees_its_end(tiny_recipe, trained_run, tmp_path):
    path = tmp_path / "run"
    done = command("train", tiny_recipe, "--run", path, "--detach")
    assert done.returncode == 0, done.stderr
    for verb in ("attach", "stop", "watch"):
        assert f"konvoi {verb} {path}" in done.stdout
    attached = command("attach", path)
    assert attached.returncode == 0, attached.stderr
    assert "time in all" in attached.stdout
    # It is the same training, and its directory has all that the other one has.
    losses = [
        [event["loss"] for event in RunDirectory(run).events_of() if event["kind"] == "step"]
        for run in (path, trained_run)
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 20
    assert {file.name for file in trained_run.iterdir()} <= {file.name for file in path.iterdir()}


def test_it_has_a_session_of_its_own_and_stop_ends_it_with_a_checkpoint(endless):
    path, job = endless
    assert os.getsid(job.process_id) == job.process_id
    # The agent and its two workers.
    assert len(job.process_ids()) >= 3
    stopped = command("stop", path)
    assert stopped.returncode == 0, stopped.stderr
    assert f"no process of {path} is left" in stopped.stdout
    assert job.process_ids() == []
    run = RunDirectory.open(path)
    assert run.summary()["status"] == "interrupted"
    assert list(run.checkpoints.glob("step-*"))

    again = command("stop", path)
    assert (again.returncode, again.stdout) == (0, f"{path} had ended before\n")
    # What came of it is told to whoever attaches later.
    assert command("attach", path).returncode == 130


def test_ctrl_c_leaves_an_attached_training_alone_and_stop_now_does_not_wait(endless):
    path, job = endless
    attached = start("attach", path)
    assert attached.stderr
    wait_until(lambda: attached.stderr.readline().startswith("step "))
    attached.send_signal(signal.SIGINT)
    _, errors = attached.communicate(timeout=PATIENCE_SECONDS)
    assert attached.returncode == 0
    assert "the training goes on" in errors
    assert job.process_id in job.process_ids()

    twice = command("train", path / "recipe.toml", "--run", path, "--resume", "--detach")
    assert twice.returncode == 2
    assert "is being trained right now" in twice.stderr

    assert command("stop", path, "--now").returncode == 0
    assert job.process_ids() == []
    assert not list((path / "checkpoints").glob("step-*"))


def test_what_the_recipe_gets_wrong_is_said_at_once(tiny_recipe, tmp_path):
    done = command("train", tiny_recipe, "--run", tmp_path / "run", "--detach", "--set", "train.duration=soon")
    assert done.returncode == 2
    assert "train.duration" in done.stderr
    assert not (tmp_path / "run").exists()


def test_what_goes_wrong_in_the_background_is_told_by_attach(tiny_recipe, tmp_path):
    missing = tmp_path / "missing.de"
    path = tmp_path / "run"
    done = command("train", tiny_recipe, "--run", path, "--detach", "--set", f"data.train_target={missing}")
    assert done.returncode == 0, done.stderr
    attached = command("attach", path)
    assert attached.returncode == 1
    assert str(missing) in attached.stdout


def test_on_a_terminal_a_bar_takes_the_place_of_the_lines_of_steps(trained_run, monkeypatch, capsys):
    # As a terminal does, for rich.
    monkeypatch.setenv("FORCE_COLOR", "1")
    view = View(RunDirectory.open(trained_run), {})
    view.refresh()
    view.close(has_failed=False)
    shown = capsys.readouterr().err
    assert "step 20  evaluation" in shown
    assert "s/step" in (trained_run / "log.txt").read_text()
    assert "s/step" not in shown
    # The bar's own words have one blank.
    assert "step 20 loss " in shown


@pytest.mark.parametrize("verb", ["attach", "stop"])
def test_a_run_of_the_foreground_is_left_alone(konvoi, trained_run, verb):
    result = konvoi(verb, trained_run)
    assert result.exit_code == 2
    assert "hint: " in result.stderr
