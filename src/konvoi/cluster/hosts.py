"""cluster.toml: which machines there are, how to reach them, and where they talk to each other."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import AfterValidator, NonNegativeInt, PositiveInt, ValidationError, field_validator

from konvoi.config.recipe import read_toml
from konvoi.config.section import Section
from konvoi.errors import ClusterError, UserError, did_you_mean
from konvoi.folder import write_whole

DEFAULT_FILE = Path("cluster.toml")
HEADER = "# The machines of a training. After a change: konvoi cluster check\n"


def _spelt(pattern: str, allowed: str) -> AfterValidator:
    """A text that must match; `allowed` says what does, with an example."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"must be {allowed}")
        return text

    return AfterValidator(check)


def _address(text: str) -> str:
    """An IPv4 address, or a name; whether the name is known on the hosts only they can tell."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        if re.fullmatch(r"[0-9.]+", text) or not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", text):
            raise ValueError("must be an IPv4 address or a host's name, as in 10.0.0.5") from None
        return text
    if address.version == 6:
        raise ValueError("must be IPv4, as in 10.0.0.5: a training does not talk over IPv6")
    if address.is_unspecified or address.is_multicast or text == "255.255.255.255":
        raise ValueError("must be the address of this one machine, as in 10.0.0.5")
    return text


NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
# What a host must not be called: a number chooses a host by its place; spec and rank0 are files beside its own.
TAKEN = r"[0-9]+|spec|rank[0-9]+"

Name = Annotated[
    str,
    _spelt(NAME, "letters, digits, dots, - and _, at most 63, as in gpu-1"),
    _spelt(f"(?!({TAKEN})$).*", "another name: numbers, spec and rank0 mean something else here; gpu-1 is fine"),
]
# Nothing that a shell or ssh would take for more than a name: %h may stand in a ProxyCommand of the user's.
Destination = Annotated[
    str,
    _spelt(
        r"(ssh://)?(?!-)[\w.+-]+(@[\w\[][\w.:%\]-]*|[\w.:%\]-]*)",
        "a name of ~/.ssh/config, an address or user@address, as in ubuntu@203.0.113.7",
    ),
]
Address = Annotated[str, AfterValidator(_address)]
Text = Annotated[str, _spelt(r"[^\x00-\x1f\x7f]+", "one line of text, not empty")]
LocalPath = Annotated[Text, _spelt(r"(?!~[^/]).*", "a path without ~USER, as in ~/.ssh/aws.pem")]
HostPath = Annotated[Text, _spelt(r"(/|~/|~$).*", "an absolute path or one in the home folder, as in ~/konvoi")]
Interface = Annotated[str, _spelt(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}", "the name that ip link shows, as in eth0")]
Word = Annotated[Text, _spelt(r"(?!-).*", "a program or a place, not an option")]


class Shared(Section):
    """[shared]: a folder that all hosts see, mounted by `konvoi cluster setup`."""

    source: Word
    """As mount(8) takes it: fs-1234.efs.eu-central-1.amazonaws.com:/ or 10.0.0.5:/export."""
    target: Annotated[Text, _spelt(r"/.+", "an absolute path, as in /mnt/shared")]
    """Where it appears on every host."""
    type: Annotated[str, _spelt(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a type that mount knows, as in nfs4 or efs")] = "nfs4"
    options: Annotated[str, _spelt(r"[^\x00-\x20\x7f]*", "without blanks, as in ro,noatime")] = ""
    """As `mount -o` takes them."""


class Host(Section):
    """[[hosts]]"""

    name: Name
    """What people call it; also the name of its files."""
    ssh: Destination
    """What ssh is given: a name of ~/.ssh/config, an address, or user@address. Never an option."""
    address: Address
    """On the private network: where the other hosts reach it in a training."""
    workers: PositiveInt = 1
    """Processes in a training; one for each GPU."""
    gpus: NonNegativeInt | None = None
    """How many it should have; compared with what is found."""
    identity: LocalPath | None = None
    """The file of its ssh key, where ~/.ssh/config does not say; relative to cluster.toml."""
    interface: Interface | None = None
    """The network interface of the address; found unless given."""

    @property
    def is_loopback(self) -> bool:
        """Whether other hosts would find themselves at its address."""
        return self.address.startswith(("127.", "localhost")) or self.interface == "lo"


class Cluster(Section):
    """All of cluster.toml."""

    hosts: tuple[Host, ...]
    """One table for each machine, with name, ssh and address."""
    folder: HostPath = "~/konvoi"
    """On every host: the environment, wheels, runs."""
    python: Word = "python3"
    """On every host: what makes the environment and looks around before there is one."""
    environment: HostPath | None = None
    """A virtual environment with Konvoi that is there already, as in a prebuilt image; else FOLDER/venv."""
    home: HostPath | None = None
    """KONVOI_HOME on the hosts, where data is; else the shared folder's konvoi/, else ~/.cache/konvoi."""
    ports: str = "29400-29499"
    """A training listens on one of these, and gloo or NCCL on any; members of the cluster only must reach them."""
    ssh_config: LocalPath | None = None
    """Another file than ~/.ssh/config; relative to cluster.toml."""
    shared: Shared | None = None

    @field_validator("hosts")
    @classmethod
    def _hosts_differ(cls, hosts: tuple[Host, ...]) -> tuple[Host, ...]:
        if not hosts:
            raise ValueError("must be one at least")
        for key in ("name", "ssh", "address"):
            # Without case: a laptop may keep Gpu.txt and gpu.txt in one file.
            given = [getattr(host, key).lower() for host in hosts]
            twice = sorted({value for value in given if given.count(value) > 1})
            if twice:
                raise ValueError(f"{key} {', '.join(twice)} is given to more than one host")
        alone = [host.name for host in hosts if host.is_loopback]
        if alone and len(hosts) > 1:
            raise ValueError(
                f"{', '.join(alone)}: a loopback address (127.0.0.1, localhost) is every machine's own, so the other "
                "hosts cannot reach this one there; give its address on the private network (hostname -I shows it)"
            )
        return hosts

    @field_validator("ports")
    @classmethod
    def _ports_make_a_range(cls, ports: str) -> str:
        found = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", ports)
        if not found or not 1024 <= int(found[1]) <= int(found[2]) <= 65535:
            raise ValueError("must be FIRST-LAST between 1024 and 65535, as in 29400-29499")
        return ports

    @property
    def port_range(self) -> tuple[int, int]:
        first, _, last = self.ports.partition("-")
        return int(first), int(last)

    @property
    def venv(self) -> str:
        return self.environment or f"{self.folder}/venv"

    @property
    def data_home(self) -> str:
        """KONVOI_HOME on the hosts."""
        return self.home or (f"{self.shared.target}/konvoi" if self.shared else "~/.cache/konvoi")

    @property
    def num_workers(self) -> int:
        return sum(host.workers for host in self.hosts)

    def host(self, name_or_number: str) -> Host:
        """By its name, or its number from 0."""
        for number, host in enumerate(self.hosts):
            if name_or_number in (host.name, str(number)):
                return host
        names = [host.name for host in self.hosts]
        near = did_you_mean(name_or_number, names)
        raise ClusterError(f'no host "{name_or_number}"{near}', hint=f"hosts: {', '.join(names)}")


