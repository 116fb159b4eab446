"""One look at all hosts and at the network between them: what the checks judge."""

from __future__ import annotations

import contextlib
import ipaddress
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from konvoi.cluster import links
from konvoi.cluster.all_reduce import AllReduce, all_reduce
from konvoi.cluster.connections import Connections
from konvoi.cluster.dataset import DataSet
from konvoi.cluster.facts import Environment, Facts, own_environment
from konvoi.cluster.far import network
from konvoi.cluster.far.files import digest_of_digests
from konvoi.cluster.hosts import Cluster, Host
from konvoi.cluster.links import Link, Listener
from konvoi.cluster.session import FarError, Session
from konvoi.cluster.setup.shared import check_shared
from konvoi.cluster.ssh import ssh_words
from konvoi.cluster.transfer import Digest, digests_there
from konvoi.data.prepared import INFO_FILE
from konvoi.errors import HostError

# The quickest of some answers tells a clock best.
NUM_CLOCK_READINGS = 3


@dataclass(frozen=True)
class Clock:
    """A host's, against that of this machine."""

    ahead_seconds: float
    uncertain_seconds: float
    """Half the round trip: nobody knows how it was shared between the ways."""


@dataclass(frozen=True)
class Opening:
    """A training port that answered this machine."""

    address: str
    port: int
    seen_as: str
    """Where the host saw us come from."""


@dataclass(frozen=True)
class Wanted:
    """The data that a recipe reads."""

    recipe: str
    is_here: bool = True
    """Prepared on this machine, so that hosts can be compared with it."""
    files: DataSet | None = None
    """None where the hosts make it from the package itself."""
    digest: str = ""
    """Of the files here, as content_digest() makes it."""


@dataclass
class Survey:
    cluster: Cluster
    is_quick: bool = False
    """Nothing was measured."""
    facts: dict[str, Facts] = field(default_factory=dict)
    unreachable: dict[str, HostError] = field(default_factory=dict)
    own: Environment = field(default_factory=Environment)
    """Of the machine that starts."""
    clocks: dict[str, Clock] = field(default_factory=dict)
    listeners: dict[str, Listener] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    all_reduce: AllReduce | None = None
    """None where it was not tried: one host alone, a quick look, an environment that is missing."""
    outside: dict[str, list[Opening]] = field(default_factory=dict)
    shared: dict[str, bool] = field(default_factory=dict)
    """Whether a host sees in the shared folder what the first one wrote there."""
    wanted: Wanted | None = None
    """None where no recipe was given."""
    data: dict[str, str | None] = field(default_factory=dict)
    """By host, a digest of what it has of the wanted data; None where it has nothing."""
    seconds: dict[str, float] = field(default_factory=dict)
    """What each part of the survey took."""

    def interface_of(self, host: str) -> str:
        """That a training binds to: the one given, else the one with the host's address; empty where none has it."""
        given = self.cluster.host(host).interface
        return given or self.interface_with(host, self.listeners.get(host, Listener()).address)

    def interface_with(self, host: str, address: str) -> str:
        facts = self.facts.get(host, Facts())
        return facts.interface_of(address) or ""

    def data_environment(self) -> dict[str, str]:
        """For workers, where every host has the wanted data as it is here: they need not find what it was made of."""
        if self.wanted and self.wanted.files and set(self.data.values()) == {self.wanted.digest}:
            return self.wanted.files.environment
        return {}

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[part] = round(time.perf_counter() - began, 3)


def survey(cluster: Cluster, wanted: Wanted | None = None, quick: bool = False) -> Survey:
    """All hosts side by side."""
    found = Survey(cluster, quick, wanted=wanted)
    with found.timed("connect"), ThreadPoolExecutor(1) as pool:
        own = pool.submit(own_environment)
        connections = Connections(cluster)
        found.own = own.result()
    with connections:
        _look(found, connections)
        _try_network(found, connections)
        if not quick and can_all_reduce(found):
            with found.timed("all-reduce"):
                found.all_reduce = _all_reduce(found, connections)
        _compare_data(found, connections)
    _try_shared(found)
    found.unreachable = connections.lost
    return found


def can_all_reduce(found: Survey) -> bool:
    """Several hosts that all reach each other, each with an environment to do it in."""
    hosts = found.cluster.hosts
    return (
        len(hosts) > 1
        and len(found.links) == len(hosts) * (len(hosts) - 1)
        and not any(link.problem or link.is_loopback for link in found.links)
        and all({"konvoi", "torch"} <= facts.environment.packages.keys() for facts in found.facts.values())
    )


