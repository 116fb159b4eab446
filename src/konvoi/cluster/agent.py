"""One host's part in a run on several: an agent that looks after its workers and keeps in touch with the others."""

from __future__ import annotations

import json
import os
import platform
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from konvoi import __version__
from konvoi.cluster.door import Door
from konvoi.cluster.faults import doing, has_finished, in_words, last_step, record
from konvoi.cluster.gather import Circle, Doubts, Knocks, Proposal
from konvoi.cluster.job_spec import Failure, JobSpec, Kind, Outcome, rank_log, spec_file
from konvoi.cluster.notices import Watcher
from konvoi.cluster.quorum import Lineup
from konvoi.cluster.rendezvous import Board, MeetingOverError, Said
from konvoi.cluster.workers import (
    CAUSE_SECONDS,
    FROM_NEWEST,
    FROM_OTHERS,
    LOST_OTHERS,
    TICK_SECONDS,
    Stop,
    Worker,
    Workers,
    failed,
    how,
    kind_of,
    last_lines,
    last_words,
    listening,
    start_method,
    variables,
)
from konvoi.config.sections import Faults
from konvoi.errors import HostError, UserError
from konvoi.exit_codes import DONE, INTERRUPTED, OUR_FAULT, USER
from konvoi.folder import read_json, write_json

# For all hosts to start their agents.
MEETING_SECONDS = 90.0
# Who is killed meanwhile may come again for so long: the others then meet anew.
FIRST_MEETING_SECONDS = 3 * MEETING_SECONDS
MEET_AGAIN_SECONDS = 1.0

NO_RESTARTS = Faults(max_restarts=0)


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
    with listening() as stop:
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
    stop: Stop
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
        start_method()
        self._recall_circle()
        proposal = self._gather(None) if self.circle else None
        while True:
            if proposal and proposal.failure:
                return Outcome(OUR_FAULT, proposal.failure)
            outcome, is_regroup = self._run_generation(proposal)
            if self._is_final(outcome) and not is_regroup:
                return outcome
            if self._is_done():
                return Outcome(DONE)
            if not self.circle:
                self._meet_again(outcome)
                continue
            proposal = self._gather(outcome.failure)

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
            self._fail(Failure(self.own_name, None, last_lines(traceback.format_exc()), "crashed"), OUR_FAULT)
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
        except KeyboardInterrupt:
            if self.board.has_interrupted:
                # A fault elsewhere: nobody asked this host to stop.
                self.stop.is_asked = False
            raise
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
        said = last_words(rank_log(self.run_path, rank)) if code > 0 else ""
        failure = Failure(self.own_name, rank, said or how(code), kind_of(code), doing(self.run_path, rank))
        self._fail(failure, USER if code == USER else OUR_FAULT)

    def _fail(self, failure: Failure, exit_code: int) -> None:
        self.stop.raises = False
        self.board.fail(failure, exit_code)
        while not self.board.failure():
            time.sleep(0.02)


def words_of(error: UserError) -> str:
    return f"error: {error.problem}" + (f"\nhint: {error.hint}" if error.hint else "")


def _versions() -> dict[str, str]:
    return {
        "konvoi": __version__,
        "torch": metadata.version("torch"),
        "python": ".".join(platform.python_version_tuple()[:2]),
    }
