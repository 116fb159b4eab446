"""After a fault: the agents that are left find each other again, without anyone who must be there.

Each asks all others how they stand (door.py). The one with the lowest number, once those whom it reaches may go on
(quorum.py), proposes a lineup on its own card; whoever is named there goes to the meeting that it opens. A lineup runs
only when all of it have come; otherwise all gather once more.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from konvoi.cluster.door import Answer, Door, ask
from konvoi.cluster.faults import Tally, why_not
from konvoi.cluster.job_spec import Failure, JobSpec
from konvoi.cluster.quorum import Lineup, Voter, may_go_on, to_outvote
from konvoi.config.sections import Faults
from konvoi.errors import HostError

ASK_SECONDS = 2.0
LOOK_SECONDS = 0.2
# Who says nothing for so long is left out, sooner where its silence was the fault; who still runs has not heard of the
# fault, and soon will.
SETTLE_SECONDS = 4.0
SETTLE_WITHOUT_LOST_SECONDS = 1.0
RUNNING_SECONDS = 30.0
# For the others to read that all ends.
FAREWELL_SECONDS = 5.0
KNOCK_SECONDS = 1.0


@dataclass(frozen=True)
class Proposal:
    lineup: Lineup
    port: int
    """Where its lowest number opens the next meeting."""
    tally: Tally
    veterans: tuple[int, ...]
    """Hosts that ran last: their checkpoints are of the run's own history."""
    failure: Failure | None = None
    """Why all end instead."""
    heard: tuple[tuple[int, int], ...] = ()
    """By node: the latest generation that it knew of when it was asked. Who has tried or run another one since was not
    outvoted with it, and does not come."""

    @classmethod
    def from_card(cls, told: Mapping[str, Any]) -> Proposal:
        failure = Failure(**told["failure"]) if told["failure"] else None
        heard = tuple((node, generation) for node, generation in told["heard"])
        tally, veterans = Tally(**told["tally"]), tuple(told["veterans"])
        return cls(_lineup(told["lineup"]), told["port"], tally, veterans, failure, heard)


