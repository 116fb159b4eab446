"""What every host must know to take part in a training, and what it says of itself; both lie in the run directory.

job/spec.json      JobSpec, the same on every host but for `node`
job/<host>.json    HostState, rewritten by the host's agent
logs/rank<N>.txt   what worker N printed; on its own host
logs/<host>.txt    what the host's agent printed
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from konvoi.errors import RunError

Kind = Literal["refused", "crashed", "lost"]


@dataclass(frozen=True)
class Member:
    """A host of the training, in the order of the ranks."""

    name: str
    address: str
    """Where the others reach it."""
    interface: str
    """That the address belongs to: gloo and NCCL bind to it."""
    workers: int


@dataclass(frozen=True)
class JobSpec:
    id: str
    """Random: keeps a straggler of another training from joining this one."""
    members: tuple[Member, ...]
    node: int
    """Which of the members this host is."""
    port: int
    """The first member listens here, on its address, for all to meet."""
    resume: bool = False
    checkpoint: str = "last"
    environment: dict[str, str] = field(default_factory=dict)
    """Variables for the agent and its workers, as KONVOI_HOME."""
    first_seat: int | None = None
    """Of this host's workers. A seat is the rank that a worker has while all hosts are there: its files bear it."""

    @property
    def member(self) -> Member:
        return self.members[self.node]

    @property
    def first_rank(self) -> int:
        return sum(member.workers for member in self.members[: self.node])

    @property
    def seats(self) -> range:
        first = self.first_rank if self.first_seat is None else self.first_seat
        return range(first, first + self.member.workers)

    @property
    def num_workers(self) -> int:
        return sum(member.workers for member in self.members)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        values: dict[str, Any] = json.loads(text)
        return cls(**{**values, "members": tuple(Member(**member) for member in values["members"])})


@dataclass(frozen=True)
class Failure:
    """The first thing that went wrong, the same on every host."""

    host: str
    rank: int | None
    """None where the agent itself failed, before or beside its workers."""
    text: str
    """Its own words: the error and its hint, or the last lines of its traceback."""
    kind: Kind = "refused"
    """The user must change something; an error of ours, perhaps for good; or killed, cut off, gone."""
    doing: str = ""
    """What it was last heard of doing."""


@dataclass(frozen=True)
class Outcome:
    """How a training ended, the same on every host."""

    exit_code: int
    """As in exit_codes.py."""
    failure: Failure | None = None


@dataclass(frozen=True)
class HostState:
    state: Literal["preparing", "running", "waiting", "ended"]
    process_id: int
    """The agent's; it leads a session of its own, so all of its processes share that session's id."""
    time: float
    exit_code: int | None = None
    """As in exit_codes.py, once it has ended."""
    failure: Failure | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> HostState:
        values: dict[str, Any] = json.loads(text)
        failure = values.pop("failure", None)
        return cls(**values, failure=Failure(**failure) if failure else None)


def spec_file(run: Path) -> Path:
    return run / "job" / "spec.json"


def read_spec(run: Path, hint: str) -> JobSpec:
    try:
        return JobSpec.from_json(spec_file(run).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise RunError(f"{spec_file(run)} cannot be read: {error}", hint) from None


def state_file(run: Path, host: str) -> Path:
    return run / "job" / f"{host}.json"


def rank_log(run: Path, rank: int) -> Path:
    return run / "logs" / f"rank{rank}.txt"


def host_log(run: Path, host: str) -> Path:
    return run / "logs" / f"{host}.txt"
