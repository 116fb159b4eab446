"""Where the first rank is to be met: Slurm's lists of nodes, networks that hosts share, ports."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from konvoi.cluster.places import expand, find_place, first_node, own_addresses, shared_address
from konvoi.errors import MachineError
from konvoi.world import World

TWO_HOSTS = World(rank=1, size=2, launcher="slurm", num_hosts=2)
JOB = {"SLURM_JOB_ID": "812", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[07-08]"}


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("m2", "m2"),
        ("a,b-1", "a b-1"),
        ("n[01-03,07],m2", "n01 n02 n03 n07 m2"),
        ("n[9-11]", "n9 n10 n11"),
        ("n[098-101]-ib,m", "n098-ib n099-ib n100-ib n101-ib m"),
        ("r[1-2]n[1,3]", "r1n1 r1n3 r2n1 r2n3"),
        ("", ""),
    ],
)
def test_a_list_of_nodes_is_read_as_slurm_writes_it(nodes: str, names: str) -> None:
    assert list(expand(nodes)) == names.split()
    assert first_node(nodes) == (names.split() or [""])[0]


Node = tuple[str, str]
"""Its name without the number, and the number with its zeros."""


def compress(nodes: list[Node]) -> str:
    """Neighbours with the same name and as many digits go into one pair of brackets, as a run or one by one."""
    parts = []
    for stem, group in itertools.groupby(nodes, key=lambda node: node[0]):
        runs: list[list[str]] = []
        for _, number in group:
            if runs and len(number) == len(runs[-1][-1]) and int(number) == int(runs[-1][-1]) + 1:
                runs[-1].append(number)
            else:
                runs.append([number])
        parts.append(f"{stem}[{','.join(run[0] if len(run) == 1 else f'{run[0]}-{run[-1]}' for run in runs)}]")
    return ",".join(parts)


stems = st.text("abz-.", min_size=1, max_size=3)
numbers = st.builds(lambda number, width: str(number).zfill(width), st.integers(0, 30), st.integers(1, 4))


@given(st.lists(st.tuples(stems, numbers), max_size=12))
def test_what_is_compressed_expands_to_the_same_names(nodes: list[Node]) -> None:
    assert list(expand(compress(nodes))) == [stem + number for stem, number in nodes]


def test_what_is_given_is_taken() -> None:
    assert find_place(TWO_HOSTS, {**JOB, "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "4711"}) == ("10.0.0.9", 4711)


def test_under_slurm_all_meet_at_the_first_node_and_each_job_at_a_port_of_its_own() -> None:
    address, port = find_place(TWO_HOSTS, JOB)
    assert address == "n07"
    assert 15_000 <= port < 30_000
    others = [{"SLURM_JOB_ID": "813"}, {"SLURM_STEP_ID": "1"}]
    assert port not in {find_place(TWO_HOSTS, {**JOB, **other})[1] for other in others}


@pytest.mark.parametrize("launcher", ["slurm", "mpirun"])
def test_on_one_host_all_meet_at_loopback(launcher: str) -> None:
    world = World(rank=1, size=2, local_rank=1, local_size=2, launcher=launcher)
    assert find_place(world, JOB)[0] == "127.0.0.1"


@pytest.mark.parametrize("port", ["http", "0", "65536"])
def test_what_is_no_port_is_refused(port: str) -> None:
    with pytest.raises(MachineError, match=f"MASTER_PORT={port} is no port"):
        find_place(TWO_HOSTS, {**JOB, "MASTER_PORT": port})


def test_ranks_without_a_place_are_told_what_to_set() -> None:
    with pytest.raises(MachineError, match="torchrun says who the 2 workers are, but not where they meet") as error:
        find_place(World(rank=1, size=2, launcher="torchrun", num_hosts=2), {})
    assert "MASTER_ADDR" in error.value.hint


def test_an_openmpi_that_cannot_be_asked_leads_to_what_to_give_it() -> None:
    # mpirun did not start this process: its rank is missing.
    with pytest.raises(MachineError, match="does not either: KeyError: 'OMPI_COMM_WORLD_RANK'") as error:
        find_place(World(rank=1, size=2, launcher="mpirun", num_hosts=2), {})
    assert "mpirun -x MASTER_ADDR=" in error.value.hint


def test_hosts_meet_in_the_network_that_all_of_them_share() -> None:
    # 192.168.1.0/24 is the first host's alone; Docker's address is the same everywhere and leads nowhere.
    first = ["192.168.1.4/24", "172.17.0.1/16", "10.0.3.1/24"]
    second = ["172.17.0.1/16", "10.0.3.2/24"]
    assert shared_address([first, second]) == "10.0.3.1"


def test_hosts_of_two_networks_meet_at_the_first_ones_way_to_the_world() -> None:
    # As in two zones of one cloud: a router lies between.
    assert shared_address([["10.0.16.5/20", "172.17.0.1/16"], ["10.0.32.6/20", "172.17.0.1/16"]]) == "10.0.16.5"


def test_loopback_is_no_place_to_be_met() -> None:
    assert not [address for address in own_addresses() if address.startswith("127.")]
