"""Faults put into real hosts, and caught by the survey and the checks as `konvoi cluster check --quick` makes them.

What cannot be real here: there is no GPU, so a script speaks for nvidia-smi; an old Python is a script that says so;
an environment with other versions is one whose packages say so, without their code.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hosts import Hosts, Machine, wait_until

from konvoi.cluster.checks import Finding
from konvoi.cluster.facts import own_environment
from konvoi.cluster.far import machine
from konvoi.cluster.survey import survey
from konvoi.commands.cluster_check import judge

# The other checks are about what is between the hosts.
TITLES = (
    "ssh",
    "Python",
    "Konvoi and torch",
    "GPUs",
    "driver and NCCL",
    "name and address",
    "disk",
    "memory",
    "limits",
    "leftovers",
    "folders",
    "shared folder",
    "system",
)
# What may really be so where the tests run: little room, and somebody who edits the code meanwhile.
SO_HERE = ("disk-low", "memory-low", "code-differs", "code-differs-from-here")
NVIDIA_SMI = """#!/bin/sh
test "$*" = "--query-gpu=name,driver_version,memory.total,memory.used --format=csv,noheader,nounits" || exit 6
{answer}
"""
# What a process does that says its id and then stays.
STAY = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
LISTEN = "import socket; listener = socket.create_server(('127.0.0.1', {port})); "
CONNECT = "own = socket.create_connection(('127.0.0.1', {port}), source_address=('127.0.0.1', {own_port})); "


def findings(hosts: Hosts) -> list[Finding]:
    return [finding for title, finding in judge(survey(hosts.cluster, quick=True)) if title in TITLES]


def problems(hosts: Hosts) -> dict[tuple[str, str, str], Finding]:
    """By host, level and kind."""
    found = [finding for finding in findings(hosts) if finding.level != "ok" and finding.kind not in SO_HERE]
    return {(finding.host, finding.level, finding.kind): finding for finding in found}


@pytest.fixture(scope="module")
def plain(two_hosts: Hosts) -> Hosts:
    """~/bin comes first on the hosts' PATH."""
    for host in two_hosts:
        (host.home / "bin").mkdir()
        host.start_sshd(login(host))
    return two_hosts


@pytest.fixture
def hosts(plain: Hosts) -> Iterator[Hosts]:
    """Afterwards they are as they were, but for sshd and mounts, which a test mends itself."""
    texts = {host: host.hosts_file.read_text() for host in plain}
    yield plain
    plain.write()
    for host, text in texts.items():
        host.hosts_file.write_text(text)
        host.run(["hostname", host.name])
        for file in (host.home / "bin").iterdir():
            file.unlink()


def login(host: Machine) -> str:
    return f"SetEnv PATH={host.home}/bin:{os.environ['PATH']}\n"


@contextlib.contextmanager
def sshd_under(host: Machine, *words: str) -> Iterator[None]:
    host.start_sshd(login(host), prefix_words=words)
    try:
        yield
    finally:
        host.start_sshd(login(host))


@contextlib.contextmanager
def mounted(host: Machine, place: Path, *words: str) -> Iterator[None]:
    place.mkdir(exist_ok=True)
    host.run(["mount", *words, place])
    try:
        yield
    finally:
        host.run(["umount", place])


@contextlib.contextmanager
def process(host: Machine, *words: str, **environment: str) -> Iterator[int]:
    """Its id on the host."""
    with host.start([sys.executable, "-c", *words], stdout=subprocess.PIPE, env=environment) as started:
        try:
            assert started.stdout
            yield int(started.stdout.readline())
        finally:
            started.kill()
            wait_until(lambda: not host.process_ids())


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def with_gpus(host: Machine, *lines: str) -> None:
    write_program(host.home / "bin" / "nvidia-smi", NVIDIA_SMI.format(answer="\n".join(f"echo '{x}'" for x in lines)))


def make_environment(folder: Path, without: str = "", **versions: str) -> None:
    """Like ours by what its packages say, but for these."""
    own = own_environment()
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (folder / "bin").mkdir(parents=True)
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "bin" / "python").symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    for name, version in {**own.packages, **versions}.items():
        if name != without:
            info = packages / f"{name}-{version}.dist-info"
            info.mkdir(parents=True)
            needs = "".join(f"Requires-Dist: {need}\n" for need in own.requires) if name == "konvoi" else ""
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}\n")


def hosts_with(hosts: Hosts, **changes: Any) -> list[dict[str, Any]]:
    """[[hosts]] with h1 changed."""
    tables = [{"name": host.name, "ssh": host.name, "address": host.address} for host in hosts]
    return [tables[0], {**tables[1], **changes}]


def test_hosts_with_which_all_is_well_have_no_problems(hosts: Hosts) -> None:
    assert not problems(hosts)
    assert {finding.host for finding in findings(hosts)} == {"", "h0", "h1"}


