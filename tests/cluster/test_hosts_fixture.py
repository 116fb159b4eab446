"""The hosts of the tests are what they say, and nothing of them stays behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.hosts import (
    NAMESPACES,
    Hosts,
    Machine,
    namespace_process_ids,
    remove_leftovers_of_the_dead,
    requires_hosts,
    wait_until,
)

from konvoi.cluster.hosts import read_cluster
from konvoi.errors import ClusterError

CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 22), timeout=3).close()"


def reaches(machine: Machine, name: str) -> bool:
    try:
        machine.run([sys.executable, "-c", CONNECT, name])
    except RuntimeError:
        return False
    return True


def test_each_host_has_its_own_name_address_home_and_processes(two_hosts: Hosts) -> None:
    for number, host in enumerate(two_hosts):
        assert host.run(["hostname"]) == f"h{number}\n"
        assert f"{host.address}/24" in host.run(["ip", "address", "show", "eth0"])
        assert host.run(["bash", "-c", "echo ~; echo ~root"]) == f"{host.home}\n{host.home}\n"
        assert host.run(["sh", "-c", "ls -d /proc/[0-9]* | wc -l"]).strip() in ("4", "5"), "init, sshd, sh, ls, wc"
    assert [host.address for host in two_hosts] == ["10.77.0.1", "10.77.0.2"]
    assert len({host.run(["cat", host.folder / "host_key.pub"]) for host in two_hosts}) == 2


def test_ssh_from_the_laptop_arrives_as_root_at_home(two_hosts: Hosts) -> None:
    for host in two_hosts:
        said = two_hosts.laptop.run(["ssh", host.name, "hostname; whoami; pwd; echo $SSH_CONNECTION"])
        assert said.split() == [
            host.name,
            "root",
            str(host.home),
            "10.77.0.254",
            *said.split()[4:5],
            host.address,
            "22",
        ]
    assert two_hosts.laptop.run(["hostname"]) == "laptop\n"


def test_this_process_reaches_the_hosts_as_the_laptop_does(two_hosts: Hosts) -> None:
    words = ["ssh", "-F", two_hosts.cluster.ssh_config or "", "h1", "hostname"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "h1\n"


def test_hosts_reach_each_other_by_name(two_hosts: Hosts) -> None:
    assert reaches(two_hosts[0], "h1") and reaches(two_hosts[1], "h0")


def test_what_a_name_means_on_a_host_can_be_changed(two_hosts: Hosts) -> None:
    first, second = two_hosts
    before = first.hosts_file.read_text()
    first.hosts_file.write_text("127.0.1.1 h0\n" + before)
    assert first.run(["getent", "ahostsv4", "h0"]).split()[0] == "127.0.1.1"
    assert second.run(["getent", "ahostsv4", "h0"]).split()[0] == "10.77.0.1"
    first.hosts_file.write_text(before)
    assert first.run(["getent", "ahostsv4", "h0"]).split()[0] == "10.77.0.1"


def test_the_cluster_file_holds_the_hosts_and_changes_when_asked(two_hosts: Hosts) -> None:
    assert read_cluster(two_hosts.file) == two_hosts.cluster
    assert [(host.name, host.address) for host in two_hosts.cluster.hosts] == [("h0", "10.77.0.1"), ("h1", "10.77.0.2")]
    assert (two_hosts.cluster.folder, two_hosts.cluster.data_home) == ("~/konvoi", "~/cache")
    assert two_hosts.write(folder="~/else where") == two_hosts.file
    assert read_cluster(two_hosts.file).folder == two_hosts.cluster.folder == "~/else where"
    with pytest.raises(ClusterError):
        two_hosts.write(ports="no port")
    two_hosts.write()
    assert read_cluster(two_hosts.file).folder == "~/konvoi"


def test_konvoi_runs_on_the_laptop_and_on_every_host(two_hosts: Hosts) -> None:
    two_hosts.konvoi("--help")
    with pytest.raises(pytest.fail.Exception, match="ended with 2"):
        two_hosts.konvoi("no-such-command")
    assert two_hosts.konvoi("no-such-command", check=False).returncode == 2
    assert (
        two_hosts.laptop.run(["ssh", "h0", f"{two_hosts.cluster.venv}/bin/python -c 'import konvoi; print(1)'"])
        == "1\n"
    )


def test_the_launcher_s_process_is_the_program_itself(two_hosts: Hosts) -> None:
    # Ctrl-C is for one process, not for a wrapper around it.
    process = two_hosts.laptop.start(
        [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(1000)"], stdout=-1
    )
    assert process.stdout and process.stdout.readline() == b"1\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
    process.stdout.close()
    assert two_hosts.laptop.process_ids() == []


def test_processes_of_a_host_are_counted_and_end_with_their_popen(two_hosts: Hosts) -> None:
    first, second = two_hosts
    assert first.process_ids() == []
    process = first.start(["sleep", "1000"])
    wait_until(lambda: len(first.process_ids()) == 1)
    assert second.process_ids() == []
    assert first.run(["pgrep", "-c", "-f", "^sleep 1000$"]) == "1\n"
    process.kill()
    process.wait()
    wait_until(lambda: first.process_ids() == [])


def test_an_orphan_that_ends_leaves_no_zombie(two_hosts: Hosts) -> None:
    two_hosts[0].run(["sh", "-c", "(sleep 0.1 &)"])
    wait_until(lambda: two_hosts[0].run(["ps", "-e", "-o", "comm="]).split().count("sleep") == 1)


def test_a_link_has_the_rate_that_was_asked_for_in_both_directions(two_hosts: Hosts) -> None:
    host = two_hosts[0]
    host.limit(50)
    ends = [(host.namespace, "eth0"), (host.switch, "port1")]
    for namespace, device in ends:
        shown = subprocess.run(["tc", "-n", namespace, "qdisc", "show", "dev", device], capture_output=True, text=True)
        assert "tbf" in shown.stdout and "rate 50Mbit" in shown.stdout
    host.limit(None)
    for namespace, device in ends:
        shown = subprocess.run(["tc", "-n", namespace, "qdisc", "show", "dev", device], capture_output=True, text=True)
        assert "tbf" not in shown.stdout


def test_a_cut_link_reaches_nobody_until_it_is_mended(two_hosts: Hosts) -> None:
    two_hosts[0].cut()
    assert not reaches(two_hosts[1], "h0") and not reaches(two_hosts[0], "h1")
    two_hosts[0].mend()
    assert reaches(two_hosts[1], "h0") and reaches(two_hosts[0], "h1")


def test_sshd_stops_and_starts(mended: Hosts) -> None:
    mended[0].stop_sshd()
    assert not reaches(mended[1], "h0")
    mended[0].start_sshd()
    assert reaches(mended[1], "h0")


def test_sshd_takes_further_settings_and_its_commands_a_prefix(mended: Hosts) -> None:
    mended[0].start_sshd(extra_config="SetEnv COLOUR=blue\n", prefix_words=("prlimit", "--nofile=256"))
    assert mended.laptop.run(["ssh", "h0", "ulimit -n; echo $COLOUR 'a  b'"]) == "256\nblue a  b\n"
    with pytest.raises(RuntimeError, match="NoSuchSetting"):
        mended[0].start_sshd(extra_config="NoSuchSetting yes\n")


@pytest.mark.skipif(not shutil.which("faketime"), reason="needs faketime (Debian: faketime)")
def test_the_clock_of_a_host_can_be_wrong(mended: Hosts) -> None:
    mended[0].start_sshd(prefix_words=("faketime", "-f", "+1000s"))
    there = float(mended.laptop.run(["ssh", "h0", "python3 -c 'import time; print(time.time())'"]))
    assert there - time.time() > 1000 - 120


@requires_hosts
def test_nothing_stays_behind_and_nothing_shows_among_the_machine_s_interfaces(tmp_path: Path) -> None:
    interfaces = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True).stdout
    with subprocess.Popen(["sleep", "1000"]) as outside:
        with pytest.raises(ZeroDivisionError), Hosts(1, tmp_path, rate_megabits=100) as hosts:
            words = ["nsenter", "--target", str(outside.pid), "--net", "ip", "-o", "link"]
            assert subprocess.run(words, capture_output=True, text=True).stdout == interfaces
            hosts[0].start(["sh", "-c", "trap '' TERM; sleep 1000"])
            wait_until(lambda: len(hosts[0].process_ids()) == 2)
            process_ids = namespace_process_ids(hosts[0].namespace)
            raise ZeroDivisionError
        outside.kill()
    assert subprocess.run(["ip", "-o", "link"], capture_output=True, text=True).stdout == interfaces
    assert not list(NAMESPACES.glob(f"{hosts.prefix}*"))
    assert len(process_ids) >= 4
    wait_until(lambda: not any(Path(f"/proc/{process_id}").exists() for process_id in process_ids))
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


@requires_hosts
def test_what_multiprocessing_keeps_for_later_tests_outlives_the_hosts(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from konvoi.parallel import ordered_map
from tests.hosts import Hosts
if __name__ == "__main__":
    for name in ("one", "other"):
        with Hosts(1, Path(sys.argv[1]) / name):
            assert list(ordered_map(abs, [-1, -2, -3], 2)) == [1, 2, 3]
"""
    words = [sys.executable, "-W", "error", "-c", program, str(tmp_path)]
    result = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@requires_hosts
