"""A run directory, read whole: what every verdict, report and comparison starts from.

Nothing here fails for what a run may lack: one that died, goes on, has no step, no evaluation, no other rank's events.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from konvoi.config.recipe import read_toml
from konvoi.errors import UserError
from konvoi.run_directory import RunDirectory, fitting, read_events

Floats = NDArray[np.float64]

# Of a step, in the order in which they happen; "agreement" closed the step before.
PHASES = ("agreement", "data", "forward", "backward", "exposed_communication", "optimiser", "other")
# A run on another machine holds a lock that we cannot see: its events must not be older than this.
SILENCE_SECONDS = 120.0


class Steps:
    """The steps of one rank as columns, in order; NaN where an event lacks a value."""

    def __init__(self, events: Iterable[dict[str, Any]] = ()) -> None:
        """A step that was repeated after a resume counts as it went the last time."""
        self._events = [event for _, event in sorted({event["step"]: event for event in events}.items())]
        self._columns: dict[str, Floats] = {}
        self._whole: tuple[Steps, NDArray[np.intp]] | None = None

    def __len__(self) -> int:
        return len(self._events)

    def __getitem__(self, name: str) -> Floats:
        """steps["loss"], steps["phases.data"], steps["communication.waiting_seconds"]"""
        if name not in self._columns:
            self._columns[name] = self._column(name)
        return self._columns[name]

    def _column(self, name: str) -> Floats:
        if self._whole:
            # A part is cut out of the whole's column, which is read from the events only once.
            steps, places = self._whole
            return steps[name][places]
        return np.array([_number(_nested(event, name)) for event in self._events], dtype=np.float64)

    @property
    def numbers(self) -> Floats:
        return self["step"]

    @property
    def bytes_sent(self) -> Floats:
        """By this rank, as declared; an earlier version told it elsewhere, and the same of all steps."""
        sent = self["bytes_sent"]
        return np.where(np.isfinite(sent), sent, self["communication.bytes"])

    def has(self, name: str) -> bool:
        return bool(np.isfinite(self[name]).any())

    def last(self, count: int) -> Steps:
        return self._part(np.arange(len(self))[-count:])

    def where(self, keep: NDArray[np.bool_]) -> Steps:
        return self._part(np.flatnonzero(keep))

    def _part(self, places: NDArray[np.intp]) -> Steps:
        part = Steps()
        part._events = [self._events[place] for place in places]
        part._whole = (self, places)
        return part


@dataclass
class RankRecord:
    """What one worker wrote."""

    rank: int
    steps: Steps = field(default_factory=Steps)
    started: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    restarts: list[dict[str, Any]] = field(default_factory=list)
    faults: list[dict[str, Any]] = field(default_factory=list)
    syncs: list[dict[str, Any]] = field(default_factory=list)
    """What the way to synchronise told of itself."""
    ending: dict[str, Any] | None = None
    last_event_at: float = 0.0

    @property
    def host(self) -> str:
        """Where it ran the last time; empty where it never said."""
        return str(self.started[-1].get("host", "")) if self.started else ""


@dataclass
class HostRecord:
    """The machine's counters, a sample a second."""

    name: str
    about: dict[str, Any] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def job_interface(self) -> str | None:
        return self.about.get("job_interface")

    @property
    def link_bits_per_second(self) -> float | None:
        """Of the interface that the job uses, where the system knows it."""
        interface = self.about.get("interfaces", {}).get(self.job_interface) or {}
        speed: float | None = interface.get("link_bits_per_second")
        return speed

    def column(self, name: str) -> Floats:
        """column("time"), column("disk.bytes_written"), column("interfaces.eth0.bytes_out")"""
        return np.array([_number(_nested(sample, name)) for sample in self.samples], dtype=np.float64)


