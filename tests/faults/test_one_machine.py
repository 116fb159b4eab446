"""A worker of one machine is killed: the run goes on from its newest checkpoint, as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes import (
    Trainings,
    assert_went_on_exactly,
    ended,
    events,
    losses,
    steps,
    wait_until,
    workers_of,
)

from konvoi.cluster.faults import MAX_IN_VAIN, Tally, doing, in_words, last_step, why_not
from konvoi.cluster.follow import complete_events
from konvoi.cluster.job_spec import Failure
from konvoi.config.duration import Length
from konvoi.engine.checkpoint import Checkpoint, Checkpoints
from konvoi.engine.progress import Progress
from konvoi.exit_codes import DONE, INTERRUPTED, OUR_FAULT, USER
from konvoi.run_directory import RunDirectory

KILLED = Failure("h1", 2, "was ended by SIGKILL", "lost", "after step 7")
SETTINGS = ("train.duration=24 steps", "evaluate.every=12 steps", "checkpoint.every=5 steps")


@pytest.mark.parametrize("victim", [0, 1])
def test_after_a_kill_all_steps_are_done_with_the_losses_of_an_undisturbed_run(
    trainings: Trainings, victim: int
) -> None:
    whole, run = trainings.new(*SETTINGS), trainings.new(*SETTINGS)
    assert trainings.train_together(whole, 2) == [DONE, DONE]
    launcher = trainings.launch(run, num_workers=2, max_restarts=1)
    wait_until(lambda: len(losses(run)) >= 6, launcher)
    # The checkpoint of step 5 is written beside the next steps, and may be whole or not.
    os.kill(workers_of(launcher)[victim], signal.SIGKILL)
    assert ended(launcher) == DONE
    assert list(steps(run)) == list(range(1, 25))
    assert_went_on_exactly(whole, run, after=0)
    (fault,), (restart,) = events(run, "fault"), events(run, "restart")
    assert (fault["rank"], fault["host"], fault["what"][:20]) == (victim, "localhost", "was ended by SIGKILL")
    assert fault["doing"].startswith("after ")
    assert restart["step"] in (0, 5, 10, 12, 15, 20)
    assert restart["stall_seconds"] > 0
    log = run.log_file.read_text()
    assert f"localhost rank {victim}: was ended by SIGKILL" in log
    assert f"resumed after step {restart['step']}; no step for " in log


def launched(folder: Path, first: str, second: str = "signal.pause()") -> subprocess.CompletedProcess[str]:
    """What comes of two workers that may be restarted a hundred times; the first one tells when it begins.

    Not the second: it may be ended, because of the first, before it came so far.
    """
    program = (
        "import os, signal, sys; from konvoi.cluster.local import launch_local\n"
        f"def first():\n    os.write(1, b'began\\n')\n    {first}\n"
        f"def second():\n    {second}\n"
        "def worker(words):\n    return first() if os.environ['RANK'] == '0' else second()\n"
        "sys.exit(launch_local(worker, ['run'], 2, 100))"
    )
    words = [sys.executable, "-c", program]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, cwd=folder)


def test_an_error_before_any_new_step_ends_the_run_at_once(tmp_path: Path) -> None:
    result = launched(tmp_path, "raise ValueError('nobody expected this')")
    assert result.returncode == OUR_FAULT
    assert "ValueError: nobody expected this" in result.stderr
    assert result.stdout.split() == ["began"]


def test_what_the_user_must_mend_ends_the_run_at_once(tmp_path: Path) -> None:
    result = launched(tmp_path, "return 2")
    assert (result.returncode, result.stdout.split()) == (USER, ["began"])


def test_who_is_always_killed_is_given_up(tmp_path: Path) -> None:
    result = launched(tmp_path, "os.kill(os.getpid(), 9)")
    assert result.returncode == OUR_FAULT
    assert result.stdout.split() == ["began"] * MAX_IN_VAIN
    assert f"{MAX_IN_VAIN} times in a row, without a new step" in result.stderr.splitlines()[-1]


def test_a_stop_before_all_workers_listen_ends_those_that_wait_for_the_others(tmp_path: Path) -> None:
    waits = "signal.signal(15, signal.SIG_IGN); os.kill(os.getppid(), 15); signal.pause(); signal.pause()"
    result = launched(tmp_path, waits)
    assert (result.returncode, result.stdout.split()) == (INTERRUPTED, ["began"]), result.stderr


def test_a_new_step_makes_up_for_restarts_in_vain() -> None:
    tally = Tally().with_failure_after(7).with_failure_after(7).with_failure_after(6)
    assert (tally.restarts, tally.in_vain, tally.furthest_step) == (3, 2, 7)
    assert why_not(tally, KILLED, 100) == ""
    for _ in range(MAX_IN_VAIN - 2):
        assert why_not(tally, KILLED, 100) == ""
        tally = tally.with_failure_after(7)
    assert "10 times in a row" in why_not(tally, KILLED, 100)
    assert tally.with_failure_after(8) == Tally(3 + 8 + 1, 0, 8)


def test_restarts_are_counted_and_none_is_none() -> None:
    tally = Tally().with_failure_after(5).with_failure_after(9)
    assert why_not(tally, KILLED, 2) == ""
    assert "restarted 1 times before (faults.max_restarts)" in why_not(tally, KILLED, 1)
    assert why_not(Tally().with_failure_after(5), KILLED, 0) == KILLED.text


def test_an_error_that_comes_back_without_a_new_step_is_for_good() -> None:
    crashed = Failure("h1", 2, "Traceback\nValueError: x", "crashed")
    once = Tally().with_failure_after(57)
    assert why_not(once, crashed, 100) == ""
    assert why_not(once.with_failure_after(57), crashed, 100) == crashed.text


def test_a_fault_in_one_line_says_who_and_what_it_did() -> None:
    assert in_words(KILLED) == "h1 rank 2: was ended by SIGKILL (after step 7)"
    assert in_words(Failure("h1", None, "is gone", "lost")) == "h1: is gone"


def test_what_a_worker_was_doing_is_its_last_event(tmp_path: Path) -> None:
    assert doing(tmp_path, 3) == "starting"
    (tmp_path / "events").mkdir()
    lines = ['{"kind": "step", "step": 8, "time": 5.0}', '{"kind": "step", "step": 7, "time": 6.0}', '{"kind": "ste']
    (tmp_path / "events" / "rank3.jsonl").write_text("\n".join(lines))
    assert doing(tmp_path, 3) == "after step 7"
    # It went back: the furthest is not the last.
    assert last_step(tmp_path, [2, 3]) == (8, 6.0)


def test_the_newest_checkpoint_is_the_latest_intact_one_of_this_history(tmp_path: Path) -> None:
    import torch

    stored = Checkpoints(tmp_path, keep=5)
    for step in (5, 10, 15, 20):
        stored.save(Checkpoint(step, {"step": step}, {"model": {"weight": torch.ones(3)}}))
    # Given up by a run that went back.
    stored.forget_after(15)
    assert stored.newest_intact()[0].name == "step-00000015"
    (tmp_path / "step-00000015" / "model.safetensors").write_bytes(b"")
    assert stored.newest_intact()[0].name == "step-00000010"


def test_epochs_are_counted_by_the_data_where_workers_were_lost() -> None:
    # 210 micro-batches are two epochs of 105: 35 steps of 3 workers, then 20 of 2, which make 52.5 steps an epoch.
    progress = Progress(step=55, position=35 * 3 + 20 * 2)
    assert progress.share_of(Length(2, "epoch"), 52.5, 2) == 145 / 210
    assert progress.share_of(Length(110, "step"), 52.5, 2) == 0.5


def test_what_the_first_worker_could_not_tell_any_more_another_did(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.events.mkdir()
    told = {0: [(1, 10.0), (2, 20.0)], 2: [(1, 10.1), (2, 19.9), (3, 30.0), (4, 40.0)]}
    for seat, steps_at in told.items():
        lines = [json.dumps({"kind": "step", "step": step, "time": time}) + "\n" for step, time in steps_at]
        (run.events / f"rank{seat}.jsonl").write_text("".join(lines))
    complete_events(run, 2)
    assert [event["step"] for event in run.events_of(0)] == [1, 2, 3, 4]
    complete_events(run, 2)
    assert [event["step"] for event in run.events_of(0)] == [1, 2, 3, 4]
