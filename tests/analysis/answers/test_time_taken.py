"""How long a training took. A made run has 2 s of start-up and steps of 0.5 s."""

from __future__ import annotations

import pytest
from tests.analysis.made_runs import ABSENT, STARTED_AT, make_run, write_lines

from konvoi.analysis.answers.time_taken import answer
from konvoi.analysis.record import RunRecord


def facts_of(path, **made):
    return answer(RunRecord.read(make_run(path / "run", **made))).facts


def step(number, at):
    return {"kind": "step", "time": STARTED_AT + at, "step": number, "step_seconds": 1.0, "loss": 3.0}


def test_the_parts_add_up_to_the_wall_time(tmp_path):
    facts = facts_of(tmp_path, evaluations=[25, 50], checkpoints=[25])
    # 2 s start-up + 50 x 0.5 s + 2 x 1 s of evaluation + 0.1 s of checkpoint
    assert facts["wall_seconds"] == pytest.approx(2 + 25 + 2 + 0.1)
    assert facts["start_up_seconds"] == pytest.approx(2)
    assert facts["steps_seconds"] == pytest.approx(25)
    assert facts["evaluations_seconds"] == pytest.approx(2)
    assert facts["checkpoints_seconds"] == pytest.approx(0.1)
    assert facts["pauses_seconds"] == 0
    assert facts["rest_seconds"] == pytest.approx(0, abs=1e-6)


def test_a_resumed_run_tells_its_pause_and_the_steps_done_twice(tmp_path):
    path = make_run(tmp_path / "run", num_steps=4, num_workers=1)
    first = [{"kind": "started", "time": STARTED_AT + 2, "seconds": 2.0}, *(step(n, 2 + n) for n in (1, 2, 3))]
    # Killed at 5 s after step 3; started again at 105 s, 3 s of start-up, from the checkpoint after step 2.
    again = [{"kind": "started", "time": STARTED_AT + 108, "seconds": 3.0}]
    again += [{"kind": "restart", "time": STARTED_AT + 108, "step": 2}, step(3, 109), step(4, 110)]
    write_lines(path / "events" / "rank0.jsonl", first + again)
    told = answer(RunRecord.read(path))
    assert told.facts["sessions"] == 2
    assert told.facts["pauses_seconds"] == pytest.approx(100)
    assert told.facts["start_up_seconds"] == pytest.approx(2 + 3)
    assert told.facts["steps_seconds"] == pytest.approx(3 + 2)
    assert told.facts["repeated_steps"] == 1
    assert "resumed once, with 1 min 40 s of pauses in between; one step had to be done again" in told.words


def test_a_run_that_goes_on_tells_how_long_still(tmp_path):
    made = make_run(tmp_path / "run", status="running", recipe={"train": {"duration": "90 steps"}})
    told = answer(RunRecord.read(made))
    # 90 - 50 steps of 0.5 s
    assert told.facts["left_seconds"] == pytest.approx(40 * 0.5)
    assert "another 20.0 s" in told.words


def test_a_time_budget_may_end_it_sooner(tmp_path):
    tables = {"train": {"duration": "90 steps", "time_budget": "30 seconds"}}
    facts = facts_of(tmp_path, status="running", recipe=tables)
    # 2 s + 25 s are gone.
    assert facts["left_seconds"] == pytest.approx(30 - 27)


def test_a_finished_run_has_no_time_left(tmp_path):
    assert facts_of(tmp_path)["left_seconds"] is None


def test_an_old_run_without_a_beginning_starts_with_its_first_step(tmp_path):
    path = make_run(tmp_path / "run", num_workers=1, num_steps=10)
    write_lines(path / "events" / "rank0.jsonl", [step(n, n) for n in range(1, 11)])
    (path / "environment.json").write_text("{}")
    facts = answer(RunRecord.read(path)).facts
    assert facts["wall_seconds"] == pytest.approx(10)
    assert facts["start_up_seconds"] == 0


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("finished", "took"),
        ("running", "has been going on"),
        ("interrupted", "interrupted"),
        ("died", "before its time"),
    ],
)
def test_the_ending_is_told(tmp_path, status, words):
    assert words in answer(RunRecord.read(make_run(tmp_path / "run", status=status))).words


def test_events_without_seconds_are_taken_as_none(tmp_path):
    facts = facts_of(tmp_path, evaluations={10: {"seconds": ABSENT}}, checkpoints={10: {"seconds": None}})
    assert facts["evaluations_seconds"] == facts["checkpoints_seconds"] == 0
