"""What far/machine.py saw on a host, with names and types. A key that is missing there is what stands here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Environment:
    """A virtual environment; without a Python where there is none, or where it does not start (see `problem`)."""

    folder: str = ""
    python: str | None = None
    problem: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions by name, in small letters with -."""
    requires: tuple[str, ...] = ()
    """The packages without which Konvoi does not run."""
    konvoi_digest: str = ""
    """Of Konvoi's source: two checkouts of one version may differ."""


@dataclass(frozen=True)
class Interface:
    addresses: tuple[str, ...] = ()
    """IPv4."""
    mtu: int | None = None
    speed_megabits: int | None = None
    is_up: bool = False
    is_loopback: bool = False


@dataclass(frozen=True)
class Gpu:
    name: str = ""
    driver: str = ""
    memory_bytes: int = 0
    used_bytes: int = 0


@dataclass(frozen=True)
class Place:
    """A folder, or where it would be made."""

    path: str = ""
    device: int | None = None
    free_bytes: int | None = None
    free_files: int | None = None
    problem: str = ""
    """Why no file can be written there; empty where one can."""


@dataclass(frozen=True)
class Limits:
    """What a process may have; None where nothing limits it."""

    open_files: int | None = None
    processes: int | None = None
    locked_memory_bytes: int | None = None
    shared_memory_bytes: int | None = None
    """Free in /dev/shm."""


@dataclass(frozen=True)
class Job:
    """A process of a training."""

    process_id: int = 0
    run: str = ""
    """Its folder there; empty for one that carries the training's id alone."""
    job: str = ""
    started_at: float = 0.0


@dataclass(frozen=True)
class Listener:
    """A port of the training's range that is taken."""

    port: int = 0
    address: str = ""
    process_id: int | None = None
    command: str = ""


@dataclass(frozen=True)
class Facts:
    host_name: str = ""
    name_addresses: tuple[str, ...] = ()
    """What its own name resolves to, there."""
    resolved_addresses: tuple[str, ...] = ()
    """What the address in cluster.toml resolves to, there: itself, unless it is a name."""
    interfaces: Mapping[str, Interface] = field(default_factory=dict)
    architecture: str = ""
    kernel: str = ""
    environment: Environment = Environment()
    gpus: tuple[Gpu, ...] = ()
    gpu_problem: str = ""
    """What nvidia-smi complained of."""
    num_nvidia_cards: int = 0
    """On the bus, with a driver or without."""
    has_rdma: bool = False
    """InfiniBand, RoCE or EFA: a network card that reads and writes memory by itself."""
    cores: int = 0
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    folder: Place = Place()
    home: Place = Place()
    limits: Limits = Limits()
    jobs: tuple[Job, ...] = ()
    listeners: tuple[Listener, ...] = ()
    is_shared_mounted: bool | None = None
    """None where cluster.toml names no shared folder."""
    time: float = 0.0

    @classmethod
    def of(cls, seen: Mapping[str, Any]) -> Facts:
        """From the answer of machine.look."""
        plain = _known(cls, seen)
        one = {"environment": Environment, "folder": Place, "home": Place, "limits": Limits}
        several = {"gpus": Gpu, "jobs": Job, "listeners": Listener}
        nested: dict[str, Any] = {key: make(kind, seen.get(key)) for key, kind in one.items()}
        nested |= {key: tuple(make(kind, each) for each in seen.get(key) or ()) for key, kind in several.items()}
        nested["interfaces"] = {name: make(Interface, each) for name, each in (seen.get("interfaces") or {}).items()}
        return cls(**{**plain, **nested})

    def interface_of(self, address: str) -> str | None:
        """The interface that has this address."""
        return next((name for name, interface in self.interfaces.items() if address in interface.addresses), None)


def own_environment() -> Environment:
    """Of the machine that starts, seen as the hosts' are."""
    from konvoi.cluster.far import machine

    return make(Environment, machine.environment(sys.prefix))


def make(kind: type[T], seen: Mapping[str, Any] | None) -> T:
    return kind(**_known(kind, seen or {}))


def _known(kind: type[Any], seen: Mapping[str, Any]) -> dict[str, Any]:
    """What the class has a field for; JSON knows lists only."""
    names = {each.name for each in fields(kind)}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in seen.items() if key in names}
