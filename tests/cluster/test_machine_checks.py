"""What the checks make of a host's facts. The facts are made up here; test_machine_faults.py has real ones."""

from __future__ import annotations

import dataclasses
import platform
import sys
from types import ModuleType
from typing import Any

import pytest

from konvoi.cluster.checks import (
    Finding,
    disk,
    driver,
    folders,
    gpus,
    leftovers,
    limits,
    memory,
    name,
    packages,
    python,
    reachable,
    shared,
    system,
)
from konvoi.cluster.checks._hosts import odd_ones
from konvoi.cluster.facts import Environment, Facts, Gpu, Interface, Job, Limits, Listener, Place, own_environment
from konvoi.cluster.far import machine
from konvoi.cluster.hosts import Cluster, Host
from konvoi.cluster.ssh import COMPLAINTS, explain
from konvoi.cluster.survey import Survey
from konvoi.errors import HostError

CHECKS = (reachable, python, packages, gpus, driver, name, disk, memory, limits, leftovers, folders, shared, system)
VERSIONS = {"konvoi": "0.1.0", "torch": "2.13.0+cpu", "numpy": "2.4.6", "rich": "15.0.0"}
ENVIRONMENT = Environment("/venv", "3.11.7", "", VERSIONS, ("numpy", "rich", "torch"), konvoi_digest="a1" * 32)
A10G = Gpu("NVIDIA A10G", driver="550.1", memory_bytes=24 * 10**9)
ROOM = Place("/home/me/konvoi", device=1, free_bytes=50 * 10**9, free_files=10**6)
GB = 10**9


def host(number: int, **changes: Any) -> Host:
    return Host(**{"name": f"h{number}", "ssh": f"h{number}", "address": f"10.0.0.{number + 1}", **changes})


def facts(number: int, **changes: Any) -> Facts:
    """Of a host with which all is well."""
    address = f"10.0.0.{number + 1}"
    well = Facts(
        host_name=f"h{number}",
        name_addresses=(address,),
        resolved_addresses=(address,),
        interfaces={
            "lo": Interface(("127.0.0.1",), is_loopback=True),
            "eth0": Interface((address,), is_up=True),
            "eth1": Interface(("192.168.0.1",)),
        },
        architecture="x86_64",
        kernel="6.1",
        environment=ENVIRONMENT,
        cores=4,
        memory_total_bytes=16 * GB,
        memory_available_bytes=12 * GB,
        folder=ROOM,
        home=ROOM,
        limits=Limits(open_files=1024, processes=60_000, locked_memory_bytes=8 * 2**20, shared_memory_bytes=8 * GB),
        time=10_000.0,
    )
    return dataclasses.replace(well, **changes)


def survey(*others: Facts, hosts: tuple[Host, ...] | None = None, **cluster: Any) -> Survey:
    """Of h0, with which all is well, and of h1, h2... as given."""
    every = dict(enumerate([facts(0), *others]))
    made = Cluster(hosts=hosts or tuple(host(number) for number in every), **cluster)
    return Survey(made, facts={f"h{number}": each for number, each in every.items()}, own=ENVIRONMENT)


def problems(check: ModuleType, found: Survey) -> list[Finding]:
    return [finding for finding in check.examine(found) if finding.level != "ok"]


def brief(check: ModuleType, found: Survey) -> list[tuple[str, str, str]]:
    return [(finding.host, finding.level, finding.kind) for finding in problems(check, found)]


def with_versions(**versions: str) -> Environment:
    return dataclasses.replace(ENVIRONMENT, packages={**VERSIONS, **versions})


def without(package: str) -> Environment:
    kept = {name: version for name, version in VERSIONS.items() if name != package}
    return dataclasses.replace(ENVIRONMENT, packages=kept)


@pytest.mark.parametrize("check", CHECKS)
def test_where_all_is_well_every_check_says_what_it_looked_at(check: ModuleType) -> None:
    findings = list(check.examine(survey(facts(1))))
    assert findings
    assert {finding.level for finding in findings} == {"ok"}
    assert all(finding.found and not finding.kind for finding in findings)
    assert {finding.host for finding in findings} in ({"h0", "h1"}, {""})


