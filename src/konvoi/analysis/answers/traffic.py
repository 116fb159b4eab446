"""How does a step relate to the traffic between the nodes: bytes measured beside bytes predicted."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from konvoi.analysis.answer import Answer
from konvoi.analysis.network import is_one_host
from konvoi.analysis.record import Floats, HostRecord, RankRecord, RunRecord
from konvoi.analysis.wording import amount_of_bytes, bit_rate, duration, listed, percent

QUESTION = "How does a step relate to the traffic between the nodes?"
LOOPBACK = "lo"
WAYS = ("in", "out")
# More stretches of steps that are alike are not worth a list.
MOST_SPELLS = 3
# Headers and acknowledgements take a few percent; more is somebody else's traffic.
USUAL_SURPLUS = 1.15


@dataclass(frozen=True)
class HostTraffic:
    """What went over the interface that the job uses, a value a second."""

    host: str
    interface: str
    time: Floats
    in_bits_per_second: Floats
    out_bits_per_second: Floats
    link_bits_per_second: float | None
    in_bytes_per_step: float | None
    """Over the time of the steps; None where no sample fell into it."""
    out_bytes_per_step: float | None


def answer(run: RunRecord) -> Answer:
    if run.num_workers == 1:
        return Answer(QUESTION, "no traffic", "One worker has nobody to send gradients to.", {"workers": 1})
    predicted_bytes, hosts = predicted(run), measured(run)
    known = [host for host in hosts.values() if host.out_bytes_per_step is not None]
    facts: dict[str, Any] = {"predicted_bytes_per_step": predicted_bytes}
    facts["hosts"] = {host.host: _host_facts(host) for host in known}
    if not known:
        return Answer(QUESTION, "not measured", f"{_predicted_words(run, predicted_bytes)} {_why_not(run)}", facts)
    highest = max(host.out_bytes_per_step or 0.0 for host in known)
    facts["ratio"] = highest / predicted_bytes if predicted_bytes else None
    words = [_measured_words(known), _predicted_words(run, predicted_bytes), *_ratio_words(facts["ratio"])]
    words += _loopback_words(known) or _link_words(run, known)
    return Answer(QUESTION, f"{amount_of_bytes(highest)} per step", " ".join(words), facts)


def measured(run: RunRecord) -> dict[str, HostTraffic]:
    """By host; hosts without samples of an interface are left out."""
    found = {}
    for host in run.hosts.values():
        name = interface_of(run, host)
        if name is not None:
            found[host.name] = _host_traffic(run, host, name)
    return found


def interface_of(run: RunRecord, host: HostRecord) -> str | None:
    """On one host the workers talk over its loopback, whatever address they use."""
    seen = {name for sample in host.samples for name in (sample.get("interfaces") or {})}
    wanted = LOOPBACK if is_one_host(run) and LOOPBACK in seen else host.job_interface
    return wanted if wanted in seen else None


def predicted(run: RunRecord) -> float | None:
    """Bytes that leave a host in a step, as the strategy declares them; None where the run has not told."""
    of_each = declared(run)
    if of_each is None:
        return None
    return of_each * (run.num_workers if is_one_host(run) else 1)


def declared(run: RunRecord) -> float | None:
    """Bytes that leave a host in a step; with one host alone, each worker. The mean over the steps that were seen."""
    sent, shares = _sent_and_seen(run)
    if len(sent):
        return float(np.average(sent, weights=shares))
    # Older runs do not tell it. In a ring over hosts only the last worker of each has its next neighbour elsewhere.
    per_worker = run.summary.get("bytes_sent_per_step")
    told = per_worker if is_one_host(run) else run.summary.get("bytes_out_per_host_and_step", per_worker)
    return None if told is None else float(told)


def _sent_and_seen(run: RunRecord) -> tuple[Floats, Floats]:
    """Of each step that the counters saw its bytes, and how much of it they saw; none of an earlier version's run.

    All steps where there are no counters.
    """
    rank, host = run.first, run.hosts.get(run.first.host)
    is_told = rank.steps.has("bytes_out_of_host") and not is_one_host(run)
    sent = rank.steps["bytes_out_of_host"] if is_told else rank.steps.bytes_sent
    shares = np.ones(len(rank.steps))
    if host and (name := interface_of(run, host)) is not None:
        time, seconds, *_ = _samples(host, name)
        seen = seen_shares(rank, time, seconds)
        shares = seen if seen.any() else shares
    known = np.isfinite(sent) & (shares > 0) & rank.steps.has("bytes_sent")
    return sent[known], shares[known]


def _samples(host: HostRecord, name: str) -> tuple[Floats, Floats, Floats, Floats]:
    """When each ended, how long it was, and the bytes in and out."""
    columns = [host.column(key) for key in ("time", "seconds", *(f"interfaces.{name}.bytes_{way}" for way in WAYS))]
    known = (columns[1] > 0) & np.isfinite(columns).all(axis=0)
    time, seconds, bytes_in, bytes_out = (column[known] for column in columns)
    return time, seconds, bytes_in, bytes_out


def _host_traffic(run: RunRecord, host: HostRecord, name: str) -> HostTraffic:
    time, seconds, bytes_in, bytes_out = _samples(host, name)
    rank = next((rank for rank in run.ranks.values() if rank.host == host.name), run.first)
    overlap, shares = in_steps(rank, time - seconds, time), seen_shares(rank, time, seconds)
    is_job_interface = name == host.job_interface
    return HostTraffic(
        host=host.name,
        interface=name,
        time=time,
        in_bits_per_second=8 * bytes_in / seconds,
        out_bits_per_second=8 * bytes_out / seconds,
        link_bits_per_second=host.link_bits_per_second if is_job_interface and name != LOOPBACK else None,
        in_bytes_per_step=_per_step(rank, bytes_in / seconds, overlap, shares),
        out_bytes_per_step=_per_step(rank, bytes_out / seconds, overlap, shares),
    )


def in_steps(rank: RankRecord, start: Floats, end: Floats) -> Floats:
    """Of each stretch of time, the seconds in which the rank was in a step, not in an evaluation or a checkpoint."""
    known = np.isfinite(rank.steps["time"]) & (rank.steps["step_seconds"] > 0)
    return _within(rank.steps["time"][known], rank.steps["step_seconds"][known], start, end)


def seen_shares(rank: RankRecord, time: Floats, seconds: Floats) -> Floats:
    """How much of each step passed while somebody counted, in samples that ended at these times."""
    ends, lengths = rank.steps["time"], rank.steps["step_seconds"]
    known = np.isfinite(ends) & (lengths > 0)
    shares = np.zeros(len(ends))
    shares[known] = _within(time, seconds, (ends - lengths)[known], ends[known]) / lengths[known]
    return shares


def _within(ends: Floats, lengths: Floats, start: Floats, end: Floats) -> Floats:
    """Of each stretch from start to end the seconds in those others, which may come in any order."""
    if not len(ends):
        return np.zeros_like(start)
    order = np.argsort(ends)
    ends, lengths = ends[order], lengths[order]
    moments = np.maximum.accumulate(np.stack([ends - lengths, ends], axis=1).ravel())
    passed = np.diff(moments, prepend=moments[0])
    covered = np.cumsum(np.where(np.arange(len(moments)) % 2 == 1, passed, 0.0))
    return np.asarray(np.interp(end, moments, covered) - np.interp(start, moments, covered))


def _per_step(rank: RankRecord, bytes_per_second: Floats, overlap: Floats, shares: Floats) -> float | None:
    """Of the steps that the counters saw. A step may be told of late: its seconds are sure, its time is about right."""
    covered = float(overlap.sum())
    if covered <= 0 or not shares.any():
        return None
    step_seconds = float(np.average(rank.steps["step_seconds"][shares > 0], weights=shares[shares > 0]))
    return float((bytes_per_second * overlap).sum()) / covered * step_seconds


def _mean_step_seconds(rank: RankRecord) -> float:
    seconds = rank.steps["step_seconds"]
    return float(seconds[seconds > 0].mean()) if (seconds > 0).any() else 0.0


def _measured_words(known: list[HostTraffic]) -> str:
    told = [
        f"{host.host} sent {amount_of_bytes(host.out_bytes_per_step or 0.0)} and received"
        f" {amount_of_bytes(host.in_bytes_per_step or 0.0)} over {host.interface}"
        for host in known
    ]
    return f"In a step {listed(told)} (the mean, measured by the interface's counters)."


def _predicted_words(run: RunRecord, predicted_bytes: float | None) -> str:
    if predicted_bytes is None:
        return "How much to expect is not in the run's summary."
    if predicted_bytes == 0:
        return "Predicted are none: the workers of a host add up among themselves, and there was one host."
    if is_one_host(run):
        per_worker = amount_of_bytes(declared(run) or 0.0)
        whole = f"{amount_of_bytes(predicted_bytes)}: {per_worker} by each of {run.num_workers} workers"
    else:
        whole = f"{amount_of_bytes(predicted_bytes)} out of each host"
    return f"Predicted are {whole}{_when_words(run)}."


def _when_words(run: RunRecord) -> str:
    """Not all steps are alike in every way to synchronise."""
    spells = _spells(_sent_and_seen(run)[0].tolist())
    if len(spells) > MOST_SPELLS:
        least, most = (amount_of_bytes(end(sent for sent, _ in spells)) for end in (min, max))
        return f", on average over steps of {least} to {most}"
    if len(spells) > 1:
        which = ["the first", *["the next"] * (len(spells) - 1)]
        told = [
            f"{amount_of_bytes(sent)} in {words} {count:,}" for words, (sent, count) in zip(which, spells, strict=True)
        ]
        return f", on average over all steps: {listed(told)}"
    return _table_words(run, last_step=0 if not spells else int(run.first.steps.numbers[-1]))


def _spells(values: list[float]) -> list[tuple[float, int]]:
    """Each value and how often it came in a row."""
    return [(value, len(list(same))) for value, same in groupby(values)]


def _table_words(run: RunRecord, last_step: int) -> str:
    """Where all steps are said to be alike; an earlier version (last_step = 0) said so of those that are not exact."""
    for table in ("sync", "sync.between"):
        every, start = run.setting(f"{table}.local_steps"), run.setting(f"{table}.start_step")
        exact = run.setting(f"{table}.exact_steps") or start
        if (every or start) and 0 < last_step <= (exact or 0):
            return ", as all steps were exact"
        after = f", after the first {exact} steps, which are exact" if exact and not last_step else ""
        if every:
            return f", on average over the {every} steps from one exchange to the next{after}"
        if after:
            return after
    return ""


def _ratio_words(ratio: float | None) -> list[str]:
    if ratio is None:
        return []
    if ratio > USUAL_SURPLUS:
        return [f"Measured are {ratio:.2f} times the prediction: headers, and what else used the interface."]
    if ratio < 1 / USUAL_SURPLUS:
        return [f"Measured are only {ratio:.2f} times the prediction: part of the bytes took another way."]
    return [f"Measured are {ratio:.2f} times the prediction."]


def _loopback_words(known: list[HostTraffic]) -> list[str]:
    if not all(host.interface == LOOPBACK for host in known):
        return []
    return ["All workers were on one host: its loopback counts every byte as sent and as received, none used a cable."]


def _link_words(run: RunRecord, known: list[HostTraffic]) -> list[str]:
    """The least time that the bytes need on the link, beside the step."""
    host = max(known, key=lambda host: host.out_bytes_per_step or 0.0)
    step_seconds = _mean_step_seconds(run.first)
    if not host.link_bits_per_second or not host.out_bytes_per_step or not step_seconds:
        return []
    least_seconds = 8 * host.out_bytes_per_step / host.link_bits_per_second
    return [
        f"On a link of {bit_rate(host.link_bits_per_second)} they need at least {duration(least_seconds)},"
        f" {percent(least_seconds / step_seconds)} of a step."
    ]


def _why_not(run: RunRecord) -> str:
    if not run.hosts:
        return "The run has no counters of its hosts to measure it by."
    return "The hosts' counters have no sample of the job's interface within the steps."


def _host_facts(host: HostTraffic) -> dict[str, Any]:
    return {
        "interface": host.interface,
        "in_bytes_per_step": host.in_bytes_per_step,
        "out_bytes_per_step": host.out_bytes_per_step,
        "link_bits_per_second": host.link_bits_per_second,
    }
