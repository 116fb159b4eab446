"""A session with each host of a cluster, as long as it lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from konvoi.cluster.hosts import Cluster
from konvoi.cluster.session import Session, on_all
from konvoi.errors import HostError

T = TypeVar("T")


class Connections:
    """Hosts that can't be reached, or fail on the way, are left out from then on."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.sessions: dict[str, Session] = {}
        self.lost: dict[str, HostError] = {}
        for name, result in on_all(cluster.hosts, lambda host: Session(cluster, host)).items():
            if isinstance(result, HostError):
                self.lost[name] = result
            else:
                self.sessions[name] = result

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *_: object) -> None:
        if self.sessions:
            with ThreadPoolExecutor(len(self.sessions)) as pool:
                list(pool.map(Session.close, self.sessions.values()))

    def on_all(self, work: Callable[[Session], T], names: Iterable[str] | None = None) -> dict[str, T]:
        """What each host answers, all at once; of these names alone where they are given."""
        chosen = [session.host for name, session in self.sessions.items() if names is None or name in set(names)]
        answers: dict[str, T] = {}
        if not chosen:
            return answers
        for name, result in on_all(chosen, lambda host: work(self.sessions[host.name])).items():
            if isinstance(result, HostError):
                self.lost[name] = result
                self.sessions.pop(name).close()
            else:
                answers[name] = result
        return answers
