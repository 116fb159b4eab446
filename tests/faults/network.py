"""A training on hosts with a network of their own, which may be cut and slowed; agents are started without ssh."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests import hosts as network
from tests.processes import Trainings, start_process

from konvoi.cluster.job_spec import JobSpec, Member, spec_file
from konvoi.folder import write_whole

ROOT = str(Path(__file__).parents[2])
PORT = 29500
# Only against a hang.
PATIENCE_SECONDS = 240


class Network:
    """Hosts h0, h1... at one switch: namespaces with nothing but an address."""

    def __init__(self, prefix: str, num_hosts: int) -> None:
        self.prefix, self.num_hosts = prefix, num_hosts

    def cut(self, node: int) -> None:
        self._set_link(node, "down")

    def mend(self, node: int) -> None:
        self._set_link(node, "up")

    def limit(self, rate_megabits: float | None, *nodes: int) -> None:
        """These hosts' links in both directions; of all, unless told."""
        for node in nodes or range(self.num_hosts):
            network.limit(f"{self.prefix}-h{node}", network.INTERFACE, rate_megabits)
            network.limit(f"{self.prefix}-switch", f"port{node + 1}", rate_megabits)

    def _set_link(self, node: int, state: str) -> None:
        words = ["ip", "-n", f"{self.prefix}-switch", "link", "set", f"port{node + 1}", state]
        subprocess.run(words, check=True)


@contextmanager
def made(num_hosts: int) -> Iterator[Network]:
    prefix = f"kt{os.getpid()}-net"
    try:
        network.add_switch(f"{prefix}-switch")
        for node in range(num_hosts):
            network.add_namespace(f"{prefix}-h{node}", f"{prefix}-switch", node + 1)
        yield Network(prefix, num_hosts)
    finally:
        network.remove_namespaces(prefix)


class Agents:
    """Of a training with a worker and a run directory on each host; the end of `with` kills those that are left."""

    def __init__(self, trainings: Trainings, hosts: Network, *overrides: str) -> None:
        self.hosts = hosts
        nodes = range(hosts.num_hosts)
        self.runs = [trainings.new(f"train.workers={hosts.num_hosts}", *overrides) for _ in nodes]
        members = tuple(Member(f"h{n}", network.address_of(n + 1), network.INTERFACE, 1) for n in nodes)
        spec = JobSpec(uuid.uuid4().hex, members, 0, PORT, environment=trainings.environment())
        for node, run in enumerate(self.runs):
            spec_file(run.path).parent.mkdir()
            write_whole(spec_file(run.path), replace(spec, node=node).to_json())
        self.processes = [self.start(node) for node in nodes]

    def __enter__(self) -> Agents:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def start(self, node: int) -> BaseProcess:
        program = (
            f"import sys; sys.path.insert(0, {ROOT!r})\n"
            "from pathlib import Path; from konvoi.commands.node import node; from tests import hosts\n"
            f"with hosts.in_network_of({self.hosts.prefix!r} + '-h{node}'):\n"
            f"    sys.exit(node(Path({str(self.runs[node].path)!r})))"
        )
        return start_process(program, {})

    def exit_codes(self, patience_seconds: float = PATIENCE_SECONDS) -> list[int | None]:
        """Once they have ended; None of one that does not."""
        for process in self.processes:
            process.join(patience_seconds)
        return [process.exitcode for process in self.processes]

    def are_over(self) -> bool:
        return not any(process.is_alive() for process in self.processes)

    def events(self, node: int, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in self.runs[node].events_of(node) if event["kind"] in kinds]
