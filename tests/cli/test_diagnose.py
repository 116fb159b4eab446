"""konvoi diagnose: the sentence first, then bars, evidence, advice, and how sure; the same as JSON."""

from __future__ import annotations

import json

import pytest
from tests.analysis.made_runs import make_run

NETWORK = {"phases": {"exposed_communication": 1.032, "agreement": 0.001}}


@pytest.fixture
def slow_network(tmp_path):
    return make_run(tmp_path / "run", step=NETWORK, hosts=("host-a", "host-b"))


def test_the_verdict_comes_first_and_all_fits_eighty_columns(konvoi, slow_network):
    result = konvoi("diagnose", slow_network)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("Network (bandwidth): ")
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "how sure: sure"


def test_advice_has_the_form_before_to_after(konvoi, slow_network):
    # 1.493 - 1.030 / 2
    assert "half precision gradients: 1.49 -> 0.978 s" in konvoi("diagnose", slow_network).stdout


def test_bars_are_as_long_as_their_shares(konvoi, slow_network):
    lines = konvoi("diagnose", slow_network).stdout.splitlines()
    bars = {line.split()[0]: line.count("█") for line in lines if "█" in line}
    # 1.033 of 1.493 s, beside 2 s of start-up: 67 % of 40 columns
    assert bars["network"] == round(40 * 50 * 1.033 / (50 * 1.493 + 2))
    assert list(bars)[:2] == ["network", "compute"]


def test_json_for_programs(konvoi, slow_network):
    verdict = json.loads(konvoi("diagnose", slow_network, "--json").stdout)
    assert (verdict["verdict"], verdict["kind"], verdict["rank"]) == ("network", "bandwidth", None)
    assert sum(verdict["shares"].values()) == pytest.approx(1.0)
    assert verdict["advice"][0]["gain"] > 1


def test_a_run_that_cannot_be_told_says_so(konvoi, tmp_path):
    result = konvoi("diagnose", make_run(tmp_path / "run", num_steps=3))
    assert result.exit_code == 0
    assert result.stdout.startswith("Can't tell what binds this run: three steps only")


def test_what_is_no_run(konvoi, tmp_path):
    result = konvoi("diagnose", tmp_path)
    assert result.exit_code == 2
    assert "is not a run directory" in result.stderr
