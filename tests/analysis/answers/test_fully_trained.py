"""Whether more steps would help, and how much."""

from __future__ import annotations

import numpy as np
import pytest
from tests.analysis.made_runs import make_run

from konvoi.analysis import saturation
from konvoi.analysis.answers.fully_trained import answer, diverged_at, forecast
from konvoi.analysis.record import RunRecord
from konvoi.analysis.trend import trend

STEPS = range(100, 1001, 100)


def run_with(path, score, metric="bleu", rate=None, **made):
    """1,000 steps, evaluated every 100: score(step)."""
    return RunRecord.read(
        make_run(
            path / "run",
            num_workers=1,
            num_steps=1000,
            evaluations={step: {metric: score(step)} for step in STEPS},
            step=lambda rank, step: {"learning_rate": rate(step) if rate else 0.001},
            recipe={"evaluate": {"metric": metric}},
            hosts=(),
            **made,
        )
    )


def test_a_power_law_is_continued(tmp_path):
    run = run_with(tmp_path, lambda step: 40 - 300 * step**-0.5)
    found = forecast(run)
    assert found.metric == "bleu"
    assert found.steps[0] == 1000
    assert found.steps[-1] == 1500
    # 40 - 300 / sqrt(1500) = 32.25; a grid of exponents is near, not exact.
    assert found.middle[-1] == pytest.approx(40 - 300 * 1500**-0.5, abs=0.1)
    assert (found.low <= found.middle).all()
    assert (found.middle <= found.high).all()


def test_an_exponential_is_continued():
    steps = np.arange(100.0, 1001, 100)
    middle, low, high = saturation.fit(steps, 40 - 20 * np.exp(-steps / 400)).gain(500)
    # 20 x (exp(-1000/400) - exp(-1500/400)) = 1.17
    assert middle == pytest.approx(20 * (np.exp(-2.5) - np.exp(-3.75)), abs=0.05)
    assert low <= middle <= high


def test_noise_widens_the_forecast():
    steps = np.arange(100.0, 2001, 100)
    smooth = 40 - 300 * steps**-0.5
    noise = np.random.default_rng(1).standard_normal(len(steps))
    widths = []
    for amount in (0.1, 1.0):
        middle, low, high = saturation.fit(steps, smooth + amount * noise).gain(1000)
        widths.append(high - low)
        assert low <= middle <= high
    assert widths[1] > 2 * widths[0]


@pytest.mark.parametrize("num_evaluations", [4, 10])
def test_most_forecasts_hold_the_truth(num_evaluations):
    steps = np.linspace(2000 / num_evaluations, 2000, num_evaluations)
    truth = 300 * (2000**-0.5 - 3000**-0.5)
    held = 0
    for seed in range(100):
        noise = np.random.default_rng(seed).normal(0, 0.3, len(steps))
        _, low, high = saturation.fit(steps, 40 - 300 * steps**-0.5 + noise).gain(1000)
        held += low <= truth <= high
    assert held >= 80


def test_a_loss_falls_in_its_forecast(tmp_path):
    found = forecast(run_with(tmp_path, lambda step: 2 + 30 / step, metric="loss"))
    assert found.middle[-1] < found.middle[0]
    assert found.low[-1] <= 2 + 30 / 1500 + 1e-3
    assert (found.low <= found.middle).all()
    assert (found.middle <= found.high).all()


def test_a_rising_score_is_not_fully_trained(tmp_path):
    told = answer(run_with(tmp_path, lambda step: 40 - 300 * step**-0.5))
    assert told.short == "no"
    assert "Not fully trained: BLEU still rises by" in told.words
    assert "another 500 steps would bring about 1.7" in told.words
    # 300 x (1000^-0.5 - 1500^-0.5) = 1.74
    assert told.facts["gain"]["middle"] == pytest.approx(300 * (1000**-0.5 - 1500**-0.5), abs=0.1)
    # Over the last four evaluations, 700 to 1000: a mean slope near (30.51 - 28.66) / 300 x 1000.
    assert told.facts["slope_per_1000_steps"] == pytest.approx(6.15, abs=0.2)
    # 400 micro-batches an epoch, one worker: 400 steps.
    assert told.facts["slope_per_epoch"] == pytest.approx(0.4 * told.facts["slope_per_1000_steps"])


def test_a_flat_score_is_fully_trained(tmp_path):
    told = answer(run_with(tmp_path, lambda step: 30 + 0.1 * (-1) ** (step // 100)))
    assert told.short == "yes"
    assert "no longer changes by more than its noise" in told.words


def test_a_falling_score_is_past_its_best(tmp_path):
    told = answer(run_with(tmp_path, lambda step: 30 - abs(step - 400) / 100))
    assert told.short == "past its best"
    assert "at step 400" in told.words
    assert told.facts["best_step"] == 400


def test_a_rising_loss_is_past_its_best(tmp_path):
    told = answer(run_with(tmp_path, lambda step: 2 + abs(step - 400) / 1000, metric="loss"))
    assert told.short == "past its best"
    assert "dev loss rises by" in told.words


def test_a_spent_learning_rate_explains_a_flat_end(tmp_path):
    told = answer(run_with(tmp_path, lambda step: 40 - 300 * step**-0.5, rate=lambda step: 0.001 * (1 - step / 1000)))
    assert told.short == "yes, for its schedule"
    assert "going on without a longer schedule would change nothing" in told.words
    assert "a schedule longer by 500 steps" in told.words


def test_few_evaluations_fall_back_on_the_training_loss(tmp_path):
    run = RunRecord.read(make_run(tmp_path / "run", num_steps=300, evaluations=[100, 200, 300], hosts=()))
    told = answer(run)
    assert forecast(run) is None
    assert told.short == "probably not"
    assert told.words.startswith("Three evaluations are too few to tell from the score.")
    # loss = 2 + 6 / step over the last 100 steps: about -6 x (1/201 - 1/300) / 99 per step
    assert told.facts["slope_per_1000_steps"] == pytest.approx(-1000 * 6 * (1 / 201 - 1 / 300) / 99, rel=0.1)


def test_a_diverged_run_says_since_when(tmp_path):
    made = make_run(tmp_path / "run", step=lambda rank, step: {"loss": None} if step in (10, 40) or step > 44 else {})
    run = RunRecord.read(made)
    assert diverged_at(run) == 45
    assert answer(run).short == "no: it diverged"


def test_one_lost_loss_is_no_divergence(tmp_path):
    run = RunRecord.read(make_run(tmp_path / "run", step=lambda rank, step: {"loss": None} if step == 10 else {}))
    assert diverged_at(run) is None


def test_evaluations_without_a_finite_score_are_left_out(tmp_path):
    run = run_with(tmp_path, lambda step: None if step == 500 else 40 - 300 * step**-0.5)
    assert forecast(run).middle[-1] == pytest.approx(32.25, abs=0.2)


def test_a_slope_has_the_error_of_least_squares():
    # From 0.1 + 1.1 x the values differ by -0.1, -0.2, 0.7, -0.4; squared 0.01 + 0.04 + 0.49 + 0.16 = 0.7
    found = trend(np.array([0.0, 1, 2, 3]), np.array([0.0, 1, 3, 3]))
    assert found.slope == pytest.approx(1.1)
    assert found.error == pytest.approx((0.7 / 2 / 5) ** 0.5)
    # 1.1 / 0.265 = 4.2 is more than 2.92, the 95th percentile of Student's t with 2 degrees of freedom.
    assert found.direction == 1
