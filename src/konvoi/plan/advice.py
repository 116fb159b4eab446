"""In a sentence: what binds a set-up, and what would change that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from konvoi.plan.outlook import Outlook, Planner, of_use
from konvoi.plan.predict import Prediction, enough_of, predict
from konvoi.plan.setup import Setup
from konvoi.plan.traffic import Traffic

# What people call near-linear; and less than a tenth is not worth another way to train.
AIM, WORTH_IT = 0.9, 1.1
RATES = {"100 Mbit/s": 1e8, "1 Gbit/s": 1e9, "2.5 Gbit/s": 2.5e9, "10 Gbit/s": 1e10, "25 Gbit/s": 2.5e10}
REMEDIES = {
    "input": "the input is what it waits for: more batching.processes, or a faster disk",
    "straggler": "hosts wait for the slowest: leave it out, or give it less to do",
    "latency": "many small messages: fewer, larger buckets (sync.bucket_megabytes)",
    "processor": "the processor that exchanges is what it waits for: fewer bytes, or cores that compute nothing",
    "bandwidth": "no network of this table is fast enough",
    "compute": "only faster devices, or more of them, would help",
}


def advise(
    planner: Planner, rows: Sequence[tuple[Outlook, Setup]], ways: Mapping[str, Traffic], device: str
) -> list[str]:
    """For each network, of the largest set-up with the way that was asked for first; then what the offered ways do."""
    sentences, offered = [], []
    for network in dict.fromkeys(row.network for row, _ in rows):
        several = [(row, setup) for row, setup in rows if row.network == network and row.prediction.num_workers > 1]
        if several:
            row, setup = max(several, key=lambda each: each[0].prediction.num_workers)
            better = _better(planner, row, setup, ways) if row.prediction.bound != "compute" else None
            remedy = _offer(row, *better) if better else _remedy(planner, row, setup, ways, device)
            sentences.append(f"{_verdict(row, device)}; {remedy}.")
            offered += [ways[better[0]]] if better else []
    return [*sentences, *_meanings(offered)]


def _verdict(row: Outlook, device: str) -> str:
    where = f"{_place(row)} on {row.network} with {row.sync}"
    found = row.prediction
    if found.bound == "compute":
        return f"At {where}: {found.speed_up:.1f}x one {device}"
    slower = f"you would be slower than one {device} ({found.speed_up:.2f}x)"
    faster = f"you would get {found.speed_up:.1f}x one {device}, {found.efficiency:.0%} of linear"
    return f"At {where} {slower if found.speed_up < 1 else faster}, bound by {found.bound}"


def _better(planner: Planner, row: Outlook, setup: Setup, ways: Mapping[str, Traffic]) -> tuple[str, Prediction] | None:
    """A way that is worth another training, and more than one device alone."""
    best = best_way(planner, setup, ways)
    least = max(1.0, WORTH_IT * row.prediction.speed_up)
    return best if best and best[1].speed_up > least else None


def _offer(row: Outlook, name: str, prediction: Prediction) -> str:
    gain, bound = f"with {name}: {prediction.speed_up:.1f}x", row.prediction.bound
    return gain if bound in ("bandwidth", "latency") else f"{gain}; {REMEDIES[bound]}"


def _remedy(planner: Planner, row: Outlook, setup: Setup, ways: Mapping[str, Traffic], device: str) -> str:
    """Where no other way helps."""
    if row.prediction.bound == "bandwidth" and row.sync in ways:
        rate = enough_rate(planner, setup, ways[row.sync])
        if rate:
            return f"{rate} would do"
    alone = f"one {device} alone is {'faster' if row.prediction.speed_up < 1 else 'as fast'}"
    if row.prediction.bound == "compute":
        return alone if row.prediction.speed_up <= 1 else REMEDIES["compute"]
    return REMEDIES[row.prediction.bound] + (f", and {alone}" if row.prediction.speed_up <= 1 else "")


def best_way(planner: Planner, setup: Setup, ways: Mapping[str, Traffic]) -> tuple[str, Prediction] | None:
    """The first that reaches the aim, in the order of the ways (the most exact first); else nearly the fastest."""
    useful = of_use(setup, ways)
    # Thousands of hosts take a while to play through: only what has a chance is.
    guesses = {name: predict(planner.profile, setup, traffic).efficiency for name, traffic in useful.items()}
    enough = enough_of(guesses.values(), AIM)
    found = {}
    for name, guess in guesses.items():
        if guess >= enough:
            found[name] = planner.prediction(setup, useful[name])
            if found[name].efficiency >= AIM:
                return name, found[name]
    enough = enough_of((prediction.efficiency for prediction in found.values()), AIM)
    return next(((name, prediction) for name, prediction in found.items() if prediction.efficiency >= enough), None)


def enough_rate(planner: Planner, setup: Setup, traffic: Traffic) -> str | None:
    """The slowest common network on which this way reaches the aim."""
    for words, bits_per_second in RATES.items():
        hosts = tuple(
            replace(host, link=replace(host.link, bytes_per_second=bits_per_second / 8)) for host in setup.hosts
        )
        faster = replace(setup, hosts=hosts)
        if predict(planner.profile, faster, traffic).efficiency < AIM:
            continue
        if planner.prediction(faster, traffic).efficiency >= AIM:
            return words
    return None


def _meanings(offered: Iterable[Traffic]) -> Iterator[str]:
    """Of what may be new to who reads it, once."""
    ways = [traffic for traffic in offered if traffic.hidden_by == "steps"]
    if ways:
        who = "host" if all(traffic.once_per_host for traffic in ways) else "worker"
        yield (
            f"diloco: every {who} takes H steps of its own, then they exchange what they learnt while the next steps"
            " compute; the model loses by that, more with more steps (docs/network.md has how much)."
        )
    if any(traffic.once_per_host for traffic in offered):
        yield (
            "hierarchical: the workers of a host add up first, and one of them sends for all; what is in parentheses"
            " goes between the hosts (sync.between)."
        )


def _place(row: Outlook) -> str:
    nodes = f"{row.nodes} node{'s' * (row.nodes > 1)}"
    return nodes if row.gpus <= 1 else f"{nodes} of {row.gpus}"
