"""konvoi cluster check as a user gives it, on real hosts."""

from __future__ import annotations

import json

import pytest
from tests.hosts import Hosts

from konvoi.cluster.checks import Finding
from konvoi.commands.cluster_check import all_checks, measured_file, preflight
from konvoi.errors import ClusterError


def test_every_check_has_a_title_and_a_place_of_its_own() -> None:
    modules = all_checks()
    assert len(modules) >= 15
    for key in ("TITLE", "ORDER"):
        values = [getattr(module, key) for module in modules]
        assert len(set(values)) == len(values)


def test_a_healthy_cluster_is_ready_and_its_links_are_kept_for_later(two_hosts: Hosts) -> None:
    done = two_hosts.konvoi("cluster", "check", "--cluster", two_hosts.file)
    assert done.stdout.splitlines()[-1].startswith("ready: 2 hosts, 2 workers")
    assert "all-reduce" in done.stdout
    kept = json.loads(measured_file(two_hosts.file).read_text())
    assert [(link["source"], link["target"]) for link in kept["links"]] == [("h0", "h1"), ("h1", "h0")]
    assert all(link["bytes_per_second"] > 0 for link in kept["links"])
    assert kept["all_reduce"]["seconds"] > 0


def test_programs_get_findings_links_and_seconds(two_hosts: Hosts) -> None:
    done = two_hosts.konvoi("cluster", "check", "--cluster", two_hosts.file, "--quick", "--json", "--recipe", "demo")
    report = json.loads(done.stdout)
    assert {"findings", "links", "clocks", "all_reduce", "seconds"} <= report.keys()
    assert report["all_reduce"] is None
    names = set(Finding.__dataclass_fields__) | {"check"}
    assert all(set(finding) == names for finding in report["findings"])
    [data] = [finding for finding in report["findings"] if finding["check"] == "data"]
    # The demo's text is in the package.
    assert (data["level"], data["kind"]) == ("ok", "")


def test_problems_come_with_their_remedies_and_exit_code_2(two_hosts: Hosts) -> None:
    two_hosts.write(environment="~/nothing here")
    try:
        done = two_hosts.konvoi("cluster", "check", "--cluster", two_hosts.file, "--quick", check=False)
    finally:
        two_hosts.write()
    assert done.returncode == 2
    assert "problem" in done.stdout.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_training_learns_the_interfaces_or_all_errors_at_once(two_hosts: Hosts) -> None:
    found = preflight(two_hosts.cluster)
    assert [found.interface_of(host.name) for host in two_hosts] == ["eth0", "eth0"]
    two_hosts[0].run(["ip", "route", "add", "unreachable", two_hosts[1].address])
    try:
        with pytest.raises(ClusterError) as caught:
            preflight(two_hosts.cluster)
    finally:
        two_hosts[0].run(["ip", "route", "del", "unreachable", two_hosts[1].address])
    assert "h0 -> h1" in caught.value.problem
    assert "ip route get" in caught.value.hint
