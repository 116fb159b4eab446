"""Hosts that share one machine, each a real one for ssh: its own network, name, processes, home, sshd and keys.

    with Hosts(2, folder=tmp_path) as hosts:
        hosts.konvoi("cluster", "check", "--cluster", hosts.file)

A host is a set of Linux namespaces (network, host name, mounts, processes) that its first process holds open; eth0 is
wired to a switch in a network namespace of its own, so nothing shows up among the machine's interfaces. The laptop,
from which commands are given, is one more machine at the switch; this process is in its network between `with` and its
end, so that a test may call what a command calls. Needs root on Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

from konvoi.cluster.hosts import check_cluster, write_cluster

INTERFACE = "eth0"
NAMESPACES = Path("/run/netns")
SSHD = "/usr/sbin/sshd"
# As much as a small switch holds: TCP then finds the rate without losing much.
QUEUE_BYTES = 256 * 1024
# The bucket must hold what arrives between two ticks of the kernel's clock (4 ms), and one packet of a fast link.
TICK_SECONDS, LEAST_BURST_BYTES = 0.004, 16 * 1024
GRACE_SECONDS = 5
# Only against a hang: nothing here takes as long when all is well.
PATIENCE_SECONDS = 120
LAPTOP_NUMBER = 254
# The first process of a host: takes its name and files, then waits; orphans that end there leave no zombie behind.
FIRST_PROCESS = """
hostname "$1"
mount --bind "$2/passwd" /etc/passwd
mount --bind "$2/hosts" /etc/hosts
echo ready
exec env --ignore-signal=CHLD sleep infinity
"""
SSHD_CONFIG = """
HostKey {folder}/host_key
ListenAddress {address}
PidFile none
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
Subsystem sftp internal-sftp
"""
# Paths as they are outside too: this process reads the same file.
SSH_CONFIG = """
Host *
    User root
    IdentityFile "{ssh}/id_ed25519"
    IdentitiesOnly yes
    UserKnownHostsFile "{ssh}/known_hosts"
    GlobalKnownHostsFile none