def test_the_command_names_host_problem_and_remedy(hosts: Hosts) -> None:
    hosts.write(environment="~/environment")
    done = hosts.konvoi("cluster", "check", "--quick", "--json", "--cluster", hosts.file, check=False)
    found = [each for each in json.loads(done.stdout)["findings"] if each["kind"] == "no-environment"]
    assert done.returncode == 2
    assert [each["host"] for each in found] == ["h0", "h1"]
    assert found[1]["found"] == f"no environment in {hosts[1].home}/environment"
    assert found[1]["check"] == "Konvoi and torch"
    assert found[1]["fix"]


@pytest.mark.parametrize(
    ("versions", "without", "level", "kind"),
    [
        ({"konvoi": "0.0.1"}, "", "error", "konvoi-differs"),
        ({"torch": "2.1.0"}, "", "error", "torch-differs"),
        ({"pydantic": "2.0"}, "", "warning", "packages-differ"),
        ({}, "torch", "error", "no-torch"),
        ({}, "konvoi", "error", "no-konvoi"),
        ({}, "pydantic", "error", "package-missing"),
    ],
)
def test_an_environment_unlike_the_others_is_found(
    hosts: Hosts, versions: dict[str, str], without: str, level: str, kind: str
) -> None:
    folder = f"environment of {kind}"
    (hosts[0].home / folder).symlink_to(sys.prefix)
    make_environment(hosts[1].home / folder, without, **versions)
    hosts.write(environment=f"~/{folder}")
    assert list(problems(hosts)) == [("h1", level, kind)]


def test_an_environment_that_is_missing_broken_or_old_is_found(hosts: Hosts) -> None:
    missing, broken, old = (hosts[1].home / name for name in ("missing", "broken", "old"))
    for folder in (missing, broken, old):
        (hosts[0].home / folder.name).symlink_to(sys.prefix)
    (broken / "bin").mkdir(parents=True)
    (broken / "bin" / "python").symlink_to("/usr/bin/python-that-was-removed")
    (old / "bin").mkdir(parents=True)
    answer = json.dumps({"python": "3.9.2", "path": [], "konvoi": None})
    write_program(old / "bin" / "python", f"#!/bin/sh\necho '{answer}'\n")
    hosts.write(environment="~/missing")
    assert list(problems(hosts)) == [("h1", "error", "no-environment")]
    hosts.write(environment="~/broken")
    (found,) = problems(hosts).items()
    assert found[0] == ("h1", "error", "python-broken")
    assert "No such file" in found[1].found
    hosts.write(environment="~/old")
    assert ("h1", "error", "python-too-old") in problems(hosts)


def test_code_of_the_same_version_that_differs_is_found(hosts: Hosts) -> None:
    (hosts[0].home / "code").symlink_to(sys.prefix)
    make_environment(hosts[1].home / "code")
    (site_packages,) = (hosts[1].home / "code" / "lib").glob("*/site-packages")
    (site_packages / "konvoi").mkdir()
    (site_packages / "konvoi" / "__init__.py").write_text("# changed by hand\n")
    hosts.write(environment="~/code")
    found = [finding for finding in findings(hosts) if finding.kind == "code-differs"]
    assert [(finding.host, finding.level) for finding in found] == [("h1", "warning")]


def test_gpus_that_are_too_few_unlike_or_busy_are_found(hosts: Hosts) -> None:
    with_gpus(hosts[0], *["NVIDIA A10G, 550.90, 23028, 3"] * 2)
    with_gpus(hosts[1], "NVIDIA L4, 535.10, 23034, 20000")
    hosts.write(hosts=hosts_with(hosts, workers=2, gpus=2))
    assert set(problems(hosts)) == {
        ("h1", "error", "gpu-count"),
        ("h1", "error", "gpu-too-few"),
        ("h1", "warning", "gpu-differs"),
        ("h1", "warning", "driver-differs"),
        ("h1", "warning", "gpu-busy"),
        # the torch that runs the tests
        ("h0", "warning", "torch-without-gpu"),
        ("h1", "warning", "torch-without-gpu"),
    }


def test_a_driver_that_fails_is_quoted(hosts: Hosts) -> None:
    complaint = "Failed to initialize NVML: Driver/library version mismatch"
    write_program(hosts[1].home / "bin" / "nvidia-smi", f"#!/bin/sh\necho '{complaint}'\nexit 18\n")
    found = problems(hosts)
    assert list(found) == [("h1", "error", "gpu-driver-fails")]
    assert found["h1", "error", "gpu-driver-fails"].found == complaint


def test_a_gpu_on_one_host_only_is_found(hosts: Hosts) -> None:
    with_gpus(hosts[0], "NVIDIA A10G, 550.90, 23028, 3")
    assert ("h1", "error", "gpu-on-some") in problems(hosts)


