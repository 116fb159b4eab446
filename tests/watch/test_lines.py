"""What a pipe or a log gets."""

from __future__ import annotations

import dataclasses
import time

import pytest
from tests.watch.growing import VERDICT, GrowingRun, snapshot_of

from konvoi.watch.lines import Lines


@pytest.fixture
def run(tmp_path):
    run = GrowingRun(tmp_path / "run")
    run.summary()
    run.steps(1, 50, at=time.time())
    return run


def without_times(lines):
    return [line.split(" ", 1)[1] for line in lines]


def test_a_line_says_how_far_it_is_and_another_what_binds_it(run):
    assert without_times(Lines().of(snapshot_of(run))) == [
        # 50 steps of 0.5 s are left.
        "running  step 50 of 100 (50 %)  loss 4.000  4,000 target tokens/s  0.500 s/step  left 0:25",
        "verdict: Network (bandwidth): 0.26 s of a step of 0.5 s.",
    ]


def test_the_verdict_comes_again_only_when_it_is_another(run):
    lines = Lines()
    assert len(list(lines.of(snapshot_of(run)))) == 2
    assert len(list(lines.of(snapshot_of(run)))) == 1
    other = dataclasses.replace(VERDICT, verdict="input", sentence="Input: it is late.")
    assert without_times(lines.of(snapshot_of(run, other)))[1] == "verdict: Input: it is late."


def test_each_new_evaluation_has_its_line_and_of_the_old_ones_the_last(run):
    lines = Lines()
    for step in (10, 20):
        run.event("evaluation", step, at=time.time() + step, loss=3.5, bleu=step / 2)
    assert without_times(lines.of(snapshot_of(run)))[0] == "evaluation at step 20: dev loss 3.500  BLEU 10.00"
    for step in (30, 40):
        run.event("evaluation", step, at=time.time() + step, loss=3.25, bleu=step / 2)
    assert without_times(lines.of(snapshot_of(run)))[:2] == [
        "evaluation at step 30: dev loss 3.250  BLEU 15.00",
        "evaluation at step 40: dev loss 3.250  BLEU 20.00",
    ]
    assert not any("evaluation" in line for line in lines.of(snapshot_of(run)))


def test_the_last_line_says_how_it_ended(run):
    run.summary("finished", ending="finished", best={"metric": "bleu", "value": 31.25, "step": 40})
    *_, last = without_times(Lines().of(snapshot_of(run)))
    assert last.startswith("finished after 50 steps in 0:0")
    assert last.endswith("; best BLEU 31.25 at step 40")


def test_a_run_that_died_says_since_when(tmp_path):
    run = GrowingRun(tmp_path / "run")
    run.summary()
    run.step(1)
    *_, last = without_times(Lines().of(snapshot_of(run)))
    assert last.startswith("died after 1 steps in 0:00; its last event was at 2023-11-1")


def test_a_run_that_has_not_started_has_one_line(tmp_path):
    assert without_times(Lines().of(snapshot_of(GrowingRun(tmp_path / "run")))) == ["not started  step 0 of 100 (0 %)"]


def test_the_lines_are_plain(run):
    assert all(line.isascii() for line in Lines().of(snapshot_of(run)))
