"""How far a run is, how long it took, how long it will take."""

from __future__ import annotations

import time

import pytest
from tests.watch.growing import BEGAN_AT, GrowingRun, snapshot_of

from konvoi.watch.clock import Clock
from konvoi.watch.live import LiveRun
from konvoi.watch.progress import progress_of


def progress(tmp_path, duration, num_steps=20, *, seconds=100.0, status="running", **train):
    run = GrowingRun(tmp_path / "run", duration=duration, **train)
    run.steps(1, num_steps, at=time.time())
    run.summary(status)
    return progress_of(LiveRun(run.path, lambda _: None).refresh().run, seconds)


def test_steps_of_all_steps(tmp_path):
    found = progress(tmp_path, "80 steps")
    assert (found.step, found.total_steps, found.share) == (20, 80, 0.25)
    # 60 steps of 0.5 s
    assert found.seconds_left == pytest.approx(30.0)


def test_an_epoch_is_its_micro_batches_by_workers_and_accumulation(tmp_path):
    # 80 micro-batches / (2 workers x 2 accumulated) = 20 steps an epoch
    assert progress(tmp_path, "4 epochs", accumulate=2).total_steps == 80


def test_a_duration_in_time(tmp_path):
    found = progress(tmp_path, "10 minutes", seconds=150.0)
    assert (found.total_steps, found.share, found.seconds_left) == (None, 0.25, 450.0)


def test_the_time_budget_may_end_it_earlier(tmp_path):
    assert progress(tmp_path, "1000 steps", seconds=100.0, time_budget="2 minutes").seconds_left == 20.0


def test_evaluations_and_checkpoints_to_come_are_part_of_the_time_left(tmp_path):
    run = GrowingRun(tmp_path / "run", duration="80 steps")
    run.steps(1, 20, at=time.time())
    run.event("evaluation", 20, at=time.time(), seconds=6.0)
    run.event("checkpoint", 20, at=time.time(), seconds=4.0)
    run.summary()
    # 0.5 s a step and 10 s for every 20 steps = 1 s, for 60 steps
    assert snapshot_of(run).progress.seconds_left == pytest.approx(60.0)


@pytest.mark.parametrize("status", ["finished", "interrupted", "failed"])
def test_what_has_ended_has_no_time_left(tmp_path, status):
    assert progress(tmp_path, "80 steps", status=status).seconds_left is None


def test_before_the_first_step(tmp_path):
    run = GrowingRun(tmp_path / "run", duration="3 epochs")
    found = snapshot_of(run).progress
    assert (found.step, found.total_steps, found.share, found.seconds, found.seconds_left) == (0, None, None, 0.0, None)


def clock(*events):
    clock = Clock()
    for kind, at, step in events:
        clock.see({"kind": kind, "time": at, "step": step})
    return clock


def test_the_clock_runs_from_the_start_to_the_last_event_or_to_now():
    seen = clock(("started", 100.0, None), ("step", 110.0, 1), ("step", 112.0, 2))
    assert seen.seconds() == 12.0
    assert seen.seconds(now=130.0) == 30.0


def test_the_clock_leaves_out_pauses_and_what_a_resume_threw_away():
    first = [("started", 100.0, None), ("checkpoint", 150.0, 10), ("step", 180.0, 15)]
    # 50 s until the checkpoint, then a pause, then 7 s
    assert clock(*first, ("started", 900.0, None), ("restart", 901.0, 10), ("step", 908.0, 11)).seconds() == 57.0


def test_the_clock_of_a_run_that_does_not_say_when_it_started():
    assert clock(("step", 100.0, 1), ("step", 109.0, 2)).seconds() == 9.0
    assert Clock().seconds(now=5.0) == 0.0


def test_a_running_run_counts_until_now_and_a_dead_one_until_its_last_event(tmp_path):
    run = GrowingRun(tmp_path / "run")
    run.summary()
    run.started()
    run.steps(1, 30)
    view = snapshot_of(run)
    assert view.run.status == "died"
    assert view.progress.seconds == 30.0
    run.step(31, at=time.time())
    assert snapshot_of(run).progress.seconds >= time.time() - BEGAN_AT - 100
