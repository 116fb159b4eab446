"""Hosts in network namespaces at one switch, whose links get and lose a rate while programs run on them.

    with Links(4) as links:
        links.limit(rate_megabits=100)
        with links.on_host(0):
            process.start()

Every link is limited at both of its ends (tc tbf): what a host sends and what it receives. The wires are those of
tests/hosts.py; here a queue is as long in time at every rate, as a network's is, where a test's is as long in bytes.
Needs root on Linux.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

# Benchmarks are run as programs, which do not see the tests otherwise.
sys.path.append(str(Path(__file__).parents[2]))

from tests.hosts import INTERFACE, add_namespace, add_switch, address_of, in_network_of, remove_namespaces

__all__ = ["INTERFACE", "Links", "address_of"]

QUEUE_SECONDS = 0.02
# The bucket must hold what arrives between two ticks of the kernel's clock (4 ms), and one packet of a fast link.
BURST_SECONDS, LEAST_BURST_BYTES = 0.004, 16 * 1024


class Links:
    """So many hosts, from `with` to its end."""

    def __init__(self, num_hosts: int) -> None:
        self.num_hosts = num_hosts
        # Whose they are is in the name: other people's hosts may be on this machine.
        self.prefix = f"knet{os.getpid()}"

    def __enter__(self) -> Links:
        add_switch(self._switch)
        for host in range(self.num_hosts):
            add_namespace(self._namespace(host), self._switch, host + 1)
        return self

    def __exit__(self, *_: object) -> None:
        remove_namespaces(self.prefix)

    def limit(self, rate_megabits: float) -> None:
        """The rate of every host's link, in each direction."""
        for host in range(self.num_hosts):
            _limit(self._namespace(host), INTERFACE, rate_megabits)
            _limit(self._switch, f"port{host + 1}", rate_megabits)

    def on_host(self, host: int) -> AbstractContextManager[None]:
        """Processes that are started meanwhile are on that host."""
        return in_network_of(self._namespace(host))

    @property
    def _switch(self) -> str:
        return f"{self.prefix}-switch"

    def _namespace(self, host: int) -> str:
        return f"{self.prefix}-h{host}"


def _limit(namespace: str, device: str, rate_megabits: float) -> None:
    bytes_per_second = rate_megabits * 1e6 / 8
    burst_bytes = max(LEAST_BURST_BYTES, int(BURST_SECONDS * bytes_per_second))
    queue_bytes = max(LEAST_BURST_BYTES, int(QUEUE_SECONDS * bytes_per_second))
    words = ["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf"]
    words += ["rate", f"{round(rate_megabits * 1e6)}bit", "burst", str(burst_bytes)]
    subprocess.run([*words, "limit", str(burst_bytes + queue_bytes)], check=True)