"""

_numbers = itertools.count()


def why_not() -> str | None:
    """What is missing here for hosts to be made."""
    absent = [word for word in ("ip", "tc", "unshare", "nsenter", "setpriv", "ssh", SSHD) if not shutil.which(word)]
    if absent:
        return f"hosts need {', '.join(absent)} (Debian: iproute2, util-linux, openssh-client, openssh-server)"
    try:
        _run("unshare", "--net", "--uts", "--mount", "--pid", "--fork", "true")
    except RuntimeError as error:
        return f"hosts need root on Linux: {error}"
    return None


class Machine:
    """A host or the laptop."""

    def __init__(self, prefix: str, name: str, number: int, folder: Path, own_processes: bool) -> None:
        self.name, self.number = name, number
        self.namespace, self.switch = f"{prefix}-{name}", f"{prefix}-switch"
        self.address = address_of(number)
        self.folder = folder / name
        """Its files, as seen from everywhere."""
        self.home = self.folder / "home"
        """Of root there: ~ is another on each."""
        self.hosts_file = self.folder / "hosts"
        """Its /etc/hosts: written in place (no rename), it holds at once."""
        self._own_processes = own_processes
        self._log = self.folder / "sshd.log"
        self._sshd: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[Any]] = []

    def boot(self, hosts_lines: str) -> None:
        """All but its sshd."""
        self.home.mkdir(parents=True, mode=0o700)
        self.hosts_file.write_text(f"127.0.0.1 localhost\n{hosts_lines}")
        root = pwd.getpwuid(0)
        (self.folder / "passwd").write_text(f"root:x:0:0:root:{self.home}:{root.pw_shell}\n{_other_users()}")
        add_namespace(self.namespace, self.switch, self.number)
        own = ["--uts", *(["--pid", "--fork", "--kill-child", "--mount-proc"] if self._own_processes else [])]
        # Should this process be killed, so is the first process, and with it all of the host's.
        words = ["setpriv", "--pdeathsig", "KILL", *inside(self.namespace), "unshare", *own]
        words += ["sh", "-ec", FIRST_PROCESS, "sh", self.name, str(self.folder)]
        self._keeper = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self._started.append(self._keeper)
        assert self._keeper.stdout
        with self._keeper.stdout as said:
            if said.readline() != b"ready\n":
                raise RuntimeError(f"{self.name} did not start")
        self._first = _children(self._keeper.pid)[0] if self._own_processes else self._keeper.pid

    def shut_down(self) -> None:
        """After its namespace's processes have been ended."""
        for process in self._started:
            process.kill()
            process.wait()

    def process_ids(self) -> list[int]:
        """Of all that lives in its network, but for sshd and what makes it a host; as the test sees them."""
        ours = {self._keeper.pid, self._first}
        return [
            process_id
            for process_id in namespace_process_ids(self.namespace)
            if process_id not in ours and not re.match("sshd|nsenter|$", _program(process_id))
        ]

    def run(self, words: Sequence[str | Path], check: bool = True, **options: Any) -> str:
        """On the host, though not by ssh; what it prints."""
        options = {"stdin": subprocess.DEVNULL, "timeout": PATIENCE_SECONDS, **options}
        done: subprocess.CompletedProcess[str] = subprocess.run(
            self.words(words), env=self.environment(), capture_output=True, text=True, **options
        )
        if check and done.returncode:
            raise RuntimeError(f"{self.name}: {words} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self, words: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:
        """On the host, though not by ssh. When the Popen is killed, so is the program."""
        process = subprocess.Popen(self.words(words), env=self.environment(options.pop("env", {})), **options)
        self._started.append(process)
        return process

    def words(self, words: Sequence[str | Path]) -> list[str]:
        """A command as a command on this machine."""
        enter = ["nsenter", "--target", str(self._first), "--net", "--uts", "--mount"]
        if self._own_processes:
            # nsenter stays as the parent then, and its end must be the child's.
            enter += ["--pid", "setpriv", "--pdeathsig", "KILL"]
        return [*enter, *map(str, words)]

    def environment(self, changes: Mapping[str, str] | None = None) -> dict[str, str]:
        return {**os.environ, "HOME": str(self.home), **(changes or {})}

    def limit(self, rate_megabits: float | None) -> None:
        """Its link's rate in both directions; None is as fast as the machine can."""
        limit(self.namespace, INTERFACE, rate_megabits)
        limit(self.switch, f"port{self.number}", rate_megabits)

    def cut(self) -> None:
        """Pulls its cable at the switch."""
        _ip("-n", self.switch, "link", "set", f"port{self.number}", "down")

    def mend(self) -> None:
        _ip("-n", self.switch, "link", "set", f"port{self.number}", "up")

    def start_sshd(self, extra_config: str = "", prefix_words: Sequence[str] = ()) -> None:
        """Ready for connections, whose commands run behind the prefix: ("prlimit", "--nofile=256").

        Where a key is given twice sshd takes the first: extra_config comes before ours.
        """
        self.stop_sshd()
        # What Debian's service does first.
        Path("/run/sshd").mkdir(exist_ok=True)
        key, config = self.folder / "host_key", self.folder / "sshd_config"
        if not key.exists():
            new_key(key)
        if prefix_words:
            extra_config += f'\nForceCommand {shlex.join(prefix_words)} sh -c "$SSH_ORIGINAL_COMMAND"\n'
        config.write_text(extra_config + SSHD_CONFIG.format(folder=self.folder, address=self.address))
        with self._log.open("ab") as log:
            log.write(b"-- start\n")
            log.flush()
            words = [SSHD, "-D", "-e", "-f", str(config)]
            self._sshd = self.start(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._wait_for_sshd()

    def stop_sshd(self) -> None:
        """The listening one alone: connections go on, as when a real one is stopped."""
        if self._sshd:
            self._sshd.kill()
            self._sshd.wait()
            self._sshd = None
            wait_until(lambda: not self._sshd_listens(), f"sshd of {self.name} goes on")

    def _wait_for_sshd(self) -> None:
        assert self._sshd
        process = self._sshd
        wait_until(lambda: self._sshd_listens() or process.poll() is not None, f"sshd of {self.name} does not listen")
        if process.poll() is not None:
            raise RuntimeError(f"sshd of {self.name}: {self._log.read_text().rpartition('-- start')[2]}")

    def _sshd_listens(self) -> bool:
        """/proc/net/tcp: port 22 is 0016, state 0A is LISTEN."""
        return bool(re.search(r":0016 \S+ 0A ", Path(f"/proc/{self._first}/net/tcp").read_text()))


class Hosts:
    """So many hosts (h0, h1...) and a laptop at one switch, from `with` to its end."""

    def __init__(self, num_hosts: int, folder: Path, rate_megabits: float | None = None) -> None:
        # The process id says whose they are: those of a process that is no more may be removed.
        self.prefix = f"kt{os.getpid()}-{next(_numbers)}"
        self.folder = folder
        self.rate_megabits = rate_megabits
        self.machines = [Machine(self.prefix, f"h{n}", n + 1, folder, own_processes=True) for n in range(num_hosts)]
        # Its processes are ours: a Popen's process id is the program's, which Ctrl-C is for.
        self.laptop = Machine(self.prefix, "laptop", LAPTOP_NUMBER, folder, own_processes=False)
        self.file = self.laptop.home / "cluster.toml"
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Hosts:
        if _reason:
            pytest.skip(_reason)
        remove_leftovers_of_the_dead()
        with contextlib.ExitStack() as stack:
            stack.callback(self._remove)
            self._build()
            stack.enter_context(in_network_of(self.laptop.namespace))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __len__(self) -> int:
        return len(self.machines)

    def __getitem__(self, number: int) -> Machine:
        return self.machines[number]

    def __iter__(self) -> Iterator[Machine]:
        return iter(self.machines)

    def write(self, **changes: Any) -> Path:
        """cluster.toml as it was at first, but for these keys; without any, just as it was."""
        self.cluster = check_cluster({**self._tables(), **changes}, str(self.file))
        write_cluster(self.cluster, self.file)
        return self.file

    def launcher(self, words: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:
        """konvoi WORDS on the laptop, whose process id is that of the Popen."""
        options = {"cwd": self.laptop.home, "stdin": subprocess.DEVNULL, **options}
        return self.laptop.start([sys.executable, "-m", "konvoi", *words], **options)

    def konvoi(
        self, *words: str | Path, check: bool = True, timeout: float = PATIENCE_SECONDS, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Runs konvoi WORDS on the laptop to its end."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.launcher(words, text=True, **{**streams, **options}) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        if check and process.returncode:
            pytest.fail(f"konvoi {' '.join(map(str, words))} ended with {process.returncode}\n{stdout}{stderr}")
        return subprocess.CompletedProcess([*map(str, words)], process.returncode, stdout, stderr)

    def _build(self) -> None:
        add_switch(f"{self.prefix}-switch")
        everyone = [*self.machines, self.laptop]
        lines = "".join(f"{machine.address} {machine.name}\n" for machine in everyone)
        for machine in everyone:
            machine.boot(lines)
            if self.rate_megabits:
                machine.limit(self.rate_megabits)
        for host in self.machines:
            host.start_sshd()
        self._introduce()
        self.write()

    def _introduce(self) -> None:
        """The laptop gets a key that all hosts accept, their host keys, and their names."""
        ssh = self.laptop.home / ".ssh"
        ssh.mkdir(mode=0o700)
        new_key(ssh / "id_ed25519")
        names = "".join(f"Host {host.name}\n    HostName {host.address}\n" for host in self.machines)
        (ssh / "config").write_text(names + SSH_CONFIG.format(ssh=ssh))
        (ssh / "known_hosts").write_text("".join(known_host(host) for host in self.machines))
        for host in self.machines:
            (host.home / ".ssh").mkdir(mode=0o700)
            shutil.copy(ssh / "id_ed25519.pub", host.home / ".ssh" / "authorized_keys")

    def _tables(self) -> dict[str, Any]:
        return {
            "folder": "~/konvoi",
            "home": "~/cache",
            "python": sys.executable,
            "environment": sys.prefix,
            "ssh_config": str(self.laptop.home / ".ssh" / "config"),
            "hosts": [{"name": host.name, "ssh": host.name, "address": host.address} for host in self.machines],
        }

    def _remove(self) -> None:
        remove_namespaces(self.prefix)
        for machine in (*self.machines, self.laptop):
            machine.shut_down()


def new_key(path: Path) -> None:
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path))


def known_host(host: Machine) -> str:
    """Its line of known_hosts."""
    return f"{host.name},{host.address} {(host.folder / 'host_key.pub').read_text()}"


def address_of(number: int) -> str:
    """The same in every set of hosts: their networks do not meet."""
    return f"10.77.0.{number}"


def add_switch(switch: str, has_bridge: bool = True) -> None:
    _ip("netns", "add", switch)
    if has_bridge:
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")


def add_namespace(namespace: str, switch: str, number: int, has_bridge: bool = True) -> None:
    """A network with an address on eth0, wired to a port of the switch."""
    port = f"port{number}"
    _ip("netns", "add", namespace)
    _ip("link", "add", INTERFACE, "netns", namespace, "type", "veth", "peer", "name", port, "netns", switch)
    if has_bridge:
        _ip("-n", switch, "link", "set", port, "master", "bridge")
    _ip("-n", namespace, "address", "add", f"{address_of(number)}/24", "dev", INTERFACE)
    for place, device in ((namespace, "lo"), (namespace, INTERFACE), (switch, port)):
        _ip("-n", place, "link", "set", device, "up")


def limit(namespace: str, device: str, rate_megabits: float | None) -> None:
    """What leaves a device never exceeds a rate; given again, it replaces the former one."""
    if rate_megabits is None:
        _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "noqueue")
        return
    burst_bytes = max(LEAST_BURST_BYTES, int(rate_megabits * 1e6 / 8 * TICK_SECONDS))
    sizes = ["burst", str(burst_bytes), "limit", str(QUEUE_BYTES + burst_bytes)]
    rate = f"{round(rate_megabits * 1e6)}bit"
    _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, *sizes)


