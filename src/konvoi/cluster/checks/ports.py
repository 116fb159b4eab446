"""Every host reaches every other on the ports of a training."""

from __future__ import annotations

from collections.abc import Iterator

from konvoi.cluster.checks import Finding
from konvoi.cluster.links import Link
from konvoi.cluster.survey import Survey

TITLE = "ports"
ORDER = 54
MEMBERS_ONLY = "let the members reach each other on all TCP ports: a rule whose source is the security group itself"
IS_IT_THERE = "is {address} the address of {target}, and are both in one network? on {source}: ip route get {address}"

# What the system said: words, remedy, kind.
REACHING = {
    "ECONNREFUSED": ("is refused: a firewall rejects it, or another machine has that address", MEMBERS_ONLY, "refused"),
    "ETIMEDOUT": ("is not answered: a firewall drops it", MEMBERS_ONLY, "blocked"),
    "EHOSTUNREACH": ("finds no way: no route to the host", IS_IT_THERE, "no-route"),
    "ENETUNREACH": ("finds no way: no route to its network", IS_IT_THERE, "no-route"),
    "EACCES": ("is forbidden by a rule of its own routing", IS_IT_THERE, "no-route"),
    "EPERM": ("is forbidden by its own firewall", MEMBERS_ONLY, "refused"),
    "EPROTO": ("is answered by something else than Konvoi", IS_IT_THERE, "stranger"),
    "ENONAME": ("fails: it does not know the name", IS_IT_THERE, "no-route"),
}
TAKEN = ("all ports of {ports} are taken", "end what listens there (ss -ltnp), or give other ports in cluster.toml")
# That the address is not its own is what checks/name.py says.
SAID_ELSEWHERE = ("EADDRNOTAVAIL", "ENONAME")


def examine(survey: Survey) -> Iterator[Finding]:
    for name, listener in survey.listeners.items():
        if listener.problem == "EADDRINUSE":
            yield Finding(name, "error", TAKEN[0].format(ports=survey.cluster.ports), TAKEN[1], "ports-taken")
        elif listener.problem and listener.problem not in SAID_ELSEWHERE:
            yield Finding(name, "error", f"it cannot listen on its address: {listener.problem}", kind="cannot-listen")
    # Who talks to itself is in checks/interface.py.
    closed = [link for link in survey.links if link.problem and not link.is_loopback]
    yield from (_cannot_reach(survey, link) for link in closed)
    if survey.links and not any(link.problem for link in survey.links):
        yield Finding("", "ok", f"open between all {len(survey.listeners)} hosts, {len(survey.links)} ways")


def _cannot_reach(survey: Survey, link: Link) -> Finding:
    found, fix, kind = REACHING.get(link.problem, (f"fails: {link.problem}", IS_IT_THERE, "no-route"))
    address = survey.listeners[link.target].address
    first, last = survey.cluster.port_range
    if link.port and not first <= link.port <= last:
        found += f"; {survey.cluster.ports} are open, but gloo and NCCL use any port"
        kind = "other-ports-blocked"
    fix = fix.format(address=address, source=link.source, target=link.target)
    return Finding(link.name, "error", f"{address}:{link.port} {found}", fix, kind)
