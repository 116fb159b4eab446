"""Events, phases and the summary made of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from konvoi.config.recipe import check
from konvoi.run_directory import RunDirectory, read_events
from konvoi.telemetry.events import EventWriter, finite
from konvoi.telemetry.writer import Writer

RECIPE = check(
    {"task": {"source": "en", "target": "de"}, "data": {"set": "demo-en-de"}, "train": {"duration": "5 steps"}}
)


def step_event(step: int, seconds: float = 1.0, target_tokens: int = 100) -> dict[str, Any]:
    return {
        "step": step,
        "loss": 2.0,
        "learning_rate": 0.1,
        "step_seconds": seconds,
        "target_tokens": target_tokens,
        "source_tokens": 2 * target_tokens,
        "target_tokens_per_second": target_tokens / seconds,
        "tokens_per_second": 3 * target_tokens / seconds,
    }


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", RECIPE)


def writer_of(directory: RunDirectory, rank: int = 0) -> Writer:
    return Writer(directory, rank, num_workers=2, facts={"hosts": 1, "parameters": 7}, recipe=RECIPE, quiet=True)


def test_what_is_written_is_read_at_once(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "events" / "rank0.jsonl")
    writer.write("step", step=1, text="Größe")
    (event,) = read_events(tmp_path / "events" / "rank0.jsonl")
    assert (event["kind"], event["step"], event["text"]) == ("step", 1, "Größe")
    assert event["time"] > 0
    writer.close()


def test_there_are_no_events_where_there_is_no_file(tmp_path: Path) -> None:
    assert list(read_events(tmp_path / "nothing.jsonl")) == []


@pytest.mark.parametrize("half", ['{"kind": "step", "st', '{"kind": "step", "step": "Gr\\u00', "12", "\x00\x00"])
def test_half_a_line_is_passed_over_and_the_next_begins_anew(tmp_path: Path, half: str) -> None:
    file = tmp_path / "rank0.jsonl"
    file.write_text(json.dumps({"kind": "step", "step": 1}) + "\n" + half)
    assert [event["step"] for event in read_events(file)] == [1]
    writer = EventWriter(file)
    writer.write("step", step=2)
    writer.close()
    assert [event["step"] for event in read_events(file)] == [1, 2]


def test_a_number_that_json_does_not_know_becomes_null(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "rank0.jsonl")
    writer.write("step", loss=math.nan, norms=[math.inf, 1.0], phases={"data": -math.inf}, step=3)
    writer.close()
    (event,) = read_events(tmp_path / "rank0.jsonl")
    assert (event["loss"], event["norms"], event["phases"], event["step"]) == (None, [None, 1.0], {"data": None}, 3)
    assert finite({"a": [math.nan, {"b": math.inf}], "c": "NaN"}) == {"a": [None, {"b": None}], "c": "NaN"}


def test_the_summary_by_hand(directory: RunDirectory) -> None:
    writer = writer_of(directory)
    for step, (seconds, tokens) in enumerate([(1.0, 100), (2.0, 200), (3.0, 600)], start=1):
        writer.step(step_event(step, seconds, tokens), done=1.0, line_due=False)
    writer.summary("running", 3, 6.5, scores={"loss": math.nan})
    writer.close()
    summary = directory.summary()
    assert (summary["status"], summary["steps"], summary["seconds"]) == ("running", 3, 6.5)
    assert (summary["workers"], summary["hosts"], summary["parameters"]) == (2, 1, 7)
    # (1 + 2 + 3) / 3 seconds; 900 target and 1,800 source tokens in 6 seconds
    assert summary["step_seconds"] == {"mean": 2.0, "median": 2.0, "p95": 3.0}
    assert (summary["target_tokens_per_second"], summary["tokens_per_second"]) == (150.0, 450.0)
    assert summary["scores"] == {"loss": None}


def test_a_summary_without_a_step_has_no_rates(directory: RunDirectory) -> None:
    writer = writer_of(directory)
    writer.summary("running", 0, 0.0)
    writer.close()
    assert not [key for key in directory.summary() if key.endswith("_per_second")]
    assert directory.summary()["step_seconds"] == {"mean": 0.0, "median": 0.0, "p95": 0.0}


def test_repeated_steps_count_once(directory: RunDirectory) -> None:
    killed = writer_of(directory)
    for step in (1, 2, 3, 4):
        killed.step(step_event(step, seconds=1.0), done=1.0, line_due=False)
    killed.close()
    # Resumed after a checkpoint at step 2: 3 is repeated and slower, and 4 does not come again.
    resumed = writer_of(directory)
    resumed.forget_after(2)
    resumed.step(step_event(3, seconds=4.0), done=1.0, line_due=False)
    summary = resumed.summary("running", 3, 6.0)
    resumed.close()
    # (1 + 1 + 4) / 3 = 2 seconds; 300 target tokens in 6 seconds
    assert summary["step_seconds"]["mean"] == 2.0
    assert summary["target_tokens_per_second"] == 50.0
    assert len(list(directory.events_of())) == 5


def test_the_bytes_of_the_summary_are_the_mean_of_all_steps_also_of_those_before_a_resume(
    directory: RunDirectory,
) -> None:
    began = writer_of(directory)
    began.facts["bytes_sent_per_step"] = 100.0
    assert began.summary("running", 0, 0.0)["bytes_sent_per_step"] == 100.0
    # An earlier version told it beside the exchange's seconds, or not at all.
    began.step({**step_event(1), "communication": {"bytes": 900.0}}, done=1.0, line_due=False)
    began.step(step_event(2), done=1.0, line_due=False)
    began.step({**step_event(3), "bytes_sent": 300.0}, done=1.0, line_due=False)
    began.close()
    resumed = writer_of(directory)
    resumed.step({**step_event(4), "bytes_sent": 60.0}, done=1.0, line_due=False)
    assert resumed.summary("running", 4, 4.0)["bytes_sent_per_step"] == (900 + 300 + 60) / 3
    resumed.close()


def test_only_the_first_rank_writes_what_there_is_one_of(directory: RunDirectory) -> None:
    writer = writer_of(directory, rank=1)
    writer.step(step_event(1), done=1.0, line_due=True)
    writer.evaluation(1, {"loss": 2.0}, seconds=0.1)
    writer.summary("finished", 1, 1.0)
    writer.close()
    assert [event["kind"] for event in directory.events_of(1)] == ["step", "evaluation"]
    for path in (directory.summary_file, directory.log_file, directory.tensorboard, directory.events / "rank0.jsonl"):
        assert not path.exists()


def test_the_log_says_what_the_console_says(directory: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer(directory, 0, num_workers=1, facts={}, recipe=RECIPE)
    writer.console.say("a word [with brackets]")
    writer.step(step_event(1), done=1.0, line_due=True)
    writer.step(step_event(2), done=2.0, line_due=False)
    writer.close()
    log, console = directory.log_file.read_text(encoding="utf-8"), capsys.readouterr().err
    for text in (log, console):
        assert "a word [with brackets]" in text
        assert "step 1  loss 2.000  100 target tokens/s" in text
        assert "step 2" not in text


def test_a_full_disk_does_not_end_the_run_that_tells_of_itself() -> None:
    events = EventWriter(Path("/dev/full"))
    assert events.write("step", step=1)["step"] == 1
    events.close()
