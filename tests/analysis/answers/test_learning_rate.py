"""The learning-rate plot in words."""

from __future__ import annotations

import pytest
from tests.analysis.made_runs import ABSENT, make_run

from konvoi.analysis.answers.learning_rate import answer
from konvoi.analysis.record import RunRecord
from konvoi.config.schedules import SCHEDULES, Span

TABLES = {
    "constant": {"learning_rate": 0.003, "warmup": "10 steps"},
    "transformer": {"factor": 2.0, "warmup": "40 steps"},
    "one-cycle": {"learning_rate": 0.005, "rise": 0.25},
    "cosine": {"learning_rate": 0.005, "warmup": "20 steps", "end": 0.1},
    "polynomial": {"learning_rate": 0.005, "power": 2.0},
    "exponential": {"learning_rate": 0.004, "factor": 0.5, "every": "50 steps"},
    "piecewise": {"boundaries": ["50 steps", "150 steps"], "rates": [0.1, 0.01, 0.001], "warmup": "10 steps"},
}
WORDS = {
    "constant": "from 0 to 0.003 over the ten steps of the warm-up, then stays at 0.003",
    "transformer": "over the 40 steps of the warm-up, then falls with the square root of the step",
    "one-cycle": "peak of 0.005 at step 50 (25 % of the training), then falls along a cosine to 5e-07 at step 200",
    "cosine": "then falls along half a cosine, slowly at first and at the end, to 0.0005 at step 200",
    "polynomial": "it falls with power 2 of the training that is left, to 0 at step 200",
    "exponential": "it falls to 0.5 of itself every 50 steps, to 0.00025 at step 200",
    "piecewise": "at 0.1 until step 50, at 0.01 until step 150 and at 0.001 after that",
}
PEAKS = {
    "constant": 10,
    "transformer": 40,
    "one-cycle": 50,
    "cosine": 20,
    "polynomial": 1,
    "exponential": 1,
    "piecewise": 10,
}


def run_with(path, name, num_steps=200, width=256, planned="200 steps", scale=1.0, **table):
    tables = {"name": name, **TABLES[name], **table}
    schedule = SCHEDULES[name].model_validate(tables)
    # made_runs says 400 micro-batches an epoch; two workers make 200 steps of them.
    span = Span(total_steps=200, steps_per_epoch=200, width=width)
    made = make_run(
        path / "run",
        num_steps=num_steps,
        step=lambda rank, step: {"learning_rate": scale * schedule.rate(step, span)},
        hosts=(),
        recipe={"train": {"duration": planned}, "schedule": {"learning_rate": ABSENT, "rise": ABSENT, **tables}},
    )
    return RunRecord.read(made)


def test_every_schedule_is_tested():
    assert SCHEDULES.keys() == TABLES.keys() == WORDS.keys() == PEAKS.keys()


@pytest.mark.parametrize("name", sorted(TABLES))
def test_the_law_is_told_and_the_log_follows_it(tmp_path, name):
    told = answer(run_with(tmp_path, name))
    assert told.short == name
    assert WORDS[name] in told.words
    assert "The logged rates follow this schedule." in told.words
    assert told.facts["peak_step"] == PEAKS[name]
    assert told.facts["largest_deviation"] < 0.01
    assert told.facts["highest_rate"] == pytest.approx(told.facts["peak_rate"], rel=0.05)


def test_a_log_that_differs_is_noticed(tmp_path):
    told = answer(run_with(tmp_path, "cosine", scale=0.5))
    assert "differ from this by up to 50 % of the peak" in told.words


def test_a_run_that_has_not_come_far_says_so(tmp_path):
    told = answer(run_with(tmp_path, "one-cycle", num_steps=20))
    assert "at step 20, after 10 % of the planned steps" in told.words


def test_durations_in_epochs_are_counted_in_steps(tmp_path):
    # 0.1 epochs of 200 steps
    assert answer(run_with(tmp_path, "cosine", warmup="0.1 epochs")).facts["warmup_steps"] == 20


def test_a_schedule_that_cannot_be_read_leaves_the_log(tmp_path):
    run = run_with(tmp_path, "cosine")
    run.tables["schedule"] = {"name": "no-such"}
    told = answer(run)
    assert told.short == "not the recipe's"
    assert "is highest with 0.005 at step 20" in told.words


def test_a_duration_in_time_leaves_the_log(tmp_path):
    told = answer(run_with(tmp_path, "cosine", planned="3 hours"))
    assert "that is not known" in told.words
    assert "is highest with" in told.words
