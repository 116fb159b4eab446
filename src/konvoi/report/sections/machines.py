"""On which machines the run was made, and which worker was where."""

from __future__ import annotations

from typing import Any

from konvoi.analysis.record import HostRecord, RankRecord, RunRecord
from konvoi.analysis.wording import amount_of_bytes, bit_rate
from konvoi.report.blocks import Block, Table

TITLE = "Machines"
ORDER = 150


def render(run: RunRecord) -> list[Block]:
    return [*_hosts(run), *_interfaces(run), *_workers(run)]


def _hosts(run: RunRecord) -> list[Block]:
    known = [host for host in run.hosts.values() if host.about]
    rows = [_host(host.name, host.about) for host in known] or _alone(run.environment)
    return [Table("Machines", ("machine", "GPUs", "cores", "memory"), rows, num_left=2)] if rows else []


def _host(name: str, about: dict[str, Any]) -> tuple[str, ...]:
    gpus = ", ".join(map(str, about.get("gpus") or [])) or "none"
    return name, gpus, str(about.get("cores") or "-"), amount_of_bytes(about.get("memory_bytes") or 0)


def _alone(environment: dict[str, Any]) -> list[tuple[str, ...]]:
    """A run without counters still knows where its first worker was."""
    if not environment.get("host"):
        return []
    devices = [str(device) for device in environment.get("devices") or [] if device != "cpu"]
    return [_host(str(environment["host"]), {**environment, "gpus": devices})]


def _interfaces(run: RunRecord) -> list[Block]:
    rows = [
        (host.name, name, ", ".join(about.get("addresses") or []), _use(host, name), _speed(about))
        for host in run.hosts.values()
        for name, about in (host.about.get("interfaces") or {}).items()
        if about.get("addresses") or name == host.job_interface
    ]
    header = ("machine", "interface", "addresses", "used by the run", "link")
    return [Table("Network interfaces", header, rows, num_left=4)] if rows else []


def _use(host: HostRecord, name: str) -> str:
    return "yes" if name == host.job_interface else "no"


def _speed(about: dict[str, Any]) -> str:
    speed = about.get("link_bits_per_second")
    return bit_rate(speed) if speed else "unknown"


def _workers(run: RunRecord) -> list[Block]:
    rows = [_worker(record) for record in run.ranks.values() if record.started]
    return [Table("Workers", ("worker", "machine", "device", "threads"), rows, num_left=3)] if rows else []


def _worker(record: RankRecord) -> tuple[str, ...]:
    started = record.started[-1]
    return f"rank {record.rank}", record.host, str(started.get("device", "-")), str(started.get("threads", "-"))
