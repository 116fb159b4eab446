"""Starts the workers of a run and looks after them: all on this machine, or this host's share of several hosts'."""

from __future__ import annotations

import ctypes
import io
import json
import multiprocessing
import os
import platform
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

from konvoi import __version__
from konvoi.cluster.door import Door
from konvoi.cluster.faults import Tally, doing, has_finished, in_words, last_step, record, why_not
from konvoi.cluster.gather import Circle, Doubts, Knocks, Proposal
from konvoi.cluster.job_spec import Failure, JobSpec, Kind, Member, Outcome, rank_log, spec_file
from konvoi.cluster.notices import Watcher
from konvoi.cluster.quorum import Lineup
from konvoi.cluster.rendezvous import Board, MeetingOverError, Said, serve_store
from konvoi.config.sections import Faults
from konvoi.errors import HostError, UserError
from konvoi.exit_codes import DONE, INTERRUPTED, OUR_FAULT, USER
from konvoi.folder import read_json, write_json
from konvoi.world import COMMAND_BEGAN, LAST_STEP_AT, SEAT, began_at

# After Ctrl-C: for the step, or the evaluation, that goes on, and for the checkpoint.
SHUTDOWN_SECONDS = 900.0
# After a failure: nobody can finish a step any more.
GRACE_SECONDS = 1.0
# For all hosts to start their agents.
MEETING_SECONDS = 90.0
# Who is killed meanwhile may come again for so long: the others then meet anew.
FIRST_MEETING_SECONDS = 3 * MEETING_SECONDS
MEET_AGAIN_SECONDS = 1.0
# A worker that lost its connections did so because another one ended: its host tells within this time.
CAUSE_SECONDS = 20.0
TICK_SECONDS = 0.1

# The exit code of such a worker; EX_TEMPFAIL of sysexits.h, used by nothing else here.
LOST_OTHERS = 75
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# How a worker may end once it was asked to stop: before it listens for signals, or when it was too slow.
STOPPED = {DONE, INTERRUPTED, LOST_OTHERS, -signal.SIGKILL, *(-number for number in STOPS)}
# Of a failing worker's last words.
MAX_LINES = 8

# More words for a worker that starts again; the second where its host was away, and may hold what others gave up.
FROM_NEWEST = ("--resume", "--checkpoint", "newest")
FROM_OTHERS = ("--resume", "--checkpoint", "spare")
NO_RESTARTS = Faults(max_restarts=0)

# So that what is left of a job can be found.
JOB_VARIABLE = "KONVOI_JOB"

Worker = Callable[[Sequence[str]], int]


def launch_local(worker: Worker, arguments: Sequence[str], num_workers: int, max_restarts: int = 0) -> int:
    """Runs all workers on this machine to their end, again from the last checkpoint where one is killed.

    Returns the exit code of the run. The first of the arguments is the run directory.
    """
    alone = Member("localhost", "127.0.0.1", "lo0" if sys.platform == "darwin" else "lo", num_workers)
    spec = JobSpec("local", (alone,), node=0, port=0)
    for name in (COMMAND_BEGAN, "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME"):
        os.environ.setdefault(name, variables(spec)[name])
    tally, words = Tally(), list(arguments)
    with _listening() as stop:
        while True:
            codes = _run_local(worker, words, spec, stop)
            if not (failures := failed(codes, stop.is_asked)):
                return INTERRUPTED if stop.is_asked else max(codes.values())
            failure = _local_failure(Path(arguments[0]), *failures[0])
            tally = tally.with_failure_after(last_step(Path(arguments[0]), spec.seats)[0])
            if reason := failure.text if stop.is_asked else why_not(tally, failure, max_restarts):
                return _give_up(*failures[0], reason)
            _tell_fault(Path(arguments[0]), spec, failure)
            words = [*arguments, *FROM_NEWEST]


def _run_local(worker: Worker, arguments: Sequence[str], spec: JobSpec, stop: _Stop) -> dict[int, int]:
    """Until all have ended, or one has failed and all were ended; exit codes as they were before that."""
    store = serve_store("127.0.0.1")
    workers = Workers(worker, arguments, replace(spec, port=store.port))
    try:
        while len(codes := workers.exit_codes()) < spec.num_workers and not failed(codes, stop.is_asked):
            if stop.is_asked:
                workers.stop()
            time.sleep(TICK_SECONDS)
        return workers.exit_codes()
    finally:
        workers.end()


