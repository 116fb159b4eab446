"""Brings what a training writes on its hosts into the starter's run directory, while it goes on.

A host's files are its own ranks' and its own; the first one's also what rank 0 writes for all. Checkpoints stay there.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from konvoi.cluster.far.jobs import TAIL_BYTES
from konvoi.cluster.hosts import Host
from konvoi.cluster.job import Job, in_words
from konvoi.cluster.session import FarError, Session
from konvoi.errors import HostError
from konvoi.run_directory import RunDirectory

# The far end says something three times a second.
SILENCE_SECONDS = 15
LONGEST_PAUSE_SECONDS = 30
LEAVE_SECONDS = 2
# Of an agent that is killed again and again.
MAX_STARTS = 100
# The others should have noticed before it comes back.
START_AGAIN_SECONDS = 3.0
# Only where all other hosts have ended: for one that cannot be reached, which then is likely gone.
PATIENCE_SECONDS = 30


class Follower(threading.Thread):
    """One host's part, until the job has no process there; connects again when the connection is lost."""

    def __init__(self, job: Job, host: Host, once: bool = False, speaks: bool | None = None) -> None:
        """Who speaks tells what rank 0 writes for all; the first host, unless told."""
        super().__init__(name=f"follow {host.name}", daemon=True)
        self.host = host
        self.has_ended = False
        self.problem: HostError | None = None
        """Why it cannot be reached just now, or ever."""
        self.lost_at: float | None = None
        self.fault: Exception | None = None
        """What we ourselves failed with, as on a full disk."""
        self.num_starts = 0
        """How often its agent was started again."""
        self._job, self._once = job, once
        self._leave = threading.Event()
        self._grow, self._replace = patterns(job, host, speaks)

    def leave(self) -> None:
        self._leave.set()

    def run(self) -> None:
        pause_seconds = 1.0
        while not self._leave.is_set() and not self.has_ended:
            try:
                self._connect()
                continue
            except HostError as error:
                self.problem, self.lost_at = error, self.lost_at or time.monotonic()
                self.has_ended = self._once
            except FarError as error:
                self.problem, self.has_ended = in_words(error), True
            except Exception as error:
                self.fault, self.has_ended = error, True
            self._leave.wait(pause_seconds)
            pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)

    def _connect(self) -> None:
        job = self._job
        asked: dict[str, Any] = {**job.place, "job_id": job.spec.id, "grow": self._grow, "replace": self._replace}
        with Session(job.cluster, self.host) as session:
            marks = {name: _mark(job.run / name) for name in self._here()}
            values = session.stream("jobs.follow", timeout=SILENCE_SECONDS, marks=marks, once=self._once, **asked)
            header: dict[str, Any] = {}
            for value in values:
                self.problem = self.lost_at = None
                if self._leave.is_set():
                    return
                if isinstance(value, bytes):
                    self._write(header, value)
                elif value:
                    header = value
        self.has_ended = self._once or not self._start_again()

    def _start_again(self) -> bool:
        """Its agent said nothing of an end: it was killed, or the machine was off."""
        state = self._job.states()[self.host.name]
        if self.num_starts >= MAX_STARTS or not state or state.state == "ended":
            return False
        self._leave.wait(START_AGAIN_SECONDS)
        with Session(self._job.cluster, self.host) as session:
            was_started = self._job.start_again(session)
        self.num_starts += was_started
        return was_started

    def _here(self) -> Iterator[str]:
        for pattern in self._grow:
            yield from (file.relative_to(self._job.run).as_posix() for file in self._job.run.glob(pattern))

    def _write(self, header: dict[str, Any], content: bytes) -> None:
        name, offset = header["file"], header["offset"]
        if not is_expected(name, self._replace if offset is None else self._grow):
            raise FarError(self.host.name, "Refused", f"it sent a file that nobody asked for: {name!r}")
        file = self._job.run / name
        file.parent.mkdir(exist_ok=True)
        if offset is None:
            beside = file.with_name(f".{file.name}.{os.getpid()}")
            beside.write_bytes(content)
            beside.replace(file)
            return
        with file.open("r+b" if offset else "wb") as stream:
            stream.seek(offset)
            stream.write(content)


