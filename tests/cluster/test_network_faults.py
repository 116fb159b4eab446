"""Faults of the network between real hosts, each made on purpose, found and named."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hosts import Hosts, Machine, limit

from konvoi import registry
from konvoi.cluster.checks import Finding
from konvoi.cluster.survey import Survey, Wanted, survey
from konvoi.commands.cluster_check import judge, wanted_by
from konvoi.config.recipe import read

# Slow enough that the machine's own speed, which others share, does not show.
RATE_MEGABITS = 200
PUBLIC_ADDRESS = "1.2.3.4"
LISTEN_ON_ALL = """
import socket, sys
address, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sockets = [socket.create_server((address, port)) for port in range(first, last + 1)]
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with Hosts(3, tmp_path_factory.mktemp("hosts"), rate_megabits=RATE_MEGABITS) as hosts:
        yield hosts


@pytest.fixture(autouse=True)
def as_they_were(hosts: Hosts) -> Iterator[None]:
    yield
    hosts.write()


def looked_at(hosts: Hosts, quick: bool = True, wanted: Wanted | None = None) -> tuple[Survey, list[Finding]]:
    found = survey(hosts.cluster, wanted, quick)
    return found, [finding for _, finding in judge(found)]


def measured(hosts: Hosts) -> list[Finding]:
    """Of the links alone: without an environment no all-reduce is tried, which would take torch its seconds."""
    hosts.write(environment="~/none")
    found, findings = looked_at(hosts, quick=False)
    assert found.all_reduce is None
    return findings


def places(findings: list[Finding], kind: str) -> list[str]:
    return [finding.host for finding in findings if finding.kind == kind]


def network_kinds(findings: list[Finding]) -> set[str]:
    """All but those of the source, which somebody may be changing while this runs."""
    return {finding.kind for finding in findings if finding.level != "ok"} - {"code-differs", "code-differs-from-here"}


@contextlib.contextmanager
def changed(machine: Machine, *words: str) -> Iterator[None]:
    """ip route add ... for a while: undone by `del` in place of `add`."""
    machine.run(["ip", *words])
    try:
        yield
    finally:
        machine.run(["ip", *("del" if word == "add" else word for word in words)])


@contextlib.contextmanager
def knows(machine: Machine, line: str) -> Iterator[None]:
    """A first line of its /etc/hosts."""
    before = machine.hosts_file.read_text()
    machine.hosts_file.write_text(f"{line}\n{before}")
    try:
        yield
    finally:
        machine.hosts_file.write_text(before)


def with_host(hosts: Hosts, number: int, **changes: Any) -> list[dict[str, Any]]:
    tables = [{"name": host.name, "ssh": host.name, "address": host.address} for host in hosts]
    tables[number] |= changes
    return tables


def test_hosts_that_are_well_give_no_complaint_and_all_figures(hosts: Hosts) -> None:
    found, findings = looked_at(hosts, quick=False)
    assert not network_kinds(findings)
    assert {(link.source, link.target) for link in found.links} == {
        (a.name, b.name) for a in hosts for b in hosts if a is not b
    }
    # 200 Mbit/s are 25 MB/s, headers included; a busy machine may do much worse, but nothing does better for long.
    assert all(link.bytes_per_second and 0 < link.bytes_per_second < 30e6 for link in found.links)
    assert all(link.latency_seconds and link.latency_seconds > 0 for link in found.links)
    assert found.all_reduce and not found.all_reduce.failed_host and found.all_reduce.num_bytes == 4_000_000
    # In a ring of three each host passes on 4/3 of the vector, at 25 MB/s at most.
    assert 1e5 < found.all_reduce.bytes_per_second < 26e6
    assert [found.interface_of(host.name) for host in hosts] == ["eth0"] * 3
    assert {"connect", "look", "reach", "measure", "all-reduce"} <= found.seconds.keys()


def test_nothing_is_left_on_the_hosts(hosts: Hosts) -> None:
    looked_at(hosts)
    assert [host.process_ids() for host in hosts] == [[], [], []]


def test_a_host_that_is_down_is_named_and_the_others_are_looked_at(hosts: Hosts) -> None:
    hosts[1].cut()
    try:
        found, _ = looked_at(hosts)
    finally:
        hosts[1].mend()
    assert list(found.unreachable) == ["h1"]
    assert {(link.source, link.target, link.problem) for link in found.links} == {("h0", "h2", ""), ("h2", "h0", "")}


