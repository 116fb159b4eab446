"""The real thing in small: all hosts add up a few megabytes, as a training does with its gradients.

`python -m konvoi.cluster.all_reduce` is one host's part; its words and its answer are JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from konvoi.cluster.rendezvous import connect_store, serve_store

# On a host this file has to start quickly, and needs none of them.
if TYPE_CHECKING:
    from konvoi.cluster.connections import Connections
    from konvoi.cluster.links import Link
    from konvoi.cluster.session import Session

NUM_BYTES = 4_000_000
NUM_REPEATS = 3
# To import torch on a cold disk; then all are there, and the rest is quick.
ARRIVE_SECONDS, EXCHANGE_SECONDS = 40.0, 10.0


@dataclass(frozen=True)
class AllReduce:
    num_bytes: int = 0
    """Of the vector; less than 4 MB where a link is too slow for it."""
    seconds: float = 0.0
    """Of the slowest host."""
    backend: str = "gloo"
    num_hosts: int = 0
    failed_host: str = ""
    """The first that failed: others fail because of it."""
    problem: str = ""
    """Its last words."""

    @property
    def bytes_per_second(self) -> float:
        """What each host sent, and received, in that time: a ring passes 2 (n - 1) / n of the vector on."""
        return self.num_bytes * 2 * (self.num_hosts - 1) / self.num_hosts / self.seconds


def all_reduce(connections: Connections, interfaces: Mapping[str, str], links: list[Link], has_gpus: bool) -> AllReduce:
    """Between the hosts that are there; the first one's address is where they meet."""
    names = list(connections.sessions)
    first = connections.sessions[names[0]]
    address, (low, high) = first.host.address, connections.cluster.port_range
    backend, num_bytes = "nccl" if has_gpus else "gloo", affordable_bytes(links)
    meeting = {"address": address, "port": first.ask("network.free_port", address=address, first=low, last=high)}

    def one(session: Session) -> dict[str, Any]:
        rank = names.index(session.host.name)
        part = {**meeting, "rank": rank, "size": len(names), "num_bytes": num_bytes, "backend": backend}
        interface = interfaces[session.host.name]
        answer = session.ask(
            "network.run",
            words=[f"{connections.cluster.venv}/bin/python", "-m", "konvoi.cluster.all_reduce", json.dumps(part)],
            environment={"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1"},
            seconds=ARRIVE_SECONDS + 2 * EXCHANGE_SECONDS,
            timeout=ARRIVE_SECONDS + 4 * EXCHANGE_SECONDS,
        )
        return {**answer, "host": session.host.name, "ended_at": time.monotonic()}

    answers = list(connections.on_all(one).values())
    failed = sorted((answer for answer in answers if answer["code"]), key=lambda answer: float(answer["ended_at"]))
    if failed:
        return AllReduce(backend=backend, failed_host=failed[0]["host"], problem=_last_words(failed[0]))
    seconds = max((float(answer["output"].split()[-1]) for answer in answers), default=0.0)
    return AllReduce(num_bytes, seconds, backend, len(names))


def affordable_bytes(links: list[Link]) -> int:
    """4 MB, or what the slowest link passes on in half a second."""
    slowest = min((link.bytes_per_second for link in links if link.bytes_per_second), default=float("inf"))
    return int(min(NUM_BYTES, max(slowest / 2, 4000)))


def take_part(part: Mapping[str, Any]) -> float:
    """One host's part: seconds of an all-reduce, the median of some."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    meet = serve_store if part["rank"] == 0 else connect_store
    store = meet(part["address"], part["port"], ARRIVE_SECONDS)
    store.set(f"here {part['rank']}", "")
    store.wait([f"here {rank}" for rank in range(part["size"])], timedelta(seconds=ARRIVE_SECONDS))
    dist.init_process_group(
        part["backend"],
        store=store,
        rank=part["rank"],
        world_size=part["size"],
        timeout=timedelta(seconds=EXCHANGE_SECONDS),
    )
    device = "cuda" if part["backend"] == "nccl" else "cpu"
    vector = torch.ones(part["num_bytes"] // 4, device=device)
    seconds = [_timed(dist, vector) for _ in range(1 + NUM_REPEATS)]
    dist.barrier()
    dist.destroy_process_group()
    # The first one opens the connections.
    return statistics.median(seconds[1:])


def _timed(dist: Any, vector: Any) -> float:
    # All begin together, so that nobody's lateness counts as the network's.
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(vector)
    # On a GPU the call returns at once; reading a number waits for it.
    vector[0].item()
    return time.perf_counter() - began


def _last_words(answer: Mapping[str, Any]) -> str:
    lines = [line.strip() for line in answer["complaints"].splitlines() if line.strip()]
    return lines[-1] if lines else f"ended with exit code {answer['code']} without a word"


if __name__ == "__main__":
    print(take_part(json.loads(sys.argv[1])))