def test_hosts_that_cannot_be_made_are_removed(tmp_path: Path) -> None:
    (tmp_path / "laptop").write_text("in the way of a folder")
    hosts = Hosts(1, tmp_path)
    with pytest.raises(NotADirectoryError), hosts:
        pass
    assert not list(NAMESPACES.glob(f"{hosts.prefix}*"))


@requires_hosts
def test_what_a_killed_test_left_is_removed_by_the_next(tmp_path: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from tests.hosts import Hosts
with Hosts(1, Path(sys.argv[1])) as hosts:
    print(hosts.prefix, flush=True)
    time.sleep(1000)
"""
    root = Path(__file__).parents[2]
    words = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        prefix = process.stdout.readline().strip()
        remove_leftovers_of_the_dead()
        namespaces = {f"{prefix}-{name}" for name in ("h0", "laptop", "switch")}
        assert {path.name for path in NAMESPACES.glob(f"{prefix}-*")} == namespaces, "it lives, so they are its own"
        process.kill()
    # The processes end at once, even if nobody comes after.
    wait_until(lambda: not any(map(namespace_process_ids, namespaces)))
    remove_leftovers_of_the_dead()
    assert not list(NAMESPACES.glob(f"{prefix}-*"))


def test_where_hosts_cannot_be_made_their_tests_are_skipped_unless_required(tmp_path: Path) -> None:
    program = "from tests.hosts import why_not, requires_hosts; print(requires_hosts.args[0], why_not())"
    root = Path(__file__).parents[2]
    for required, is_skipped in (("", "True"), ("required", "False")):
        variables = {**os.environ, "PATH": str(tmp_path), "KONVOI_TEST_HOSTS": required}
        words = [sys.executable, "-c", program]
        said = subprocess.run(words, cwd=root, env=variables, capture_output=True, text=True, check=True).stdout
        assert said.startswith(f"{is_skipped} hosts need ip, tc, ")
