"""Who am I: from the variables of torchrun, mpirun and Slurm."""

from __future__ import annotations

import pytest

from konvoi.cluster.world import LAUNCHERS, World, from_environment
from konvoi.errors import MachineError


def test_there_are_launchers_and_each_has_four_variables() -> None:
    assert set(LAUNCHERS) == {"torchrun", "mpirun", "slurm"}
    assert {len(names) for names in LAUNCHERS.values()} == {4}


def test_without_a_launcher_one_is_alone() -> None:
    assert from_environment({"PATH": "/bin"}) == World(rank=0, size=1, local_rank=0, local_size=1, launcher="none")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_variables_of_a_launcher_are_read(launcher: str) -> None:
    # The last of 2 workers on the second of 2 hosts
    environment = dict(zip(LAUNCHERS[launcher], ("3", "4", "1", "2"), strict=True))
    assert from_environment(environment) == World(rank=3, size=4, local_rank=1, local_size=2, launcher=launcher)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_is_left_out_of_the_local_ones_means_one_a_host(launcher: str) -> None:
    environment = dict(zip(LAUNCHERS[launcher][:2], ("1", "2"), strict=True))
    assert from_environment(environment) == World(rank=1, size=2, local_rank=0, local_size=1, launcher=launcher)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_nonsense_is_refused_with_what_was_found(launcher: str) -> None:
    names = LAUNCHERS[launcher]
    with pytest.raises(MachineError, match=f"{launcher}'s variables make no sense: {names[0]}=one, {names[1]}=2"):
        from_environment({names[0]: "one", names[1]: "2"})


def test_torchrun_inside_a_slurm_job_wins() -> None:
    environment = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "RANK": "2", "WORLD_SIZE": "3"}
    assert from_environment(environment).launcher == "torchrun"


def test_half_of_a_launcher_is_none() -> None:
    assert from_environment({"RANK": "1"}) == World()
