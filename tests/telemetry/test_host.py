"""The host's own counters, a line at a time."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from konvoi.run_directory import read_events
from konvoi.telemetry.host import (
    HostSampler,
    bits_per_second,
    disk_counters,
    grown,
    interface_addresses,
    job_interface,
    network_counters,
    since,
)

LOOPBACK = next(name for name, addresses in interface_addresses().items() if "127.0.0.1" in addresses)
ADDRESSES = {"lo": ["127.0.0.1"], "eth0": ["10.0.0.2", "fe80::1"], "eth1": ["10.1.0.2"], "docker0": ["172.17.0.1"]}


def lines(folder: Path) -> list[dict[str, Any]]:
    (file,) = folder.iterdir()
    assert file.name == f"{socket.gethostname()}.jsonl"
    return list(read_events(file))


def wait_for_lines(folder: Path, count: int) -> None:
    """Fails after a minute, so that a sampler that writes nothing does not hang the tests."""
    waiting = threading.Event()
    for _ in range(6_000):
        if folder.exists() and list(folder.iterdir()) and len(lines(folder)) >= count:
            return
        waiting.wait(0.01)
    raise AssertionError(f"{count} lines did not come")


def send_over_loopback(num_bytes: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
        with sender, receiver:
            thread = threading.Thread(target=sender.sendall, args=(bytes(num_bytes),))
            thread.start()
            while num_bytes > 0:
                num_bytes -= len(receiver.recv(65_536))
            thread.join()


def test_the_first_line_says_what_the_host_is(tmp_path: Path) -> None:
    sampler = HostSampler(tmp_path / "hosts", job_address="127.0.0.1")
    sampler.start()
    sampler.close()
    first = lines(tmp_path / "hosts")[0]
    assert (first["kind"], first["host"], first["job_interface"]) == ("host", socket.gethostname(), LOOPBACK)
    assert first["cores"] == psutil.cpu_count()
    assert first["memory_bytes"] == psutil.virtual_memory().total
    assert "127.0.0.1" in first["interfaces"][LOOPBACK]["addresses"]
    # A loopback has no speed.
    assert first["interfaces"][LOOPBACK]["link_bits_per_second"] is None


def test_a_link_in_bits() -> None:
    # gigabit Ethernet: 1,000 megabits
    assert bits_per_second(1_000) == 1_000_000_000
    assert bits_per_second(0) is None


def test_a_sample_has_all_that_readers_expect(tmp_path: Path) -> None:
    sampler = HostSampler(tmp_path, job_address=None, interval_seconds=0.05)
    sampler.start()
    wait_for_lines(tmp_path, 3)
    sampler.close()
    sample = lines(tmp_path)[1]
    assert sample["kind"] == "sample"
    assert sample["seconds"] >= 0.05
    assert len(sample["cpu_percent"]) == psutil.cpu_count()
    assert all(0 <= percent <= 100 for percent in sample["cpu_percent"])
    assert 0 < sample["memory_used_bytes"] < psutil.virtual_memory().total
    assert set(sample["interfaces"][LOOPBACK]) == {"bytes_in", "bytes_out"}
    assert ("disk" in sample) == bool(disk_counters())


def test_the_samples_add_up_to_what_was_sent(tmp_path: Path) -> None:
    before, started = network_counters(), time.perf_counter()
    sampler = HostSampler(tmp_path, job_address=None, interval_seconds=0.05)
    sampler.start()
    wait_for_lines(tmp_path, 2)
    send_over_loopback(3_000_000)
    wait_for_lines(tmp_path, len(lines(tmp_path)) + 2)
    send_over_loopback(2_000_000)
    sampler.close()
    elapsed_seconds, moved = time.perf_counter() - started, since(before, network_counters())[LOOPBACK]
    samples = [line for line in lines(tmp_path) if line["kind"] == "sample"]
    # 3 + 2 million of ours, and at most what the loopback moved in all: nothing is lost, nothing counted twice.
    for key in ("bytes_in", "bytes_out"):
        assert 5_000_000 <= sum(sample["interfaces"][LOOPBACK][key] for sample in samples) <= moved[key]
    # Nor is any second, by the same clock.
    assert sum(sample["seconds"] for sample in samples) <= elapsed_seconds


def test_closing_writes_the_time_since_the_last_sample(tmp_path: Path) -> None:
    sampler = HostSampler(tmp_path, job_address=None, interval_seconds=3600.0)
    sampler.start()
    wait_for_lines(tmp_path, 1)
    send_over_loopback(1_000_000)
    sampler.close()
    host, sample = lines(tmp_path)
    assert (host["kind"], sample["kind"]) == ("host", "sample")
    assert 0 < sample["seconds"] < 3600
    assert sample["interfaces"][LOOPBACK]["bytes_out"] >= 1_000_000
    assert "host-sampler" not in {thread.name for thread in threading.enumerate()}


def test_it_may_be_closed_twice_and_without_a_start(tmp_path: Path) -> None:
    sampler = HostSampler(tmp_path / "hosts", job_address=None)
    sampler.close()
    sampler.close()
    assert not (tmp_path / "hosts").exists()


def test_a_resumed_run_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for _ in range(2):
        sampler = HostSampler(tmp_path, job_address=None)
        sampler.start()
        sampler.close()
    assert [line["kind"] for line in lines(tmp_path)] == ["host", "sample", "host", "sample"]


def test_a_counter_that_fails_ends_the_sampler_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = threading.Event()
    look = psutil.virtual_memory

    def virtual_memory() -> Any:
        if failing.is_set():
            raise OSError("no such file")
        return look()

    monkeypatch.setattr(psutil, "virtual_memory", virtual_memory)
    sampler = HostSampler(tmp_path, job_address=None, interval_seconds=0.01)
    sampler.start()
    wait_for_lines(tmp_path, 2)
    failing.set()
    sampler._thread.join()
    sampler.close()
    kinds = [line["kind"] for line in lines(tmp_path)]
    assert kinds == ["host", *["sample"] * (len(kinds) - 2), "error"]
    assert lines(tmp_path)[-1]["problem"] == "OSError: no such file"


def test_a_folder_that_cannot_be_written_does_not_disturb_the_run(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a file, not a folder")
    sampler = HostSampler(tmp_path / "hosts", job_address=None)
    sampler.start()
    sampler.close()
    assert (tmp_path / "hosts").read_text() == "a file, not a folder"


@pytest.mark.parametrize(
    ("before", "now", "bytes_between"),
    [
        pytest.param(100, 150, 50, id="grows"),
        pytest.param(100, 100, 0, id="stands"),
        # 2^32 - 10 and then 30: at least 30 came after zero.
        pytest.param(2**32 - 10, 30, 30, id="wraps"),
    ],
)
def test_a_counter_never_runs_backwards(before: int, now: int, bytes_between: int) -> None:
    assert grown(before, now) == bytes_between


def test_a_device_counts_from_the_second_look_on() -> None:
    before = {"eth0": {"bytes_in": 10, "bytes_out": 1}, "gone": {"bytes_in": 5, "bytes_out": 5}}
    now = {"eth0": {"bytes_in": 30, "bytes_out": 1}, "new": {"bytes_in": 7_000, "bytes_out": 7_000}}
    # What the new one moved before it was first seen did not happen in this second.
    assert since(before, now) == {"eth0": {"bytes_in": 20, "bytes_out": 0}}


def test_a_disk_is_counted_without_its_partitions_and_volumes() -> None:
    if not disk_counters():
        pytest.skip("the disks of this host cannot be seen")
    assert all(Path("/sys/block", name.replace("/", "!"), "device").exists() for name in disk_counters())
    assert not [name for name in disk_counters() if name.startswith(("loop", "dm-", "zram", "ram"))]


def test_a_run_alone_uses_no_interface() -> None:
    assert job_interface(None, ADDRESSES, {"GLOO_SOCKET_IFNAME": "eth0"}) is None


@pytest.mark.parametrize(
    ("environment", "interface"),
    [
        ({"GLOO_SOCKET_IFNAME": "eth1"}, "eth1"),
        ({"GLOO_SOCKET_IFNAME": "eth1,eth0"}, "eth1"),
        ({"NCCL_SOCKET_IFNAME": "=eth1"}, "eth1"),
        ({"NCCL_SOCKET_IFNAME": "dock"}, "docker0"),
        ({"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth1"}, "eth0"),
        # What is to be left out, or is not there, names nothing: the way to the first worker decides.
        ({"NCCL_SOCKET_IFNAME": "^docker0"}, "lo"),
        ({"GLOO_SOCKET_IFNAME": "ib0"}, "lo"),
        ({"GLOO_SOCKET_IFNAME": ""}, "lo"),
        ({}, "lo"),
    ],
    ids=["gloo", "first-of-list", "nccl", "beginning", "gloo-first", "all-but", "unknown", "empty", "none"],
)
def test_the_named_interface_comes_before_the_way_to_the_first_worker(
    environment: dict[str, str], interface: str
) -> None:
    assert job_interface("127.0.0.1", ADDRESSES, environment) == interface


def test_an_address_that_leads_nowhere_has_no_interface() -> None:
    assert job_interface("no such host", ADDRESSES, {}) is None
    assert job_interface("127.0.0.1", {"eth0": ["10.0.0.2"]}, {}) is None
