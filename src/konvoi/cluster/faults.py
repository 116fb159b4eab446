"""When a worker or a host dies: whether the run goes on, and what is said about it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from konvoi.cluster.job_spec import Failure
from konvoi.run_directory import RunDirectory
from konvoi.telemetry.events import EventWriter

# What is killed so often without a single new step will be killed again: memory does not suffice.
MAX_IN_VAIN = 10
# Of a rank's events: the last few are within it, also the long one of an evaluation with its samples.
TAIL_BYTES = 1 << 18
DOING = {
    "started": "starting",
    "restart": "starting",
    "step": "after step {step}",
    "evaluation": "after the evaluation of step {step}",
    "checkpoint": "after the checkpoint of step {step}",
}


@dataclass(frozen=True)
class Tally:
    """Of the restarts so far."""

    restarts: int = 0
    in_vain: int = 0
    """In a row, without a new step."""
    furthest_step: int = 0
    """When it last failed."""

    def with_failure_after(self, step: int) -> Tally:
        in_vain = 0 if step > self.furthest_step else self.in_vain + 1
        return Tally(self.restarts + 1, in_vain, max(step, self.furthest_step))


def why_not(tally: Tally, failure: Failure, max_restarts: int) -> str:
    """Why a run does not go on, if it does not; the tally counts this failure already."""
    if failure.kind == "refused" or max_restarts == 0:
        return failure.text
    if failure.kind == "crashed" and tally.in_vain:
        # It would come to the same place, and to the same error.
        return failure.text
    if tally.in_vain >= MAX_IN_VAIN:
        return f"{failure.text}; {tally.in_vain} times in a row, without a new step"
    if tally.restarts > max_restarts:
        return f"{failure.text}; the run was restarted {max_restarts} times before (faults.max_restarts)"
    return ""


def last_step(run: Path, seats: Iterable[int]) -> tuple[int, float | None]:
    """The furthest step that these workers have told of, and when the last of them told."""
    steps = [event for seat in seats for event in last_events(_events_file(run, seat)) if event.get("kind") == "step"]
    if not steps:
        return 0, None
    return max(event["step"] for event in steps), max(event["time"] for event in steps)


def doing(run: Path, seat: int) -> str:
    """What a worker was last heard of doing."""
    last = next((event for event in last_events(_events_file(run, seat)) if event.get("kind") in DOING), None)
    return DOING[last["kind"]].format(**{"step": "?", **last}) if last else "starting"


def has_finished(run: Path, seat: int, since: float) -> bool:
    """Whether a worker told so, which it does when all of them have; since: the time of a clock, in seconds."""
    last = next(last_events(_events_file(run, seat)), {})
    return last.get("kind") == "finished" and last["time"] > since


def last_events(path: Path) -> Iterator[dict[str, Any]]:
    """The latest first; half a line, which a killed writer leaves, is passed over."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return
    for line in reversed(lines):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def in_words(failure: Failure) -> str:
    """h1 rank 2 was ended by SIGKILL (after step 57)"""
    place = failure.host + (f" rank {failure.rank}" if failure.rank is not None else "")
    text = failure.text.strip().splitlines()[-1] if failure.kind == "crashed" else failure.text
    return f"{place}: {text}" + (f" ({failure.doing})" if failure.doing else "")


def record(run: Path, seat: int, failure: Failure, line: str) -> None:
    """Into the log and a worker's events; it has ended, so nobody else writes them."""
    directory = RunDirectory(run)
    events = EventWriter(_events_file(run, seat))
    events.write("fault", rank=failure.rank, host=failure.host, what=failure.text, doing=failure.doing)
    events.close()
    with directory.log_file.open("a", encoding="utf-8") as log:
        log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")


def _events_file(run: Path, seat: int) -> Path:
    return RunDirectory(run).events / f"rank{seat}.jsonl"