def test_a_name_that_resolves_to_loopback_is_found(hosts: Hosts) -> None:
    hosts[1].hosts_file.write_text("127.0.0.1 localhost\n127.0.1.1 h1\n")
    found = problems(hosts)
    assert list(found) == [("h1", "warning", "name-is-loopback")]
    assert found["h1", "warning", "name-is-loopback"].found == "its name h1 resolves to 127.0.1.1"


def test_two_hosts_that_call_themselves_alike_are_found(hosts: Hosts) -> None:
    hosts[1].run(["hostname", "h0"])
    assert list(problems(hosts)) == [("h1", "warning", "name-twice")]


def test_an_address_that_is_not_the_hosts_own_is_found(hosts: Hosts) -> None:
    hosts.write(hosts=hosts_with(hosts, address="10.77.0.99"))
    found = problems(hosts)
    assert list(found) == [("h1", "error", "address-not-here")]
    assert f"{hosts[1].address} (eth0)" in found["h1", "error", "address-not-here"].fix


def test_a_second_address_of_an_interface_is_the_hosts_own(hosts: Hosts) -> None:
    hosts[1].run(["ip", "address", "add", "10.77.0.99/24", "dev", "eth0"])
    hosts.write(hosts=hosts_with(hosts, address="10.77.0.99"))
    assert not problems(hosts)
    hosts[1].run(["ip", "address", "delete", "10.77.0.99/24", "dev", "eth0"])


def test_an_address_by_name_that_leads_to_loopback_is_found(hosts: Hosts) -> None:
    hosts[1].hosts_file.write_text(f"127.0.0.1 localhost training-net\n{hosts[1].address} h1\n")
    hosts.write(hosts=hosts_with(hosts, address="training-net"))
    assert list(problems(hosts)) == [("h1", "error", "address-is-loopback")]


def test_an_interface_that_is_not_there_is_found(hosts: Hosts) -> None:
    hosts.write(hosts=hosts_with(hosts, interface="ib0"))
    found = problems(hosts)
    assert list(found) == [("h1", "error", "interface-missing")]
    assert "eth0" in found["h1", "error", "interface-missing"].fix


def test_a_full_disk_is_found_and_nothing_is_left_on_it(hosts: Hosts) -> None:
    folder = hosts[1].home / "konvoi"
    with mounted(hosts[1], folder, "-t", "tmpfs", "-o", "size=1m", "none"):
        assert list(problems(hosts)) == [("h1", "error", "disk-full")]
        assert hosts[1].run(["ls", "-A", folder]) == ""
        hosts[1].run(["sh", "-c", 'head -c 2m /dev/zero > "$1"/filled || true', "sh", folder])
        assert list(problems(hosts)) == [("h1", "error", "disk-full"), ("h1", "error", "folder-not-writable")]


def test_a_disk_that_takes_no_more_files_is_found(hosts: Hosts) -> None:
    with mounted(hosts[1], hosts[1].home / "cache", "-t", "tmpfs", "-o", "size=8g,nr_inodes=100", "none"):
        assert list(problems(hosts)) == [("h1", "warning", "files-low")]


def test_a_folder_that_cannot_be_written_is_found(hosts: Hosts) -> None:
    for name, level, kind in (
        ("konvoi", "error", "folder-not-writable"),
        ("cache", "warning", "home-not-writable"),
    ):
        with mounted(hosts[1], hosts[1].home / name, "-t", "tmpfs", "-o", "size=8g,ro", "none"):
            found = problems(hosts)
            assert list(found) == [("h1", level, kind)]
            assert "Read-only file system" in found["h1", level, kind].found


def test_low_limits_are_found(hosts: Hosts) -> None:
    with sshd_under(hosts[1], "prlimit", "--nofile=128:128", "--nproc=200:200"):
        assert set(problems(hosts)) == {("h1", "error", "open-files"), ("h1", "warning", "processes")}


def test_a_small_shared_memory_is_found(hosts: Hosts) -> None:
    with mounted(hosts[1], Path("/dev/shm"), "-t", "tmpfs", "-o", "size=64m", "none"):
        assert list(problems(hosts)) == [("h1", "warning", "shared-memory")]


def test_more_workers_than_memory_and_cores_are_found(hosts: Hosts) -> None:
    hosts.write(hosts=hosts_with(hosts, workers=10_000))
    assert {("h1", "error", "memory-out"), ("h1", "warning", "cores-too-few")} <= set(problems(hosts))


def test_an_earlier_run_is_found_with_its_processes(hosts: Hosts) -> None:
    run = str(hosts[1].home / "konvoi" / "runs" / "left behind")
    with process(hosts[1], STAY, "-m", "konvoi", "node", run) as agent_id:
        found = problems(hosts)
        assert list(found) == [("h1", "warning", "run-going-on")]
        finding = found["h1", "warning", "run-going-on"]
        assert run in finding.found
        assert finding.fix.endswith(f"there: kill {agent_id}")
    assert not problems(hosts)