def _look(found: Survey, connections: Connections) -> None:
    cluster = found.cluster

    def one(session: Session) -> tuple[Facts, Clock]:
        seen = session.ask(
            "machine.look",
            folder=cluster.folder,
            venv=cluster.venv,
            home=cluster.data_home,
            shared_target=cluster.shared.target if cluster.shared else None,
            ports=cluster.port_range,
            address=session.host.address,
        )
        return Facts.of(seen), _clock(session)

    with found.timed("look"):
        for name, (facts, clock) in connections.on_all(one).items():
            found.facts[name], found.clocks[name] = facts, clock


def _clock(session: Session) -> Clock:
    readings = []
    for _ in range(NUM_CLOCK_READINGS):
        asked_at = time.time()
        told = session.ask("network.clock")
        half = (time.time() - asked_at) / 2
        readings.append(Clock(told - (asked_at + half), half))
    return min(readings, key=lambda clock: clock.uncertain_seconds)


def _try_network(found: Survey, connections: Connections) -> None:
    with found.timed("reach"), ThreadPoolExecutor() as pool:
        found.listeners = connections.on_all(lambda session: _listen(session, found.cluster))
        outside = {name: pool.submit(_openings, found, name) for name in found.listeners}
        found.links = links.reach(connections, found.listeners)
        found.outside = {name: openings.result() for name, openings in outside.items()}
    if not found.is_quick:
        with found.timed("measure"):
            found.links = links.measure(connections, found.listeners, found.links)
    connections.on_all(lambda session: session.ask("network.hush"))


def _listen(session: Session, cluster: Cluster) -> Listener:
    token, (first, last) = uuid.uuid4().hex, cluster.port_range
    answer = session.ask("network.listen", address=session.host.address, first=first, last=last, token=token)
    return Listener(answer.get("address", ""), tuple(answer.get("ports", ())), token, answer.get("problem", ""))


def _openings(found: Survey, name: str) -> list[Opening]:
    """Where a training port answers this machine: at the private address, or at the one that ssh uses."""
    where = found.listeners[name]
    addresses = {where.address, _ssh_address(found.cluster, found.cluster.host(name))}
    peer = {"ports": where.ports[:1], "token": where.token}
    answers = network.reach({address: {**peer, "address": address} for address in addresses if where.ports})
    return [
        Opening(address, answer["port"], answer["seen_as"])
        for address, answer in answers.items()
        if "problem" not in answer
    ]


def _ssh_address(cluster: Cluster, host: Host) -> str:
    """What ssh makes of its name."""
    ssh, *words = ssh_words(cluster, host)
    said = subprocess.run([ssh, "-G", *words], capture_output=True, text=True).stdout
    return next((line.split()[1] for line in said.splitlines() if line.startswith("hostname ")), host.ssh)


def _all_reduce(found: Survey, connections: Connections) -> AllReduce:
    interfaces = {name: found.interface_of(name) for name in connections.sessions}
    return all_reduce(connections, interfaces, found.links, all(facts.gpus for facts in found.facts.values()))


def _compare_data(found: Survey, connections: Connections) -> None:
    if found.wanted is None or found.wanted.files is None:
        return
    files = found.wanted.files
    with found.timed("data"):
        folder = files.folder_on(found.cluster)
        found.data = connections.on_all(lambda session: content_digest(digests_there(session, folder)))


def content_digest(digests: Mapping[str, Digest]) -> str | None:
    """Of all but info.json, which tells when and where a set was made; None where that is missing: nothing is whole."""
    content = {name: list(digest) for name, digest in digests.items() if name != INFO_FILE}
    return digest_of_digests(content) if INFO_FILE in digests else None


def _try_shared(found: Survey) -> None:
    mounted = [host for host in found.cluster.hosts if found.facts.get(host.name, Facts()).is_shared_mounted]
    if not mounted:
        return
    with found.timed("shared"):
        try:
            strangers = check_shared(found.cluster, mounted)
            found.shared = {host.name: host.name not in strangers for host in mounted}
        except (FarError, HostError):
            # The first one can't write there.
            found.shared = {mounted[0].name: False}


def is_outside(found: Survey, opening: Opening) -> bool:
    """Whether we came from a public address: a private one is that of a member, a neighbour or a VPN."""
    members = {where.address for where in found.listeners.values()}
    return ipaddress.ip_address(opening.seen_as).is_global and opening.seen_as not in members