class Followers:
    """All hosts of a job."""

    def __init__(self, job: Job, once: bool = False) -> None:
        self.each = [Follower(job, host, once) for host in job.hosts]

    @property
    def have_ended(self) -> bool:
        """Or are given up: the others have ended, and it could not be reached since."""
        now = time.monotonic()
        left = [follower for follower in self.each if not follower.has_ended]
        is_any_there = len(left) < len(self.each)
        return all(is_any_there and now - (one.lost_at or now) > PATIENCE_SECONDS for one in left)

    def check(self) -> None:
        """Raises what went wrong on our side."""
        for follower in self.each:
            if follower.fault:
                raise follower.fault

    def problems(self) -> dict[str, HostError]:
        return {follower.host.name: follower.problem for follower in self.each if follower.problem}


@contextlib.contextmanager
def following(job: Job, once: bool = False) -> Iterator[Followers]:
    followers = Followers(job, once)
    for follower in followers.each:
        follower.start()
    try:
        yield followers
    finally:
        for follower in followers.each:
            follower.leave()
        for follower in followers.each:
            follower.join(LEAVE_SECONDS)


def catch_up(job: Job) -> dict[str, HostError]:
    """Brings what is there now; the hosts that could not be reached, and why."""
    with following(job, once=True) as followers:
        for follower in followers.each:
            follower.join()
        followers.check()
        return followers.problems()


def bring_words_of(job: Job, host: Host) -> None:
    """What rank 0 wrote for all, from the host that had it at the end: the first one was lost on the way."""
    follower = Follower(job, host, once=True, speaks=True)
    follower.start()
    follower.join()
    if follower.fault:
        raise follower.fault
    first_seat = sum(other.workers for other in job.hosts[: job.hosts.index(host)])
    complete_events(RunDirectory(job.run), first_seat)


def complete_events(run: RunDirectory, seat: int) -> None:
    """Every worker tells of the same steps: what the first one, whose host was lost, could not tell, another did."""
    last_at = max((event["time"] for event in run.events_of(0)), default=0.0)
    later = [event for event in run.events_of(seat) if event["time"] > last_at]
    with (run.events / "rank0.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(event, ensure_ascii=False) + "\n" for event in later)


def patterns(job: Job, host: Host, speaks: bool | None = None) -> tuple[list[str], list[str]]:
    """Of a host's files that grow, and of those that are replaced as a whole."""
    number = job.hosts.index(host)
    first_rank = sum(other.workers for other in job.hosts[:number])
    ranks = range(first_rank, first_rank + host.workers)
    grow = [f"events/rank{rank}.jsonl" for rank in ranks] + [f"logs/rank{rank}.txt" for rank in ranks]
    grow += [f"logs/{host.name}.txt", "hosts/*.jsonl"]
    replace = [f"job/{host.name}.json"]
    if number == 0 if speaks is None else speaks:
        grow += ["log.txt", "tensorboard/*"]
        whole = ("environment.json", "data.json", "vocabulary.model", "checkpoints/index.json", "summary.json")
        replace = [*whole, *replace]
    return grow, replace


def is_expected(name: str, allowed: list[str]) -> bool:
    """A host says where its bytes belong; it may not write elsewhere in or out of the run."""
    path = PurePosixPath(name)
    return ".." not in path.parts and any(
        len(path.parts) == len(PurePosixPath(pattern).parts) and path.match(pattern) for pattern in allowed
    )


def _mark(file: Path) -> tuple[int, str]:
    """How much of a file is here, and its end."""
    with file.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - TAIL_BYTES))
        return size, stream.read().hex()
