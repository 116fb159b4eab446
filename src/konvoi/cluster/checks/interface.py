"""Through which interface each pair of hosts really talks: that of their addresses, never loopback."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from konvoi.cluster.checks import Finding
from konvoi.cluster.links import Link
from konvoi.cluster.survey import Survey

TITLE = "interface"
ORDER = 52


def examine(survey: Survey) -> Iterator[Finding]:
    """Whether an address, as a number, is the host's own is for checks/name.py to say."""
    for name in survey.listeners:
        links = [link for link in survey.links if link.source == name]
        problems = [*_of_its_name(survey, name), *(finding for link in links for finding in _of_link(survey, link))]
        yield from problems
        working = [link.target for link in links if not link.problem]
        if working and not problems:
            through = f"{survey.interface_of(name)} ({survey.listeners[name].address})"
            yield Finding(name, "ok", f"talks to {', '.join(working)} through {through}")


def _of_its_name(survey: Survey, name: str) -> Iterator[Finding]:
    given, own = survey.cluster.host(name).address, survey.listeners[name].address
    if len(survey.cluster.hosts) > 1 and _is_loopback(own) and own != given:
        found = f"there its own address {given} is {own}: no other host gets there"
        fix = f"correct /etc/hosts on {name}, or give its private address as a number"
        yield Finding(name, "error", found, fix, "loopback")


def _is_loopback(address: str) -> bool:
    return bool(address) and ipaddress.ip_address(address).is_loopback


def _of_link(survey: Survey, link: Link) -> Iterator[Finding]:
    given, own = survey.cluster.host(link.target).address, survey.listeners[link.source].address
    if link.is_loopback:
        found = f"there {given} is {link.remote_address}: {link.source} would talk to itself"
        fix = f"correct /etc/hosts on {link.source}, or give the private address of {link.target} as a number"
        yield Finding(link.name, "error", found, fix, "loopback")
    elif link.local_address and link.local_address != own and not _is_loopback(own):
        through = survey.interface_with(link.source, link.local_address) or "another interface"
        found = f"goes out through {through} ({link.local_address}), not through that of {own}"
        fix = f"give addresses of the network that they share; on {link.source}: ip route get {link.remote_address}"
        yield Finding(link.name, "warning", found, fix, "other-interface")