@contextlib.contextmanager
def in_network_of(namespace: str) -> Iterator[None]:
    """This thread, and the threads and processes that it starts, are in the namespace's network."""
    # One for the whole life of this process; started by chance in there, it would be ended with the namespace.
    resource_tracker.ensure_running()
    with Path("/proc/thread-self/ns/net").open() as before, (NAMESPACES / namespace).open() as after:
        _enter_network(after.fileno())
        try:
            yield
        finally:
            _enter_network(before.fileno())


def _enter_network(file_number: int) -> None:
    """os.setns, which Python has from 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(file_number, 0):
        raise OSError(ctypes.get_errno(), "setns")


def remove_leftovers_of_the_dead() -> None:
    """What tests that were killed have left; those of others that run are theirs."""
    owners = {match[1] for path in NAMESPACES.glob("kt*-*") if (match := re.match(r"kt(\d+)-", path.name))}
    for owner in owners:
        if not Path(f"/proc/{owner}").exists():
            # Another test run may be doing the same.
            with contextlib.suppress(RuntimeError):
                remove_namespaces(f"kt{owner}")


def remove_namespaces(prefix: str) -> None:
    """Ends every process in the prefix's network namespaces and removes them, whoever made them."""
    for path in sorted(NAMESPACES.glob(f"{prefix}-*")):
        end_all(namespace_process_ids(path.name))
        _ip("netns", "delete", path.name)


