"""How a training ends: at its duration, at its time, for want of progress, by a signal, by an error."""

from __future__ import annotations

import signal
import sys
from typing import Any

import pytest
from tests.processes import Trainings, checkpoint_steps, events, losses, steps

from konvoi.config.duration import Length, parse
from konvoi.engine import worker
from konvoi.engine.progress import Progress
from konvoi.errors import DataError
from konvoi.run_directory import RunDirectory
from konvoi.telemetry.writer import Writer

# So small that no weight changes: no evaluation is better than the first.
LEARNS_NOTHING = "schedule.learning_rate=1e-12"


def as_worker(trainings: Trainings, run: RunDirectory, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Its exit code."""
    monkeypatch.setattr(sys, "argv", ["worker", str(run.path), "--quiet", *arguments])
    with trainings.surroundings():
        return worker.main()


def test_a_duration_in_epochs_is_as_many_steps(trainings: Trainings) -> None:
    run = trainings.trained("train.duration=0.1 epochs", "train.mode=train")
    assert run.summary()["steps"] == round(0.1 * run.summary()["micro_batches_per_epoch"])


@pytest.mark.parametrize(
    ("setting", "ending"),
    [("train.duration=0.3 seconds", "finished"), ("train.time_budget=0.3 seconds", "time_budget")],
)
def test_a_run_ends_in_good_order_when_its_time_is_over(trainings: Trainings, setting: str, ending: str) -> None:
    run = trainings.new("train.duration=100000 steps", setting, "train.mode=train")
    assert trainings.train(run) == ending
    summary = run.summary()
    assert (summary["status"], summary["ending"]) == ("finished", ending)
    assert 0 < summary["steps"] < 100_000
    assert summary["seconds"] >= 0.3
    assert checkpoint_steps(run)[-1] == summary["steps"]


def test_a_run_stops_when_it_no_longer_gets_better(trainings: Trainings) -> None:
    run = trainings.new(
        LEARNS_NOTHING, "train.duration=1000 steps", "train.patience=2", "evaluate.every=2 steps", "evaluate.beam=1"
    )
    assert trainings.train(run) == "early_stop"
    # The first evaluation at step 2 is the best so far; those at 4 and 6 are no better: 2 of them are enough.
    assert run.summary()["steps"] == 6
    assert [event["step"] for event in events(run, "evaluation")] == [2, 4, 6]
    assert (run.summary()["best"]["step"], run.summary()["status"]) == (2, "finished")


def test_patience_is_not_lost_over_a_resume(trainings: Trainings) -> None:
    run = trainings.trained(LEARNS_NOTHING, "train.duration=4 steps", "evaluate.every=2 steps")
    trainings.change(run, "train.duration=1000 steps", "train.patience=2")
    assert trainings.train(run, resume=True) == "early_stop"
    assert run.summary()["steps"] == 6


def test_the_last_step_is_evaluated_once(trainings: Trainings) -> None:
    due = trainings.trained("train.duration=4 steps", "evaluate.every=2 steps")
    assert [event["step"] for event in events(due, "evaluation")] == [2, 4]
    not_due = trainings.trained("train.duration=3 steps", "evaluate.every=2 steps")
    assert [event["step"] for event in events(not_due, "evaluation")] == [2, 3]
    assert [event["step"] for event in events(not_due, "finished")] == [3]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_a_run_after_a_step_with_its_own_exit_code(
    trainings: Trainings, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    run = trainings.new("evaluate.every=1000 steps", "checkpoint.every=1000 steps")
    write_step = Writer.step

    def signal_at_four(self: Writer, event: dict[str, Any], *rest: Any) -> None:
        write_step(self, event, *rest)
        if event["step"] == 4:
            signal.raise_signal(number)

    with monkeypatch.context() as patched:
        patched.setattr(Writer, "step", signal_at_four)
        assert as_worker(trainings, run, monkeypatch) == 130
    # It came after step 4 was agreed upon; so step 5 is the last.
    assert (run.summary()["status"], run.summary()["steps"]) == ("interrupted", 5)
    assert checkpoint_steps(run) == [5]
    assert events(run, "evaluation") == []
    assert as_worker(trainings, run, monkeypatch, "--resume") == 0
    assert (run.summary()["status"], run.summary()["steps"]) == ("finished", 12)
    assert losses(run) == losses(trainings.trained())


def test_an_error_of_the_user_is_told_in_words(
    trainings: Trainings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trainings.new("train.accumulate=1000")
    assert as_worker(trainings, run, monkeypatch) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: an epoch has ") and "fewer than the 1000 of one step" in told
    assert "hint: use fewer --workers" in told
    with pytest.raises(DataError):
        trainings.train(run)


def test_the_first_step_and_every_so_many_are_told(trainings: Trainings) -> None:
    run = trainings.trained("train.log_every=5 steps", "train.mode=train")
    log = run.log_file.read_text(encoding="utf-8")
    assert [step for step in steps(run) if f"step {step}  loss" in log] == [1, 5, 10]


@pytest.mark.parametrize(
    ("every", "due"),
    [("3 steps", [3, 6, 9]), ("1 epoch", [4, 8]), ("0.5 epochs", [2, 4, 6, 8, 10])],
)
def test_what_comes_every_so_often_is_due_on_time(every: str, due: list[int]) -> None:
    # Epochs of 4 steps
    found = [step for step in range(1, 11) if Progress(step=step).is_due("evaluate", parse(every), 4.0)]
    assert found == due


def test_what_comes_by_the_clock_is_due_that_long_after_the_last_time() -> None:
    progress = Progress(step=1, seconds=59.0, done_at={"checkpoint": 30.0})
    # 59 - 30 = 29 seconds since the last checkpoint; never evaluated, so 59 seconds since the start
    assert not progress.is_due("checkpoint", Length(0.5, "minute"), 4.0)
    assert progress.is_due("evaluate", Length(0.5, "minute"), 4.0)
    progress.seconds = 60.0
    assert progress.is_due("checkpoint", Length(0.5, "minute"), 4.0)


def test_a_share_of_a_duration_is_what_has_passed_of_it() -> None:
    progress = Progress(step=30, seconds=90.0)
    # 30 of 120 steps, of 3 epochs x 40 steps, and 90 seconds of 3 minutes
    assert progress.share_of(Length(120, "step"), 40.0) == 0.25
    assert progress.share_of(Length(3, "epoch"), 40.0) == 0.25
    assert progress.share_of(Length(3, "minute"), 40.0) == 0.5


def test_progress_is_restored_by_its_state() -> None:
    progress = Progress(step=3, position=7, best={"value": 1.0}, done_at={"evaluate": 2.0})
    assert Progress.from_state(progress.state()) == progress
