"""Was the network the bottleneck?"""

from __future__ import annotations

from typing import Any

import numpy as np

from konvoi.analysis.answer import Answer
from konvoi.analysis.answers.traffic import measured
from konvoi.analysis.diagnosis import diagnose
from konvoi.analysis.network import is_one_host
from konvoi.analysis.record import RunRecord
from konvoi.analysis.shares import TimeShares, time_shares
from konvoi.analysis.sync import way_of
from konvoi.analysis.verdict import Verdict
from konvoi.analysis.wording import bit_rate, percent

QUESTION = "Was the network the bottleneck?"


def answer(run: RunRecord) -> Answer:
    if run.num_workers == 1:
        return Answer(QUESTION, "no", "No: one worker sends nothing to others.", {"workers": 1})
    verdict, times = diagnose(run), time_shares(run)
    facts: dict[str, Any] = {"verdict": verdict.verdict, "kind": verdict.kind, "confidence": verdict.confidence}
    facts |= {"moving_share_of_step": None, "waiting_share_of_step": None, **_rates(run, verdict)}
    if not times.ranks or not times.communication_known:
        unknown = "The events do not tell the exchange of gradients from the rest of a step."
        return Answer(QUESTION, "can't tell", unknown, facts)
    facts |= {"moving_share_of_step": times.of_step("moving"), "waiting_share_of_step": times.of_step("waiting")}
    short, opening = _verdict_words(verdict)
    words = [opening, _share_words(run, times), *_rate_words(run, facts), *_waiting_words(times)]
    return Answer(QUESTION, short, " ".join(words), facts)


def _verdict_words(verdict: Verdict) -> tuple[str, str]:
    if verdict.verdict == "network":
        kind = {"bandwidth": ", its bandwidth", "latency": ", its latency"}.get(verdict.kind, "")
        return f"yes{kind}", f"Yes{kind}."
    if verdict.verdict == "unknown":
        return "can't tell", "Too little is known to say what bound the run."
    return "no", f"No: what bound the run was {verdict.verdict}."


def _share_words(run: RunRecord, times: TimeShares) -> str:
    way = way_of(run)
    words = (
        f"{percent(times.of_step('moving'))} of a step went by with {way.cargo} on their way and nothing else to do."
    )
    return f"{words} What travelled behind other steps was not timed." if way.is_behind_steps else words


def _waiting_words(times: TimeShares) -> list[str]:
    """Often taken for the network's fault, since it passes inside the collective."""
    if times.of_step("waiting") < 0.05:
        return []
    return [
        f"Another {percent(times.of_step('waiting'))} passed inside the exchange, waiting for a slower rank:"
        " a faster network would not shorten it."
    ]


def _rates(run: RunRecord, verdict: Verdict) -> dict[str, Any]:
    hosts = [host for host in measured(run).values() if len(host.time)]
    links = [host.link_bits_per_second for host in hosts if host.link_bits_per_second]
    achieved = (verdict.facts.get("exchange") or {}).get("achieved_bits_per_second")
    return {
        "achieved_bits_per_second": achieved or None,
        "mean_out_bits_per_second": max((float(h.out_bits_per_second.mean()) for h in hosts), default=None),
        # Nineteen of twenty seconds were quieter.
        "peak_out_bits_per_second": max((float(np.percentile(h.out_bits_per_second, 95)) for h in hosts), default=None),
        "link_bits_per_second": min(links, default=None),
    }


def _rate_words(run: RunRecord, facts: dict[str, Any]) -> list[str]:
    if is_one_host(run):
        return ["All workers were on one host, so the bytes went through its memory and no cable."]
    words = []
    if facts["achieved_bits_per_second"]:
        words.append(f"While they moved, gradients went at {bit_rate(facts['achieved_bits_per_second'])}.")
    peak, mean, link = (facts[f"{name}_bits_per_second"] for name in ("peak_out", "mean_out", "link"))
    if peak is not None:
        beside = f" of the link's {bit_rate(link)} ({percent(peak / link)})" if link else ", on a link of unknown speed"
        words.append(
            f"The busiest interface sent {bit_rate(mean)} on average and {bit_rate(peak)} at its height{beside}."
        )
    return words
