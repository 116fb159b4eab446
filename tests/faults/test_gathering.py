"""Agents that look for each other after a fault: who is silent holds nobody up, and is never taken for dead."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

import pytest

from konvoi.cluster import gather
from konvoi.cluster.door import Door
from konvoi.cluster.gather import Circle, Doubts, Proposal
from konvoi.cluster.job_spec import Failure, JobSpec, Member
from konvoi.cluster.quorum import Lineup
from konvoi.config.sections import Faults

PATIENCE_SECONDS = 60
SPEC = JobSpec("this-job", tuple(Member(f"h{n}", f"127.0.0.{n + 1}", "lo", 1) for n in range(3)), node=0, port=0)
LINEUP = Lineup(0, ((0, "a"), (1, "b"), (2, "c")))


@pytest.fixture
def circles() -> Iterator[dict[int, Circle]]:
    """Of hosts 0 and 2; where host 1 had its door, connections are taken and nothing is ever said."""
    with ExitStack() as stack:
        mute = stack.enter_context(socket.create_server(("127.0.0.2", 0)))
        doors = {node: Door(SPEC.members[node].address, SPEC.id) for node in (0, 2)}
        for door in doors.values():
            stack.callback(door.close)
        ports = [doors[0].port, mute.getsockname()[1], doors[2].port]
        faults = Faults(wait="30 seconds")
        yield {
            node: Circle(replace(SPEC, node=node), door, ports, faults, "abc"[node], votes=(LINEUP,))
            for node, door in doors.items()
        }


def gathered(circles: dict[int, Circle], failure: Failure) -> list[Proposal]:
    with ThreadPoolExecutor() as pool:
        found = [pool.submit(circle.gather, failure, 5, print) for circle in circles.values()]
        return [future.result(PATIENCE_SECONDS) for future in found]


def test_whose_silence_was_the_fault_is_not_waited_for_again(
    circles: dict[int, Circle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as anyone else would be, they would give up first."""
    monkeypatch.setattr(gather, "SETTLE_SECONDS", 1000.0)
    first, last = gathered(circles, Failure("h1", None, "is gone", "lost"))
    assert first == last
    assert first.lineup == Lineup(1, ((0, "a"), (2, "c")))


def test_whose_silence_is_news_is_waited_for(circles: dict[int, Circle], monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of host 2 died; that host 1 does not answer was not known."""
    monkeypatch.setattr(gather, "SETTLE_WITHOUT_LOST_SECONDS", 1000.0)
    first, _ = gathered(circles, Failure("h2", 2, "was ended by SIGKILL", "lost"))
    assert [node for node, _ in first.lineup.voters] == [0, 2]


def test_a_proposal_from_before_one_ran_with_others_is_not_accepted(circles: dict[int, Circle]) -> None:
    """Host 0 proposes, is cut off, and host 2 runs with host 1; the old proposal would make two trainings."""
    stale = circles[0]._proposal({node: _card(circle) for node, circle in circles.items()}, [LINEUP, Lineup(1, ())])
    assert stale.lineup.generation == 2
    circles[0].publish("running", proposal=asdict(stale))
    assert circles[2]._proposed(circles[2].look([0])) == stale
    circles[2].formed(Lineup(1, ((1, "b"), (2, "c"))))
    assert circles[2]._proposed(circles[2].look([0])) is None


def _card(circle: Circle) -> dict[str, Any]:
    circle.publish("gathering", failure=None, step=5)
    return circle.door.card


def test_only_who_refuses_or_was_started_anew_is_dead(circles: dict[int, Circle]) -> None:
    circles[2].publish("running")
    assert circles[0].dead_of([1, 2]) == []
    circles[2].who = "another"
    circles[2].publish("gathering")
    assert circles[0].dead_of([1, 2]) == [2]
    circles[2].door.close()
    assert circles[0].dead_of([1, 2]) == [2]
    assert circles[0].dead_of([]) == []


def test_a_doubtful_host_is_told_of_once_it_is_dead(circles: dict[int, Circle]) -> None:
    circles[2].publish("running")
    is_lost = threading.Event()
    doubts = Doubts(circles[0], lambda: [2], lambda node: is_lost.set() if node == 2 else None)
    assert not is_lost.wait(1.0)
    circles[2].door.close()
    assert is_lost.wait(PATIENCE_SECONDS)
    doubts.close()
