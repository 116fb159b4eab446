"""How does a step relate to the traffic between the nodes: bytes measured beside bytes predicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from konvoi.analysis.answer import Answer
from konvoi.analysis.record import Floats, HostRecord, RankRecord, RunRecord
from konvoi.analysis.wording import amount_of_bytes, bit_rate, duration, listed, percent

QUESTION = "How does a step relate to the traffic between the nodes?"
LOOPBACK = "lo"
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


def is_one_host(run: RunRecord) -> bool:
    names = {rank.host for rank in run.ranks.values() if rank.host}
    return int(run.summary.get("hosts") or max(len(names), 1)) == 1


def predicted(run: RunRecord) -> float | None:
    """Bytes that leave a host in a step, as the strategy declares them; None where the run has not told."""
    per_worker = run.summary.get("bytes_sent_per_step")
    if is_one_host(run):
        return None if per_worker is None else float(per_worker) * run.num_workers
    # Older runs do not tell it. In a ring over hosts only the last worker of each has its next neighbour elsewhere.
    out_of_host = run.summary.get("bytes_out_per_host_and_step", per_worker)
    return None if out_of_host is None else float(out_of_host)


def _host_traffic(run: RunRecord, host: HostRecord, name: str) -> HostTraffic:
    seconds = host.column("seconds")
    bytes_in, bytes_out = host.column(f"interfaces.{name}.bytes_in"), host.column(f"interfaces.{name}.bytes_out")
    known = (seconds > 0) & np.isfinite(bytes_in) & np.isfinite(bytes_out) & np.isfinite(host.column("time"))
    time, seconds, bytes_in, bytes_out = host.column("time")[known], seconds[known], bytes_in[known], bytes_out[known]
    rank = next((rank for rank in run.ranks.values() if rank.host == host.name), run.first)
    overlap = in_steps(rank, time - seconds, time)
    is_job_interface = name == host.job_interface
    return HostTraffic(
        host=host.name,
        interface=name,
        time=time,
        in_bits_per_second=8 * bytes_in / seconds,
        out_bits_per_second=8 * bytes_out / seconds,
        link_bits_per_second=host.link_bits_per_second if is_job_interface and name != LOOPBACK else None,
        in_bytes_per_step=_per_step(rank, bytes_in / seconds, overlap),
        out_bytes_per_step=_per_step(rank, bytes_out / seconds, overlap),
    )


def in_steps(rank: RankRecord, start: Floats, end: Floats) -> Floats:
    """Of each stretch of time, the seconds in which the rank was in a step, not in an evaluation or a checkpoint."""
    known = np.isfinite(rank.steps["time"]) & (rank.steps["step_seconds"] > 0)
    ends, seconds = rank.steps["time"][known], rank.steps["step_seconds"][known]
    if not len(ends):
        return np.zeros_like(start)
    order = np.argsort(ends)
    ends, seconds = ends[order], seconds[order]
    moments = np.maximum.accumulate(np.stack([ends - seconds, ends], axis=1).ravel())
    lengths = np.diff(moments, prepend=moments[0])
    covered = np.cumsum(np.where(np.arange(len(moments)) % 2 == 1, lengths, 0.0))
    return np.asarray(np.interp(end, moments, covered) - np.interp(start, moments, covered))


def _per_step(rank: RankRecord, bytes_per_second: Floats, overlap: Floats) -> float | None:
    covered = float(overlap.sum())
    if covered <= 0:
        return None
    return float((bytes_per_second * overlap).sum()) / covered * _mean_step_seconds(rank)


def _mean_step_seconds(rank: RankRecord) -> float:
    seconds = rank.steps["step_seconds"]
    return float(seconds[seconds > 0].mean()) if (seconds > 0).any() else 0.0


def _measured_words(known: list[HostTraffic]) -> str:
    told = [
        f"{host.host} sent {amount_of_bytes(host.out_bytes_per_step or 0.0)} and received"
        f" {amount_of_bytes(host.in_bytes_per_step or 0.0)} over {host.interface}"
        for host in known
    ]
    return f"In each step {listed(told)} (measured by the interface's counters)."


def _predicted_words(run: RunRecord, predicted_bytes: float | None) -> str:
    if predicted_bytes is None:
        return "How much to expect is not in the run's summary."
    if predicted_bytes == 0:
        return "Predicted are none: the workers of a host add up among themselves, and there was one host."
    if is_one_host(run):
        per_worker = amount_of_bytes(float(run.summary["bytes_sent_per_step"]))
        whole = f"{amount_of_bytes(predicted_bytes)}: {per_worker} by each of {run.num_workers} workers"
    else:
        whole = f"{amount_of_bytes(predicted_bytes)} out of each host"
    return f"Predicted are {whole}{_when_words(run)}."


def _when_words(run: RunRecord) -> str:
    """Not all steps are alike in every way to synchronise."""
    for table in ("sync", "sync.between"):
        if every := run.setting(f"{table}.local_steps"):
            return f", on average over the {every} steps from one exchange to the next"
        if start := run.setting(f"{table}.start_step"):
            return f", after the first {start} steps, which are exact"
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
