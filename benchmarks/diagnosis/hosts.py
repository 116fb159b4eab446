"""Hosts that share one machine: network namespaces, each with its own host name, processor share and link.

    with Network(3, rate_megabits=50) as hosts:
        process = hosts[1].start([sys.executable, "train.py"], environment)

Every host has an interface eth0 with an address 10.77.0.N, wired to a switch in a namespace of its own: nothing shows
up among the machine's interfaces. A link has a rate (tc tbf on both of its ends, so it holds in both directions) or a
delay (delay.py instead of the kernel's bridge: netem is a module that many kernels lack). All names begin with a
prefix; what a killed run left is removed before the next one begins. Needs root and a Linux with cgroup v1 or v2.

The network is that of the tests (tests/hosts.py); here are shares of the processor and delays.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Benchmarks are run as programs, which do not see the tests otherwise.
sys.path.append(str(Path(__file__).parents[2]))

from tests.hosts import (
    INTERFACE,
    add_namespace,
    add_switch,
    address_of,
    end_all,
    inside,
    limit,
    remove_namespaces,
)

__all__ = ["INTERFACE", "Host", "Network", "check_root", "end"]

DELAY_PROGRAM = Path(__file__).with_name("delay.py")
# The hosts together weigh little against other programs of the machine: as processes of nice 5 do.
PROCESSOR_WEIGHT = 335
GRACE_SECONDS = 5


@dataclass(frozen=True)
class Host:
    """One of a network's hosts."""

    name: str
    namespace: str
    address: str
    cores: frozenset[int]
    """Its processes run on these."""
    group: Path
    """Its cgroup: hosts that share a core get equal parts of it, however many processes each has."""

    def start(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, log: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a program on this host; its output is appended to the log."""
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(log.open("ab")) if log else subprocess.DEVNULL
            return subprocess.Popen(
                [*self._entrance(), *command],
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def output(self, command: Sequence[str]) -> str:
        """Runs a program on this host; returns what it prints."""
        return subprocess.run([*self._entrance(), *command], check=True, capture_output=True, text=True).stdout

    def _entrance(self) -> list[str]:
        """Words before a command: group, cores, namespace, host name; then the program itself, with its process id."""
        enter = 'echo $$ > "$1"; hostname "$2"; shift 2; exec "$@"'
        cores = ",".join(str(core) for core in sorted(self.cores))
        named = ["unshare", "--uts", "sh", "-ec", enter, "sh", str(self.group / "cgroup.procs"), self.name]
        # Outside of `ip netns exec`, which mounts a /sys of its own and hides the cgroups.
        return ["taskset", "--cpu-list", cores, *named, *inside(self.namespace)]


@dataclass
class Network:
    """So many hosts at one switch, from `with` to its end."""

    num_hosts: int
    prefix: str = "knv"
    rate_megabits: float | None = None
    """Of every host's link, in each direction; as fast as the machine can unless given."""
    delay_seconds: float = 0.0
    """From any host to any other, one way."""
    cores: Sequence[Sequence[int]] | None = None
    """Of each host; all that there are unless given."""
    hosts: list[Host] = field(default_factory=list)
    _delayer: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> list[Host]:
        check_root()
        remove_leftovers(self.prefix)
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self.hosts

    def __exit__(self, *_: object) -> None:
        if self._delayer:
            end(self._delayer)
        remove_leftovers(self.prefix)

    @property
    def switch(self) -> str:
        return f"{self.prefix}-switch"

    def _build(self) -> None:
        add_switch(self.switch, has_bridge=not self.delay_seconds)
        for number in range(1, self.num_hosts + 1):
            self.hosts.append(self._new_host(number))
        if self.delay_seconds:
            self._delayer = self._start_delayer()

    def _new_host(self, number: int) -> Host:
        usable = sorted(os.sched_getaffinity(0))
        cores = frozenset(self.cores[number - 1] if self.cores else usable)
        name = f"{self.prefix}-{number - 1}"
        host = Host(name, name, address_of(number), cores, _new_group(name))
        add_namespace(host.namespace, self.switch, number, has_bridge=not self.delay_seconds)
        if self.rate_megabits:
            limit(host.namespace, INTERFACE, self.rate_megabits)
            limit(self.switch, f"port{number}", self.rate_megabits)
        return host

    def _start_delayer(self) -> subprocess.Popen[bytes]:
        ports = [f"port{number}" for number in range(1, self.num_hosts + 1)]
        program = [sys.executable, str(DELAY_PROGRAM), str(self.delay_seconds), *ports]
        delayer = subprocess.Popen([*inside(self.switch), *program], stdout=subprocess.PIPE)
        assert delayer.stdout is not None
        if delayer.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{DELAY_PROGRAM.name} did not start")
        return delayer


def remove_leftovers(prefix: str) -> None:
    """Ends every process in the prefix's namespaces and groups and removes them, whoever made them."""
    remove_namespaces(prefix)
    for group in _groups().glob(f"{prefix}-*"):
        # A group with a process in it cannot be removed.
        end_all([int(word) for word in (group / "cgroup.procs").read_text().split()])
        group.rmdir()


def _groups() -> Path:
    """Where groups for the processor are made: version 1 of cgroups has a tree for it, version 2 one for all."""
    old = Path("/sys/fs/cgroup/cpu")
    return old if old.is_dir() else Path("/sys/fs/cgroup")


def _new_group(name: str) -> Path:
    group = _groups() / name
    group.mkdir()
    if (shares := group / "cpu.shares").exists():
        shares.write_text(str(PROCESSOR_WEIGHT))
    elif (weight := group / "cpu.weight").exists():
        # 1024 shares are a weight of 100.
        weight.write_text(str(PROCESSOR_WEIGHT * 100 // 1024))
    return group


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all that it started in its session."""
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def check_root() -> None:
    if os.geteuid() != 0:
        sys.exit(
            "error: network namespaces, links and disks can be made by root only\nhint: sudo, or a container's root"
        )