def read_cluster(path: Path = DEFAULT_FILE) -> Cluster:
    """Every problem at once."""
    if not path.is_file():
        raise ClusterError(f"{path} is missing", hint="konvoi cluster import makes it, or write it by hand")
    try:
        tables = read_toml(path)
    except UserError as error:
        raise ClusterError(error.problem, hint="docs/cluster.md shows one") from None
    return check_cluster(tables, str(path), path.parent)


def check_cluster(tables: dict[str, Any], origin: str, folder: Path = Path()) -> Cluster:
    """Paths of this machine are relative to `folder`."""
    try:
        cluster = Cluster.model_validate(tables)
    except ValidationError as error:
        lines = [f"  {problem}" for problem in explain_problems(error)]
        count = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
        raise ClusterError(f"{origin}: {count}\n" + "\n".join(lines), hint="docs/cluster.md shows one") from None
    hosts = [host.model_copy(update={"identity": _here(host.identity, folder)}) for host in cluster.hosts]
    # ssh does not take ~ in -F; the shell would have replaced it.
    config = cluster.ssh_config and os.path.expanduser(cluster.ssh_config)
    return cluster.model_copy(update={"hosts": tuple(hosts), "ssh_config": _here(config, folder)})


def write_cluster(cluster: Cluster, path: Path) -> None:
    write_whole(path, to_toml(cluster))


def to_toml(cluster: Cluster) -> str:
    """What differs from the defaults, with the hosts last, as a person would write it."""
    tables = cluster.model_dump(mode="json", exclude_defaults=True, exclude={"hosts"})
    # Written one by one: tomli_w would put short tables into one line each.
    hosts = [host.model_dump(mode="json", exclude_none=True) for host in cluster.hosts]
    parts = [HEADER, tomli_w.dumps(tables), *(f"[[hosts]]\n{tomli_w.dumps(host)}" for host in hosts)]
    return "\n".join(part for part in parts if part)


def explain_problems(error: ValidationError) -> list[str]:
    """A line each: where, what is there, what should be."""
    return [f"{_place(problem['loc'])}{_words(problem)}" for problem in error.errors()]


def _here(path: str | None, folder: Path) -> str | None:
    """Beside cluster.toml, unless it is absolute or in the home folder."""
    return path if path is None or path.startswith("~") else str((folder / path).absolute())


def _place(location: tuple[int | str, ...]) -> str:
    """("hosts", 1, "ssh") -> hosts[1].ssh:"""
    words = re.sub(r"\.(\d+)", r"[\1]", ".".join(str(part) for part in location))
    return f"{words}: " if words else ""


def _words(problem: Any) -> str:
    location = problem["loc"]
    key, fields = str(location[-1]) if location else "", _kind(location).model_fields
    if problem["type"] == "extra_forbidden":
        return f"no such key{did_you_mean(key, fields)} (allowed: {', '.join(fields)})"
    if problem["type"] == "missing":
        return f"missing; {fields[key].description}"
    given = problem["input"]
    shown = f"is {given!r}, " if isinstance(given, str | int | float) else ""
    return shown + _should(problem)


def _should(problem: Any) -> str:
    if problem["type"] in ("tuple_type", "model_type"):
        return "must be a table; [[hosts]] begins one for each host, [shared] that of the shared folder"
    message = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return message[:1].lower() + message[1:]


def _kind(location: tuple[int | str, ...]) -> type[Section]:
    """The table that a problem lies in."""
    if len(location) == 1 or not location:
        return Cluster
    return Shared if location[0] == "shared" else Host
