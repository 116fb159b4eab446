"""Once a second, what the host does: network, processors, memory, disks, GPUs. Does not import torch."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from konvoi.telemetry.events import EventWriter
from konvoi.telemetry.gpus import Gpus

# A driver that hangs must not keep the run from ending.
JOIN_SECONDS = 5.0

# device -> name of the counter -> bytes
Counters = Mapping[str, Mapping[str, int]]


class HostSampler:
    """A thread that appends to <folder>/<hostname>.jsonl; one per host, started in the worker (after any fork)."""

    def __init__(self, folder: Path, job_address: str | None, interval_seconds: float = 1.0) -> None:
        self._path = folder / f"{socket.gethostname()}.jsonl"
        self._job_address = job_address
        self._interval_seconds = interval_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="host-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Writes what happened since the last sample, and ends."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        # Looking at the host must not disturb the run: what goes wrong here ends here, and says so in the file.
        with contextlib.suppress(Exception):
            writer = EventWriter(self._path)
            try:
                self._sample(writer)
            except Exception as error:
                writer.write("error", problem=f"{type(error).__name__}: {error}")
            finally:
                writer.close()

    def _sample(self, writer: EventWriter) -> None:
        # All in this thread: psutil keeps the processors' last times per thread.
        host = Host()
        writer.write("host", **host.facts(self._job_address))
        stopped = False
        while not stopped:
            stopped = self._stop.wait(self._interval_seconds)
            writer.write("sample", **host.sample())


class Host:
    """The counters of this machine, and where they stood at the last look."""

    def __init__(self) -> None:
        self._gpus = Gpus()
        self._gpu_names = self._gpus.names()
        self._seen_at = time.perf_counter()
        self._network, self._disks = network_counters(), disk_counters()
        psutil.cpu_percent(percpu=True)

    def facts(self, job_address: str | None) -> dict[str, Any]:
        """What stays the same while a run goes on."""
        addresses = interface_addresses()
        return {
            "host": socket.gethostname(),
            "cores": psutil.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
            "job_interface": job_interface(job_address, addresses),
            "interfaces": {
                name: {"addresses": addresses.get(name, []), "link_bits_per_second": bits_per_second(state.speed)}
                for name, state in psutil.net_if_stats().items()
            },
            "gpus": self._gpu_names,
        }

    def sample(self) -> dict[str, Any]:
        """What happened since the last look."""
        now = time.perf_counter()
        network, disks = network_counters(), disk_counters()
        memory = psutil.virtual_memory()
        values = {
            "seconds": round(now - self._seen_at, 6),
            "interfaces": since(self._network, network),
            "cpu_percent": psutil.cpu_percent(percpu=True),
            "memory_used_bytes": memory.total - memory.available,
        }
        if disks:
            values["disk"] = total(since(self._disks, disks), ("bytes_read", "bytes_written"))
        if self._gpu_names:
            values["gpus"] = self._gpus.sample()
        self._seen_at, self._network, self._disks = now, network, disks
        return values


def network_counters() -> Counters:
    return {
        name: {"bytes_in": count.bytes_recv, "bytes_out": count.bytes_sent}
        for name, count in psutil.net_io_counters(pernic=True, nowrap=False).items()
    }


def disk_counters() -> Counters:
    """Of the disks themselves: a volume or a partition on them would count the same bytes again.

    Empty where they cannot be seen: in some containers, and on systems without /sys.
    """
    try:
        counts = psutil.disk_io_counters(perdisk=True, nowrap=False)
    except (NotImplementedError, RuntimeError):
        return {}
    return {
        name: {"bytes_read": count.read_bytes, "bytes_written": count.write_bytes}
        for name, count in counts.items()
        if Path("/sys/block", name.replace("/", "!"), "device").exists()
    }


def since(before: Counters, now: Counters) -> dict[str, dict[str, int]]:
    """Bytes between two looks, of the devices that both saw."""
    return {
        device: {key: grown(before[device][key], value) for key, value in values.items()}
        for device, values in now.items()
        if device in before
    }


def grown(before: int, now: int) -> int:
    """A counter that fell began again at zero: it wrapped, or its device was replaced."""
    return now - before if now >= before else now


def total(counters: Counters, keys: tuple[str, ...]) -> dict[str, int]:
    return {key: sum(values[key] for values in counters.values()) for key in keys}


def interface_addresses() -> dict[str, list[str]]:
    """IPv4 and IPv6; the %eth0 behind a link's own address says nothing new."""
    families = (socket.AF_INET, socket.AF_INET6)
    return {
        name: [entry.address.split("%")[0] for entry in entries if entry.family in families]
        for name, entries in psutil.net_if_addrs().items()
    }


def bits_per_second(link_megabits: int) -> int | None:
    """psutil says 0 where the driver does not know, as most virtual ones do."""
    return link_megabits * 1_000_000 or None


def job_interface(
    job_address: str | None, addresses: Mapping[str, list[str]], environment: Mapping[str, str] = os.environ
) -> str | None:
    """Over which interface the workers talk: the named one, else the one on the way to the first worker."""
    if job_address is None:
        return None
    if named := named_interface(list(addresses), environment):
        return named
    own_address = address_towards(job_address)
    return next((name for name, own in addresses.items() if own_address in own), None)


def named_interface(interfaces: list[str], environment: Mapping[str, str]) -> str | None:
    """By gloo's or NCCL's variable. NCCL also takes the beginning of a name, =name and, to leave some out, ^name."""
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        first = environment.get(variable, "").split(",")[0].removeprefix("=")
        if first in interfaces:
            return first
        if begun := [name for name in interfaces if first and name.startswith(first)]:
            return begun[0]
    return None


def address_towards(job_address: str) -> str | None:
    """This host's own address on the way there. Connecting a UDP socket asks the routing table and sends nothing."""
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(job_address, 1, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as connection:
                connection.connect(address)
                return str(connection.getsockname()[0]).split("%")[0]
    return None
