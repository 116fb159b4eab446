"""Conversations with real hosts over the system's ssh, and what is said when there can be none."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hosts import PATIENCE_SECONDS, Hosts, Machine, wait_until

from konvoi.cluster import session as session_module
from konvoi.cluster.hosts import Cluster
from konvoi.cluster.session import FAR_END, FarError, Session, on_all
from konvoi.cluster.ssh import explain, remote, ssh_words
from konvoi.errors import ClusterError, HostError

# What the tests ask for: far/sample.py.
SAMPLE = """
from __future__ import annotations
import os, pathlib, signal, subprocess, sys, time

def echo(value):
    return value

def where():
    return [os.uname().nodename, os.path.expanduser("~")]

def reverse(payload):
    return payload[::-1]

def count(to):
    yield from range(to)

def one_then_wait_for(path):
    yield 1
    while not os.path.exists(path):
        time.sleep(0.02)
    yield 2

def halves(payload):
    yield payload[: len(payload) // 2]
    yield payload[len(payload) // 2 :]

def fail():
    raise ValueError("there is no such thing")

def fail_after(count):
    yield from range(count)
    raise BrokenPipeError("of its own")

def not_json():
    return {1, 2}

def chatter():
    print("rubbish")
    sys.stdout.flush()
    os.system("echo more of it; echo ssh: connect to host x port 22: Connection refused >&2")
    return "result"

def rest(seconds):
    time.sleep(seconds)

def family(clean_path):
    child = subprocess.Popen(["sh", "-c", "trap '' INT; exec sleep 1000"])
    try:
        yield child.pid
        time.sleep(1000)
    finally:
        pathlib.Path(clean_path).touch()

def stubborn():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield "deaf"
    time.sleep(1000)

def outlives():
    return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid

def write(path, payload):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pathlib.Path(path).write_bytes(payload)
"""


@pytest.fixture(autouse=True)
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "far"
    folder.mkdir()
    (folder / "sample.py").write_text(SAMPLE)
    monkeypatch.setattr(session_module, "FAR", folder)


@pytest.fixture
def host(two_hosts: Hosts) -> Machine:
    return two_hosts[0]


def talk(hosts: Hosts, **changes: str) -> Session:
    """With h0; changes are those of its entry in cluster.toml."""
    cluster = hosts.cluster
    entry = cluster.hosts[0].model_copy(update=changes)
    return Session(cluster, entry)


def failure(hosts: Hosts, **changes: str) -> HostError:
    """Of a session with h0 that cannot begin."""
    with pytest.raises(HostError) as caught:
        talk(hosts, **changes)
    assert caught.value.host == "h0"
    assert caught.value.problem.startswith("h0: ")
    return caught.value


@contextlib.contextmanager
def changed(path: Path, text: str) -> Iterator[None]:
    """For a while the file has another content."""
    before = path.read_bytes() if path.exists() else None
    path.write_text(text)
    try:
        yield
    finally:
        path.unlink() if before is None else path.write_bytes(before)


def ssh_file(hosts: Hosts, name: str) -> Path:
    return hosts.laptop.home / ".ssh" / name


# ---- asking


def test_a_function_runs_on_the_host(two_hosts: Hosts) -> None:
    for number, host in enumerate(two_hosts):
        with Session(two_hosts.cluster, two_hosts.cluster.hosts[number]) as session:
            assert session.ask("sample.where") == [f"h{number}", str(host.home)]


def test_values_arrive_as_they_were_sent(two_hosts: Hosts) -> None:
    values = [None, True, 3, 0.1, "Grüße; rm -rf ~ '\"$(id)`\n", [1, [2]], {"a b": {"c": None}}]
    with talk(two_hosts) as session:
        assert [session.ask("sample.echo", value=value) for value in values] == values


def test_bytes_travel_both_ways(two_hosts: Hosts) -> None:
    content = os.urandom(3_000_000) + b'\n{"result": 1}\n'
    with talk(two_hosts) as session:
        assert session.ask("sample.reverse", payload=content) == content[::-1]
        assert session.ask("sample.reverse", payload=b"") == b""
        assert b"".join(session.stream("sample.halves", payload=content)) == content


def test_a_stream_yields_each_value_when_it_comes(two_hosts: Hosts, tmp_path: Path) -> None:
    sign = tmp_path / "go on"
    with talk(two_hosts) as session:
        assert list(session.stream("sample.count", to=3)) == [0, 1, 2]
        assert list(session.stream("sample.count", to=0)) == []
        values = session.stream("sample.one_then_wait_for", path=str(sign))
        # The second comes only after we have the first.
        assert next(values) == 1
        sign.touch()
        assert list(values) == [2]


def test_a_session_whose_stream_was_left_is_not_used_again(two_hosts: Hosts) -> None:
    with talk(two_hosts) as session:
        assert next(session.stream("sample.count", to=1000)) == 0
        with pytest.raises(AssertionError, match="left before its end"):
            session.ask("sample.echo", value=1)


def test_an_exception_there_is_told_and_the_session_goes_on(two_hosts: Hosts) -> None:
    with talk(two_hosts) as session:
        with pytest.raises(FarError, match="h0: ValueError: there is no such thing") as caught:
            session.ask("sample.fail")
        assert (caught.value.kind, caught.value.text) == ("ValueError", "there is no such thing")
        with pytest.raises(FarError, match="TypeError"):
            session.ask("sample.not_json")
        with pytest.raises(FarError, match="AttributeError"):
            session.ask("sample.unheard_of")
        values = session.stream("sample.fail_after", count=2)
        assert [next(values), next(values)] == [0, 1]
        with pytest.raises(FarError, match="BrokenPipeError: of its own"):
            next(values)
        assert session.ask("sample.echo", value="still here") == "still here"


def test_what_a_function_prints_does_not_get_between_the_answers(two_hosts: Hosts) -> None:
    with talk(two_hosts) as session:
        assert session.ask("sample.chatter") == "result"


def test_what_a_login_script_prints_does_no_harm(mended: Hosts, host: Machine) -> None:
    rubbish = "echo 'Welcome!'; echo '{\"result\": 1}'; echo konvoi; echo 'Connection refused' >&2"
    with changed(host.home / ".bashrc", rubbish):
        assert "Welcome!" in mended.laptop.run(["ssh", "h0", "true"])
        with talk(mended) as session:
            assert session.ask("sample.echo", value=1) == 1
        mended.write(python="/no/python")
        assert "no such program" in failure(mended).problem


# ---- nothing becomes a command


def test_a_python_with_spaces_and_quotes_in_its_path_is_found(mended: Hosts, host: Machine) -> None:
    folder = host.home / 'it\'s my; touch hurt $(touch hurt) "python"'
    folder.mkdir()
    (folder / "python3").symlink_to(sys.executable)
    # ~ is the home of the host, which the laptop does not know.
    for path in (f"{folder}/python3", f"~/{folder.name}/python3"):
        mended.write(python=path)
        with talk(mended) as session:
            assert session.ask("sample.where") == ["h0", str(host.home)]
    assert not (host.home / "hurt").exists()


@pytest.mark.parametrize("name", ["h0;touch${IFS}hurt", "h0$(touch${IFS}hurt)", "`touch${IFS}hurt`@h0", "'h0"])
def test_a_strange_name_is_no_command_anywhere(two_hosts: Hosts, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(two_hosts.laptop.home)
    cluster = two_hosts.cluster
    # Past the check of cluster.toml, should that miss something.
    entry = cluster.hosts[0].model_copy(update={"ssh": name})
    with pytest.raises(HostError):
        Session(cluster, entry)
    assert not list(two_hosts.folder.rglob("hurt"))


def test_an_option_is_not_taken_for_a_host(two_hosts: Hosts) -> None:
    words = ssh_words(two_hosts.cluster, two_hosts.cluster.hosts[0].model_copy(update={"ssh": "-oProxyCommand=id"}))
    assert words[-2:] == ["--", "-oProxyCommand=id"]
    with pytest.raises(ClusterError, match=r"hosts\[0\]\.ssh"):
        two_hosts.write(hosts=[{"name": "h0", "ssh": "-oProxyCommand=id", "address": "10.77.0.1"}])


def test_remote_words_stay_words(host: Machine) -> None:
    words = ["printf", "%s\n", "a b", "it's", '"x"', "$HOME", "; id", "~", "*", ""]
    assert host.run(["bash", "-c", remote(words)]) == "".join(f"{word}\n" for word in words[2:])


# ---- the end


def test_the_end_of_a_session_ends_all_that_it_ran(two_hosts: Hosts, host: Machine, tmp_path: Path) -> None:
    clean = tmp_path / "clean"
    with talk(two_hosts) as session:
        assert next(session.stream("sample.family", clean_path=str(clean))) > 1
        # The far end, and its child, which does not listen to Ctrl-C.
        assert len(host.process_ids()) == 2
    wait_until(lambda: not host.process_ids())
    assert clean.exists(), "as after Ctrl-C, a function may tidy up"


def test_what_does_not_want_to_end_is_made_to(two_hosts: Hosts, host: Machine) -> None:
    with talk(two_hosts) as session:
        assert next(session.stream("sample.stubborn")) == "deaf"
    wait_until(lambda: not host.process_ids())


def test_what_is_to_outlive_the_session_does(two_hosts: Hosts, host: Machine) -> None:
    with talk(two_hosts) as session:
        process_id = session.ask("sample.outlives")
    wait_until(lambda: len(host.process_ids()) == 1)
    host.run(["kill", str(process_id)])
    wait_until(lambda: not host.process_ids())


def test_the_death_of_the_laptop_s_process_ends_what_it_asked_for(two_hosts: Hosts, host: Machine) -> None:
    program = f"""
from pathlib import Path
from konvoi.cluster import session
from konvoi.cluster.hosts import read_cluster
session.FAR = Path({str(session_module.FAR)!r})
cluster = read_cluster(Path({str(two_hosts.file)!r}))
session.Session(cluster, cluster.hosts[0]).ask("sample.rest", seconds=1000)
"""
    process = two_hosts.laptop.start([sys.executable, "-c", program])
    wait_until(lambda: len(host.process_ids()) == 1)
    process.kill()
    process.wait()
    wait_until(lambda: not host.process_ids())


def test_half_a_payload_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    boot = f"exec(compile(open({str(FAR_END)!r}).read(), 'far_end', 'exec')); main('ready')"
    words = [sys.executable, "-c", boot]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0) as far_end:
        assert far_end.stdin and far_end.stdout
        far_end.stdin.write(request({"learn": "sample"}, SAMPLE.encode()))
        for name, num_missing in (("whole", 0), ("half", 1)):
            arguments = {"path": str(tmp_path / name)}
            message = request({"ask": "sample.write", "arguments": arguments}, b"x" * 100)
            far_end.stdin.write(message[: len(message) - num_missing])
            far_end.stdin.flush()
            if not num_missing:
                answers = [far_end.stdout.readline() for _ in range(3)]
                assert answers == [b"ready\n", b'{"result": null}\n', b'{"result": null}\n']
        assert far_end.communicate()[0] == b""
    assert (tmp_path / "whole").exists() and not (tmp_path / "half").exists()


def request(header: dict[str, object], payload: bytes) -> bytes:
    return json.dumps({**header, "bytes": len(payload)}).encode() + b"\n" + payload


# ---- what ssh complains of


def test_a_missing_python_is_named(mended: Hosts) -> None:
    for python in ("/no/python", "no-python", "/etc/passwd"):
        mended.write(python=python)
        error = failure(mended)
        assert "it has no such program" in error.problem and python in error.problem
        assert "python = in cluster.toml" in error.hint


def test_an_unknown_host_key_is_never_accepted(two_hosts: Hosts) -> None:
    config = ssh_file(two_hosts, "config")
    careless = "StrictHostKeyChecking no\nUpdateHostKeys yes\nLogLevel QUIET\n" + config.read_text()
    with changed(ssh_file(two_hosts, "known_hosts"), ""), changed(config, careless):
        error = failure(two_hosts)
        assert ssh_file(two_hosts, "known_hosts").read_text() == ""
    assert error.problem == "h0: its host key is not known"
    assert error.hint == f"look at it once and accept it: ssh -F {config} -- h0"


def test_a_changed_host_key_is_told_from_an_unknown_one(two_hosts: Hosts) -> None:
    known = ssh_file(two_hosts, "known_hosts")
    key_of_another = known.read_text().splitlines()[1].split(maxsplit=1)[1]
    with changed(known, f"# mine\n10.77.0.1 {key_of_another}\n"):
        error = failure(two_hosts)
    assert error.problem == "h0: its host key has changed: another machine answers at this address"
    assert f"line 2 of {known}" in error.hint


def test_a_refused_key_is_told(two_hosts: Hosts, host: Machine) -> None:
    with changed(host.home / ".ssh" / "authorized_keys", ""):
        error = failure(two_hosts)
    assert error.problem == "h0: it does not accept your ssh key"
    assert "identity" in error.hint and "user@address" in error.hint


def test_a_user_who_may_not_log_in_is_told(two_hosts: Hosts) -> None:
    assert failure(two_hosts, ssh="nobody@h0").problem == "h0: it does not accept your ssh key"


def test_a_key_that_others_may_read_is_told(two_hosts: Hosts, tmp_path: Path) -> None:
    key = tmp_path / "key"
    shutil.copy(ssh_file(two_hosts, "id_ed25519"), key)
    key.chmod(0o644)
    with changed(ssh_file(two_hosts, "config"), "HostName 10.77.0.1\nUser root\n" + known_hosts_line(two_hosts)):
        error = failure(two_hosts, identity=str(key))
        assert error.problem == "h0: others may read your ssh key, so ssh does not use it"
        key.chmod(0o600)
        talk(two_hosts, identity=str(key)).close()


def test_a_missing_key_is_told(two_hosts: Hosts) -> None:
    with changed(ssh_file(two_hosts, "config"), "HostName 10.77.0.1\nUser root\n" + known_hosts_line(two_hosts)):
        error = failure(two_hosts, identity="/no/key")
    assert error.problem == "h0: the file of your ssh key is missing"
    assert "identity" in error.hint


def known_hosts_line(hosts: Hosts) -> str:
    return f"UserKnownHostsFile {ssh_file(hosts, 'known_hosts')}\n"


def test_a_silent_ssh_port_is_told(mended: Hosts, host: Machine) -> None:
    host.stop_sshd()
    error = failure(mended)
    assert error.problem == "h0: nothing answers on its ssh port"
    assert "sshd" in error.hint


def test_an_unknown_name_is_told(two_hosts: Hosts) -> None:
    error = failure(two_hosts, ssh="h0.invalid")
    assert error.problem == "h0: its name is unknown"
    assert "~/.ssh/config" in error.hint


def test_a_host_that_is_off_is_told(mended: Hosts, host: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("konvoi.cluster.ssh.CONNECT_SECONDS", 2)
    host.cut()
    error = failure(mended)
    # Which of the two ssh notices depends on what the machine still remembers of its neighbour.
    assert error.problem in ("h0: it does not answer", "h0: there is no way to it")
    assert "is it running" in error.hint


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("NoSuchOption yes\n", "h0: your ssh configuration has a mistake"),
        (None, "h0: your ssh configuration is missing"),
    ],
)
def test_a_bad_configuration_is_told(mended: Hosts, tmp_path: Path, config: str | None, problem: str) -> None:
    path = tmp_path / "config"
    if config:
        path.write_text(config)
    mended.write(ssh_config=str(path))
    error = failure(mended)
    assert error.problem == problem


def test_a_restart_of_the_host_is_told(mended: Hosts, host: Machine) -> None:
    with talk(mended) as session:
        host.run(["pkill", "sshd"])
        with pytest.raises(HostError, match="h0: it closed the connection"):
            session.ask("sample.rest", seconds=1000)


def test_a_far_end_that_was_killed_is_told(two_hosts: Hosts, host: Machine) -> None:
    with talk(two_hosts) as session:
        os.kill(host.process_ids()[0], signal.SIGKILL)
        with pytest.raises(HostError, match="h0: what ran there was killed"):
            session.ask("sample.rest", seconds=1000)


def test_a_connection_that_is_cut_is_noticed(mended: Hosts, host: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("konvoi.cluster.ssh.ALIVE_SECONDS", 1)
    with talk(mended) as session:
        # Words of another program there that look like ssh's.
        session.ask("sample.chatter")
        host.cut()
        with pytest.raises(HostError, match="h0: the connection broke off: no sign of life for 30 s"):
            session.ask("sample.rest", seconds=1000)
    host.mend()
    for process_id in host.process_ids():
        os.kill(process_id, signal.SIGKILL)
    wait_until(lambda: not host.process_ids())


def test_an_answer_that_does_not_come_is_told_and_not_waited_for(two_hosts: Hosts, host: Machine) -> None:
    with talk(two_hosts) as session:
        with pytest.raises(HostError, match=r"h0: no answer for 0\.5 s"):
            session.ask("sample.rest", seconds=1000, timeout=0.5)
        with pytest.raises(HostError, match="h0: the connection is closed"):
            session.ask("sample.echo", value=1)
    wait_until(lambda: not host.process_ids())


def test_a_laptop_without_ssh_is_told(two_hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/no/folder")
    with pytest.raises(ClusterError, match="no ssh on this machine"):
        talk(two_hosts)


def test_what_nobody_has_heard_of_is_passed_on() -> None:
    cluster = Cluster.model_validate({"hosts": [{"name": "a", "ssh": "me@a", "address": "10.0.0.1"}]})
    error = explain(cluster, cluster.hosts[0], 255, "debug\nssh: the moon is full\n")
    assert (error.problem, error.hint) == ("a: ssh: the moon is full", "try it by hand: ssh -- me@a")
    assert explain(cluster, cluster.hosts[0], 3, "").problem == "a: ssh ended with exit code 3"


# ---- all hosts at once


def test_every_host_has_a_result_or_an_error(mended: Hosts) -> None:
    mended[1].stop_sshd()
    cluster = mended.cluster

    def work(entry: object) -> object:
        with Session(cluster, entry) as session:  # type: ignore[arg-type]
            return session.ask("sample.where")[0]

    results = on_all(cluster.hosts, work)
    assert list(results) == ["h0", "h1"]
    assert results["h0"] == "h0"
    assert isinstance(results["h1"], HostError)
    assert results["h1"].problem == "h1: nothing answers on its ssh port"


def test_an_exception_there_becomes_the_host_s_error(two_hosts: Hosts) -> None:
    def work(entry: object) -> object:
        with Session(two_hosts.cluster, entry) as session:  # type: ignore[arg-type]
            return session.ask("sample.fail")

    results = on_all(two_hosts.cluster.hosts[:1], work)
    assert str(results["h0"]) == "h0: ValueError: there is no such thing"


def test_a_fault_of_our_own_is_not_held_against_a_host(two_hosts: Hosts) -> None:
    def work(_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        on_all(two_hosts.cluster.hosts, work)


def test_ctrl_c_does_not_wait_for_the_hosts() -> None:
    program = """
import os, signal, threading
from konvoi.cluster.session import on_all
from konvoi.cluster.hosts import Host
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
on_all([Host(name="a", ssh="a", address="10.0.0.1")], lambda host: threading.Event().wait())
"""
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert "KeyboardInterrupt" in done.stderr
