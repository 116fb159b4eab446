"""A run directory read whole, whatever it lacks."""

from __future__ import annotations

import fcntl
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from konvoi.analysis.record import RunRecord
from konvoi.errors import RunError


def write(run: Path, file: str, *events: dict[str, Any], torn: str = "") -> None:
    path = run / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(event)}\n" for event in events) + torn)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "recipe.toml").write_text('[train]\nduration = "9 steps"\n[evaluate]\nmetric = "bleu"\n')
    return tmp_path


def step(number: int, **values: Any) -> dict[str, Any]:
    return {"kind": "step", "time": 1.0, "step": number, **values}


def test_a_folder_that_is_no_run_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run directory"):
        RunRecord.read(tmp_path)


def test_a_run_of_which_only_the_recipe_is_there(run: Path) -> None:
    record = RunRecord.read(run)
    assert (record.status, len(record.steps), record.evaluations, record.num_workers) == ("not started", 0, [], 1)
    assert (record.metric, record.setting("train.duration"), record.setting("train.none", 7)) == ("bleu", "9 steps", 7)
    assert record.steps["loss"].size == 0 and not record.steps.has("loss")


def test_columns_have_nan_where_an_event_lacks_a_value(run: Path) -> None:
    write(run, "events/rank0.jsonl", step(1, loss=2.0, phases={"data": 0.5}), step(2, loss=None), torn='{"kind": "st')
    steps = RunRecord.read(run).steps
    assert steps.numbers.tolist() == [1, 2]
    assert steps["loss"][0] == 2.0 and math.isnan(steps["loss"][1])
    assert steps["phases.data"][0] == 0.5 and math.isnan(steps["phases.data"][1])
    assert steps.has("loss") and not steps.has("phases.backward")
    assert steps.last(1).numbers.tolist() == [2]
    assert steps.where(steps.numbers < 2)["loss"].tolist() == [2.0]


def test_what_was_repeated_after_a_resume_counts_as_it_went_the_last_time(run: Path) -> None:
    restart = {"kind": "restart", "time": 2.0, "step": 1}
    scores = [{"kind": "evaluation", "step": 2, "bleu": value} for value in (10.0, 20.0)]
    write(
        run,
        "events/rank0.jsonl",
        step(1, loss=3.0),
        step(2, loss=9.0),
        scores[0],
        restart,
        step(2, loss=2.0),
        scores[1],
    )
    record = RunRecord.read(run)
    assert record.steps["loss"].tolist() == [3.0, 2.0]
    assert [event["bleu"] for event in record.evaluations] == [20.0]
    assert len(record.first.restarts) == 1


def test_what_came_after_the_step_that_a_run_went_back_to_is_given_up(run: Path) -> None:
    events = [step(number, loss=9.0) for number in (1, 2, 3)]
    scores = {"kind": "evaluation", "step": 3, "bleu": 10.0}
    write(run, "events/rank0.jsonl", *events, scores, {"kind": "restart", "step": 1}, step(2, loss=5.0))
    record = RunRecord.read(run)
    assert (record.steps["loss"].tolist(), record.evaluations) == ([9.0, 5.0], [])


def test_ranks_are_in_the_order_of_their_numbers_and_the_lowest_speaks_for_all(run: Path) -> None:
    for rank in (10, 9, 2):
        write(run, f"events/rank{rank}.jsonl", {"kind": "started", "host": f"node{rank}"}, step(1, loss=float(rank)))
    record = RunRecord.read(run)
    assert list(record.ranks) == [2, 9, 10]
    assert (record.first.host, record.steps["loss"].tolist()) == ("node2", [2.0])


def test_a_host_tells_of_the_interface_that_the_job_uses(run: Path) -> None:
    about = {"kind": "host", "job_interface": "eth0.5", "interfaces": {"eth0.5": {"link_bits_per_second": 1e9}}}
    samples = [{"kind": "sample", "time": t, "interfaces": {"eth0.5": {"bytes_out": 10 * t}}} for t in (1, 2)]
    write(run, "hosts/node1.jsonl", about, *samples)
    host = RunRecord.read(run).hosts["node1"]
    assert (host.job_interface, host.link_bits_per_second) == ("eth0.5", 1e9)
    assert host.column("interfaces.eth0.5.bytes_out").tolist() == [10, 20]


def test_a_damaged_file_does_not_hide_the_others(run: Path) -> None:
    (run / "summary.json").write_text("{")
    (run / "environment.json").write_text("[]")
    write(run, "events/rank0.jsonl", step(1, loss=1.0))
    record = RunRecord.read(run)
    assert (record.summary, record.environment, len(record.steps)) == ({}, {}, 1)


def test_a_run_that_says_it_goes_on_died_when_nobody_holds_its_lock_and_it_is_silent(run: Path) -> None:
    (run / "summary.json").write_text('{"status": "running"}')
    write(run, "events/rank0.jsonl", {**step(1), "time": time.time() - 1000})
    (run / ".lock").touch()
    assert RunRecord.read(run).status == "died"
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert RunRecord.read(run).status == "running"
    # On another machine, whose locks are not seen here.
    write(run, "events/rank0.jsonl", {**step(1), "time": time.time()})
    assert RunRecord.read(run).status == "running"


def test_a_run_that_ended_says_how(run: Path) -> None:
    (run / "summary.json").write_text('{"status": "interrupted", "workers": 3}')
    record = RunRecord.read(run)
    assert (record.status, record.num_workers) == ("interrupted", 3)
