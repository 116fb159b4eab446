"""A run directory that is being written, read as far as it is new: a RunRecord of its latest steps at every refresh.

A run of 300,000 steps has 200 MB of events per rank. Of what was there before the watching began, the lines of old
steps are passed over unparsed, but for the few that the curves need.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from konvoi.analysis.record import HostRecord, RankRecord, RunRecord, Steps, status_of
from konvoi.analysis.verdict import Verdict
from konvoi.config.recipe import read_toml
from konvoi.run_directory import RunDirectory, fitting
from konvoi.watch.clock import SESSION_KINDS, Clock
from konvoi.watch.history import History
from konvoi.watch.measures import RankNow
from konvoi.watch.progress import Progress, progress_of
from konvoi.watch.tail import Replaced, Tail, parsed

RECENT_STEPS = 1000
RECENT_SAMPLES = 600
NUM_LOG_LINES = 20
# The verdict is over hundreds of steps: it need not be found anew at every refresh.
JUDGE_EVERY_SECONDS = 5.0
ENDED = ("finished", "interrupted", "failed", "died")
STEP_LINE = b'{"kind": "step"'

Judge = Callable[[RunRecord], Verdict]


@dataclass(frozen=True)
class Snapshot:
    """All that a view shows."""

    run: RunRecord
    """With the latest steps only."""
    history: History
    progress: Progress
    verdict: Verdict | None
    """None before there is a step."""
    log_lines: list[str]
    now: float

    @cached_property
    def ranks(self) -> list[RankNow]:
        """Those that took a step; kept, since a view tries several sizes of itself."""
        return [RankNow.of(rank) for rank in self.run.ranks.values() if len(rank.steps)]

    @property
    def has_ended(self) -> bool:
        return self.run.status in ENDED

    @property
    def last_event_at(self) -> float:
        return max((rank.last_event_at for rank in self.run.ranks.values()), default=0.0)

    @property
    def silent_seconds(self) -> float:
        return self.now - self.last_event_at


class LiveRank:
    """A worker's events: the latest steps, a thinned history of all, and every other event."""

    def __init__(self, file: Path) -> None:
        self.record = RankRecord(int(file.stem.removeprefix("rank")))
        self.history = History()
        self.clock = Clock()
        self._tail = Tail(file)
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT_STEPS)
        self._unparsed: deque[bytes] = deque(maxlen=RECENT_STEPS)

    def read(self) -> None:
        for line in self._tail.lines():
            if line.startswith(STEP_LINE):
                self._unparsed.append(line)
                if self.history.wants_next():
                    self.history.add(parsed(line))
            else:
                self._take(parsed(line))
        self._parse_steps()

    def _parse_steps(self) -> None:
        if not self._unparsed:
            return
        for event in map(parsed, self._unparsed):
            if isinstance(event.get("step"), int):
                self._forget_after(event["step"] - 1)
                self._recent.append(event)
                self._see(event)
        self._unparsed.clear()
        self.record.steps = Steps(self._recent)

    def _take(self, event: dict[str, Any]) -> None:
        kind, record = event.get("kind"), self.record
        if kind in SESSION_KINDS:
            # Before the steps that follow take the place of those that the last session left.
            self._parse_steps()
        self._see(event)
        if kind == "started":
            record.started.append(event)
        elif kind == "fault":
            record.faults.append(event)
        elif not isinstance(event.get("step"), int):
            return
        elif kind == "evaluation":
            record.evaluations.append(event)
        elif kind == "checkpoint":
            record.checkpoints.append(event)
        elif kind == "restart":
            record.restarts.append(event)
            self._go_back(event["step"])
        elif kind in ("finished", "interrupted"):
            record.ending = event

    def _see(self, event: dict[str, Any]) -> None:
        self.record.last_event_at = event.get("time") or self.record.last_event_at
        self.clock.see(event)

    def _go_back(self, step: int) -> None:
        """A resumed run: what came after its checkpoint did not happen."""
        record = self.record
        self._forget_after(step)
        self.history.forget_after(step)
        record.steps, record.ending = Steps(self._recent), None
        record.evaluations = [event for event in record.evaluations if event["step"] <= step]
        record.checkpoints = [event for event in record.checkpoints if event["step"] <= step]

    def _forget_after(self, step: int) -> None:
        while self._recent and self._recent[-1]["step"] > step:
            self._recent.pop()