def test_a_pair_without_a_route_is_named(hosts: Hosts) -> None:
    with changed(hosts[0], "route", "add", "unreachable", hosts[1].address):
        _, findings = looked_at(hosts)
    # h1's answers can't come back to it either.
    assert "h0 -> h1" in places(findings, "no-route")
    assert not any("h2" in place for place in places(findings, "no-route"))


def test_training_ports_that_a_firewall_drops_are_named(hosts: Hosts) -> None:
    rule = ["ipproto", "tcp", "sport", "29400-29499", "to", hosts[0].address, "blackhole"]
    with changed(hosts[1], "rule", "add", *rule):
        _, findings = looked_at(hosts)
    assert places(findings, "blocked") == ["h0 -> h1"]


def test_ports_that_a_firewall_forbids_are_named(hosts: Hosts) -> None:
    rule = ["ipproto", "tcp", "dport", "29400-29499", "to", hosts[1].address, "prohibit"]
    with changed(hosts[0], "rule", "add", *rule):
        _, findings = looked_at(hosts)
    assert places(findings, "no-route") == ["h0 -> h1"]


def test_a_firewall_that_opens_the_training_ports_alone_is_not_enough(hosts: Hosts) -> None:
    rule = ["ipproto", "tcp", "sport", "32768-60999", "to", hosts[0].address, "blackhole"]
    with changed(hosts[2], "rule", "add", *rule):
        _, findings = looked_at(hosts)
    assert places(findings, "other-ports-blocked") == ["h0 -> h2"]


def test_ports_that_are_all_taken_are_named(hosts: Hosts) -> None:
    hosts.write(ports="29400-29402")
    words = [sys.executable, "-c", LISTEN_ON_ALL, hosts[1].address, "29400", "29402"]
    with hosts[1].start(words, stdin=-1, stdout=-1) as process:
        assert process.stdout.readline() == b"ready\n"
        _, findings = looked_at(hosts)
        process.kill()
    assert places(findings, "ports-taken") == ["h1"]


def test_one_taken_port_is_no_harm_to_the_others(hosts: Hosts) -> None:
    hosts.write(ports="29400-29402")
    words = [sys.executable, "-c", LISTEN_ON_ALL, hosts[1].address, "29400", "29401"]
    with hosts[1].start(words, stdin=-1, stdout=-1) as process:
        assert process.stdout.readline() == b"ready\n"
        found, findings = looked_at(hosts)
        process.kill()
    assert found.listeners["h1"].ports[0] == 29402
    assert not places(findings, "ports-taken")


def test_a_slow_host_is_told_from_the_others(hosts: Hosts) -> None:
    hosts[2].limit(RATE_MEGABITS / 20)
    try:
        findings = measured(hosts)
    finally:
        hosts[2].limit(RATE_MEGABITS)
    assert set(places(findings, "slow-link")) == {"h0 -> h2", "h1 -> h2", "h2 -> h0", "h2 -> h1"}
    assert all("all links of h2" in finding.fix for finding in findings if finding.kind == "slow-link")


def test_one_slow_direction_of_one_pair_is_told_with_its_factor(hosts: Hosts) -> None:
    with slow_towards(hosts[0], hosts[1], RATE_MEGABITS / 20):
        findings = measured(hosts)
    [slow] = [finding for finding in findings if finding.kind == "slow-link"]
    assert slow.host == "h0 -> h1"
    # 200 Mbit/s against 10 Mbit/s, each as it was measured.
    factor = int(slow.found.split(", ")[1].split()[0])
    assert 5 <= factor <= 40


@contextlib.contextmanager
def slow_towards(machine: Machine, other: Machine, rate_megabits: float) -> Iterator[None]:
    """A second cable, slow, over which the one goes to the other; the answers take the usual way."""
    ends = ["netns", machine.namespace, "type", "veth", "peer", "name", "slow1", "netns", other.namespace]
    subprocess.run(["ip", "link", "add", "slow0", *ends], check=True)
    try:
        machine.run(["ip", "link", "set", "slow0", "up"])
        other.run(["ip", "link", "set", "slow1", "up"])
        limit(machine.namespace, "slow0", rate_megabits)
        machine.run(["ip", "route", "add", other.address, "dev", "slow0", "src", machine.address])
        yield
    finally:
        machine.run(["ip", "link", "delete", "slow0"])


def test_a_network_that_is_slow_throughout_is_said_to_be(hosts: Hosts) -> None:
    for host in hosts:
        host.limit(20)
    try:
        findings = measured(hosts)
    finally:
        for host in hosts:
            host.limit(RATE_MEGABITS)
    assert places(findings, "slow-network") == [""]


