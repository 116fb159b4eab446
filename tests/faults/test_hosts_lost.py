"""Agents and hosts die, the first one too: those who are left go on, and who comes back is let in.

Each host is an address of loopback with a run directory of its own.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from multiprocessing.process import BaseProcess

import pytest
from tests.cluster.test_node import Hosts
from tests.processes import (
    Trainings,
    assert_went_on_exactly,
    checkpoint_steps,
    ended,
    events,
    losses,
    same_bits,
    start_process,
    state,
    steps,
    tensors,
    wait_until,
)

from konvoi.cluster.job_spec import read_spec
from konvoi.cluster.rendezvous import connect_store
from konvoi.exit_codes import DONE, INTERRUPTED

SETTINGS = ("train.mode=train", "checkpoint.every=5 steps", "checkpoint.keep=2")
ENDLESS = (*SETTINGS, "train.duration=100000 steps")


def start_again(hosts: Hosts, node: int) -> BaseProcess:
    """As ssh does: the run directory has all that an agent needs."""
    path = str(hosts.runs[node].path)
    program = (
        f"import sys; from pathlib import Path; from konvoi.commands.node import node; sys.exit(node(Path({path!r})))"
    )
    hosts.agents[node] = start_process(program, {})
    return hosts.agents[node]


def has_gone_on(hosts: Hosts, node: int, num_restarts: int = 1) -> Callable[[], bool]:
    """Whether that host has made a step after its restart."""
    rank = sum(member.workers for member in hosts.members[:node])

    def is_so() -> bool:
        kinds = [event["kind"] for event in hosts.runs[node].events_of(rank)]
        return kinds.count("restart") >= num_restarts and "step" in kinds[::-1][: kinds[::-1].index("restart")]

    return is_so


def test_a_killed_worker_is_started_again_on_all_hosts_and_nothing_differs(trainings: Trainings) -> None:
    settings = (*SETTINGS, "train.duration=30 steps")
    whole = trainings.new(*settings)
    assert trainings.train_together(whole, 2) == [DONE, DONE]
    hosts = Hosts(trainings, (1, 1), *settings)
    hosts.start_and_train(6)
    hosts.worker(1).kill()
    assert [ended(agent) for agent in hosts.agents] == [DONE, DONE]
    assert_went_on_exactly(whole, hosts.runs[0], after=0)
    assert same_bits(tensors(hosts.runs[1]), tensors(whole))
    (fault,) = events(hosts.runs[0], "fault")
    assert (fault["rank"], fault["host"]) == (1, "h2")
    # As an agent that was killed when all was done and only its leave was missing: nobody is there to gather with.
    assert ended(start_again(hosts, 1)) == DONE


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.long), 1], ids=["the first", "another"])
def test_an_agent_that_is_killed_before_all_have_met_is_no_end(trainings: Trainings, victim: int) -> None:
    hosts = Hosts(trainings, (1, 1, 1), *SETTINGS, "train.duration=8 steps")
    hosts.write_specs()
    hosts.agents = [None] * 3  # type: ignore[list-item]
    for node in (0, 1):
        start_again(hosts, node)
    spec = read_spec(hosts.runs[0].path, "")
    store = connect_store(spec.members[0].address, spec.port)
    # A key is there once the first host has opened the meeting; get waits for that.
    wait_until(
        lambda: bool(store.get(f"konvoi/joined/{victim}")) and bool(store.get("konvoi/joined/1")), hosts.agents[1]
    )
    hosts.agents[victim].kill()
    hosts.agents[victim].join()
    start_again(hosts, victim)
    start_again(hosts, 2)
    assert [ended(agent) for agent in hosts.agents] == [DONE] * 3
    assert list(steps(hosts.runs[2], 2)) == list(range(1, 9))


@pytest.mark.parametrize("victim", [0, 2], ids=["the first", "the last"])
def test_the_others_go_on_without_an_agent_and_let_it_in_again(trainings: Trainings, victim: int) -> None:
    hosts = Hosts(trainings, (1, 1, 1), *ENDLESS)
    hosts.start_and_train(6)
    hosts.agents[victim].kill()
    wait_until(has_gone_on(hosts, 1), hosts.agents[1])
    start_again(hosts, victim)
    wait_until(has_gone_on(hosts, 1, num_restarts=2), hosts.agents[1])
    hosts.agents[1].terminate()
    assert [ended(agent) for agent in hosts.agents] == [INTERRUPTED] * 3

    run = hosts.runs[1]
    without, again = [event for event in run.events_of(1) if event["kind"] == "restart"]
    assert (without["workers"], again["workers"]) == (2, 3)
    assert without["stall_seconds"] > 0
    (fault,) = [event for event in run.events_of(1) if event["kind"] == "fault"]
    assert fault["host"] == hosts.members[victim].name
    last = run.summary()["steps"]
    assert sorted(steps(run, 1)) == list(range(1, last + 1))
    # All saved before they let it in: no step was made twice for that.
    made = [event["step"] for event in run.events_of(1) if event["kind"] == "step" and event["time"] > without["time"]]
    assert made == list(range(without["step"] + 1, last + 1))
    # 3 micro-batches a step before, 2 without it, 3 again.
    assert state(run)["position"] == 3 * without["step"] + 2 * (again["step"] - without["step"]) + 3 * (
        last - again["step"]
    )
    assert all(same_bits(tensors(other), tensors(run)) for other in hosts.runs)


def test_a_host_that_is_left_alone_without_the_lowest_number_waits_and_then_ends(trainings: Trainings) -> None:
    """The other does not say that it is gone: it is stopped, as a host behind a cut link."""
    hosts = Hosts(trainings, (1, 1), *ENDLESS, "faults.wait=6 seconds")
    hosts.start_and_train(6)
    first = [process for process in hosts.processes() if process.pid == hosts.agents[0].pid]
    frozen = [*first, *first[0].children(recursive=True)]
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    try:
        assert ended(hosts.agents[1]) != DONE
        failure = hosts.state(1).failure
        assert failure and "waited 6 s for h1: too few hosts are left to go on" in failure.text
        assert checkpoint_steps(hosts.runs[1])
    finally:
        for process in frozen:
            process.send_signal(signal.SIGCONT)
    # Half of two with the lower number: it goes on alone, without any that it could ask.
    before = max(losses(hosts.runs[0]))
    wait_until(lambda: max(losses(hosts.runs[0])) > before + 5, hosts.agents[0])
    hosts.agents[0].terminate()
    assert ended(hosts.agents[0]) == INTERRUPTED


def test_an_error_that_comes_at_once_is_not_repeated(trainings: Trainings) -> None:
    hosts = Hosts(trainings, (1, 1), *SETTINGS, "train.accumulate=1000")
    hosts.start()
    assert hosts.exit_codes() == [2, 2]
    assert all(failure and "fewer than the 2000 of one step" in failure.text for failure in hosts.failures())
