"""Links that come and go, and links that get slow: the training ends with all steps done and the same losses."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.faults.network import PATIENCE_SECONDS, Agents, Network, made
from tests.hosts import requires_hosts
from tests.processes import Trainings, assert_went_on_exactly, same_bits, tensors

from konvoi.exit_codes import DONE
from konvoi.run_directory import RunDirectory

pytestmark = requires_hosts

NUM_STEPS = 30
SETTINGS = (f"train.duration={NUM_STEPS} steps", "train.mode=train", "checkpoint.every=10 steps", "faults.min_hosts=2")
# A step of this model sends 160 kB: a sixth of a second, so that the training outlasts what befalls it.
RATE_MEGABITS = 8.0
CUT_SECONDS, UP_SECONDS = 1.5, 1.0


@pytest.fixture(scope="module")
def hosts() -> Iterator[Network]:
    with made(2) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def undisturbed(trainings: Trainings) -> RunDirectory:
    run = trainings.new(*SETTINGS)
    assert trainings.train_together(run, 2) == [DONE, DONE]
    return run


def wait_for_step(agents: Agents, step: int) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not any(event["step"] >= step for event in agents.events(0, "step")):
        assert not agents.are_over(), "ended too early"
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.05)


def assert_all_is_as_in(undisturbed: RunDirectory, agents: Agents) -> None:
    assert agents.exit_codes() == [DONE, DONE]
    assert_went_on_exactly(undisturbed, agents.runs[0], after=0)
    assert same_bits(tensors(agents.runs[1]), tensors(undisturbed))


def test_a_link_that_comes_and_goes_changes_no_loss(
    trainings: Trainings, hosts: Network, undisturbed: RunDirectory
) -> None:
    hosts.limit(RATE_MEGABITS)
    with Agents(trainings, hosts, *SETTINGS) as agents:
        wait_for_step(agents, 3)
        num_cuts = 0
        while not agents.are_over() and num_cuts < 4:
            hosts.cut(1)
            time.sleep(CUT_SECONDS)
            hosts.mend(1)
            time.sleep(UP_SECONDS)
            num_cuts += 1
        assert num_cuts == 4
        assert_all_is_as_in(undisturbed, agents)


@pytest.mark.long
def test_a_link_that_gets_half_as_fast_is_no_fault(
    trainings: Trainings, hosts: Network, undisturbed: RunDirectory
) -> None:
    hosts.limit(2 * RATE_MEGABITS)
    with Agents(trainings, hosts, *SETTINGS) as agents:
        wait_for_step(agents, 5)
        hosts.limit(RATE_MEGABITS)
        assert len(agents.events(0, "step")) < NUM_STEPS
        assert_all_is_as_in(undisturbed, agents)
        assert agents.events(0, "fault", "restart") == agents.events(1, "fault", "restart") == []
