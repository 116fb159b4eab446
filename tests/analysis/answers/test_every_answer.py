"""Whatever a run lacks, every question gets an answer that people and programs can read."""

from __future__ import annotations

import importlib
import json
import pkgutil
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.analysis.made_runs import ABSENT, STARTED_AT, make_run, write_lines

from konvoi.analysis import answers
from konvoi.analysis.answers import fully_trained, over_fitting, traffic
from konvoi.analysis.record import RunRecord

NAMES = sorted(entry.name for entry in pkgutil.iter_modules(answers.__path__))
NULLS = {"loss": None, "gradient_norm": None, "learning_rate": None, "step_seconds": None, "time": None}
OLD = {"communication": ABSENT, "cpu_seconds": ABSENT, "run_delay_seconds": ABSENT}
EDGES = {
    "no steps": {"num_steps": 0},
    "one step": {"num_steps": 1},
    "one step and its evaluation": {"num_steps": 1, "evaluations": [1], "checkpoints": [1]},
    "one worker": {"num_workers": 1, "evaluations": range(10, 51, 10)},
    "died": {"status": "died", "evaluations": [25]},
    "running": {"status": "running", "evaluations": [25]},
    "no hosts": {"hosts": ()},
    "nothing is a number": {"step": NULLS, "evaluations": {25: {"loss": None, "bleu": None}, 50: {"bleu": None}}},
    "old keys": {"step": {**OLD, "phases": {"exposed_communication": ABSENT}}, "evaluations": [10, 20, 30, 40, 50]},
    "no phases": {"step": {"phases": ABSENT, "step_seconds": 0.5}},
    "only another rank": {"ranks": [1]},
    "the same score for ever": {"evaluations": {step: {"bleu": 0.0, "loss": 2.0} for step in range(5, 51, 5)}},
    "samples without values": {"sample": {"interfaces": {}, "cpu_percent": [None, None], "seconds": None}},
}


def test_there_are_answers():
    assert len(NAMES) >= 10


def check(run):
    for name in NAMES:
        told = importlib.import_module(f"konvoi.analysis.answers.{name}").answer(run)
        assert told.question.endswith("?")
        assert told.short
        assert told.words.endswith(".")
        assert "nan" not in told.words.split()
        json.dumps(told.facts, allow_nan=False)
    fully_trained.forecast(run)
    over_fitting.gap(run)
    traffic.measured(run)


@pytest.mark.parametrize("edge", EDGES)
def test_every_answer_is_given_for(tmp_path, edge):
    check(RunRecord.read(make_run(tmp_path / "run", **EDGES[edge])))


@pytest.mark.parametrize("missing", ["summary.json", "data.json", "environment.json", "events", "hosts"])
def test_every_answer_is_given_without(tmp_path, missing):
    path = make_run(tmp_path / "run", evaluations=range(10, 51, 10))
    shutil.rmtree(path / missing) if (path / missing).is_dir() else (path / missing).unlink()
    check(RunRecord.read(path))


def test_every_answer_is_given_for_a_real_run(trained_run):
    check(RunRecord.read(trained_run))


numbers = st.one_of(st.none(), st.floats(0, 1e4, allow_nan=False), st.integers(0, 1000))
events = st.fixed_dictionaries(
    {"kind": st.sampled_from(["started", "step", "evaluation", "checkpoint", "restart", "finished"])},
    optional={
        "time": st.floats(STARTED_AT, STARTED_AT + 1e4),
        "step": st.integers(1, 30),
        "loss": numbers,
        "bleu": numbers,
        "seconds": numbers,
        "step_seconds": numbers,
        "learning_rate": numbers,
        "target_tokens": numbers,
        "phases": st.dictionaries(st.sampled_from(["data", "forward", "backward", "agreement"]), numbers),
    },
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(st.lists(events, max_size=25))
def test_every_answer_is_given_for_any_order_of_events(tmp_path, soup):
    path = tmp_path / "run"
    if not path.exists():
        make_run(path)
    write_lines(path / "events" / "rank0.jsonl", soup)
    check(RunRecord.read(path))
