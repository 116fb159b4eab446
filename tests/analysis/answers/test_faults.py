"""Who was lost, how long the run stood still, what it repeated and skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.analysis.made_runs import STARTED_AT, make_run, write_lines

from konvoi.analysis.answers import faults
from konvoi.analysis.record import RunRecord
from konvoi.report.sections import faults as section


def killed(rank: int, host: str, at: float, after: int) -> dict[str, Any]:
    what = "was ended by SIGKILL"
    return {"kind": "fault", "time": at, "rank": rank, "host": host, "what": what, "doing": f"after step {after}"}


def step(number: int, at: float) -> dict[str, Any]:
    return {"kind": "step", "time": at, "step": number, "loss": 3.0, "step_seconds": 1.0}


def made(path: Path) -> RunRecord:
    """Of two kills and a return; steps 4 and 5 are made again after the first, none after the second."""
    make_run(path, summary={"skipped_steps": 3})
    began = STARTED_AT
    story: list[dict[str, Any]] = [{"kind": "started", "time": began, "seconds": 1.0, "host": "h1"}]
    story += [step(number, began + number) for number in range(1, 6)]
    story += [killed(2, "h2", began + 6, after=5), {"kind": "started", "time": began + 8, "seconds": 1.0, "host": "h1"}]
    story += [{"kind": "restart", "time": began + 8, "step": 3, "workers": 3, "stall_seconds": 3.5}]
    story += [step(number, began + 5 + number) for number in range(4, 7)]
    story += [{"kind": "fault", "time": began + 12, "step": 6, "message": "back to step 6", "back_to": 6}]
    story += [
        killed(0, "h0", began + 13, after=6),
        {"kind": "started", "time": began + 20, "seconds": 1.0, "host": "h1"},
    ]
    story += [{"kind": "restart", "time": began + 20, "step": 6, "workers": 2, "stall_seconds": 7.0}]
    story += [step(7, began + 21)]
    # The first was away: it did not hear of its own death.
    write_lines(path / "events" / "rank0.jsonl", [event for event in story if event.get("host") != "h0"])
    write_lines(path / "events" / "rank1.jsonl", story)
    return RunRecord.read(path)


def test_what_happened_is_counted_from_the_events_of_who_saw_most(tmp_path: Path) -> None:
    told = faults.answer(made(tmp_path / "run"))
    assert told.facts == {
        "faults": 2,
        "who": ["h0 rank 0", "h2 rank 2"],
        "restarts": 2,
        "stall_seconds": 3.5 + 7.0,
        "repeated_steps": 2,
        "skipped_steps": 3,
        "returns": 1,
        "warnings": 0,
    }
    assert told.short == "two faults"
    assert told.words.startswith("Two workers or hosts were lost, the run went on twice, three steps had no gradient")
    assert "two steps had to be made again" in told.words


def test_the_story_is_told_in_its_order(tmp_path: Path) -> None:
    _, table = section.render(made(tmp_path / "run"))
    assert [row[1:] for row in table.rows] == [
        ("h2 rank 2", "was ended by SIGKILL (after step 5)"),
        ("all", "went on from step 3 with 3 workers after 3.50 s without a step"),
        ("all", "back to step 6"),
        ("h0 rank 0", "was ended by SIGKILL (after step 6)"),
        ("all", "went on from step 6 with 2 workers after 7.00 s without a step"),
    ]


def test_a_run_without_faults_says_so(tmp_path: Path) -> None:
    told = faults.answer(RunRecord.read(make_run(tmp_path / "run")))
    assert (told.short, told.facts["faults"]) == ("nothing", 0)


def test_a_resume_by_hand_is_no_fault(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    events = [step(1, STARTED_AT), {"kind": "restart", "time": STARTED_AT + 9, "step": 1, "workers": 2}, step(2, 5.0)]
    write_lines(run / "events" / "rank0.jsonl", events)
    assert faults.figures(RunRecord.read(run))["restarts"] == 0