@dataclass
class Circle:
    """What this agent knows and tells of all agents of a training."""

    spec: JobSpec
    """All hosts, whoever is there just now."""
    door: Door
    ports: list[int]
    """Of everyone's doors."""
    faults: Faults
    who: str = field(default_factory=lambda: uuid.uuid4().hex)
    votes: tuple[Lineup, ...] = ()
    """The last lineup that ran with this host, and those that were tried since."""
    tally: Tally = field(default_factory=Tally)

    def publish(self, phase: str, **more: Any) -> None:
        votes = [asdict(lineup) for lineup in self.votes]
        self.door.card = {"who": self.who, "phase": phase, "votes": votes, "tally": asdict(self.tally), **more}

    def formed(self, lineup: Lineup) -> None:
        """All of it have come: from now on it is what must be outvoted."""
        self.votes = (lineup,)
        self.door.card = {**self.door.card, "votes": [asdict(lineup)]}

    def look(self, nodes: Iterable[int] | None = None) -> dict[int, Answer]:
        """How the others stand, by number; asked at the same time."""
        others = self.others() if nodes is None else list(nodes)
        with ThreadPoolExecutor(max(1, len(others))) as pool:
            return dict(zip(others, pool.map(self.ask, others), strict=True))

    def others(self) -> list[int]:
        return [node for node in range(len(self.spec.members)) if node != self.spec.node]

    def dead_of(self, nodes: Iterable[int]) -> list[int]:
        """Those that are for certain, of hosts that run with this one."""
        seen = self.look(nodes)
        return [node for node, who in self.votes[0].voters if node in seen and _is_dead((node, who), seen[node])]

    def gather(self, failure: Failure | None, step: int, told: Callable[[str], None]) -> Proposal:
        """Until there is a lineup with this host in it, or a reason to end; raises when it has waited too long."""
        self.publish("gathering", failure=asdict(failure) if failure else None, step=step)
        began_at, wait_seconds = time.monotonic(), self.faults.wait.seconds or 0.0
        has_told, lost, questions = False, self._lost_by(failure), _Questions(self.ask, self.others())
        while True:
            seen = {**questions.answers(), self.spec.node: self.door.card}
            proposal = self._proposed(seen) or self._propose(seen, time.monotonic() - began_at, lost)
            if proposal:
                return self._accept(proposal)
            waited = time.monotonic() - began_at
            if waited > wait_seconds:
                raise self._given_up(seen)
            if waited > RUNNING_SECONDS and not has_told:
                has_told = True
                told(f"waiting for {self._missing(seen)}, for {wait_seconds:g} s at most (faults.wait)")
            time.sleep(LOOK_SECONDS)

    def ask(self, node: int) -> Answer:
        return ask(self.spec.members[node].address, self.ports[node], self.spec.id, ASK_SECONDS)

    def _lost_by(self, failure: Failure | None) -> int | None:
        """The host whose silence was the fault."""
        names = [member.name for member in self.spec.members]
        is_host = failure and failure.kind == "lost" and failure.rank is None and failure.host in names
        return names.index(failure.host) if failure and is_host else None

    def _proposed(self, seen: Mapping[int, Answer]) -> Proposal | None:
        """By another that has this host in its lineup."""
        newest = _newest(self.votes)
        for _, card in sorted(_cards(seen).items()):
            if told := card.get("proposal"):
                proposal = Proposal.from_card(told)
                lineup, knows_all = proposal.lineup, (self.spec.node, newest) in proposal.heard
                if (self.spec.node, self.who) in lineup.voters and lineup.generation > newest and knows_all:
                    return proposal
        return None

    def _propose(self, seen: Mapping[int, Answer], waited: float, lost: int | None) -> Proposal | None:
        """A lineup of all who gather, if this host leads them and they may go on."""
        gathering = {node: card for node, card in _cards(seen).items() if card["phase"] == "gathering"}
        lineups = to_outvote(tuple(map(_lineup, card["votes"])) for card in gathering.values())
        present = {(node, card["who"]) for node, card in gathering.items()}
        if self.spec.node != min(gathering) or len(gathering) < self.faults.min_hosts:
            return None
        if not lineups and len(gathering) < len(self.spec.members):
            # Nobody remembers a lineup: only all together can be sure that no other part goes on.
            return None
        dead = _dead(seen, lineups)
        if not may_go_on(present, dead, lineups):
            return None
        awaited = {voter for lineup in lineups[:1] for voter in lineup.voters} - present - dead
        if waited < max((_settle_seconds(seen[node], node == lost) for node, _ in awaited), default=0.0):
            return None
        return self._proposal(gathering, lineups)

    def _proposal(self, gathering: Mapping[int, dict[str, Any]], lineups: list[Lineup]) -> Proposal:
        newest = max((lineup.generation for lineup in lineups), default=0)
        voters = tuple(sorted((node, str(card["who"])) for node, card in gathering.items()))
        ran_last = [node for node, who in voters if not lineups or (node, who) in lineups[0].voters]
        tally = max((Tally(**card["tally"]) for card in gathering.values()), key=lambda tally: tally.restarts)
        failure = next((Failure(**card["failure"]) for card in gathering.values() if card["failure"]), None)
        if failure:
            tally = tally.with_failure_after(max(card["step"] for card in gathering.values()))
            reason = why_not(tally, failure, self.faults.max_restarts)
            failure = replace(failure, text=reason) if reason else None
        port = _free_port(self.spec.member.address)
        heard = tuple((node, _newest(map(_lineup, card["votes"]))) for node, card in sorted(gathering.items()))
        return Proposal(Lineup(newest + 1, voters), port, tally, tuple(ran_last), failure, heard)

    def _accept(self, proposal: Proposal) -> Proposal:
        self.votes = (*self.votes, proposal.lineup)
        self.tally = proposal.tally
        leads = proposal.lineup.voters[0][1] == self.who
        self.publish("leaving" if proposal.failure else "running", proposal=asdict(proposal) if leads else None)
        if proposal.failure and leads:
            self._wait_for_readers(proposal)
        return proposal

    def _wait_for_readers(self, proposal: Proposal) -> None:
        give_up_at = time.monotonic() + FAREWELL_SECONDS
        others = [node for node, who in proposal.lineup.voters if who != self.who]
        while others and time.monotonic() < give_up_at:
            others = [node for node, card in _cards(self.look(others)).items() if card["phase"] == "gathering"]
            time.sleep(LOOK_SECONDS)

    def _missing(self, seen: Mapping[int, Answer]) -> str:
        names = [self.spec.members[node].name for node, answer in sorted(seen.items()) if isinstance(answer, str)]
        return ", ".join(names) or "the others"

    def _given_up(self, seen: Mapping[int, Answer]) -> HostError:
        waited = f"{self.faults.wait.seconds or 0:g} s"
        problem = f"waited {waited} for {self._missing(seen)}: too few hosts are left to go on"
        hint = "all checkpoints are kept: when the hosts are back, go on with --resume"
        return HostError(self.spec.member.name, problem, hint)