@pytest.mark.parametrize("check", CHECKS)
def test_a_host_of_which_nothing_is_known_breaks_no_check(check: ModuleType) -> None:
    unknown = Survey(Cluster(hosts=(host(0), host(1))), facts={"h0": Facts.of({}), "h1": Facts.of({})})
    assert all(finding.fix and finding.kind for finding in problems(check, unknown))


# What h1 is like, what is found, and a word that the user must read.
ONE_HOST_UNLIKE = [
    (python, {"environment": Environment("/venv", "3.10.2")}, "error", "python-too-old", "needs 3.11"),
    (python, {"environment": Environment("/venv", problem="cannot execute")}, "error", "python-broken", "cannot exec"),
    (python, {"environment": dataclasses.replace(ENVIRONMENT, python="3.12.1")}, "warning", "python-differs", "3.12"),
    (packages, {"environment": Environment("/venv")}, "error", "no-environment", "/venv"),
    (packages, {"environment": without("konvoi")}, "error", "no-konvoi", "not installed"),
    (packages, {"environment": without("torch")}, "error", "no-torch", "not installed"),
    (packages, {"environment": without("rich")}, "error", "package-missing", "rich"),
    (packages, {"environment": with_versions(konvoi="0.0.9")}, "error", "konvoi-differs", "h0 has 0.1.0"),
    (packages, {"environment": with_versions(torch="2.13.0+cu126")}, "error", "torch-differs", "2.13.0+cu126"),
    (packages, {"environment": with_versions(numpy="2.2.0")}, "warning", "packages-differ", "numpy 2.2.0"),
    (
        packages,
        {"environment": dataclasses.replace(ENVIRONMENT, konvoi_digest="b2" * 32)},
        "warning",
        "code-differs",
        "",
    ),
    (gpus, {"gpu_problem": "Driver/library version mismatch"}, "error", "gpu-driver-fails", "mismatch"),
    (gpus, {"num_nvidia_cards": 4}, "warning", "gpu-without-driver", "4 NVIDIA cards"),
    (name, {"name_addresses": ("127.0.1.1",)}, "warning", "name-is-loopback", "127.0.1.1"),
    (name, {"host_name": "h0"}, "warning", "name-twice", "like h0"),
    (name, {"resolved_addresses": ("127.0.0.1",)}, "error", "address-is-loopback", "loopback"),
    (name, {"resolved_addresses": ("54.1.2.3",)}, "error", "address-not-here", "none of its addresses"),
    (disk, {"folder": dataclasses.replace(ROOM, free_bytes=0.4 * GB)}, "error", "disk-full", "400.0 MB"),
    (disk, {"folder": dataclasses.replace(ROOM, free_bytes=4 * GB)}, "warning", "disk-low", "4.0 GB"),
    (disk, {"home": dataclasses.replace(ROOM, device=2, free_bytes=0)}, "error", "disk-full", "0"),
    (disk, {"folder": dataclasses.replace(ROOM, free_files=12)}, "warning", "files-low", "12"),
    (memory, {"memory_available_bytes": GB // 3}, "error", "memory-out", "333.3 MB of 16.0 GB"),
    (memory, {"memory_available_bytes": GB // 2}, "warning", "memory-low", "500.0 MB"),
    # 192 files for a worker and 4 for each of two: 200
    (limits, {"limits": Limits(open_files=199)}, "error", "open-files", "199 files; 200"),
    (limits, {"limits": Limits(open_files=200)}, "warning", "open-files", "200 files"),
    (limits, {"limits": Limits(processes=100)}, "warning", "processes", "100"),
    (limits, {"limits": Limits(shared_memory_bytes=64 * 2**20)}, "warning", "shared-memory", "67.1 MB"),
    (leftovers, {"jobs": (Job(7, "/k/runs/demo", "x", 6400.0),)}, "warning", "run-going-on", "1 h 00 min"),
    (leftovers, {"listeners": (Listener(29400, "0.0.0.0", 9, "nc -l"),)}, "warning", "port-taken", "process 9: nc -l"),
    (
        folders,
        {"folder": Place("/k", problem="Read-only file system: /k")},
        "error",
        "folder-not-writable",
        "Read-only",
    ),
    (folders, {"home": Place("/d", problem="Read-only file system: /d")}, "warning", "home-not-writable", "/d"),
    (system, {"architecture": "aarch64"}, "warning", "architecture-differs", "aarch64; h0 has x86_64"),
]


@pytest.mark.parametrize(("check", "changes", "level", "kind", "words"), ONE_HOST_UNLIKE)
def test_the_host_with_which_something_is_wrong_is_named(
    check: ModuleType, changes: dict[str, Any], level: str, kind: str, words: str
) -> None:
    found = survey(facts(1, **changes))
    assert brief(check, found) == [("h1", level, kind)]
    (problem,) = problems(check, found)
    assert words in problem.found
    assert problem.fix


def test_the_most_common_value_is_the_usual_one() -> None:
    assert list(odd_ones({"a": "1", "b": "2", "c": "2"})) == [("a", "1", "b and c have 2")]
    # as common: the first host's
    assert list(odd_ones({"a": "1", "b": "2"})) == [("b", "2", "a has 1")]
    assert list(odd_ones({"a": "1", "b": "1", "c": "1", "d": "2"})) == [("d", "2", "3 hosts have 1")]
    assert list(odd_ones({})) == []


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("REMOTE HOST IDENTIFICATION HAS CHANGED", "host-key-changed"),
        ("Host key verification failed", "host-key-unknown"),
        ("Permission denied", "key-refused"),
        ("UNPROTECTED PRIVATE KEY FILE", "key-unprotected"),
        ("Could not resolve hostname", "name-unknown"),
        ("Connection refused", "ssh-refused"),
        ("Bad configuration option", "ssh-configuration"),
        ("timed out", "unreachable"),
    ],
)
def test_what_ssh_complains_of_has_a_kind_of_its_own(said: str, kind: str) -> None:
    assert said in [complaint[0] for complaint in COMPLAINTS]
    assert reached_with(255, said) == kind


def test_a_host_without_the_python_that_is_named_is_not_taken_for_unreachable() -> None:
    assert reached_with(127, "sh: python3: not found") == "no-python"


def reached_with(code: int, said: str) -> str:
    """The kind of what is found where ssh ended so."""
    cluster = Cluster(hosts=(host(0),))
    (finding,) = reachable.examine(Survey(cluster, unreachable={"h0": explain(cluster, host(0), code, said)}))
    assert (finding.host, finding.level) == ("h0", "error")
    assert finding.fix
    assert not finding.found.startswith("h0:")
    return finding.kind


def test_a_host_that_was_not_reached_is_a_matter_for_one_check_only() -> None:
    found = survey(facts(1))
    del found.facts["h1"]
    found.unreachable["h1"] = HostError("h1", "it does not answer")
    assert [check.TITLE for check in CHECKS if brief(check, found)] == [reachable.TITLE]


def test_of_hosts_that_did_not_answer_nobody_says_that_they_need_no_driver() -> None:
    found = survey(facts(1))
    assert [finding.found for finding in driver.examine(found)] == ["not needed: no GPUs"]
    del found.facts["h1"]
    assert list(driver.examine(found)) == []


def test_a_prebuilt_environment_is_not_for_setup_to_mend() -> None:
    bare = facts(1, environment=Environment("/venv"))
    assert problems(packages, survey(bare))[0].fix == "konvoi cluster setup"
    assert "/opt/env" in problems(packages, survey(bare, environment="/opt/env"))[0].fix


def test_hosts_that_agree_may_still_differ_from_the_machine_that_starts() -> None:
    found = survey(facts(1))
    found.own = dataclasses.replace(with_versions(konvoi="0.2.0", torch="2.14.0"), konvoi_digest="b2" * 32)
    assert brief(packages, found) == [
        ("h0", "error", "konvoi-differs-from-here"),
        ("h1", "error", "konvoi-differs-from-here"),
        ("h0", "warning", "torch-differs-from-here"),
        ("h1", "warning", "torch-differs-from-here"),
    ]
    found.own = dataclasses.replace(ENVIRONMENT, konvoi_digest="b2" * 32)
    assert {kind for _, _, kind in brief(packages, found)} == {"code-differs-from-here"}


def test_a_laptop_without_a_gpu_may_start_hosts_that_have_one() -> None:
    found = survey(facts(1))
    found.own = with_versions(torch="2.13.0+cu126")
    assert not problems(packages, found)


def test_many_packages_that_differ_are_one_finding() -> None:
    names = tuple("abcdef")
    one, other = (Environment("/venv", "3.11.7", "", {**VERSIONS, **dict.fromkeys(names, v)}, names) for v in "12")
    found = survey(facts(1, environment=other))
    found.facts["h0"] = facts(0, environment=one)
    (problem,) = problems(packages, found)
    assert problem.found == "a 2 (h0 has 1), b 2 (h0 has 1), c 2 (h0 has 1) and 3 more"


def with_gpus(count: int, **changes: Any) -> dict[str, Any]:
    environment = with_versions(torch="2.13.0+cu126", **{"nvidia-nccl-cu12": "2.26.2"})
    return {"gpus": (dataclasses.replace(A10G, **changes),) * count, "environment": environment}


@pytest.mark.parametrize(
    ("check", "one", "other", "expected"),
    [
        (gpus, with_gpus(4), with_gpus(4), []),
        (driver, with_gpus(4), with_gpus(4), []),
        (gpus, with_gpus(4), with_gpus(3), [("h1", "error", "gpu-count"), ("h1", "error", "gpu-too-few")]),
        (gpus, with_gpus(4), with_gpus(4, name="NVIDIA L4"), [("h1", "warning", "gpu-differs")]),
        (driver, with_gpus(4), with_gpus(4, driver="535.9"), [("h1", "warning", "driver-differs")]),
        (leftovers, with_gpus(4), with_gpus(1, used_bytes=20 * GB), [("h1", "warning", "gpu-busy")]),
    ],
)
def test_gpus_are_counted_and_compared(
    check: ModuleType, one: dict[str, Any], other: dict[str, Any], expected: list[Any]
) -> None:
    hosts = (host(0, workers=4, gpus=4), host(1, workers=4, gpus=4))
    found = survey(facts(1, **other), hosts=hosts)
    found.facts["h0"] = facts(0, **one)
    differences = [each for each in brief(check, found) if each[2] != "gpu-differs" or len(other["gpus"]) == 4]
    assert differences == expected


def test_a_gpu_on_some_hosts_only_would_make_a_training_hang() -> None:
    assert brief(gpus, survey(facts(1, **with_gpus(1)))) == [("h0", "error", "gpu-on-some")]


def test_a_torch_for_processors_leaves_gpus_idle() -> None:
    assert ("h1", "warning", "torch-without-gpu") in brief(gpus, survey(facts(1, gpus=(A10G,))))


def test_another_nccl_is_an_error() -> None:
    found = survey(facts(1, **{**with_gpus(1), "environment": with_versions(**{"nvidia-nccl-cu12": "2.20.5"})}))
    found.facts["h0"] = facts(0, **with_gpus(1))
    assert brief(driver, found) == [("h1", "error", "nccl-differs")]


@pytest.mark.parametrize(
    ("interface", "kind"), [("eth0", None), ("ib0", "interface-missing"), ("eth1", "interface-without-address")]
)
def test_an_interface_that_is_given_must_have_the_address(interface: str, kind: str | None) -> None:
    found = survey(facts(1), hosts=(host(0), host(1, interface=interface)))
    assert brief(name, found) == ([("h1", "error", kind)] if kind else [])


def test_the_addresses_to_choose_from_are_in_the_remedy() -> None:
    (problem,) = problems(name, survey(facts(1, resolved_addresses=()), hosts=(host(0), host(1, address="54.1.2.3"))))
    assert "10.0.0.2 (eth0), 192.168.0.1 (eth1)" in problem.fix


def test_an_address_may_be_a_name_that_the_host_knows() -> None:
    assert not problems(name, survey(facts(1), hosts=(host(0), host(1, address="h1.internal"))))


def test_one_host_alone_may_live_on_loopback() -> None:
    alone = Survey(Cluster(hosts=(host(0),)), facts={"h0": facts(0, resolved_addresses=("127.0.0.1",))})
    assert not problems(name, alone)


def test_memory_is_for_all_workers_of_a_host() -> None:
    # 4 workers at 0.4 GB want 1.6 GB
    found = survey(facts(1, memory_available_bytes=1.5 * GB), hosts=(host(0), host(1, workers=4)))
    assert brief(memory, found) == [("h1", "error", "memory-out")]


def test_memory_is_locked_only_for_a_card_that_reads_it_by_itself() -> None:
    assert not problems(limits, survey(facts(1, **with_gpus(1))))
    assert brief(limits, survey(facts(1, has_rdma=True, **with_gpus(1)))) == [("h1", "warning", "locked-memory")]


def test_the_processes_of_one_training_are_one_leftover() -> None:
    agent, worker = Job(7, "/home/me/konvoi/runs/demo-1", "id1", 9000.0), Job(8, "", "id1", 9100.0)
    (problem,) = problems(leftovers, survey(facts(1, jobs=(agent, worker, Job(9, "", "id2", 9990.0)))))[:1]
    # 10,000 - 9,000 s = 16 min 40 s
    assert problem.found == "/home/me/konvoi/runs/demo-1 has been going on for 16 min 40 s (processes 7 8)"
    assert "konvoi stop runs/demo-1" in problem.fix
    assert "kill 7 8" in problem.fix


def test_a_port_that_a_leftover_listens_on_is_not_named_twice() -> None:
    left = facts(1, jobs=(Job(7, "/runs/demo"),), listeners=(Listener(29400, "10.0.0.2", 7, "python"),))
    assert [kind for _, _, kind in brief(leftovers, survey(left))] == ["run-going-on"]


def test_the_shared_folder_must_be_mounted_and_the_same() -> None:
    nfs = {"source": "10.0.0.9:/export", "target": "/mnt/shared"}
    found = survey(facts(1, is_shared_mounted=True), shared=nfs)
    assert brief(shared, found) == [("h0", "error", "shared-not-mounted")]
    found.facts["h0"] = facts(0, is_shared_mounted=True)
    assert not problems(shared, found)
    found.shared = {"h0": True, "h1": False}
    assert brief(shared, found) == [("h1", "error", "shared-differs")]


def test_more_workers_than_cores_are_a_warning_unless_a_gpu_does_the_work() -> None:
    hosts = (host(0), host(1, workers=6))
    assert brief(system, survey(facts(1), hosts=hosts)) == [("h1", "warning", "cores-too-few")]
    assert not problems(system, survey(facts(1, **with_gpus(6)), hosts=hosts))


@pytest.mark.skipif(sys.platform != "linux", reason="the hosts run Linux")
def test_the_look_at_this_machine_becomes_facts() -> None:
    seen = machine.look("~/konvoi", sys.prefix, "~/cache", "/not mounted", [29400, 29499], "localhost")
    found = Facts.of(seen)
    assert set(seen) == {field.name for field in dataclasses.fields(Facts)} - ({"gpu_problem"} - set(seen))
    assert found.interfaces["lo"].is_loopback
    assert "127.0.0.1" in found.interfaces["lo"].addresses
    assert found.interface_of("127.0.0.1") == "lo"
    assert found.resolved_addresses == ("127.0.0.1",)
    assert found.environment.python == platform.python_version()
    assert 0 < (found.memory_available_bytes or 0) < (found.memory_total_bytes or 0)
    assert found.is_shared_mounted is False


def test_the_own_environment_is_that_of_this_process() -> None:
    from importlib.metadata import version

    own = own_environment()
    assert own.python == platform.python_version()
    assert {name: own.packages[name] for name in ("konvoi", "torch")} == {
        name: version(name) for name in ("konvoi", "torch")
    }
    assert {"torch", "pydantic"} <= set(own.requires) <= set(own.packages)
    assert own.konvoi_digest == own_environment().konvoi_digest != ""
