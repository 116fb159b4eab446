"""Where the first rank is to be met, when mpirun, srun or torchrun has started the workers."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Interface, ip_interface
from pathlib import Path

import psutil

from konvoi.errors import MachineError
from konvoi.world import World

# Below the ports that Linux gives to connections.
FIRST_PORT, NUM_PORTS = 15_000, 15_000
# Only mpirun's start lies between the first worker and the last.
EXCHANGE_SECONDS = 120
MAX_ADDRESSES = 16
# Any address of the world outside: nothing is sent.
OUTSIDE = "192.0.2.1"


def find_place(world: World, environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Address and port, the same on every rank; MASTER_ADDR and MASTER_PORT where they are given."""
    address = environment.get("MASTER_ADDR") or _find_address(world, environment)
    given = environment.get("MASTER_PORT", "")
    if given and not (given.isdecimal() and 0 < int(given) < 2**16):
        raise MachineError(f"MASTER_PORT={given} is no port", hint="a number from 1 to 65535, as in 29500")
    return address, int(given) if given else _port(world, environment)


def first_node(nodes: str) -> str:
    """Of a list as Slurm writes it: n[03-05,9],m2 -> n03"""
    return next(expand(nodes), "")


def expand(nodes: str) -> Iterator[str]:
    """n[03-05,9],m2 -> n03 n04 n05 n9 m2; several brackets in a name too."""
    # A comma inside brackets separates no names.
    for name in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes):
        before, bracket, rest = name.partition("[")
        if not bracket:
            yield name
            continue
        ranges, _, after = rest.partition("]")
        for number in _numbers(ranges):
            yield from (f"{before}{number}{tail}" for tail in (expand(after) if after else [""]))


def shared_address(hosts: Sequence[Sequence[str]]) -> str:
    """The first of the first host's addresses (10.0.0.1/24) in whose network every host has one of its own.

    Hosts in different networks may reach each other through routers: then the first of all.
    """
    for own in map(IPv4Interface, hosts[0]):
        inside = [next((other for other in host if IPv4Interface(other).ip in own.network), None) for host in hosts]
        # The same one everywhere, as Docker's, leads back to oneself.
        if None not in inside and len(set(inside)) == len(hosts):
            return str(own.ip)
    return str(IPv4Interface(hosts[0][0]).ip)


def own_addresses() -> list[str]:
    """10.0.0.1/24 of every interface but loopback; first the one from which the world outside is reached."""
    found = [
        str(ip_interface(f"{one.address}/{one.netmask}"))
        for addresses in psutil.net_if_addrs().values()
        for one in addresses
        if one.family == socket.AF_INET and one.netmask and not ip_interface(one.address).is_loopback
    ]
    outward = _source_towards(OUTSIDE)
    return sorted(found, key=lambda address: address.partition("/")[0] != outward)[:MAX_ADDRESSES]


def _find_address(world: World, environment: Mapping[str, str]) -> str:
    if world.num_hosts == 1 and world.launcher != "torchrun":
        return "127.0.0.1"
    if world.launcher == "slurm":
        nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
        if nodes:
            return first_node(nodes)
    if world.launcher == "mpirun":
        return _ask_mpi(world)
    raise MachineError(
        f"{world.launcher} says who the {world.size} workers are, but not where they meet",
        hint="set MASTER_ADDR to the address of the first worker's host",
    )


def _ask_mpi(world: World) -> str:
    """Everybody's addresses, through mpirun's own connections."""
    word = json.dumps([world.local_rank, *own_addresses()])
    program = Path(__file__).with_name("mpi_exchange.py")
    try:
        done = subprocess.run(
            [sys.executable, program, word], capture_output=True, text=True, timeout=EXCHANGE_SECONDS, check=True
        )
    except subprocess.SubprocessError as error:
        why = [str(error), *(getattr(error, "stderr", "") or "").splitlines()][-1]
        raise MachineError(
            f"mpirun does not say where the first worker is, and OpenMPI's library does not either: {why}",
            hint="mpirun -x MASTER_ADDR=ADDRESS ..., the address of the first host of -H in the private network",
        ) from None
    told = [json.loads(word) for word in json.loads(done.stdout.splitlines()[-1])]
    return shared_address([addresses for local_rank, *addresses in told if local_rank == 0])


def _port(world: World, environment: Mapping[str, str]) -> int:
    """From what is the same for all workers of this job, and another for the next."""
    names = {"slurm": ("SLURM_JOB_ID", "SLURM_STEP_ID"), "mpirun": ("PMIX_NAMESPACE",)}.get(world.launcher, ())
    job = ".".join(environment.get(name, "") for name in names)
    return FIRST_PORT + zlib.crc32(job.encode()) % NUM_PORTS


def _numbers(ranges: str) -> Iterator[str]:
    """03-05,9 -> 03 04 05 9"""
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1))


def _source_towards(address: str) -> str:
    """Our own address on the way there; nothing where there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])
