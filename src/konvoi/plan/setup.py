"""Where a run would take place: hosts, their links, and how the members of a ring are joined by them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# An all-reduce between sockets takes 5 to 10 % longer than its bytes: headers, acknowledgements, gaps between messages.
WIRE_OVERHEAD = 1.07


@dataclass(frozen=True)
class Link:
    """One direction of a cable, as it is sold or measured."""

    bytes_per_second: float
    round_trip_seconds: float = 0.0
    """Of a small message there and back, as ping shows it."""

    @classmethod
    def of_bits(cls, bits_per_second: float, round_trip_seconds: float = 0.0) -> Link:
        return cls(bits_per_second / 8, round_trip_seconds)


# Between two GPUs of a host without NVLink; on a processor the exchange itself takes longer (Profile).
INSIDE_A_HOST = Link(10e9, 20e-6)


@dataclass(frozen=True)
class Host:
    link: Link
    """To the next host of the ring; the last one's leads to the first."""
    workers: int = 1
    speed: float = 1.0
    """Of each of its workers, against the profile's device."""
    name: str = ""


@dataclass(frozen=True)
class Setup:
    hosts: tuple[Host, ...]
    jitter: float = 0.0
    """How much a worker's step varies by itself: its standard deviation over its mean."""
    inside: Link = INSIDE_A_HOST
    wire_overhead: float = WIRE_OVERHEAD

    @classmethod
    def alike(cls, num_hosts: int, link: Link, workers: int = 1, jitter: float = 0.0) -> Setup:
        return cls((Host(link, workers),) * num_hosts, jitter)

    @property
    def num_workers(self) -> int:
        return sum(self.workers_by_host)

    @property
    def workers_by_host(self) -> list[int]:
        return [host.workers for host in self.hosts]

    @property
    def most_workers(self) -> int:
        """On one host."""
        return max(self.workers_by_host)

    @property
    def slowest(self) -> float:
        return min(host.speed for host in self.hosts)

    def ring(self, once_per_host: bool = False) -> Iterator[tuple[Link, bool]]:
        """The links from each member to the next, and whether it is a cable between two hosts.

        Neighbours in rank are neighbours in the ring, so that only the last worker of a host has its next elsewhere.
        """
        for host in self.hosts:
            if not once_per_host:
                yield from ((self.inside, False),) * (host.workers - 1)
            if len(self.hosts) > 1:
                yield host.link, True
            elif not once_per_host and host.workers > 1:
                yield self.inside, False