class LiveHost:
    """A machine's latest counters."""

    def __init__(self, file: Path) -> None:
        self.record = HostRecord(file.stem)
        self._tail = Tail(file)
        self._samples: deque[dict[str, Any]] = deque(maxlen=RECENT_SAMPLES)

    def read(self) -> None:
        for event in map(parsed, self._tail.lines()):
            if event.get("kind") == "host":
                self.record.about = event
            elif event.get("kind") == "sample":
                self._samples.append(event)
        self.record.samples = list(self._samples)


class LiveRun:
    """A run that is watched."""

    def __init__(self, path: Path, judge: Judge) -> None:
        self._directory = directory = RunDirectory.open(path)
        self._judge = judge
        self._ranks: dict[int, LiveRank] = {}
        self._hosts: dict[str, LiveHost] = {}
        self._tables = Replaced(directory.recipe_file, lambda: read_toml(directory.recipe_file))
        self._environment = Replaced(directory.environment_file, directory.environment)
        self._data = Replaced(directory.data_file, directory.data)
        self._summary = Replaced(directory.summary_file, directory.summary)
        self._log = Tail(directory.log_file)
        self._verdict: Verdict | None = None
        self._judged_at = (0.0, "")

    def refresh(self) -> Snapshot:
        """The run as it is now."""
        now = time.time()
        run = self._record()
        first = self._ranks.get(run.first.rank)
        clock, history = (first.clock, first.history) if first else (Clock(), History())
        seconds = clock.seconds(now if run.status == "running" else None)
        log_lines = self._log.last_lines(NUM_LOG_LINES)
        return Snapshot(run, history, progress_of(run, seconds), self._judged(run, now), log_lines, now)

    def _record(self) -> RunRecord:
        for number, file in self._directory.rank_files().items():
            if number not in self._ranks:
                self._ranks[number] = LiveRank(file)
            self._ranks[number].read()
        for file in self._directory.hosts.glob("*.jsonl"):
            if file.stem not in self._hosts:
                self._hosts[file.stem] = LiveHost(file)
            self._hosts[file.stem].read()
        ranks = {number: rank.record for number, rank in sorted(self._ranks.items())}
        summary = self._summary.value()
        return RunRecord(
            path=self._directory.path,
            tables=fitting(self._tables.value(), {"*": dict}),
            environment=self._environment.value(),
            data=self._data.value(),
            summary=summary,
            ranks=ranks,
            hosts={name: host.record for name, host in sorted(self._hosts.items())},
            status=status_of(self._directory, summary, ranks),
        )

    def _judged(self, run: RunRecord, now: float) -> Verdict | None:
        """Now and then, and once more when the run has ended."""
        judged_at, status = self._judged_at
        if run.steps and (now - judged_at >= JUDGE_EVERY_SECONDS or status != run.status):
            self._verdict, self._judged_at = self._judge(_latest_part(run)), (now, run.status)
        return self._verdict


def _latest_part(run: RunRecord) -> RunRecord:
    """With what happened around the steps that are kept: the evaluations of 300,000 do not belong to the last 1,000."""
    first_step = run.steps.numbers[0]

    def since(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [event for event in events if event["step"] >= first_step]

    ranks = {
        number: replace(rank, evaluations=since(rank.evaluations), checkpoints=since(rank.checkpoints))
        for number, rank in run.ranks.items()
    }
    return replace(run, ranks=ranks)