class _Questions:
    """Asks all others again and again: who is silent holds up nobody's answer."""

    def __init__(self, ask: Callable[[int], Answer], nodes: Sequence[int]) -> None:
        self._ask, self._pool = ask, ThreadPoolExecutor(max(1, len(nodes)), "questions")
        self._answers: dict[int, Answer] = dict.fromkeys(nodes, "silent")
        self._asked: dict[int, Future[Answer]] = {}

    def answers(self) -> dict[int, Answer]:
        """The last one of each, none older than a question may take."""
        for node in self._answers.keys() - self._asked.keys():
            self._asked[node] = self._pool.submit(self._ask, node)
        for future in wait(self._asked.values(), LOOK_SECONDS).done:
            node = next(node for node, asked in self._asked.items() if asked is future)
            self._answers[node] = self._asked.pop(node).result()
        return dict(self._answers)


class Knocks(threading.Thread):
    """Listens for hosts that are back and wait to be let in, while the training goes on without them."""

    def __init__(self, circle: Circle, absent: Iterable[int]) -> None:
        super().__init__(name="knocks", daemon=True)
        self.has_heard = False
        self._circle, self._absent = circle, list(absent)
        self._over = threading.Event()
        if self._absent:
            self.start()

    def close(self) -> None:
        self._over.set()

    def run(self) -> None:
        while not self._over.wait(KNOCK_SECONDS):
            cards = _cards(self._circle.look(self._absent))
            self.has_heard = any(card["phase"] == "gathering" for card in cards.values())


class Doubts(threading.Thread):
    """Asks at the doors of hosts that may be dead; one that is need not be waited for any longer."""

    def __init__(self, circle: Circle, doubtful: Callable[[], Sequence[int]], lose: Callable[[int], None]) -> None:
        super().__init__(name="doubts", daemon=True)
        self._circle, self._doubtful, self._lose = circle, doubtful, lose
        self._over = threading.Event()
        self.start()

    def close(self) -> None:
        self._over.set()

    def run(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            for node in self._circle.dead_of(self._doubtful()):
                self._lose(node)


def _cards(seen: Mapping[int, Answer]) -> dict[int, dict[str, Any]]:
    return {node: answer for node, answer in seen.items() if isinstance(answer, dict) and "phase" in answer}


def _lineup(told: Mapping[str, Any]) -> Lineup:
    return Lineup(told["generation"], tuple((node, who) for node, who in told["voters"]))


def _newest(votes: Iterable[Lineup]) -> int:
    return max((lineup.generation for lineup in votes), default=-1)


def _dead(seen: Mapping[int, Answer], lineups: list[Lineup]) -> set[Voter]:
    return {voter for lineup in lineups for voter in lineup.voters if _is_dead(voter, seen[voter[0]])}


def _is_dead(voter: Voter, answer: Answer) -> bool:
    """For certain: nobody listens where it did, or another agent does."""
    return answer == "refused" or (isinstance(answer, dict) and "who" in answer and answer["who"] != voter[1])


def _settle_seconds(answer: Answer, is_lost: bool) -> float:
    """How long to wait for one who ran last, and is not here yet."""
    if answer != "silent":
        return RUNNING_SECONDS
    return SETTLE_WITHOUT_LOST_SECONDS if is_lost else SETTLE_SECONDS


def _free_port(address: str) -> int:
    door = Door(address, "")
    door.close()
    return door.port