def _local_failure(run: Path, rank: int, code: int) -> Failure:
    return Failure("localhost", rank, _how(code), _kind(code), doing(run, rank))


def _give_up(rank: int, code: int, reason: str) -> int:
    """Tells what the worker could not say itself; the exit code of the run."""
    if code < 0:
        print(f"error: worker {rank} {reason}", file=sys.stderr)
    return code if code > 0 and code != LOST_OTHERS else OUR_FAULT


def _tell_fault(run: Path, spec: JobSpec, failure: Failure) -> None:
    line = f"{in_words(failure)}; going on from the newest checkpoint with {spec.num_workers} workers"
    record(run, spec.seats[0], failure, line)
    print(line, file=sys.stderr)


def launch_node(
    worker: Worker,
    arguments: Sequence[str],
    spec: JobSpec,
    run: Path,
    prepare: Callable[[], str] = str,
    started: Callable[[], None] = lambda: None,
    waiting: Callable[[], None] = lambda: None,
    faults: Faults = NO_RESTARTS,
) -> Outcome:
    """Runs this host's workers of a training to the end of all; after a fault, again with the hosts that are left.

    `prepare` makes the data ready, once all hosts have met, and returns what must be alike on all of them; `started` is
    called when the workers are, `waiting` when they have ended and the other hosts must be found again. What the user
    must mend ends it on all hosts, as a stop on one of them does.
    """
    os.environ.update(variables(spec))
    with _listening() as stop:
        stop.raises = True
        host = _Host(worker, arguments, spec, run, _Once(prepare), started, waiting, faults, stop)
        try:
            return host.run()
        except KeyboardInterrupt:
            return Outcome(INTERRUPTED)
        except HostError as error:
            return Outcome(USER, Failure(error.host, None, words_of(error)))
        finally:
            stop.raises = False
            host.close()


class _Once:
    """Data that is ready stays so."""

    def __init__(self, prepare: Callable[[], str]) -> None:
        self._prepare, self._found = prepare, ""

    def __call__(self) -> str:
        self._found = self._found or self._prepare() or "yes"
        return self._found


