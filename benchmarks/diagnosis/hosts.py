"""Hosts that share one machine: network namespaces, each with its own host name, processor share and link.

    with Network(3, rate_megabits=50) as hosts:
        process = hosts[1].start([sys.executable, "train.py"], environment)

Every host has an interface eth0 with an address 10.77.0.N, wired to a switch in a namespace of its own: nothing shows
up among the machine's interfaces. A link has a rate (tc tbf on both of its ends, so it holds in both directions) or a
delay (delay.py instead of the kernel's bridge: netem is a module that many kernels lack). All names begin with a
prefix; what a killed run left is removed before the next one begins. Needs root and a Linux with cgroup v1 or v2.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

INTERFACE = "eth0"
NAMESPACES = Path("/run/netns")
DELAY_PROGRAM = Path(__file__).with_name("delay.py")
# As much as a small switch holds: TCP then finds the rate without losing much.
QUEUE_BYTES = 256 * 1024
# The bucket must hold what arrives between two ticks of the kernel's clock (4 ms), and one packet of a fast link.
TICK_SECONDS, LEAST_BURST_BYTES = 0.004, 16 * 1024
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
        inside = ["unshare", "--uts", "sh", "-ec", enter, "sh", str(self.group / "cgroup.procs"), self.name]
        # Outside of `ip netns exec`, which mounts a /sys of its own and hides the cgroups.
        return ["taskset", "--cpu-list", cores, *inside, *_inside(self.namespace)]


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
        _ip("netns", "add", self.switch)
        for number in range(self.num_hosts):
            self.hosts.append(self._new_host(number))
        if self.delay_seconds:
            self._delayer = self._start_delayer()
        else:
            self._bridge()

    def _new_host(self, number: int) -> Host:
        usable = sorted(os.sched_getaffinity(0))
        cores = frozenset(self.cores[number] if self.cores else usable)
        name = f"{self.prefix}-{number}"
        host = Host(name, name, f"10.77.0.{number + 1}", cores, _new_group(name))
        _ip("netns", "add", host.namespace)
        port = ["peer", "name", f"port{number}", "netns", self.switch]
        _ip("link", "add", INTERFACE, "netns", host.namespace, "type", "veth", *port)
        _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", INTERFACE)
        for namespace, device in ((host.namespace, "lo"), (host.namespace, INTERFACE), (self.switch, f"port{number}")):
            _ip("-n", namespace, "link", "set", device, "up")
        if self.rate_megabits:
            limit(host.namespace, INTERFACE, self.rate_megabits)
            limit(self.switch, f"port{number}", self.rate_megabits)
        return host

    def _bridge(self) -> None:
        _ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self.switch, "link", "set", "bridge", "up")
        for number in range(self.num_hosts):
            _ip("-n", self.switch, "link", "set", f"port{number}", "master", "bridge")

    def _start_delayer(self) -> subprocess.Popen[bytes]:
        ports = [f"port{number}" for number in range(self.num_hosts)]
        program = [sys.executable, str(DELAY_PROGRAM), str(self.delay_seconds), *ports]
        delayer = subprocess.Popen([*_inside(self.switch), *program], stdout=subprocess.PIPE)
        assert delayer.stdout is not None
        if delayer.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{DELAY_PROGRAM.name} did not start")
        return delayer


def limit(namespace: str, device: str, rate_megabits: float) -> None:
    """What leaves a device never exceeds a rate; given again, it replaces the former one."""
    burst_bytes = max(LEAST_BURST_BYTES, int(rate_megabits * 1e6 / 8 * TICK_SECONDS))
    sizes = ["burst", str(burst_bytes), "limit", str(QUEUE_BYTES + burst_bytes)]
    rate = f"{round(rate_megabits * 1e6)}bit"
    _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, *sizes)


def remove_leftovers(prefix: str) -> None:
    """Ends every process in the prefix's namespaces and groups and removes them, whoever made them."""
    for namespace in _namespaces(prefix):
        _end_all(int(word) for word in _run("ip", "netns", "pids", namespace).split())
        _ip("netns", "delete", namespace)
    for group in _groups().glob(f"{prefix}-*"):
        _end_all(int(word) for word in (group / "cgroup.procs").read_text().split())
        group.rmdir()


def _namespaces(prefix: str) -> Iterator[str]:
    if NAMESPACES.is_dir():
        yield from sorted(path.name for path in NAMESPACES.glob(f"{prefix}-*"))


def _end_all(process_ids: Iterator[int]) -> None:
    """Kills them and waits until they are gone; a group with a process in it cannot be removed."""
    for process_id in process_ids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)
        give_up_at = time.monotonic() + GRACE_SECONDS
        while _runs(process_id) and time.monotonic() < give_up_at:
            time.sleep(0.01)


def _runs(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


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


def _inside(namespace: str) -> list[str]:
    return ["ip", "netns", "exec", namespace]


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> str:
    result = subprocess.run(words, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(words)}: {result.stderr.strip()}")
    return result.stdout
