"""How long a step was. A made step takes half a second: forward 0.15, backward 0.25 ..."""

from __future__ import annotations

import pytest
from tests.analysis.made_runs import make_run

from konvoi.analysis.answers.step_times import answer
from konvoi.analysis.record import RunRecord


def told(path, **made):
    return answer(RunRecord.read(make_run(path / "run", **made)))


def test_mean_median_and_percentile(tmp_path):
    # 90 steps of 1 s and 10 of 1.5 s: mean 1.05, median 1, 95th percentile 1.5
    found = told(tmp_path, num_steps=100, step=lambda rank, step: {"step_seconds": 1.5 if step % 10 == 0 else 1.0})
    assert found.facts["mean_seconds"] == pytest.approx(1.05)
    assert found.facts["median_seconds"] == 1.0
    assert found.facts["p95_seconds"] == 1.5
    assert found.short == "1.05 s"


def test_by_phase(tmp_path):
    found = told(tmp_path)
    assert found.facts["phase_seconds"]["backward"] == pytest.approx(0.25)
    assert sum(found.facts["phase_seconds"].values()) == pytest.approx(0.5)
    assert "backward 250 ms (50 %), forward 150 ms (30 %)" in found.words


def test_on_a_gpu_only_sampled_steps_tell_the_phases(tmp_path):
    def step(rank, number):
        is_sampled = number % 10 == 0
        return {"phases": {"forward": 0.2 if is_sampled else 0.01}, **({"sampled": True} if is_sampled else {})}

    assert told(tmp_path, step=step).facts["phase_seconds"]["forward"] == pytest.approx(0.2)


def test_a_slow_first_step_is_told(tmp_path):
    found = told(tmp_path, step=lambda rank, step: {"phases": {"forward": 2.15}} if step == 1 else {})
    # 0.5 s and 2 s more
    assert "The first took 2.50 s, 5.0 times the median" in found.words
    assert found.facts["outliers"] == {"the first step of a session": 1}


@pytest.mark.parametrize(
    ("slow", "reason"),
    [
        ({"phases": {"data": 2.0}}, "waiting for data"),
        ({"phases": {"agreement": 2.0}, "communication": {"waiting_seconds": 1.9}}, "waiting for another rank"),
        ({"phases": {"exposed_communication": 2.0}}, "a slower network"),
        ({"phases": {"forward": 2.0}, "run_delay_seconds": 1.5}, "no free core"),
        ({"phases": {"forward": 2.0}}, "nothing that was recorded"),
    ],
    ids=["data", "straggler", "network", "cores", "unknown"],
)
def test_an_outlier_is_explained_by_what_took_the_time(tmp_path, slow, reason):
    found = told(tmp_path, step=lambda rank, step: slow if step == 30 else {})
    assert found.facts["outliers"] == {reason: 1}
    assert f"1 with {reason}" in found.words


def test_waiting_after_a_checkpoint_is_no_straggler(tmp_path):
    slow = {"phases": {"agreement": 2.0}, "communication": {"waiting_seconds": 1.9}}
    found = told(tmp_path, checkpoints=[29], step=lambda rank, step: slow if step == 30 else {})
    assert found.facts["outliers"] == {"a checkpoint just before": 1}


def test_even_steps_have_no_outliers(tmp_path):
    assert "None took more than twice the median." in told(tmp_path).words