@dataclass
class _Host:
    """This host's part in a training: one generation of workers after the other."""

    worker: Worker
    arguments: Sequence[str]
    spec: JobSpec
    run_path: Path
    prepare: Callable[[], str]
    started: Callable[[], None]
    waiting: Callable[[], None]
    faults: Faults
    stop: _Stop
    circle: Circle | None = None
    """Once all have met."""

    def __post_init__(self) -> None:
        self.notices = Watcher(self.faults.notices, lambda notice: print(notice, flush=True))
        self.give_up_meeting_at = time.monotonic() + FIRST_MEETING_SECONDS
        self.told: Failure | None = None

    def run(self) -> Outcome:
        if self._is_done():
            return Outcome(DONE)
        # Torch is imported before anyone waits for this host.
        _start_method()
        self._recall_circle()
        proposal = self._gather(None) if self.circle else None
        while True:
            outcome, is_regroup = self._run_generation(proposal)
            if self._is_final(outcome) and not is_regroup:
                return outcome
            if self._is_done():
                return Outcome(DONE)
            if not self.circle:
                self._meet_again(outcome)
                continue
            proposal = self._gather(outcome.failure)
            if proposal.failure:
                return Outcome(OUR_FAULT, proposal.failure)

    def _is_final(self, outcome: Outcome) -> bool:
        failure = outcome.failure
        if not failure or failure.kind == "refused" or not self.faults.max_restarts or self.stop.is_asked:
            return True
        # Before all have met once, an error of ours would only come again.
        return not self.circle and (failure.kind == "crashed" or time.monotonic() > self.give_up_meeting_at)

    def _meet_again(self, outcome: Outcome) -> None:
        assert outcome.failure
        if outcome.failure != self.told:
            self.told = outcome.failure
            print(f"{in_words(outcome.failure).splitlines()[0]}; the hosts meet again", flush=True)
        self.stop.raises = True
        time.sleep(MEET_AGAIN_SECONDS)

    def close(self) -> None:
        self.notices.close()
        if self.circle:
            self.circle.door.close()

    def _is_done(self) -> bool:
        """Whether an agent, this one or another, was lost when only its leave was missing: no need to gather."""
        has_met = read_json(self._doors_file).get("job") == self.spec.id
        return has_met and has_finished(self.run_path, self.spec.seats[0], self._doors_file.stat().st_mtime)

    def _recall_circle(self) -> None:
        """Where the agent of this host has taken part before, and was killed."""
        known = read_json(self._doors_file)
        if known.get("job") == self.spec.id:
            self._open_circle(
                known["ports"], Door(self.spec.member.address, self.spec.id, known["ports"][self.spec.node])
            )

    def _open_circle(self, ports: list[int], door: Door) -> Circle:
        self._doors_file.parent.mkdir(exist_ok=True)
        write_json(self._doors_file, {"job": self.spec.id, "ports": ports})
        first_seat = self.spec.seats[0]
        self.circle = Circle(replace(self.spec, first_seat=first_seat), door, ports, self.faults)
        return self.circle

    @property
    def _doors_file(self) -> Path:
        return spec_file(self.run_path).with_name("doors.json")

    def _gather(self, failure: Failure | None) -> Proposal:
        assert self.circle
        self.stop.raises = True
        if self.stop.is_asked:
            raise KeyboardInterrupt
        if failure:
            self._say(failure, f"{in_words(failure)}; the hosts that are left go on from the newest checkpoint")
        self.waiting()
        step, _ = last_step(self.run_path, self.spec.seats)
        proposal = self.circle.gather(failure, step, lambda line: print(line, flush=True))
        names = ", ".join(self.spec.members[node].name for node, _ in proposal.lineup.voters)
        print(f"generation {proposal.lineup.generation}: {names}", flush=True)
        return proposal

    def _say(self, failure: Failure, line: str) -> None:
        record(self.run_path, self.spec.seats[0], failure, line)
        print(line, flush=True)

    def _run_generation(self, proposal: Proposal | None) -> tuple[Outcome, bool]:
        """How it ended, and whether that was only to let hosts in."""
        spec, words = self._spec_of(proposal), [*self.arguments, *self._more_words(proposal)]
        try:
            board = Board(spec, MEETING_SECONDS)
        except HostError as error:
            kind: Kind = "lost" if proposal or isinstance(error, MeetingOverError) else "refused"
            return Outcome(USER, Failure(error.host, None, words_of(error), kind)), False
        try:
            agent = _Agent(board, self, proposal)
            return agent.run(words), agent.is_regroup
        finally:
            board.close()

    def _spec_of(self, proposal: Proposal | None) -> JobSpec:
        if not proposal:
            return self.spec
        nodes = [node for node, _ in proposal.lineup.voters]
        members = tuple(self.spec.members[node] for node in nodes)
        seat = self.spec.seats[0]
        own = nodes.index(self.spec.node)
        return replace(self.spec, members=members, node=own, port=proposal.port, first_seat=seat)

    def _more_words(self, proposal: Proposal | None) -> Sequence[str]:
        if not proposal:
            return ()
        return FROM_NEWEST if self.spec.node in proposal.veterans else FROM_OTHERS


def failed(codes: Mapping[int, int], is_stopping: bool) -> list[tuple[int, int]]:
    """Ranks and exit codes of workers that failed, the likeliest cause first: who only lost the others comes last."""
    fine = STOPPED if is_stopping else {DONE, INTERRUPTED}
    failures = [(rank, code) for rank, code in codes.items() if code not in fine]
    return sorted(failures, key=lambda failure: (failure[1] == LOST_OTHERS, failure[1] > 0))


