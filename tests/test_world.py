"""Who am I: from the variables of torchrun, mpirun and Slurm; and the interface towards the others."""

from __future__ import annotations

import sys

import pytest
from tests.hosts import Hosts, two_hosts

from konvoi.errors import MachineError
from konvoi.world import LAUNCHERS, World, from_environment, interface_towards, tasks_per_node

__all__ = ["two_hosts"]

SRUN = {"SLURM_JOB_ID": "812", "SLURM_STEP_ID": "0"}


def variables(launcher: str, *values: str) -> dict[str, str]:
    """Of rank, size, local rank and local size as many as are given."""
    named = dict(zip(LAUNCHERS[launcher], values, strict=False))
    return {**named, **(SRUN if launcher == "slurm" else {})}


def test_there_are_launchers_and_each_has_four_variables() -> None:
    assert set(LAUNCHERS) == {"torchrun", "mpirun", "slurm"}
    assert {len(names) for names in LAUNCHERS.values()} == {4}


def test_without_a_launcher_one_is_alone() -> None:
    assert from_environment({"PATH": "/bin"}) == World(rank=0, size=1, local_rank=0, local_size=1, launcher="none")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_variables_of_a_launcher_are_read(launcher: str) -> None:
    # The last of 2 workers on the second of 2 hosts
    expected = World(rank=3, size=4, local_rank=1, local_size=2, launcher=launcher, num_hosts=2)
    assert from_environment(variables(launcher, "3", "4", "1", "2")) == expected


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_is_left_out_of_the_local_ones_means_one_a_host(launcher: str) -> None:
    expected = World(rank=1, size=2, local_rank=0, local_size=1, launcher=launcher, num_hosts=2)
    assert from_environment(variables(launcher, "1", "2")) == expected


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_nonsense_is_refused_with_what_was_found(launcher: str) -> None:
    names = LAUNCHERS[launcher]
    with pytest.raises(MachineError, match=f"{launcher}'s variables make no sense: {names[0]}=one, {names[1]}=2"):
        from_environment(variables(launcher, "one", "2"))


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(
    "values",
    [("4", "4", "0", "1"), ("-1", "4", "0", "1"), ("3", "4", "2", "2"), ("1", "4", "2", "3"), ("1", "2", "1", "4")],
    ids=["rank 4 of 4", "rank -1", "third of 2 here", "third here, yet second of all", "4 here, yet 2 in all"],
)
def test_variables_that_contradict_each_other_are_refused(launcher: str, values: tuple[str, ...]) -> None:
    with pytest.raises(MachineError, match=f"make no sense: .*={values[0]}, .*={values[1]}, .*={values[2]}, "):
        from_environment(variables(launcher, *values))


def test_torchrun_inside_a_slurm_job_wins() -> None:
    environment = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "RANK": "2", "WORLD_SIZE": "3"}
    assert from_environment(environment).launcher == "torchrun"


def test_half_of_a_launcher_is_none() -> None:
    assert from_environment({"RANK": "1"}) == World()


def test_torchrun_says_how_many_hosts_there_are() -> None:
    # 3 workers here and 1 elsewhere
    environment = {**variables("torchrun", "0", "4", "0", "3"), "GROUP_WORLD_SIZE": "2"}
    assert from_environment(environment).num_hosts == 2


def test_slurm_may_spread_workers_unevenly() -> None:
    # 2 + 2 + 1 = 5 workers; this is the one of the third node. The job itself has more tasks than this step of it.
    step = {"SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_STEP_NUM_NODES": "3"}
    environment = {**variables("slurm", "4", "8", "0"), **step, "SLURM_TASKS_PER_NODE": "4(x2)", "SLURM_NODEID": "2"}
    expected = World(rank=4, size=5, local_rank=0, local_size=1, launcher="slurm", num_hosts=3)
    assert from_environment(environment) == expected
    assert from_environment({**environment, "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}) == World(
        rank=3, size=5, local_rank=1, local_size=2, launcher="slurm", num_hosts=3
    )


def test_tasks_per_node_are_read_as_slurm_writes_them() -> None:
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    assert tasks_per_node("1,12(x2)") == [1, 12, 12]
    assert tasks_per_node("") == []


@pytest.mark.parametrize(
    "step", [{}, {"SLURM_STEP_ID": "4294967291"}, {"SLURM_STEP_ID": "4294967290"}], ids=["none", "batch", "interactive"]
)
def test_a_batch_script_without_srun_is_told_so(step: dict[str, str]) -> None:
    environment = {"SLURM_JOB_ID": "812", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", **step}
    with pytest.raises(MachineError, match="Slurm's job 812 of 4 tasks, but srun did not start this process") as error:
        from_environment(environment)
    assert "srun konvoi worker RECIPE" in error.value.hint


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "localhost"])
def test_loopback_is_the_way_to_oneself(address: str) -> None:
    assert interface_towards(address) in ("lo", "lo0")


def test_an_interface_is_found_towards_others_and_towards_an_own_address(two_hosts: Hosts) -> None:
    program = "import sys; from konvoi.world import interface_towards; print(*map(interface_towards, sys.argv[1:]))"
    own, other = two_hosts[0], two_hosts[1]
    addresses = [other.address, other.name, own.address, own.name, "127.0.0.1"]
    found = two_hosts[0].run([sys.executable, "-c", program, *addresses])
    assert found.split() == ["eth0", "eth0", "eth0", "eth0", "lo"]


def test_no_way_to_an_address_is_an_error(two_hosts: Hosts) -> None:
    program = "from konvoi.world import interface_towards; interface_towards('192.0.2.1')"
    with pytest.raises(RuntimeError, match="Network is unreachable"):
        two_hosts[0].run([sys.executable, "-c", program], timeout=240)