@dataclass
class RunRecord:
    path: Path
    tables: dict[str, Any]
    """The recipe, table by table; empty where it cannot be read."""
    environment: dict[str, Any]
    data: dict[str, Any]
    summary: dict[str, Any]
    ranks: dict[int, RankRecord]
    hosts: dict[str, HostRecord]
    status: str
    """running, finished, interrupted, failed, died, or not started"""

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        directory = RunDirectory.open(path)
        ranks = {rank: _read_rank(rank, file) for rank, file in directory.rank_files().items()}
        summary = _readable(directory.summary)
        return cls(
            path=path,
            tables=fitting(_readable(lambda: read_toml(directory.recipe_file)), {"*": dict}),
            environment=_readable(directory.environment),
            data=_readable(directory.data),
            summary=summary,
            ranks=dict(sorted(ranks.items())),
            hosts={file.stem: _read_host(file) for file in sorted(directory.hosts.glob("*.jsonl"))},
            status=status_of(directory, summary, ranks),
        )

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def first(self) -> RankRecord:
        """The rank that speaks for all; without steps where nothing was written yet."""
        return next(iter(self.ranks.values()), RankRecord(0))

    @property
    def steps(self) -> Steps:
        return self.first.steps

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """By step; one that was repeated after a resume as it went the last time."""
        by_step = {step: event for event in self.first.evaluations if isinstance(step := event.get("step"), int)}
        return [by_step[step] for step in sorted(by_step)]

    @property
    def num_workers(self) -> int:
        return int(self.summary.get("workers") or max(1, len(self.ranks)))

    @property
    def metric(self) -> str:
        """What the run is judged by: bleu, accuracy_1, loss ..."""
        return str(
            self.tables.get("evaluate", {}).get("metric") or self.summary.get("best", {}).get("metric") or "loss"
        )

    def setting(self, name: str, default: Any = None) -> Any:
        """setting("train.accumulate")"""
        found = _nested(self.tables, name)
        return default if found is None else found


def _read_rank(rank: int, file: Path) -> RankRecord:
    record = RankRecord(rank)
    lists = {
        "started": record.started,
        "evaluation": record.evaluations,
        "checkpoint": record.checkpoints,
        "restart": record.restarts,
        "fault": record.faults,
        "sync": record.syncs,
    }
    steps: list[dict[str, Any]] = []
    histories = (steps, record.evaluations, record.checkpoints, record.syncs)
    for event in read_events(file):
        kind = event.get("kind")
        if isinstance(event.get("time"), int | float):
            record.last_event_at = event["time"]
        if kind == "step" and isinstance(event.get("step"), int):
            steps.append(event)
        elif kind in lists:
            lists[kind].append(event)
            if kind == "restart":
                _forget_after(_number(event.get("step")), histories)
        elif kind in ("finished", "interrupted"):
            record.ending = event
    record.steps = Steps(steps)
    return record


def _forget_after(step: float, histories: tuple[list[dict[str, Any]], ...]) -> None:
    """Whoever goes back to a step gives up what came after it; what has no step stays."""
    for events in histories:
        events[:] = [event for event in events if not _number(event.get("step")) > step]


def _read_host(file: Path) -> HostRecord:
    record = HostRecord(file.stem)
    for event in read_events(file):
        if event.get("kind") == "host":
            record.about = event
        elif event.get("kind") == "sample":
            record.samples.append(event)
    return record


def _readable(read: Any) -> dict[str, Any]:
    """A damaged file must not hide the others."""
    try:
        value = read()
    except UserError:
        return {}
    return value if isinstance(value, dict) else {}


def status_of(directory: RunDirectory, summary: dict[str, Any], ranks: dict[int, RankRecord]) -> str:
    status = str(summary.get("status") or ("running" if ranks else "not started"))
    if status != "running" or _is_locked(directory.path / ".lock"):
        return status
    last_event_at = max((rank.last_event_at for rank in ranks.values()), default=0.0)
    return "running" if time.time() - last_event_at < SILENCE_SECONDS else "died"


def _is_locked(file: Path) -> bool:
    """Whoever trains holds the lock, and it dies with its holder."""
    try:
        with file.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def _nested(value: Any, name: str) -> Any:
    """A dot goes one table deeper; but an interface may have a dot in its own name, as eth0.5 does."""
    if not isinstance(value, dict):
        return None
    if name in value:
        return value[name]
    parts = name.split(".")
    heads = ((".".join(parts[:count]), ".".join(parts[count:])) for count in range(1, len(parts)))
    return next((_nested(value[head], rest) for head, rest in heads if head in value), None)


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) else float("nan")
    except OverflowError:
        # A whole number of more than 308 digits.
        return float("nan")
