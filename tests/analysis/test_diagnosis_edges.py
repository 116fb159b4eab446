"""Runs that lack something: the verdict says what it can, says when it can't tell, and never fails."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.made_runs import ABSENT, make_run, write_lines

from konvoi.analysis.diagnosis import diagnose
from konvoi.analysis.record import RunRecord
from konvoi.analysis.verdict import Verdict


def verdict_of(path: Path, last_steps: int | None = None, **made: Any) -> Verdict:
    return diagnose(RunRecord.read(make_run(path / "run", **made)), last_steps)


@pytest.mark.parametrize(("num_steps", "words"), [(0, "no step yet"), (1, "one step only"), (4, "four steps only")])
def test_too_few_steps_tell_nothing(tmp_path, num_steps, words):
    verdict = verdict_of(tmp_path, num_steps=num_steps)
    assert verdict.verdict == "unknown"
    assert words in verdict.sentence
    assert verdict.sure.startswith("can't tell")
    assert verdict.advice == []


def test_few_steps_make_it_less_sure(tmp_path):
    # 10 steps, of which 2 are warm-up and the longest is left out after that only from 10 on: 8 of the 20 wanted.
    verdict = verdict_of(tmp_path, num_steps=10, started={"seconds": 0.1})
    assert verdict.verdict == "compute"
    assert verdict.confidence < 0.8
    assert "eight usable steps only" in verdict.sure


def test_a_narrow_lead_makes_it_less_sure(tmp_path):
    # network 0.3 of 1.05 s, input 0.28
    step = {"phases": {"exposed_communication": 0.3, "data": 0.28}}
    verdict = verdict_of(tmp_path, step=step)
    assert verdict.verdict == "network"
    assert "input is close" in verdict.sure
    assert verdict.confidence < verdict_of(tmp_path / "b", step={"phases": {"exposed_communication": 0.6}}).confidence


def test_one_without_losses(tmp_path):
    verdict = verdict_of(tmp_path, step={"loss": None, "objective": None, "gradient_norm": None})
    assert verdict.verdict == "compute"


@pytest.mark.parametrize("status", ["died", "failed", "interrupted", "running"])
def test_one_that_did_not_finish(tmp_path, status):
    assert verdict_of(tmp_path, step={"phases": {"data": 0.5}}, status=status).verdict == "input"


def test_an_old_run_of_one_worker(tmp_path):
    old = {"cpu_seconds": ABSENT, "run_delay_seconds": ABSENT}
    path = make_run(tmp_path / "run", num_workers=1, step=old, hosts=())
    file = path / "events" / "rank0.jsonl"
    file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[1:]))  # nobody said "started"
    assert diagnose(RunRecord.read(path)).verdict == "compute"


def old_of_two(rank: int, step: int) -> dict[str, Any]:
    return {"communication": ABSENT, "cpu_seconds": ABSENT, "run_delay_seconds": ABSENT}


def test_an_old_run_of_two_does_not_tell_its_exchange(tmp_path):
    verdict = verdict_of(tmp_path, step=old_of_two)
    assert verdict.verdict == "unknown"
    assert "exchange of gradients" in verdict.sentence


def test_but_it_tells_slow_input(tmp_path):
    step = {**old_of_two(0, 0), "phases": {"data": 0.5}}
    assert verdict_of(tmp_path, step=step).verdict == "input"


def test_events_without_phases(tmp_path):
    verdict = verdict_of(tmp_path, step={"phases": ABSENT, "step_seconds": 0.5, "communication": ABSENT})
    assert verdict.verdict == "unknown"
    assert "phases" in verdict.sentence


def test_time_that_nothing_measures(tmp_path):
    verdict = verdict_of(tmp_path, step={"phases": {"other": 0.8}})
    assert verdict.verdict == "unknown"
    assert "in nothing that is measured" in verdict.sentence


def test_a_gpu_whose_phases_were_never_sampled_is_doubted(tmp_path):
    verdict = verdict_of(tmp_path, summary={"device": "cuda"})
    assert verdict.confidence <= 0.5
    assert "not measured on the GPU" in verdict.sure


def test_a_run_without_hosts(tmp_path):
    verdict = verdict_of(tmp_path, hosts=(), step={"phases": {"exposed_communication": 1.0}})
    assert verdict.verdict == "network"
    assert verdict.facts["exchange"]["link_bits_per_second"] is None


def test_a_torn_last_line(tmp_path):
    path = make_run(tmp_path / "run")
    with (path / "events" / "rank1.jsonl").open("a") as file:
        file.write('{"kind": "step", "st')
    assert diagnose(RunRecord.read(path)).verdict == "compute"


def test_a_folder_with_a_recipe_alone(tmp_path):
    (tmp_path / "recipe.toml").write_text("")
    verdict = diagnose(RunRecord.read(tmp_path))
    assert verdict.verdict == "unknown"
    assert "no step yet" in verdict.sentence


def test_the_latest_steps_may_tell_another_story(tmp_path):
    made = {"num_steps": 100, "step": lambda rank, step: {"phases": {"data": 2.0}} if step > 80 else {}}
    path = make_run(tmp_path / "run", **made)
    assert diagnose(RunRecord.read(path), last_steps=15).verdict == "input"
    # 20 x 2 s of 80 x 0.5 + 20 x 2.495 + 2 s; the longest 2 % and the warm-up do not count
    assert diagnose(RunRecord.read(path)).shares["input"] == pytest.approx(40 / 92, rel=0.05)


def test_the_latest_steps_have_their_part_of_the_evaluations(tmp_path):
    made = {"num_steps": 100, "evaluations": {step: {"seconds": 5.0} for step in (10, 20, 30, 40, 50, 60, 70, 80, 90)}}
    path = make_run(tmp_path / "run", recipe={"evaluate": {"every": "10 steps"}}, **made)
    verdict = diagnose(RunRecord.read(path), last_steps=10)
    # 9 x 5 s in 100 steps are 4.5 s beside the 5 s of 10 steps: 47 %, and each took 5 s.
    assert verdict.verdict == "evaluation"
    assert verdict.facts["costs"]["evaluation"] == pytest.approx(4.5 / 9.5)


def test_a_verdict_is_json(tmp_path):
    verdict = verdict_of(tmp_path, step={"own_target_tokens": ABSENT}, hosts=("a", "b"))
    text = json.dumps(verdict.as_json(), allow_nan=False)
    assert json.loads(text)["advice"][0]["gain"] > 1


junk = st.one_of(st.none(), st.text(max_size=3), st.booleans(), st.lists(st.integers(), max_size=2))
numbers = st.one_of(st.floats(0, 3), st.floats(allow_nan=True, allow_infinity=True), st.integers(-2, 5))
values = st.one_of(numbers, junk)
phases = st.dictionaries(
    st.sampled_from(["data", "forward", "backward", "exposed_communication", "agreement", "optimiser", "other"]), values
)
communication = st.dictionaries(
    st.sampled_from(
        ["seconds", "waiting_seconds", "moving_seconds", "agreement_moving_seconds", "num_collectives", "bytes"]
    ),
    values,
)
events = st.fixed_dictionaries(
    {"kind": st.sampled_from(["started", "step", "step", "step", "evaluation", "checkpoint", "restart", "finished"])},
    optional={
        "step": st.one_of(st.integers(0, 12), junk),
        "time": st.floats(0, 1e4),
        "seconds": values,
        "step_seconds": values,
        "phases": st.one_of(phases, junk),
        "communication": st.one_of(communication, junk),
        "own_target_tokens": values,
        "cpu_seconds": values,
        "run_delay_seconds": values,
        "sampled": values,
        "host": st.one_of(st.just("a"), junk),
        "local_rank": values,
        "threads": values,
        "sentences": values,
    },
)
gpu = st.dictionaries(st.sampled_from(["busy_percent", "clock_mhz", "max_clock_mhz", "throttled_by"]), values)
samples = st.fixed_dictionaries(
    {"kind": st.sampled_from(["host", "sample"])},
    optional={
        "seconds": values,
        "cores": values,
        "job_interface": st.one_of(st.just("eth0"), junk),
        "interfaces": st.one_of(
            st.dictionaries(st.just("eth0"), st.one_of(st.dictionaries(st.text(), values), junk)), junk
        ),
        "cpu_percent": st.one_of(st.lists(values, max_size=3), junk),
        "gpus": st.one_of(st.lists(st.one_of(gpu, junk), max_size=2), junk),
    },
)
soups = st.lists(st.lists(events, max_size=15), min_size=1, max_size=3)


@settings(max_examples=30, deadline=None)
@given(soups, st.lists(samples, max_size=5), st.sampled_from([None, 1, 7]), st.integers(1, 4))
def test_shares_add_up_and_nothing_fails_whatever_the_events(soup, host, last_steps, workers):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "recipe.toml").write_text('[evaluate]\nevery = "5 steps"\n[train]\nduration = "12 steps"\n')
        (path / "summary.json").write_text(json.dumps({"status": "running", "workers": workers}))
        for rank, lines in enumerate(soup):
            write_lines(path / "events" / f"rank{rank}.jsonl", lines)
        write_lines(path / "hosts" / "a.jsonl", host)
        verdict = diagnose(RunRecord.read(path), last_steps)
    assert sum(verdict.shares.values()) == pytest.approx(1.0)
    assert all(share >= 0 for share in verdict.shares.values())
    assert 0 <= verdict.confidence <= 1
    assert all(advice.after_seconds >= 0 for advice in verdict.advice)
    json.dumps(verdict.as_json(), allow_nan=False)
