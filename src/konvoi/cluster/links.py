"""Every pair of hosts, in both directions: do they reach each other, which way, how soon and how fast."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from konvoi.cluster.connections import Connections
from konvoi.cluster.session import FarError, Session

WARM_UP_SECONDS, MEASURE_SECONDS = 0.25, 0.5


@dataclass(frozen=True)
class Listener:
    """Where a host answers the others."""

    address: str = ""
    """What its address in cluster.toml is there."""
    ports: tuple[int, ...] = ()
    """One of the training's ports, and one of the system's choice, as gloo and NCCL take them."""
    token: str = ""
    """By which the others know it."""
    problem: str = ""
    """Why it does not listen, as in "EADDRNOTAVAIL"."""


@dataclass(frozen=True)
class Link:
    """From one host to another, which are more than one cable: each direction has its own."""

    source: str
    target: str
    port: int | None = None
    """The last that was tried."""
    problem: str = ""
    """Why the target does not answer there, as in "ECONNREFUSED"."""
    remote_address: str = ""
    """What the source makes of the target's address, which may be a name."""
    local_address: str = ""
    """From where the source's kernel goes there."""
    seen_as: str = ""
    """From where the target sees it come."""
    latency_seconds: float | None = None
    """Of a small message to the target and back."""
    bytes_per_second: float | None = None
    """Over one connection, as they arrived at the target."""

    @property
    def name(self) -> str:
        return f"{self.source} -> {self.target}"

    @property
    def is_loopback(self) -> bool:
        """Whether the source would talk to itself."""
        remote = self.remote_address
        return bool(remote) and (ipaddress.ip_address(remote).is_loopback or remote == self.local_address)


def reach(connections: Connections, listeners: Mapping[str, Listener]) -> list[Link]:
    """All pairs at once: nothing is measured yet."""
    peers = {
        # By the address as it is given: a name may be known differently elsewhere.
        name: {"address": connections.cluster.host(name).address, "ports": where.ports, "token": where.token}
        for name, where in listeners.items()
        if where.ports
    }

    def one(session: Session) -> list[Link]:
        own = session.host.name
        others = {name: peer for name, peer in peers.items() if name != own}
        answers = session.ask("network.reach", peers=others)
        return [Link(own, name, **answers[name]) for name in others]

    return [link for links in connections.on_all(one).values() for link in links]


def measure(connections: Connections, listeners: Mapping[str, Listener], links: Sequence[Link]) -> list[Link]:
    """The same links with their latencies and rates; no host is in two measurements at once."""
    measured = {(link.source, link.target): link for link in links}
    for pairs in rounds(list(connections.sessions)):
        for direction in (pairs, [(target, source) for source, target in pairs]):
            targets = {source: target for source, target in direction if _works(measured.get((source, target)))}
            for source, found in _measure(connections, listeners, targets).items():
                there, back = (source, targets[source]), (targets[source], source)
                measured[there] = replace(measured[there], latency_seconds=found["latency_seconds"])
                # Who connects is who receives.
                if back in measured:
                    measured[back] = replace(measured[back], bytes_per_second=found["bytes_per_second"])
    return list(measured.values())


def _works(link: Link | None) -> bool:
    return link is not None and not link.problem


def _measure(
    connections: Connections, listeners: Mapping[str, Listener], targets: Mapping[str, str]
) -> dict[str, dict[str, float]]:
    """What each source found on the way to its target."""

    def one(session: Session) -> dict[str, float]:
        where = listeners[targets[session.host.name]]
        try:
            return dict(
                session.ask(
                    "network.measure",
                    address=where.address,
                    port=where.ports[0],
                    token=where.token,
                    warm_up_seconds=WARM_UP_SECONDS,
                    seconds=MEASURE_SECONDS,
                )
            )
        except FarError:
            return {}  # cut on the way: a figure that is missing says so

    return {source: found for source, found in connections.on_all(one, targets).items() if found}


def rounds(names: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """Every pair once; the pairs of a round have no host in common: the first sits, the others move on by one seat."""
    seats: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [(one, other) for one, other in pairs if one is not None and other is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]
