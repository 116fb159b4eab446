"""Hosts of which a name and perhaps a number of processes is known: ssh's settings and the resolver tell the rest."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from konvoi.cluster.hosts import Destination, Host, explain_problems
from konvoi.cluster.imports._common import Note, make_host, unique, valid_name
from konvoi.errors import ClusterError

MAX_SLOTS = 1024
SSH_SECONDS = 20


@dataclass(frozen=True)
class Named:
    ssh: str
    """What ssh is given."""
    workers: int = 1
    interface: str | None = None


def split_slots(word: str, place: str) -> tuple[str, int | None]:
    """a:2 -> a, 2; a -> a, None"""
    name, colon, count = word.partition(":")
    if ":" in count:
        raise ClusterError(f'{place}: "{word}" is neither a host nor HOST:SLOTS', hint="IPv6: write it by hand")
    return name, parse_slots(count, place) if colon else None


def parse_slots(count: str, place: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", count) or not 1 <= int(count) <= MAX_SLOTS:
        raise ClusterError(f'{place}: "{count}" slots, must be a number from 1 to {MAX_SLOTS}', hint="as in a:2")
    return int(count)


def check_destination(text: str, place: str) -> str:
    """Before ssh sees it."""
    try:
        return TypeAdapter[str](Destination).validate_python(text)
    except ValidationError as error:
        hint = "as in gpu-1, 10.0.0.5 or ubuntu@203.0.113.7"
        raise ClusterError(f"{place}: {'; '.join(explain_problems(error))}", hint) from None


def merged(named: Iterable[Named]) -> list[Named]:
    """A host that is named again has more slots, as for mpirun."""
    found: dict[str, Named] = {}
    for one in named:
        if before := found.get(one.ssh):
            one = Named(one.ssh, before.workers + one.workers, before.interface or one.interface)
        found[one.ssh] = one
    return list(found.values())


def to_hosts(named: list[Named], note: Note, ssh_config: str | None = None) -> list[Host]:
    names = unique(valid_name(one.ssh.rpartition("@")[2]) or "host" for one in named)
    made = [
        make_host(
            one.ssh,
            name=name,
            ssh=one.ssh,
            address=_address(one.ssh, ssh_config),
            workers=one.workers,
            interface=one.interface,
        )
        for one, name in zip(named, names, strict=True)
    ]
    note(
        "the addresses are what the names resolve to here; konvoi cluster check tells whether the hosts reach each "
        "other there, and if they have private addresses, write those"
    )
    return made


def _address(destination: str, ssh_config: str | None) -> str:
    """What the name resolves to here; behind a jump host the name itself, for the hosts to look up."""
    settings = ssh_settings(destination, ssh_config)
    name = settings.get("hostname", destination)
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        if any(settings.get(key, "none") != "none" for key in ("proxyjump", "proxycommand")):
            return name
        raise ClusterError(
            f"{destination}: {name} has no IPv4 address here",
            hint="is the name right? ~/.ssh/config can say where it is (HostName); or write cluster.toml by hand",
        ) from None
    return str(found[0][4][0])


def ssh_settings(destination: str, ssh_config: str | None = None) -> dict[str, str]:
    """What ssh would do with it, by key; connects to nobody."""
    file = ["-F", ssh_config] if ssh_config else []
    try:
        result = subprocess.run(
            ["ssh", "-G", *file, "--", destination],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SSH_SECONDS,
        )
    except FileNotFoundError:
        raise ClusterError("there is no ssh on this machine", hint="install OpenSSH's client") from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"ssh -G {destination} does not end", hint="does ~/.ssh/config run something?") from None
    if result.returncode:
        said = result.stderr.strip() or f"exit code {result.returncode}"
        raise ClusterError(f"ssh -G {destination}: {said}", hint="ssh cannot make sense of it")
    return dict(line.split(" ", 1) for line in result.stdout.splitlines() if " " in line)
