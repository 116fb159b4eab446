"""A run that is being written, read as far as it is new."""

from __future__ import annotations

import fcntl
import itertools
import time

import pytest
from tests.watch.growing import BEGAN_AT, VERDICT, GrowingRun, snapshot_of

from konvoi.errors import UserError
from konvoi.watch import history, live
from konvoi.watch.live import LiveRun


@pytest.fixture
def run(tmp_path):
    return GrowingRun(tmp_path / "run")


def watched(run, judge=lambda _: VERDICT):
    return LiveRun(run.path, judge)


def test_a_run_grows_between_two_looks(run):
    run.summary()
    watch = watched(run)
    assert watch.refresh().progress.step == 0
    run.steps(1, 3)
    assert watch.refresh().progress.step == 3
    run.steps(4, 5)
    view = watch.refresh()
    assert view.run.steps.numbers.tolist() == [1, 2, 3, 4, 5]
    assert list(view.run.ranks) == [0, 1]
    assert len(view.run.ranks[1].steps) == 5


def test_the_torn_last_line_of_a_run_counts_when_it_is_whole(run):
    run.steps(1, 2)
    line = run.line("step", 3, loss=1.5, step_seconds=0.5)
    run.write(0, line[:20])
    watch = watched(run)
    assert watch.refresh().progress.step == 2
    run.write(0, line[20:])
    assert watch.refresh().run.steps["loss"][-1] == 1.5


def test_half_a_line_that_a_killed_run_left_is_passed_over(run):
    run.steps(1, 2)
    run.write(0, '{"kind": "step", "ti\n')
    run.step(3)
    assert snapshot_of(run).run.steps.numbers.tolist() == [1, 2, 3]


@pytest.mark.parametrize("looks_before", [True, False], ids=["watched before", "first look after"])
def test_a_resumed_run_takes_its_steps_again(run, looks_before):
    run.summary()
    run.steps(1, 30, loss=5.0)
    run.event("evaluation", 10, loss=4.5, bleu=1.0)
    run.event("evaluation", 30, loss=4.0, bleu=2.0)
    watch = watched(run)
    if looks_before:
        assert watch.refresh().progress.step == 30
    for rank in range(2):
        run.event("restart", 10, rank=rank)
    view = watch.refresh()
    assert view.progress.step == 10
    assert [event["step"] for event in view.run.evaluations] == [10]
    run.steps(11, 12, loss=3.0)
    view = watch.refresh()
    assert view.run.steps.numbers.tolist() == list(range(1, 13))
    # Ten steps of the first session, two of the second.
    assert view.history.losses == [5.0] * 10 + [3.0] * 2


def test_a_repeated_step_without_a_restart_takes_the_place_of_the_first(run):
    run.steps(1, 5)
    run.steps(4, 4, loss=1.0)
    view = snapshot_of(run)
    assert view.run.steps.numbers.tolist() == [1, 2, 3, 4]
    assert view.run.steps["loss"][-1] == 1.0


def test_of_a_long_run_the_latest_steps_and_a_thinned_history_are_kept(run, monkeypatch):
    monkeypatch.setattr(history, "MAX_POINTS", 8)
    run.num_workers = 1
    for step in range(1, live.RECENT_STEPS + 101):
        run.step(step, loss=float(step))
    view = snapshot_of(run)
    assert view.run.steps.numbers[0] == 101
    assert len(view.run.steps) == live.RECENT_STEPS
    # Thinned evenly: never more than 8 points, and from the whole run.
    steps = [step for step, _, _ in view.history.points]
    assert 4 <= len(steps) <= 8
    assert steps[0] <= view.history.stride
    assert {later - earlier for earlier, later in itertools.pairwise(steps)} == {view.history.stride}


def test_most_steps_of_a_long_run_are_never_parsed(run, monkeypatch):
    monkeypatch.setattr(history, "MAX_POINTS", 8)
    monkeypatch.setattr(live, "RECENT_STEPS", 10)
    run.num_workers = 1
    run.steps(1, 400)
    num_parsed = []
    monkeypatch.setattr(live, "parsed", lambda line, parsed=live.parsed: num_parsed.append(1) or parsed(line))
    view = snapshot_of(run)
    assert view.progress.step == 400
    # 10 recent ones; of the history 9 + 4 for each doubling of the stride: 400 / 8 = 50 < 2^6
    assert len(num_parsed) <= 10 + 9 + 6 * 5


def test_the_judge_sees_only_the_evaluations_of_the_steps_that_it_sees(run, monkeypatch):
    monkeypatch.setattr(live, "RECENT_STEPS", 10)
    run.num_workers = 1
    seen = []
    for step in range(1, 31):
        run.step(step)
        if step % 5 == 0:
            run.event("evaluation", step, seconds=60.0)
            run.event("checkpoint", step, seconds=60.0)
    view = watched(run, lambda record: seen.append(record) or VERDICT).refresh()
    # Steps 21 to 30 are kept.
    assert [event["step"] for event in seen[0].evaluations] == [25, 30]
    assert [event["step"] for event in seen[0].first.checkpoints] == [25, 30]
    assert len(view.run.evaluations) == 6


def test_the_verdict_is_not_found_anew_at_every_look_but_at_the_end(run):
    run.summary()
    judged = []
    watch = watched(run, lambda _: judged.append(1) or VERDICT)
    assert watch.refresh().verdict is None
    run.steps(1, 10, at=time.time())
    for _ in range(3):
        assert watch.refresh().verdict is VERDICT
    assert len(judged) == 1
    run.summary("finished")
    assert watch.refresh().has_ended
    assert len(judged) == 2


def test_a_run_without_events_has_not_started_and_is_waited_for(run):
    view = snapshot_of(run)
    assert view.run.status == "not started"
    assert not view.has_ended


def test_a_silent_run_that_nobody_trains_died(run):
    run.summary()
    run.steps(1, 3)
    view = snapshot_of(run)
    assert (view.run.status, view.has_ended) == ("died", True)
    assert view.last_event_at == BEGAN_AT + 3


def test_a_silent_run_that_somebody_trains_goes_on(run):
    run.summary()
    run.steps(1, 3)
    with (run.path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert snapshot_of(run).run.status == "running"


def test_a_resumed_run_has_not_ended(run):
    run.steps(1, 3)
    run.event("interrupted", 3)
    watch = watched(run)
    assert watch.refresh().run.first.ending["step"] == 3
    run.event("restart", 2)
    assert watch.refresh().run.first.ending is None


def test_a_host_whose_samples_go_on(run):
    run.step(1)
    watch = watched(run)
    assert watch.refresh().run.hosts == {}
    run.host("node-0", num_samples=2)
    assert len(watch.refresh().run.hosts["node-0"].samples) == 2
    run.host("node-0", num_samples=3)
    host = watch.refresh().run.hosts["node-0"]
    assert len(host.samples) == 5
    assert host.job_interface == "eth0"


def test_losses_that_are_no_numbers_leave_a_gap(run):
    run.steps(1, 2)
    run.step(3, loss=None)
    assert snapshot_of(run).history.losses == [4.0, 4.0]


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a run directory"):
        LiveRun(tmp_path, lambda _: VERDICT)
