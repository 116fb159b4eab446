"""Busy and useful. A made step computes 0.44 of 0.5 s; the cores are 90 % busy."""

from __future__ import annotations

import pytest
from tests.analysis.made_runs import ABSENT, make_run

from konvoi.analysis.answers.devices import answer
from konvoi.analysis.record import RunRecord


def told(path, **made):
    return answer(RunRecord.read(make_run(path / "run", **made)))


def test_a_run_that_computes_uses_its_devices(tmp_path):
    found = told(tmp_path)
    assert found.short == "yes"
    assert found.facts["compute_share_of_step"] == pytest.approx(0.44 / 0.5)
    assert "computed for the model 88 %; 8 % waiting for the network" in found.words


def test_busy_cores_are_not_called_useful(tmp_path):
    found = told(tmp_path, step={"phases": {"data": 1.005}}, sample={"cpu_percent": [100.0, 80.0]})
    # 0.44 of 1.5 s
    assert found.short == "no"
    assert found.facts["core_busy_percent"] == {"host-a": [100.0, 80.0]}
    assert "29 %" in found.words
    assert "those of host-a 90 %; but busy is not useful" in found.words


def test_a_gpu_that_spins_counts_as_busy(tmp_path):
    sample = {"gpus": [{"busy_percent": 100.0}, {"busy_percent": 98.0}]}
    found = told(tmp_path, sample=sample, step={"phases": {"exposed_communication": 1.03}, "sampled": True})
    assert found.short == "no"
    assert found.facts["gpu_busy_percent"] == pytest.approx(99.0)
    assert "busy 99 % of the time, but busy is not useful: a GPU that spins in a collective" in found.words


def test_too_few_cores_are_told(tmp_path):
    found = told(tmp_path, step={"run_delay_seconds": 0.2})
    assert found.short == "yes, but too few cores"
    # 0.2 of 0.5 s
    assert "For 40 % of a step a worker was ready to compute but had no core" in found.words


def test_old_events_cannot_tell_computing_from_the_exchange(tmp_path):
    found = told(tmp_path, step={"communication": ABSENT})
    assert found.short == "can't tell"
    assert "compute_share_of_step" not in found.facts


def test_without_hosts_the_steps_still_tell(tmp_path):
    found = told(tmp_path, hosts=())
    assert found.short == "yes"
    assert "busy" not in found.words
