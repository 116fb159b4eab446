"""The checks of the network on made surveys, and the parts that need no host."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from konvoi.cluster.all_reduce import NUM_BYTES, AllReduce, affordable_bytes
from konvoi.cluster.checks import Finding, allreduce, clock, data, interface, links, outside, ports
from konvoi.cluster.dataset import DataSet
from konvoi.cluster.facts import Facts, Interface
from konvoi.cluster.far import network
from konvoi.cluster.hosts import Cluster, check_cluster
from konvoi.cluster.links import Link, Listener, rounds
from konvoi.cluster.survey import Clock, Opening, Survey, Wanted, can_all_reduce

NAMES = ("a", "b", "c")
GIGABIT = 125e6
TOKEN = "0123456789abcdef"


def cluster() -> Cluster:
    hosts = [{"name": name, "ssh": name, "address": f"10.0.0.{number}"} for number, name in enumerate(NAMES, 1)]
    return check_cluster({"hosts": hosts}, "test")


def healthy() -> Survey:
    """Three hosts at a gigabit, 0.2 ms apart."""
    found = Survey(cluster())
    for host in found.cluster.hosts:
        found.listeners[host.name] = Listener(host.address, (29400, 40000))
        found.facts[host.name] = Facts(interfaces={"eth0": Interface((host.address,))})
        found.clocks[host.name] = Clock(0.01, 0.005)
    addresses = {host.name: host.address for host in found.cluster.hosts}
    found.links = [
        Link(source, target, 40000, "", addresses[target], addresses[source], addresses[source], 0.0002, GIGABIT)
        for source, target in itertools.permutations(NAMES, 2)
    ]
    return found


def with_link(found: Survey, name: str, **changes: object) -> Survey:
    found.links = [replace(link, **changes) if link.name == name else link for link in found.links]
    return found


def complaints(findings: Iterator[Finding]) -> list[tuple[str, str, str]]:
    return [(finding.level, finding.kind, finding.host) for finding in findings if finding.level != "ok"]


@pytest.mark.parametrize("check", [interface, ports, links, clock, outside])
def test_a_healthy_cluster_has_nothing_to_complain_of(check: object) -> None:
    found = healthy()
    found.outside = {"a": [Opening("10.0.0.1", 29400, "10.0.0.254")]}
    findings = list(check.examine(found))  # type: ignore[attr-defined]
    assert findings
    assert not complaints(iter(findings))


def test_one_slow_direction_is_named_with_its_factor() -> None:
    # 125 MB/s against 5 MB/s: 25 times.
    found = with_link(healthy(), "a -> b", bytes_per_second=GIGABIT / 25)
    [slow] = [finding for finding in links.examine(found) if finding.level != "ok"]
    assert (slow.host, slow.kind) == ("a -> b", "slow-link")
    assert "40 Mbit/s, 25 times slower" in slow.found
    assert "between these two" in slow.fix


def test_rates_that_differ_by_two_are_no_finding() -> None:
    assert not complaints(links.examine(with_link(healthy(), "a -> b", bytes_per_second=GIGABIT / 2)))


def test_links_of_one_slow_host_point_to_that_host() -> None:
    found = healthy()
    for name in ("a -> c", "c -> a", "b -> c", "c -> b"):
        with_link(found, name, bytes_per_second=GIGABIT / 10)
    slow = [finding for finding in links.examine(found) if finding.kind == "slow-link"]
    assert len(slow) == 4
    assert all("all links of c are slow" in finding.fix for finding in slow)


def test_a_link_over_which_nothing_came_is_slow_and_one_without_a_figure_was_cut() -> None:
    assert complaints(links.examine(with_link(healthy(), "a -> b", bytes_per_second=0.0))) == [
        ("warning", "slow-link", "a -> b")
    ]
    assert complaints(links.examine(with_link(healthy(), "a -> b", bytes_per_second=None))) == [
        ("error", "cut", "a -> b")
    ]


def test_a_quick_look_does_not_miss_figures() -> None:
    found = healthy()
    found.is_quick = True
    found.links = [replace(link, bytes_per_second=None, latency_seconds=None) for link in found.links]
    assert not list(links.examine(found))


def test_hosts_that_are_far_apart_are_named() -> None:
    found = with_link(healthy(), "b -> c", latency_seconds=0.030)
    assert complaints(links.examine(found)) == [("warning", "far-apart", "b -> c")]


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        ("ECONNREFUSED", "refused"),
        ("ETIMEDOUT", "blocked"),
        ("EHOSTUNREACH", "no-route"),
        ("EPROTO", "stranger"),
        ("ENOBUFS", "no-route"),
    ],
)
def test_what_the_system_says_becomes_a_finding_with_a_remedy(problem: str, kind: str) -> None:
    found = with_link(healthy(), "a -> b", problem=problem, port=29400, local_address="")
    [finding] = [finding for finding in ports.examine(found) if finding.level != "ok"]
    assert (finding.level, finding.kind, finding.host) == ("error", kind, "a -> b")
    assert finding.fix and "{" not in finding.fix


def test_a_port_outside_the_range_that_is_blocked_is_told_apart() -> None:
    found = with_link(healthy(), "a -> b", problem="ETIMEDOUT", port=40000)
    assert complaints(ports.examine(found)) == [("error", "other-ports-blocked", "a -> b")]


def test_a_host_that_would_talk_to_itself_is_named_once() -> None:
    found = with_link(healthy(), "a -> b", problem="ECONNREFUSED", remote_address="127.0.1.1", local_address="")
    assert complaints(interface.examine(found)) == [("error", "loopback", "a -> b")]
    assert not complaints(ports.examine(found))


def test_a_clock_is_judged_against_the_middle_of_all() -> None:
    # Ahead of this machine by 40, 40 and 10 s: the middle of 0, 10, 40, 40 is 40, so this machine and c are behind.
    found = healthy()
    found.clocks = {"a": Clock(40, 0.1), "b": Clock(40, 0.1), "c": Clock(10, 0.1)}
    assert complaints(clock.examine(found)) == [("warning", "clock-skew", "c")]


def test_a_clock_is_not_blamed_for_a_slow_answer() -> None:
    found = healthy()
    found.clocks["c"] = Clock(1.5, 0.6)
    assert not complaints(clock.examine(found))


@pytest.mark.parametrize(
    ("seen_as", "is_open"),
    [("93.184.216.34", True), ("10.0.0.254", False), ("192.168.7.1", False), ("100.64.0.9", False)],
)
def test_only_a_public_address_is_outside(seen_as: str, is_open: bool) -> None:
    found = healthy()
    found.outside = {"b": [Opening("3.4.5.6", 29400, seen_as)]}
    assert complaints(outside.examine(found)) == ([("warning", "open-to-outside", "b")] if is_open else [])


def test_a_member_with_a_public_address_is_not_outside() -> None:
    found = healthy()
    found.listeners["a"] = Listener("93.184.216.34", (29400, 40000))
    found.outside = {"b": [Opening("10.0.0.2", 29400, "93.184.216.34")]}
    assert not complaints(outside.examine(found))


def test_data_is_compared_with_this_machine() -> None:
    found = healthy()
    assert not list(data.examine(found))
    found.wanted = Wanted("my recipe", files=DataSet("data/x", {}), digest="1234")
    found.data = {"a": "1234", "b": "4321", "c": None}
    assert complaints(data.examine(found)) == [("error", "data-differs", "b"), ("warning", "data-missing", "c")]
    assert all(f.fix == "konvoi cluster setup --recipe 'my recipe'" for f in data.examine(found) if f.level != "ok")


def test_data_that_is_not_prepared_here_is_left_to_the_hosts() -> None:
    found = healthy()
    found.wanted = Wanted("own", is_here=False)
    assert complaints(data.examine(found)) == []
    (finding,) = data.examine(found)
    assert "each host makes its own" in finding.found


def test_the_rate_of_an_all_reduce_is_what_a_link_carries() -> None:
    # Of 4 MB a ring of 4 passes on 2 * 3/4 = 6 MB; in 0.05 s that is 120 MB/s, 960 Mbit/s.
    done = AllReduce(4_000_000, 0.05, num_hosts=4)
    assert done.bytes_per_second == pytest.approx(120e6)
    found = healthy()
    found.all_reduce = done
    [finding] = allreduce.examine(found)
    assert "960 Mbit/s" in finding.found


def test_a_slow_link_gets_a_smaller_vector() -> None:
    assert affordable_bytes(healthy().links) == NUM_BYTES
    # 1 MB/s: half a second's worth.
    assert affordable_bytes(with_link(healthy(), "a -> b", bytes_per_second=1e6).links) == 500_000


def test_an_all_reduce_is_not_tried_where_it_must_fail() -> None:
    found = healthy()
    environment = replace(Facts().environment, packages={"konvoi": "1", "torch": "2"})
    found.facts = {name: replace(facts, environment=environment) for name, facts in found.facts.items()}
    assert can_all_reduce(found)
    assert not can_all_reduce(with_link(healthy(), "a -> b", problem="ETIMEDOUT"))
    found.facts["a"] = replace(found.facts["a"], environment=Facts().environment)
    assert not can_all_reduce(found)


@pytest.mark.parametrize("num_hosts", range(1, 10))
def test_rounds_hold_every_pair_once_and_no_host_twice_in_a_round(num_hosts: int) -> None:
    names = [f"h{number}" for number in range(num_hosts)]
    pairs = list(rounds(names))
    assert sorted(tuple(sorted(pair)) for round_ in pairs for pair in round_) == list(itertools.combinations(names, 2))
    for round_ in pairs:
        met = [name for pair in round_ for name in pair]
        assert len(met) == len(set(met))


@pytest.fixture
def listening() -> Iterator[dict[str, object]]:
    yield {**network.listen("127.0.0.1", 29400, 29499, TOKEN), "token": TOKEN}
    network.hush()


def test_a_listener_answers_who_has_its_token_on_both_its_ports_and_nobody_else(listening: dict[str, object]) -> None:
    answers = network.reach({"right": listening, "wrong": {**listening, "token": "f" * 16}})
    assert "problem" not in answers["right"]
    assert answers["right"]["seen_as"] == answers["right"]["local_address"] == "127.0.0.1"
    assert answers["wrong"]["problem"] == "EPROTO"


def test_it_listens_on_its_address_alone(listening: dict[str, object]) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", listening["ports"][0]), timeout=60)  # type: ignore[index]


def test_after_hush_nothing_answers(listening: dict[str, object]) -> None:
    network.hush()
    assert network.reach({"it": listening})["it"]["problem"] == "ECONNREFUSED"


def test_a_service_that_echoes_is_not_taken_for_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        threading.Thread(target=_echo_once, args=(stranger,), daemon=True).start()
        peer = {"address": "127.0.0.1", "ports": [stranger.getsockname()[1]], "token": TOKEN}
        assert network.reach({"it": peer})["it"]["problem"] == "EPROTO"


def _echo_once(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.sendall(connection.recv(100))


def test_an_address_of_another_machine_and_an_unknown_name_cannot_be_listened_on() -> None:
    assert network.listen("192.0.2.77", 29400, 29499, TOKEN) == {"problem": "EADDRNOTAVAIL"}
    assert network.listen("no-such-name.invalid", 29400, 29499, TOKEN) == {"problem": "ENONAME"}


def test_a_program_that_does_not_end_is_ended() -> None:
    done = network.run(["sh", "-c", "echo begun; exec sleep 600"], {}, seconds=1)
    assert done["code"] and done["output"] == "begun\n"
    assert "no end after 1 s" in done["complaints"]