def namespace_process_ids(namespace: str) -> list[int]:
    """But for this one, which visits the laptop's network."""
    return [int(word) for word in _run("ip", "netns", "pids", namespace).split() if int(word) != os.getpid()]


def end_all(process_ids: Sequence[int]) -> None:
    """Kills them and waits until they are gone."""
    for process_id in process_ids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)
    give_up_at = time.monotonic() + GRACE_SECONDS
    while any(map(_runs, process_ids)) and time.monotonic() < give_up_at:
        time.sleep(0.01)


def wait_until(is_so: Any, complaint: str = "waited in vain") -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < give_up_at, complaint
        time.sleep(0.02)


def inside(namespace: str) -> list[str]:
    return ["ip", "netns", "exec", namespace]


def _runs(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _program(process_id: int) -> str:
    """Its name; nothing if it has ended."""
    try:
        return Path(f"/proc/{process_id}/comm").read_text().strip() if _runs(process_id) else ""
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _children(process_id: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()]


def _other_users() -> str:
    """sshd has a user of its own for its untrusted half."""
    lines = Path("/etc/passwd").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("root:"))


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> str:
    result = subprocess.run(words, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(words)}: {result.stderr.strip()}")
    return result.stdout


# Where they are required, as in CI, a test that is not run is no success: it runs into the error.
_reason = None if os.environ.get("KONVOI_TEST_HOSTS") == "required" else why_not()
requires_hosts = pytest.mark.skipif(_reason is not None, reason=_reason or "")


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """For tests that leave them as they were."""
    with Hosts(2, tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


@pytest.fixture
def mended(two_hosts: Hosts) -> Iterator[Hosts]:
    """For tests that break something: links, sshds and cluster.toml are afterwards as they were."""
    yield two_hosts
    for host in two_hosts:
        host.mend()
        host.limit(None)
        host.start_sshd()
    two_hosts.write()
