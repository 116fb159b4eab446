"""In a sentence: what binds a set-up, and what would change that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from konvoi.plan.outlook import Outlook, Planner
from konvoi.plan.predict import predict
from konvoi.plan.profile import Profile
from konvoi.plan.setup import Setup
from konvoi.plan.traffic import Traffic

# What people call near-linear; and less than a tenth is not worth another way to train.
AIM, WORTH_IT = 0.9, 1.1
RATES = {"100 Mbit/s": 1e8, "1 Gbit/s": 1e9, "2.5 Gbit/s": 2.5e9, "10 Gbit/s": 1e10, "25 Gbit/s": 2.5e10}
REMEDIES = {
    "input": "the input is what it waits for: more batching.processes, or a faster disk",
    "straggler": "hosts wait for the slowest: leave it out, or give it less to do",
    "latency": "many small messages: fewer, larger buckets, or steps between exchanges (diloco)",
    "processor": "the processor that exchanges is what it waits for: fewer bytes, or cores that compute nothing",
    "bandwidth": "no network of this table is fast enough",
    "compute": "only faster devices, or more of them, would help",
}


def advise(
    planner: Planner, rows: Sequence[tuple[Outlook, Setup]], ways: Mapping[str, Traffic], device: str
) -> list[str]:
    """For each network, of the largest set-up with the way that was asked for first."""
    sentences = []
    for network in dict.fromkeys(row.network for row, _ in rows):
        several = [(row, setup) for row, setup in rows if row.network == network and row.prediction.num_workers > 1]
        if several:
            largest = max(several, key=lambda each: each[0].prediction.num_workers)
            sentences.append(_sentence(planner, *largest, ways, device))
    return sentences


def _sentence(planner: Planner, row: Outlook, setup: Setup, ways: Mapping[str, Traffic], device: str) -> str:
    where = f"at {_place(row)} on {row.network} with {row.sync}"
    found, bound = row.prediction, row.prediction.bound
    if bound == "compute":
        return f"{where[0].upper()}{where[1:]}: {found.speed_up:.1f}x one {device}; {REMEDIES['compute']}."
    slower = f"you would be slower than one {device} ({found.speed_up:.2f}x)"
    faster = f"you would get {found.speed_up:.1f}x one {device}, {found.efficiency:.0%} of linear"
    verdict = f"{where} {slower if found.speed_up < 1 else faster}, bound by {bound}"
    return f"{verdict[0].upper()}{verdict[1:]}; {_remedy(planner, row, setup, ways)}."


def _remedy(planner: Planner, row: Outlook, setup: Setup, ways: Mapping[str, Traffic]) -> str:
    best = best_way(planner.profile, setup, ways)
    if best and predict(planner.profile, setup, ways[best]).speed_up > WORTH_IT * row.prediction.speed_up:
        gain = f"with {best}: {predict(planner.profile, setup, ways[best]).speed_up:.1f}x"
        return gain if row.prediction.bound in ("bandwidth", "latency") else f"{gain}; {REMEDIES[row.prediction.bound]}"
    if row.prediction.bound == "bandwidth" and row.sync in ways:
        rate = enough_rate(planner.profile, setup, ways[row.sync])
        return f"{rate} would do" if rate else REMEDIES["bandwidth"]
    return REMEDIES[row.prediction.bound]


def best_way(profile: Profile, setup: Setup, ways: Mapping[str, Traffic]) -> str | None:
    """The first that reaches the aim, in the order of the ways (the most exact first); else the fastest."""
    found = {name: predict(profile, setup, traffic).efficiency for name, traffic in ways.items()}
    enough = (name for name, efficiency in found.items() if efficiency >= AIM)
    return next(enough, max(found, key=lambda name: found[name], default=None))


def enough_rate(profile: Profile, setup: Setup, traffic: Traffic) -> str | None:
    """The slowest common network on which this way reaches the aim."""
    for words, bits_per_second in RATES.items():
        hosts = tuple(
            replace(host, link=replace(host.link, bytes_per_second=bits_per_second / 8)) for host in setup.hosts
        )
        if predict(profile, replace(setup, hosts=hosts), traffic).efficiency >= AIM:
            return words
    return None


def _place(row: Outlook) -> str:
    nodes = f"{row.nodes} node{'s' * (row.nodes > 1)}"
    return nodes if row.gpus <= 1 else f"{nodes} of {row.gpus}"
