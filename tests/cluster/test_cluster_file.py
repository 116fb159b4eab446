"""cluster.toml: what it may say, how it is written, and what is refused in which words."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from konvoi.cluster.hosts import TAKEN, Cluster, Host, Shared, check_cluster, read_cluster, to_toml, write_cluster
from konvoi.errors import ClusterError

ALICE = {"name": "alice", "ssh": "ubuntu@203.0.113.7", "address": "10.0.0.1", "workers": 4, "gpus": 4}
BOB = {"name": "bob", "ssh": "bob", "address": "10.0.0.2"}
LINES = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=20)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True).filter(lambda n: not re.fullmatch(TAKEN, n))
PATHS = st.builds("{}{}".format, st.sampled_from(["/", "~/"]), LINES)
ABSOLUTE_PATHS = LINES.map(lambda text: str(Path("/") / text))
FIRST_ADDRESS = int(ipaddress.ip_address("10.0.0.1"))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique_by=str.lower))
    hosts = [
        Host(
            name=name,
            ssh=draw(st.sampled_from([f"host{number}", f"me@host{number}", f"ssh://me@host{number}:2222"])),
            address=str(ipaddress.ip_address(FIRST_ADDRESS + number)),
            workers=draw(st.integers(1, 16)),
            gpus=draw(st.none() | st.integers(0, 16)),
            identity=draw(st.none() | ABSOLUTE_PATHS),
            interface=draw(st.none() | st.sampled_from(["eth0", "enp3s0", "ib0.8001"])),
        )
        for number, name in enumerate(names)
    ]
    shared = st.builds(Shared, source=LINES.map("nas:/{}".format), target=LINES.map("/{}".format))
    return Cluster(
        hosts=tuple(hosts),
        folder=draw(PATHS),
        environment=draw(st.none() | PATHS),
        home=draw(st.none() | PATHS),
        ports=draw(st.sampled_from(["29400-29499", "5000-5000", "1024-65535"])),
        ssh_config=draw(st.none() | ABSOLUTE_PATHS),
        shared=draw(st.none() | shared),
    )


def refused(*hosts: dict[str, Any], **tables: Any) -> str:
    """Why such a file is."""
    with pytest.raises(ClusterError) as caught:
        check_cluster({"hosts": [*hosts], **tables}, "cluster.toml")
    assert caught.value.hint
    return caught.value.problem


@settings(deadline=None)
@given(clusters())
def test_what_is_written_is_read_back_as_the_same(cluster: Cluster) -> None:
    assert check_cluster(tomllib.loads(to_toml(cluster)), "cluster.toml") == cluster


def test_it_is_written_as_by_hand() -> None:
    cluster = check_cluster({"folder": "/scratch/konvoi", "hosts": [ALICE, BOB]}, "cluster.toml")
    assert to_toml(cluster) == (
        "# The machines of a training. After a change: konvoi cluster check\n"
        "\n"
        'folder = "/scratch/konvoi"\n'
        "\n"
        "[[hosts]]\n"
        'name = "alice"\n'
        'ssh = "ubuntu@203.0.113.7"\n'
        'address = "10.0.0.1"\n'
        "workers = 4\n"
        "gpus = 4\n"
        "\n"
        "[[hosts]]\n"
        'name = "bob"\n'
        'ssh = "bob"\n'
        'address = "10.0.0.2"\n'
        "workers = 1\n"
    )


def test_what_follows_from_it() -> None:
    plain = check_cluster({"hosts": [ALICE, BOB]}, "cluster.toml")
    assert plain.num_workers == 4 + 1
    assert plain.port_range == (29400, 29499)
    assert (plain.venv, plain.data_home) == ("~/konvoi/venv", "~/.cache/konvoi")
    shared = check_cluster({"hosts": [BOB], "shared": {"source": "nas:/", "target": "/mnt"}}, "cluster.toml")
    assert shared.data_home == "/mnt/konvoi"


def test_a_host_is_found_by_name_or_number() -> None:
    cluster = check_cluster({"hosts": [ALICE, BOB]}, "cluster.toml")
    assert cluster.host("bob") is cluster.host("1") is cluster.hosts[1]
    with pytest.raises(ClusterError, match='no host "alise", did you mean "alice"') as caught:
        cluster.host("alise")
    assert caught.value.hint == "hosts: alice, bob"


def test_paths_of_this_machine_are_relative_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(
        'ssh_config = "ssh.conf"\n'
        'hosts = [{name = "a", ssh = "a", address = "10.0.0.1", identity = "keys/a.pem"},\n'
        '         {name = "b", ssh = "b", address = "10.0.0.2", identity = "~/.ssh/b.pem"}]\n'
    )
    cluster = read_cluster(file)
    assert cluster.ssh_config == f"{tmp_path}/ssh.conf"
    assert [host.identity for host in cluster.hosts] == [f"{tmp_path}/keys/a.pem", "~/.ssh/b.pem"]
    home = check_cluster({"ssh_config": "~/other.conf", "hosts": [BOB]}, "cluster.toml")
    assert home.ssh_config == os.path.expanduser("~/other.conf")


def test_every_problem_is_told_at_once() -> None:
    first = {**ALICE, "name": "a b", "ssh": "-oProxyCommand=x", "workers": 0, "adress": "10.0.0.1"}
    problem = refused(first, {"name": "bob", "ssh": "bob"}, folder="konvoi", ports="1-2", python="-c", fodler="/x")
    assert problem.splitlines() == [
        "cluster.toml: 9 problems",
        "  hosts[0].name: is 'a b', must be letters, digits, dots, - and _, at most 63, as in gpu-1",
        "  hosts[0].ssh: is '-oProxyCommand=x', must be a name of ~/.ssh/config, an address or user@address, as in "
        "ubuntu@203.0.113.7",
        "  hosts[0].workers: is 0, should be greater than 0",
        '  hosts[0].adress: no such key, did you mean "address"? '
        "(allowed: name, ssh, address, workers, gpus, identity, interface)",
        "  hosts[1].address: missing; On the private network: where the other hosts reach it in a training.",
        "  folder: is 'konvoi', must be an absolute path or one in the home folder, as in ~/konvoi",
        "  python: is '-c', must be a program or a place, not an option",
        "  ports: is '1-2', must be FIRST-LAST between 1024 and 65535, as in 29400-29499",
        '  fodler: no such key, did you mean "folder"? '
        "(allowed: hosts, folder, python, environment, home, ports, ssh_config, shared)",
    ]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "localhost", "localhost.localdomain"])
def test_a_loopback_address_is_for_a_host_alone(address: str) -> None:
    assert "every machine's own" in refused({**ALICE, "address": address}, BOB)
    assert check_cluster({"hosts": [{**ALICE, "address": address}]}, "cluster.toml")


def test_the_loopback_interface_is_for_a_host_alone() -> None:
    assert "alice: a loopback address" in refused({**ALICE, "interface": "lo"}, BOB)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("10.0.0", "IPv4 address or a host's name"),
        ("10.0.0.256", "IPv4 address or a host's name"),
        ("010.0.0.1", "IPv4 address or a host's name"),
        ("gpu 1", "IPv4 address or a host's name"),
        ("-gpu", "IPv4 address or a host's name"),
        ("", "IPv4 address or a host's name"),
        ("fe80::1", "must be IPv4"),
        ("0.0.0.0", "this one machine"),
        ("224.0.0.1", "this one machine"),
        ("255.255.255.255", "this one machine"),
    ],
)
def test_an_address_is_that_of_one_machine(address: str, words: str) -> None:
    assert words in refused({**ALICE, "address": address})


@pytest.mark.parametrize("address", ["10.0.0.5", "203.0.113.7", "gpu-1", "ip-10-0-0-5.eu-central-1.compute.internal"])
def test_an_address_may_be_a_name(address: str) -> None:
    assert check_cluster({"hosts": [{**ALICE, "address": address}]}, "cluster.toml").hosts[0].address == address


@pytest.mark.parametrize(
    "ssh", ["gpu-1", "me@10.0.0.1", "me@fe80::1%eth0", "ssh://me@[fe80::1]:2222", "a_b.c", "müller"]
)
def test_ssh_may_be_given(ssh: str) -> None:
    assert check_cluster({"hosts": [{**ALICE, "ssh": ssh}]}, "cluster.toml").hosts[0].ssh == ssh


@pytest.mark.parametrize(
    "ssh", ["", "-v", "a b", "a;reboot", "$(reboot)", "`x`", "a'b", "me@-oX=y", "ssh://-x", "a\nb"]
)
def test_ssh_is_given_no_option_and_no_shell(ssh: str) -> None:
    assert "must be a name of ~/.ssh/config" in refused({**ALICE, "ssh": ssh})


@pytest.mark.parametrize("name", ["0", "12", "spec", "rank0"])
def test_a_name_that_means_something_else_is_refused(name: str) -> None:
    assert "must be another name" in refused({**ALICE, "name": name})


@pytest.mark.parametrize(("key", "value"), [("name", "ALICE"), ("ssh", "ubuntu@203.0.113.7"), ("address", "10.0.0.1")])
def test_no_two_hosts_are_the_same(key: str, value: str) -> None:
    assert f"{key} {value.lower()} is given to more than one host" in refused(ALICE, {**BOB, key: value})


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"hosts": []}, "hosts: must be one at least"),
        ({"hosts": 3}, "hosts: is 3, must be a table"),
        ({"hosts": ["alice"]}, "hosts[0]: is 'alice', must be a table"),
        ({}, "hosts: missing; One table for each machine"),
        ({"host": [ALICE]}, 'host: no such key, did you mean "hosts"?'),
        ({"shared": "nas:/"}, "shared: is 'nas:/', must be a table"),
        ({"shared": {"source": "nas:/"}}, "shared.target: missing; Where it appears on every host."),
        ({"shared": {"source": "-o", "target": "mnt"}}, "shared.target: is 'mnt', must be an absolute path"),
        (
            {"shared": {"source": "a:/", "target": "/mnt", "option": "ro"}},
            'shared.option: no such key, did you mean "opt',
        ),
        ({"ssh_config": "~bob/config"}, "must be a path without ~USER"),
        ({"environment": "venv"}, "must be an absolute path or one in the home folder"),
        ({"home": "/a\nb"}, "must be one line of text"),
        ({"ports": "29499-29400"}, "must be FIRST-LAST"),
        ({"ports": 29400}, "should be a valid string"),
    ],
)
def test_what_is_wrong_is_told_where_it_is(tables: dict[str, Any], words: str) -> None:
    with pytest.raises(ClusterError, match=re.escape(words)):
        check_cluster({"hosts": [ALICE], **tables} if tables and "host" not in tables else tables, "cluster.toml")


KEYS = [*Cluster.model_fields, *Host.model_fields, *Shared.model_fields]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["~x", "a", "10.0.0.1"]),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.sampled_from(KEYS), values, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES))
def test_whatever_it_says_it_is_a_cluster_or_the_users_error(tables: dict[str, Any]) -> None:
    try:
        check_cluster(tables, "cluster.toml")
    except ClusterError as error:
        assert error.problem.startswith("cluster.toml: ")


def test_a_file_that_is_missing_or_no_toml(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="missing") as caught:
        read_cluster(tmp_path / "cluster.toml")
    assert "konvoi cluster import" in caught.value.hint
    (tmp_path / "cluster.toml").write_text("hosts = [")
    with pytest.raises(ClusterError, match="cannot be read as TOML") as caught:
        read_cluster(tmp_path / "cluster.toml")
    assert "docs/cluster.md" in caught.value.hint


def test_show_prints_a_table_with_totals(konvoi: Any, tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    write_cluster(check_cluster({"hosts": [ALICE, {**BOB, "gpus": 0, "identity": "/keys/b"}]}, ""), file)
    lines = [line.split("  ") for line in konvoi("cluster", "show", "--cluster", file).stdout.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells == [
        ["host", "ssh", "address", "workers", "GPUs", "key"],
        ["0", "alice", "ubuntu@203.0.113.7", "10.0.0.1", "4", "4", "as ssh has it"],
        ["1", "bob", "bob", "10.0.0.2", "1", "0", "/keys/b"],
        [],
        # 4 + 1 workers, 4 + 0 GPUs
        ["2 hosts, 5 workers, 4 GPUs"],
    ]


def test_show_does_not_guess_gpus(konvoi: Any, tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    write_cluster(check_cluster({"hosts": [BOB]}, ""), file)
    assert konvoi("cluster", "show", "--cluster", file).stdout.endswith("1 host, 1 worker, GPUs not known\n")
    shown = json.loads(konvoi("cluster", "show", "--cluster", file, "--json").stdout)
    assert shown["totals"] == {"hosts": 1, "workers": 1, "gpus": None}
    assert shown["hosts"][0] == {**BOB, "workers": 1, "gpus": None, "identity": None, "interface": None}


def test_show_says_what_is_wrong_without_a_traceback(konvoi: Any, tmp_path: Path) -> None:
    result = konvoi("cluster", "show", "--cluster", tmp_path / "none.toml")
    assert result.exit_code == 2
    assert "none.toml is missing\nhint: " in result.stderr
