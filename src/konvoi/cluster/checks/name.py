"""Whether a host's names and addresses are its own. A name that leads to loopback is the classic."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from konvoi.cluster.checks import Finding
from konvoi.cluster.checks._hosts import judged, seen
from konvoi.cluster.facts import Facts, Interface
from konvoi.cluster.hosts import Host
from konvoi.cluster.survey import Survey

TITLE = "name and address"
ORDER = 50


def examine(survey: Survey) -> Iterator[Finding]:
    num_hosts = len(survey.cluster.hosts)
    addresses = (finding for host, facts in seen(survey) for finding in _address_problems(host, facts, num_hosts))
    fine = {host.name: f"{facts.host_name}, {_addresses(host, facts)[0]}" for host, facts in seen(survey)}
    return judged([*addresses, *_loopback_names(survey), *_same_names(survey)], fine)


def _address_problems(host: Host, facts: Facts, num_hosts: int) -> Iterator[Finding]:
    name = next(filter(None, map(facts.interface_of, _addresses(host, facts))), None)
    own = ", ".join(f"{address} ({name})" for name, each in _real(facts).items() for address in each.addresses)
    fix = f"address = in cluster.toml: of its own addresses, {own}, the one in the hosts' private network"
    if host.interface and host.interface not in facts.interfaces:
        found, fix = f"no interface {host.interface}", f"interface = in cluster.toml; it has {', '.join(_real(facts))}"
        yield Finding(host.name, "error", found, fix, "interface-missing")
    elif name is None:
        yield Finding(host.name, "error", f"{host.address} is none of its addresses", fix, "address-not-here")
    elif facts.interfaces[name].is_loopback and num_hosts > 1:
        found = f"{host.address} is loopback: no other host gets there"
        yield Finding(host.name, "error", found, fix, "address-is-loopback")
    elif host.interface not in (None, name):
        found = f"{host.address} belongs to {name}, not to {host.interface}"
        fix = "correct interface = or address = in cluster.toml"
        yield Finding(host.name, "error", found, fix, "interface-without-address")


def _loopback_names(survey: Survey) -> Iterator[Finding]:
    fix = "Konvoi names the interface itself and is not misled; other programs are: correct /etc/hosts there"
    for host, facts in seen(survey):
        if any(ipaddress.ip_address(address).is_loopback for address in facts.name_addresses):
            found = f"its name {facts.host_name} resolves to {', '.join(facts.name_addresses)}"
            yield Finding(host.name, "warning", found, fix, "name-is-loopback")


def _same_names(survey: Survey) -> Iterator[Finding]:
    owners: dict[str, str] = {}
    for host, facts in seen(survey):
        if owner := owners.get(facts.host_name):
            found = f"calls itself {facts.host_name}, like {owner}: their records would be mixed up"
            fix = f"there: sudo hostnamectl set-hostname {host.name}"
            yield Finding(host.name, "warning", found, fix, "name-twice")
        owners.setdefault(facts.host_name, host.name)


def _addresses(host: Host, facts: Facts) -> tuple[str, ...]:
    """What is in cluster.toml, or what the host makes of it where it is a name."""
    return facts.resolved_addresses or (host.address,)


def _real(facts: Facts) -> dict[str, Interface]:
    return {name: each for name, each in facts.interfaces.items() if each.addresses and not each.is_loopback}