def variables(spec: JobSpec) -> dict[str, str]:
    """What the agent and its workers find in their environment; best before torch is imported."""
    member = spec.member
    return {
        COMMAND_BEGAN: os.environ.get(COMMAND_BEGAN) or str(began_at()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // member.workers)),
        # Otherwise both bind to whatever the host name resolves to.
        "GLOO_SOCKET_IFNAME": member.interface,
        "NCCL_SOCKET_IFNAME": f"={member.interface}",
        # Stack traces of C++ for a connection that is closed: we say it in plainer words.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        JOB_VARIABLE: spec.id,
        **spec.environment,
    }


def words_of(error: UserError) -> str:
    return f"error: {error.problem}" + (f"\nhint: {error.hint}" if error.hint else "")


class Workers:
    """The processes of one host."""

    def __init__(self, worker: Worker, arguments: Sequence[str], spec: JobSpec, run: Path | None = None) -> None:
        """With a run, what a worker prints goes to its log there."""
        context: Any = multiprocessing.get_context(_start_method())
        is_restart = tuple(arguments[-len(FROM_NEWEST) :]) in (FROM_NEWEST, FROM_OTHERS)
        last_step_at = last_step(Path(arguments[0]), spec.seats)[1] if is_restart else None
        self._processes: dict[int, Any] = {}
        self._stopped_at: float | None = None
        self._over_since: float | None = None
        for local_rank, seat in enumerate(spec.seats):
            log = rank_log(run, seat) if run else None
            ranks = {**_ranks(spec, local_rank), SEAT: str(seat), LAST_STEP_AT: str(last_step_at or "")}
            self._processes[seat] = context.Process(
                target=_work, args=(worker, arguments, ranks, log, os.getpid()), name=f"worker {seat}"
            )
            self._processes[seat].start()

    def exit_codes(self) -> dict[int, int]:
        """Of those that have ended, by seat; -9 after SIGKILL."""
        codes = {seat: process.exitcode for seat, process in self._processes.items()}
        return {seat: code for seat, code in codes.items() if code is not None}

    def stop(self, is_over_elsewhere: bool = False) -> None:
        """Asks them once to end in good order; kills who has not after a very long time, or waits in vain."""
        now = time.monotonic()
        if self._stopped_at is None:
            self._stopped_at = now
            self._signal(signal.SIGTERM)
            return
        if is_over_elsewhere:
            # All save together, so those who are left have not much to do.
            self._over_since = self._over_since or now
        is_too_late = now - self._stopped_at > SHUTDOWN_SECONDS or now - (self._over_since or now) > CAUSE_SECONDS
        # Ended before it listened for signals: without it, the others would wait for ever to begin.
        has_gap = any(-code in STOPS for code in self.exit_codes().values())
        if is_too_late or has_gap:
            self._signal(signal.SIGKILL)

    def end(self) -> None:
        """All of them, now."""
        self._signal(signal.SIGTERM)
        give_up_at = time.monotonic() + GRACE_SECONDS
        for process in self._processes.values():
            process.join(max(0.0, give_up_at - time.monotonic()))
        self._signal(signal.SIGKILL)
        for process in self._processes.values():
            process.join()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            if process.exitcode is None:
                os.kill(process.pid, number)


class _Agent:
    """Looks after the workers of this host, and hears from the other hosts."""

    def __init__(self, board: Board, host: _Host, proposal: Proposal | None) -> None:
        self.board, self.host, self.proposal = board, host, proposal
        self.run_path, self.stop = host.run_path, host.stop
        self.spec, self.own_name = board.spec, board.spec.member.name
        self.alone_since: float | None = None
        self.is_regroup = False

    def run(self, arguments: Sequence[str]) -> Outcome:
        try:
            self._meet()
            self._know_doors()
            self._make_ready()
            self._supervise(arguments)
        except KeyboardInterrupt:
            # From a user; or from the board, which has news of a failure or a stop elsewhere.
            self.stop.raises = False
            self.board.say("stop")
        except UserError as error:
            host = error.host if isinstance(error, HostError) else self.own_name
            # Whoever does not come to a later meeting has met with a fault of its own.
            kind: Kind = "lost" if self.proposal and isinstance(error, HostError) else "refused"
            self._fail(Failure(host, None, words_of(error), kind), USER)
        except Exception:
            traceback.print_exc()
            self._fail(Failure(self.own_name, None, _last_lines(traceback.format_exc()), "crashed"), OUR_FAULT)
        if failure := self.board.failure():
            return Outcome(failure[1], self._with_doing(failure[0]))
        is_asked = self.board.any_said("stop") or self.stop.is_asked
        is_interrupted = str(INTERRUPTED) in self.board.said("ended")
        self.is_regroup = is_interrupted and not is_asked and self.board.any_said("regroup")
        if self.is_regroup and self.board.any_said("leaving"):
            return self._leave()
        return Outcome(INTERRUPTED if is_asked or is_interrupted else DONE)

    def _leave(self) -> Outcome:
        """All have saved since a cloud takes hosts back: those end here, and for the others it is a fault."""
        told = self.board.said("leaving")
        who = self.spec.node if told[self.spec.node] else next(node for node, notice in enumerate(told) if notice)
        failure = self._with_doing(Failure(self.spec.members[who].name, None, told[who], "lost"))
        if who != self.spec.node:
            return Outcome(INTERRUPTED, failure)
        self.is_regroup = False
        self.host._say(failure, f"{in_words(failure)}; saved, and leaving the others")
        return Outcome(INTERRUPTED)

    def _with_doing(self, failure: Failure) -> Failure:
        """A host that is gone told nobody; its workers were where ours were."""
        return failure if failure.doing else replace(failure, doing=doing(self.run_path, self.spec.seats[0]))

    def _meet(self) -> None:
        self.board.say("joined", json.dumps(_versions()))
        give_up_at = time.monotonic() + MEETING_SECONDS
        while not self.board.all_said("joined"):
            if time.monotonic() > give_up_at:
                missing = self.spec.members[self.board.said("joined").index("")].name
                hint = "its own words are in logs/ there; konvoi cluster check looks for the cause"
                raise HostError(missing, f"did not join the training within {MEETING_SECONDS:g} s", hint)
            self._pause()
        self._check_alike("joined", "has other versions", "konvoi cluster setup brings all hosts to the same ones")

    def _know_doors(self) -> None:
        """Where to find each other when the first host, which serves this meeting, is gone."""
        circle = self.host.circle
        if circle and self.proposal:
            circle.formed(self.proposal.lineup)
            return
        door = Door(self.spec.member.address, self.spec.id)
        who = uuid.uuid4().hex
        self.board.say("door", json.dumps({"port": door.port, "who": who}))
        try:
            while not self.board.all_said("door"):
                self._pause()
        except KeyboardInterrupt:
            door.close()
            raise
        doors = [json.loads(told) for told in self.board.said("door")]
        circle = self.host._open_circle([told["port"] for told in doors], door)
        circle.who = who
        circle.publish("running")
        circle.formed(Lineup(0, tuple((node, told["who"]) for node, told in enumerate(doors))))

    def _make_ready(self) -> None:
        # Preparing takes hours where there is much data: it must not go on when the training is over elsewhere.
        self.board.stops_main = True
        try:
            self.board.say("ready", self.host.prepare())
        finally:
            self.board.stops_main = False
        while not self.board.all_said("ready"):
            self._pause()
        self._check_alike("ready", "has other data", "konvoi cluster setup --recipe ... brings it to all hosts")

    def _check_alike(self, what: Said, problem: str, hint: str) -> None:
        first, *others = self.board.said(what)
        for member, own in zip(self.spec.members[1:], others, strict=True):
            if own != first:
                raise HostError(member.name, f"{problem} than {self.spec.members[0].name}: {own}, not {first}", hint)

    def _pause(self) -> None:
        time.sleep(TICK_SECONDS)
        if self.board.failure() or self.board.any_said("stop"):
            raise KeyboardInterrupt

    def _supervise(self, arguments: Sequence[str]) -> None:
        self.stop.raises = False
        workers = Workers(self.host.worker, arguments, self.spec, self.run_path)
        began_at, knocks, doubts = time.time(), self._listen_for_knocks(), self._ask_the_silent()
        try:
            self.host.started()
            while not self.board.failure() and not self.board.all_said("ended"):
                # Not before a step was made, or hosts that come and go would keep all from ever making one.
                if knocks.has_heard and (last_step(self.run_path, self.spec.seats)[1] or 0.0) > began_at:
                    self.board.say("regroup")
                self._look_after(workers)
                time.sleep(TICK_SECONDS)
        finally:
            knocks.close()
            doubts.close()
            workers.end()

    def _listen_for_knocks(self) -> Knocks:
        circle = self.host.circle
        assert circle
        here = {member.name for member in self.spec.members}
        absent = [node for node, member in enumerate(circle.spec.members) if member.name not in here]
        return Knocks(circle, absent if self.spec.node == 0 else ())

    def _ask_the_silent(self) -> Doubts:
        circle = self.host.circle
        assert circle
        nodes = {member.name: node for node, member in enumerate(circle.spec.members)}
        places = [nodes[member.name] for member in self.spec.members]

        def doubtful() -> list[int]:
            return [places[node] for node in self.board.doubtful()] if self.spec.node == 0 else []

        return Doubts(circle, doubtful, lambda node: self.board.lose(places.index(node), "nobody listens there"))

    def _look_after(self, workers: Workers) -> None:
        if self.stop.is_asked:
            self.board.say("stop")
        if self.host.notices.notice:
            self.board.say("leaving", self.host.notices.notice)
            self.board.say("regroup")
        is_stopping = self.board.any_said("stop") or self.board.any_said("regroup")
        if is_stopping:
            workers.stop(is_over_elsewhere=self.board.any_said("ended"))
        codes = workers.exit_codes()
        if failures := failed(codes, is_stopping):
            self._judge(*failures[0])
        elif len(codes) == self.spec.member.workers:
            self.board.say("ended", str(INTERRUPTED if is_stopping else max(codes.values())))

    def _judge(self, rank: int, code: int) -> None:
        """Tells all of a worker that failed; one that lost the others, only where nobody else says why."""
        if code == LOST_OTHERS:
            self.board.say("sign")
            self.alone_since = self.alone_since or time.monotonic()
            if time.monotonic() - self.alone_since < CAUSE_SECONDS:
                return
        said = _last_words(rank_log(self.run_path, rank)) if code > 0 else ""
        failure = Failure(self.own_name, rank, said or _how(code), _kind(code), doing(self.run_path, rank))
        self._fail(failure, USER if code == USER else OUR_FAULT)

    def _fail(self, failure: Failure, exit_code: int) -> None:
        self.stop.raises = False
        self.board.fail(failure, exit_code)
        while not self.board.failure():
            time.sleep(0.02)


class _Stop:
    """What a signal leaves behind: a note; or an exception, where nothing would look at the note for long."""

    def __init__(self) -> None:
        self.is_asked, self.raises = False, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.is_asked = True
        if self.raises:
            self.raises = False
            raise KeyboardInterrupt


@contextmanager
def _listening() -> Iterator[_Stop]:
    stop = _Stop()
    # nohup has one ignored on purpose.
    before = {number: signal.getsignal(number) for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, stop)
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _work(worker: Worker, arguments: Sequence[str], ranks: Mapping[str, str], log: Path | None, agent: int) -> None:
    """In the worker's process: its exit code is how the agent learns what happened, its traceback how a person does."""
    _end_with(agent)
    for number in STOPS:
        # Until the loop listens for them.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    os.environ.update(ranks)
    if log:
        _print_to(log)
    try:
        code = worker(arguments)
    except Exception as error:
        if _has_lost_others(error):
            # No news where another one says why; a whole traceback would hide it.
            print(f"lost the others: {str(error).splitlines()[0]}", file=sys.stderr)
            code = LOST_OTHERS
        else:
            traceback.print_exc()
            code = OUR_FAULT
    sys.exit(code)


def _end_with(agent: int) -> None:
    """An agent that is killed takes its workers along."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        # It may have ended before it could be told.
        if os.getppid() != agent:
            os._exit(OUR_FAULT)


def _print_to(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(line_buffering=True)
    os.close(descriptor)


def _ranks(spec: JobSpec, local_rank: int) -> dict[str, str]:
    """As torchrun tells them, and where to meet: in the store that the first agent serves."""
    return {
        "RANK": str(spec.first_rank + local_rank),
        "WORLD_SIZE": str(spec.num_workers),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(spec.member.workers),
        "GROUP_RANK": str(spec.node),
        "GROUP_WORLD_SIZE": str(len(spec.members)),
        "MASTER_ADDR": spec.members[0].address,
        "MASTER_PORT": str(spec.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def _has_lost_others(error: Exception) -> bool:
    """Whether a collective broke off because another worker had ended."""
    from torch.distributed import DistError

    return isinstance(error, DistError) or ("gloo" in str(error) and "onnection" in str(error))


def _last_words(log: Path) -> str:
    """A failing worker's own: what it said is wrong, or the end of its traceback."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    starts = [number for number, line in enumerate(lines) if line.startswith(("error: ", "Traceback "))]
    return _last_lines("\n".join(lines[starts[-1] if starts else 0 :]))


def _last_lines(text: str) -> str:
    return "\n".join([line for line in text.splitlines() if line.strip()][-MAX_LINES:])


def _versions() -> dict[str, str]:
    return {
        "konvoi": __version__,
        "torch": metadata.version("torch"),
        "python": ".".join(platform.python_version_tuple()[:2]),
    }


def _kind(code: int) -> Kind:
    if code == USER:
        return "refused"
    return "lost" if code < 0 or code == LOST_OTHERS else "crashed"


def _how(code: int) -> str:
    if code == LOST_OTHERS:
        return "lost the others"
    return _killed(-code) if code < 0 else f"ended with exit code {code}"


def _killed(number: int) -> str:
    by_whom = "; the system does that when memory runs out" if number == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(number).name}{by_whom}"


def _start_method() -> str:
    """A fork has torch imported already, which saves seconds; a GPU's driver and macOS do not survive one."""
    import torch

    if sys.platform != "linux" or torch.cuda.is_available():
        return "spawn"
    # Optimisers import it, and it takes seconds.
    import torch._dynamo

    return "fork"
