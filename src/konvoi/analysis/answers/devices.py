"""Were the devices fully used, and why busy isn't the same as useful."""

from __future__ import annotations

from typing import Any

import numpy as np

from konvoi.analysis.answer import Answer
from konvoi.analysis.devices import gpus_busy_percent
from konvoi.analysis.record import HostRecord, RunRecord
from konvoi.analysis.shares import TimeShares, time_shares
from konvoi.analysis.wording import listed, percent

QUESTION = "Were the devices fully used?"
# Shares of a step in which the device computes for the model.
FULLY, MOSTLY = 0.85, 0.6
# Below this share of a step a wait is not worth a word.
NEGLIGIBLE = 0.02
# A thread that was ready to run but had no core for so much of a step shared it with others.
CROWDED = 0.1


def answer(run: RunRecord) -> Answer:
    times = time_shares(run)
    cores = {host.name: core_percents(host) for host in run.hosts.values()}
    cores = {name: percents for name, percents in cores.items() if percents}
    facts: dict[str, Any] = {"core_busy_percent": cores, "gpu_busy_percent": gpus_busy_percent(run)}
    # Events from before the exchange was measured count it as backward.
    if times.ranks and times.phases_known and times.communication_known:
        facts |= {f"{name}_share_of_step": times.of_step(name) for name in ("compute", "waiting", "moving", "input")}
        facts["run_delay_share_of_step"] = _run_delay_share(times)
    if "compute_share_of_step" not in facts and not cores and facts["gpu_busy_percent"] is None:
        return Answer(QUESTION, "can't tell", "No step with its phases and no sample of the devices is here.", facts)
    words = [*_useful_words(facts), *_busy_words(facts), *_crowd_words(facts)]
    return Answer(QUESTION, _short(facts), " ".join(words), facts)


def core_percents(host: HostRecord) -> list[float]:
    """The mean of each core over all samples; empty where none was sampled whole."""
    rows = [sample["cpu_percent"] for sample in host.samples if isinstance(sample.get("cpu_percent"), list)]
    rows = [row for row in rows if row and len(row) == len(rows[0]) and None not in row]
    return [round(float(value), 1) for value in np.mean(rows, axis=0)] if rows else []


def _run_delay_share(times: TimeShares) -> float | None:
    shares = [rank.run_delay / rank.step for rank in times.ranks if np.isfinite(rank.run_delay) and rank.step > 0]
    return float(np.mean(shares)) if shares else None


def _short(facts: dict[str, Any]) -> str:
    share = facts.get("compute_share_of_step")
    if share is None:
        return "can't tell"
    if (facts["run_delay_share_of_step"] or 0.0) >= CROWDED:
        return "yes, but too few cores"
    return "yes" if share >= FULLY else "mostly" if share >= MOSTLY else "no"


def _useful_words(facts: dict[str, Any]) -> list[str]:
    if "compute_share_of_step" not in facts:
        return ["The steps do not tell computing from waiting."]
    names = {"waiting": "waiting for a slower rank", "moving": "waiting for the network", "input": "waiting for data"}
    waits = {name: facts[f"{name}_share_of_step"] for name in names}
    told = [f"{percent(share)} {names[name]}" for name, share in waits.items() if share >= NEGLIGIBLE]
    rest = f"; {listed(told)}" if told else ""
    return [f"Of a step the devices computed for the model {percent(facts['compute_share_of_step'])}{rest}."]


def _busy_words(facts: dict[str, Any]) -> list[str]:
    gpu_percent = facts["gpu_busy_percent"]
    if gpu_percent is not None:
        return [
            f"The GPUs were busy {percent(gpu_percent / 100)} of the time, but busy is not useful: a GPU that spins in"
            " a collective, waiting for another, counts as busy."
        ]
    busy = {name: percent(float(np.mean(percents)) / 100) for name, percents in facts["core_busy_percent"].items()}
    if not busy:
        return []
    told = listed([f"those of {name} {share}" for name, share in busy.items()])
    return [
        f"Of the time the cores were busy: {told}; but busy is not useful: it counts every process on them, and waiting"
        " for others too where that spins."
    ]


def _crowd_words(facts: dict[str, Any]) -> list[str]:
    share = facts.get("run_delay_share_of_step")
    if share is None or share < CROWDED:
        return []
    return [
        f"For {percent(share)} of a step a worker was ready to compute but had no core: there were too few of them."
    ]