def test_a_worker_whose_agent_is_gone_is_found_by_the_trainings_id(hosts: Hosts) -> None:
    with process(hosts[1], STAY, KONVOI_JOB="0f3a") as worker_id:
        found = problems(hosts)
        assert list(found) == [("h1", "warning", "run-going-on")]
        assert f"processes {worker_id}" in found["h1", "warning", "run-going-on"].found


def test_who_listens_on_a_training_port_is_found(hosts: Hosts) -> None:
    with process(hosts[1], LISTEN.format(port=29400) + STAY) as listener_id:
        found = problems(hosts)
        assert list(found) == [("h1", "warning", "port-taken")]
        words = found["h1", "warning", "port-taken"].found
        assert words.startswith(f"port 29400 is taken on 127.0.0.1 (process {listener_id}: {sys.executable} -c")


def test_a_listener_beyond_the_range_and_a_connection_within_it_take_no_port(hosts: Hosts) -> None:
    with process(hosts[1], LISTEN.format(port=29500) + CONNECT.format(port=29500, own_port=29400) + STAY):
        assert not problems(hosts)


def test_a_shared_folder_that_is_not_mounted_or_another_one_is_found(hosts: Hosts, tmp_path: Path) -> None:
    target = tmp_path / "shared folder"
    source = tmp_path / "source"
    source.mkdir()
    hosts.write(shared={"source": str(source), "target": str(target), "type": "none", "options": "bind"})
    with mounted(hosts[0], target, "--bind", str(source)):
        assert list(problems(hosts)) == [("h1", "error", "shared-not-mounted")]
        with mounted(hosts[1], target, "--bind", str(source)):
            assert not problems(hosts)
        other = tmp_path / "other"
        other.mkdir()
        with mounted(hosts[1], target, "--bind", str(other)):
            assert list(problems(hosts)) == [("h1", "error", "shared-differs")]


def test_another_architecture_is_found(hosts: Hosts) -> None:
    other = "i686" if os.uname().machine == "x86_64" else "linux32"
    with sshd_under(hosts[1], "setarch", other):
        assert list(problems(hosts)) == [("h1", "warning", "architecture-differs")]


def test_a_host_whose_sshd_is_down_and_one_that_refuses_our_key_are_found(hosts: Hosts) -> None:
    keys = hosts[1].home / ".ssh" / "authorized_keys"
    keys.rename(keys.with_name("removed"))
    hosts[0].stop_sshd()
    try:
        assert set(problems(hosts)) == {("h0", "error", "ssh-refused"), ("h1", "error", "key-refused")}
    finally:
        keys.with_name("removed").rename(keys)
        hosts[0].start_sshd(login(hosts[0]))


def test_a_host_key_that_is_unknown_and_one_that_has_changed_are_found(hosts: Hosts) -> None:
    known = hosts.laptop.home / ".ssh" / "known_hosts"
    before = known.read_text()
    # the key of h0 under the name of h1, and none for h0
    known.write_text(f"{hosts[1].name},{hosts[1].address} {(hosts[0].folder / 'host_key.pub').read_text()}")
    try:
        assert set(problems(hosts)) == {("h0", "error", "host-key-unknown"), ("h1", "error", "host-key-changed")}
    finally:
        known.write_text(before)


def test_a_host_without_the_python_that_is_named_is_found(hosts: Hosts) -> None:
    (hosts[0].home / "bin" / "python-of-ours").symlink_to(sys.executable)
    hosts.write(python="python-of-ours")
    assert list(problems(hosts)) == [("h1", "error", "no-python")]


def test_a_control_groups_limit_counts_as_the_memory_there_is() -> None:
    """In this process's own surroundings: the hosts see no control groups."""
    root = Path("/sys/fs/cgroup/memory") if Path("/sys/fs/cgroup/memory").is_dir() else Path("/sys/fs/cgroup")
    file = "memory.limit_in_bytes" if root.name == "memory" else "memory.max"
    group = root / f"konvoi-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        if not (group / file).exists():
            pytest.skip("control groups do not limit memory here")
        (group / file).write_text(str(600 * 2**20))
        program = f"import json, runpy; print(json.dumps(runpy.run_path({machine.__file__!r})['_memory']()))"
        words = ["sh", "-c", 'echo $$ > "$1"/cgroup.procs && exec "$2" -c "$3"', "sh", group, sys.executable, program]
        seen = json.loads(subprocess.run(words, capture_output=True, check=True, timeout=60).stdout)
    finally:
        group.rmdir()
    assert seen["memory_total_bytes"] == 600 * 2**20
    assert 500 * 2**20 < seen["memory_available_bytes"] < 600 * 2**20