def test_a_name_that_means_loopback_on_another_host_is_named(hosts: Hosts) -> None:
    hosts.write(hosts=with_host(hosts, 1, address="h1"))
    with knows(hosts[0], "127.0.0.1 h1"):
        _, findings = looked_at(hosts)
    assert places(findings, "loopback") == ["h0 -> h1"]


def test_a_name_that_means_loopback_on_its_own_host_is_named(hosts: Hosts) -> None:
    hosts.write(hosts=with_host(hosts, 1, address="h1"))
    with knows(hosts[1], "127.0.1.1 h1"):
        _, findings = looked_at(hosts)
    assert places(findings, "loopback") == ["h1"]


def test_an_address_that_is_anothers_is_named(hosts: Hosts) -> None:
    hosts.write(hosts=with_host(hosts, 1, address="10.77.0.99"))
    found, findings = looked_at(hosts)
    assert found.listeners["h1"].problem == "EADDRNOTAVAIL"
    assert places(findings, "address-not-here") == ["h1"]


def test_a_pair_that_talks_through_another_address_is_named(hosts: Hosts) -> None:
    second = "10.99.0.1"
    with (
        changed(hosts[0], "address", "add", f"{second}/32", "dev", "eth0"),
        changed(hosts[1], "route", "add", second, "dev", "eth0"),
        changed(hosts[0], "route", "add", hosts[1].address, "dev", "eth0", "src", second),
    ):
        found, findings = looked_at(hosts)
    assert places(findings, "other-interface") == ["h0 -> h1"]
    assert [link.seen_as for link in found.links if link.name == "h0 -> h1"] == [second]


def test_an_interface_that_does_not_exist_fails_the_all_reduce(hosts: Hosts) -> None:
    hosts.write(hosts=with_host(hosts, 1, interface="eth9"))
    found, findings = looked_at(hosts, quick=False)
    assert found.all_reduce
    assert places(findings, "all-reduce-failed") == ["h1"]
    assert "eth9" in found.all_reduce.problem


def test_a_clock_that_is_ahead_is_named(hosts: Hosts) -> None:
    hosts[1].start_sshd(prefix_words=("faketime", "-f", "+90s"))
    try:
        found, findings = looked_at(hosts)
    finally:
        hosts[1].start_sshd()
    assert places(findings, "clock-skew") == ["h1"]
    assert found.clocks["h1"].ahead_seconds == pytest.approx(90, abs=5)


def test_training_ports_that_answer_a_public_address_are_named(hosts: Hosts) -> None:
    """The laptop comes from a public address, as one at home would; nothing but these hosts is in their network."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(changed(hosts.laptop, "address", "add", f"{PUBLIC_ADDRESS}/32", "dev", "eth0"))
        for host in hosts:
            stack.enter_context(changed(host, "route", "add", PUBLIC_ADDRESS, "dev", "eth0"))
            route = ["route", "add", host.address, "dev", "eth0", "src", PUBLIC_ADDRESS]
            stack.enter_context(changed(hosts.laptop, *route))
        _, findings = looked_at(hosts)
    assert places(findings, "open-to-outside") == ["h0", "h1", "h2"]
    assert all("--source-group" in finding.fix for finding in findings if finding.kind == "open-to-outside")


def test_data_that_is_missing_or_different_is_named(
    hosts: Hosts, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prepared here and on h0 each for itself, altered on h1, absent on h2."""
    recipe, homes = read(str(tiny_recipe)), (tmp_path / "here", hosts[0].home / "cache", hosts[1].home / "cache")
    for home in homes:
        monkeypatch.setenv("KONVOI_HOME", str(home))
        registry.find("task", "translation").prepare(recipe)
    # Made at another time, which is no difference.
    [info] = homes[1].rglob("info.json")
    info.write_text(json.dumps({**json.loads(info.read_text()), "made_at": "2020-01-01T00:00:00+00:00"}))
    [tokens] = (hosts[1].home / "cache").rglob("train.de.tokens*")
    tokens.write_bytes(tokens.read_bytes()[:-2] + b"??")
    monkeypatch.setenv("KONVOI_HOME", str(homes[0]))
    found, findings = looked_at(hosts, wanted=wanted_by(recipe, "tiny"))
    assert found.data["h0"]
    assert places(findings, "data-differs") == ["h1"]
    assert places(findings, "data-missing") == ["h2"]
