"""The gap between dev and training loss."""

from __future__ import annotations

import pytest
from tests.analysis.made_runs import make_run

from konvoi.analysis.answers.over_fitting import answer, gap
from konvoi.analysis.record import RunRecord

STEPS = range(100, 1001, 100)


def run_with(path, dev_loss, train_loss, epochs=10, **made):
    """1,000 steps of one worker, evaluated every 100."""
    return RunRecord.read(
        make_run(
            path / "run",
            num_workers=1,
            num_steps=1000,
            evaluations={step: {"loss": dev_loss(step)} for step in STEPS},
            step=lambda rank, step: {"loss": train_loss(step)},
            summary={"micro_batches_per_epoch": 1000 / epochs},
            hosts=(),
            **made,
        )
    )


def test_the_training_loss_is_smoothed_around_each_evaluation(tmp_path):
    # Steps jump by 1 up and down around 3: the mean over 41 steps is within 1/41 of it.
    found = gap(run_with(tmp_path, lambda step: 3.5, lambda step: 3 + (-1) ** step))
    assert found.steps.tolist() == list(STEPS)
    assert found.train_loss == pytest.approx([3.0] * 10, abs=0.06)
    assert found.values == pytest.approx([0.5] * 10, abs=0.06)


def test_a_dev_loss_that_rises_is_over_fitting_since_its_least(tmp_path):
    run = run_with(tmp_path, lambda step: 2 + abs(step - 400) / 1000, lambda step: 3 - step / 1000)
    told = answer(run)
    assert told.short == "yes, since step 400"
    # 2.000 at step 400, 2.600 at step 1000: 30 % more, while the training loss fell by 0.6
    assert "from 2.000 to 2.600 (30 %) while the training loss fell by 0.5" in told.words
    # The gap grows by 1 (dev) + 1 (training) per 1,000 steps.
    assert told.facts["gap_slope_per_1000_steps"] == pytest.approx(2.0, abs=0.1)


def test_one_bad_evaluation_at_the_end_is_not_enough(tmp_path):
    told = answer(run_with(tmp_path, lambda step: 3.0 if step == 1000 else 3 - step / 1000, lambda step: 2.5))
    assert told.short == "no"


def test_a_falling_dev_loss_is_no_over_fitting(tmp_path):
    told = answer(run_with(tmp_path, lambda step: 3 - step / 1000, lambda step: 2.9 - step / 1000))
    assert told.short == "no"
    # At the end only the 20 steps before can be looked at, on average 10 steps earlier: 2.000 - (1.900 + 0.010)
    assert "It lies 0.09 above the training loss" in told.words


def test_a_dev_loss_below_the_training_loss_is_explained(tmp_path):
    recipe = {"model": {"dropout": 0.3}, "train": {"ema_decay": 0.999}}
    told = answer(run_with(tmp_path, lambda step: 2.0, lambda step: 2.5, recipe=recipe))
    assert "0.5 below the training loss: dropout is on in training only and the moving average" in told.words


def test_without_dropout_no_reason_is_made_up(tmp_path):
    told = answer(run_with(tmp_path, lambda step: 2.0, lambda step: 2.5, recipe={"model": {"dropout": 0.0}}))
    assert "0.5 below the training loss, so its sign says little" in told.words


def test_less_than_an_epoch_cannot_be_learnt_by_heart(tmp_path):
    told = answer(run_with(tmp_path, lambda step: 3.0, lambda step: 3.0, epochs=0.5))
    assert told.facts["epochs"] == pytest.approx(0.5)
    assert "nothing was seen twice" in told.words


def test_after_several_epochs_that_is_not_said(tmp_path):
    assert "seen twice" not in answer(run_with(tmp_path, lambda step: 3.0, lambda step: 3.0, epochs=3)).words


def test_one_evaluation_is_too_few(tmp_path):
    told = answer(RunRecord.read(make_run(tmp_path / "run", evaluations=[50], summary={"micro_batches_per_epoch": 10})))
    assert told.short == "can't tell"
    # 2.1 + 6 / 50
    assert "The dev loss is 2.220" in told.words


def test_no_evaluation_has_no_gap(tmp_path):
    assert gap(RunRecord.read(make_run(tmp_path / "run"))) is None
