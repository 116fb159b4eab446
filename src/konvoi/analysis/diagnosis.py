"""The verdict: what binds a run, how sure that is, and what to do about it. The rules are told in docs/diagnosis.md."""

from __future__ import annotations

import math
from typing import Any

from konvoi.analysis.advice import advise
from konvoi.analysis.evidence import evidence_of, sentence_of
from konvoi.analysis.findings import Findings, find
from konvoi.analysis.network import link_bits_per_second, measured_bits_per_second
from konvoi.analysis.record import RunRecord
from konvoi.analysis.shares import RankStep
from konvoi.analysis.verdict import Cause, Verdict
from konvoi.analysis.wording import counted, percent

# What takes less of the time than this is no bottleneck.
MIN_SHARE = 0.15
# Where cores are short the exchange waits for one, too: then it must take more to be the network's.
MIN_NETWORK_SHARE_WITHOUT_CORES = 0.2
SHORT_OF_CORES = 0.2
# Of the whole run, before its first step.
START_UP_SHARE = 0.6
UNMEASURED_SHARE = 0.4
MIN_STEPS = 5
ENOUGH_STEPS = 20
# By how much a cause should lead for us to be sure of it.
CLEAR_MARGIN = 0.1
MIN_CONFIDENCE = 0.3


def diagnose(run: RunRecord, last_steps: int | None = None) -> Verdict:
    """last_steps: looks at the latest only, as for a run that is being watched."""
    found = find(run, last_steps)
    cause = _decide(found)
    confidence, doubts = _confidence(found, cause)
    missing = _missing(found, cause)
    if missing or confidence < MIN_CONFIDENCE:
        cause, confidence, doubts = "unknown", min(confidence, MIN_CONFIDENCE), [*missing, *doubts]
    straggler = found.straggler if cause == "straggler" else None
    return Verdict(
        verdict=cause,
        sentence=sentence_of(found, cause, doubts),
        confidence=round(confidence, 3),
        sure=_sure(confidence, doubts),
        step_seconds=found.times.median_step_seconds,
        shares=found.times.shares(),
        evidence=evidence_of(found, cause),
        advice=advise(found, cause),
        kind=found.exchange.kind if cause == "network" else "",
        rank=straggler.rank if straggler else None,
        host=straggler.host if straggler else "",
        why=straggler.why if straggler else "",
        facts=_facts(found),
    )


def _decide(found: Findings) -> Cause:
    """The largest cause that is large enough; else the run computes, which is what it is for."""
    if found.start_up_share >= START_UP_SHARE:
        return "start-up"
    large: dict[Cause, float] = {name: cost for name, cost in found.costs.items() if cost >= _bound(found, name)}
    return max(large, key=lambda name: large[name]) if large else "compute"


def _bound(found: Findings, cause: Cause) -> float:
    """From which share on a cause is a bottleneck."""
    short_of_cores = cause == "network" and found.times.of_step("run_delay") >= SHORT_OF_CORES
    return MIN_NETWORK_SHARE_WITHOUT_CORES if short_of_cores else MIN_SHARE


def _missing(found: Findings, cause: Cause) -> list[str]:
    """What would have to be known for any verdict."""
    times = found.times
    if times.num_usable_steps < MIN_STEPS:
        return [f"{counted(times.num_steps, 'step')} only" if times.num_steps else "no step yet"]
    if cause in ("start-up", "evaluation", "checkpointing"):
        return []
    if not times.phases_known:
        return ["the events do not tell the phases of a step"]
    if not times.communication_known and cause == "compute":
        return ["the events do not tell the exchange of gradients from the backward pass"]
    other = times.of_step("other") * times.steps + times.unaccounted
    if cause == "compute" and other > UNMEASURED_SHARE * times.training:
        return [f"{percent(other / times.training)} of the time is in nothing that is measured"]
    return []


def _confidence(found: Findings, cause: Cause) -> tuple[float, list[str]]:
    """From the number of steps, the lead over the next cause, and how complete the events are."""
    times, doubts = found.times, []
    confidence = math.sqrt(min(1.0, times.num_usable_steps / ENOUGH_STEPS))
    if times.num_usable_steps < ENOUGH_STEPS:
        doubts.append(f"{counted(times.num_usable_steps, 'usable step')} only")
    lead, rival = _lead(found, cause)
    noise = times.spread / math.sqrt(max(1, times.num_usable_steps)) * max(MIN_SHARE, found.costs.get(cause, 0.0))
    confidence *= 0.5 + 0.5 * min(1.0, max(0.0, lead - noise) / CLEAR_MARGIN)
    if lead - noise < CLEAR_MARGIN / 2:
        doubts.append(rival)
    if len(times.ranks) < found.run.num_workers:
        confidence *= 0.8
        doubts.append(f"the events of {len(times.ranks)} of {found.run.num_workers} ranks are here")
    if cause == "compute" and found.costs["network"] >= MIN_SHARE:
        confidence *= 0.7
        doubts.append("whether the exchange waits for the network or for a core cannot be told")
    if _is_gpu(found.run) and not times.sampled_only:
        confidence *= 0.5
        doubts.append("the phases were not measured on the GPU")
    return confidence, doubts


def _lead(found: Findings, cause: Cause) -> tuple[float, str]:
    """Over what would make the verdict another, and what that is, in words."""
    if cause == "start-up":
        return found.start_up_share - START_UP_SHARE, f"start-up is {percent(found.start_up_share)} of the run"
    leads = {name: found.costs.get(cause, 0.0) - cost for name, cost in found.costs.items() if name != cause}
    if cause == "compute":
        leads = {name: _bound(found, name) - cost for name, cost in found.costs.items()}
    rival = min(leads, key=lambda name: leads[name])
    over_bound = found.costs.get(cause, 1.0) - _bound(found, cause)
    if over_bound < leads[rival]:
        return over_bound, f"{percent(found.costs[cause])} is not much"
    return leads[rival], f"{rival} is close, with {percent(found.costs[rival])}"


def _sure(confidence: float, doubts: list[str]) -> str:
    words = "sure" if confidence >= 0.8 else "fairly sure" if confidence >= 0.55 else "not very sure"
    if confidence <= MIN_CONFIDENCE:
        words = "can't tell"
    return f"{words} ({'; '.join(doubts)})" if doubts else words


def _is_gpu(run: RunRecord) -> bool:
    return str(run.summary.get("device", "cpu")).startswith("cuda")


def _facts(found: Findings) -> dict[str, Any]:
    times, straggler = found.times, found.straggler
    return {
        "costs": dict(found.costs),
        "start_up_share_of_whole_run": found.start_up_share,
        "num_steps": times.num_steps,
        "num_usable_steps": times.num_usable_steps,
        "num_evaluations": times.num_evaluations,
        "num_checkpoints": times.num_checkpoints,
        "seconds": {
            "steps": times.steps,
            "evaluation": times.evaluation,
            "checkpointing": times.checkpointing,
            "start-up": times.start_up,
            "unaccounted": times.unaccounted,
        },
        "ranks": [_rank_facts(rank) for rank in times.ranks],
        "exchange": _exchange_facts(found),
        "slowest_rank": straggler.rank if straggler else None,
        "slowest_rank_costs_seconds": straggler.seconds if straggler else 0.0,
    }


def _rank_facts(rank: RankStep) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "step_seconds": rank.step,
        "compute_seconds": rank.compute,
        "input_seconds": rank.input,
        "waiting_seconds": rank.waiting,
        "moving_seconds": rank.moving,
        "other_seconds": rank.other,
        "cpu_seconds": rank.cpu,
        "run_delay_seconds": rank.run_delay,
        "own_amount": None if math.isnan(rank.amount) else rank.amount,
    }


def _exchange_facts(found: Findings) -> dict[str, Any]:
    exchange = found.exchange
    return {
        "seconds": exchange.seconds,
        "exposed_seconds": exchange.exposed,
        "latency_seconds_per_collective": None if exchange.behind_steps else exchange.latency,
        "num_collectives": exchange.num_collectives,
        "bytes": exchange.num_bytes,
        "achieved_bits_per_second": exchange.bits_per_second or None,
        "link_bits_per_second": link_bits_per_second(found.run),
        "interface_bits_per_second": measured_bits_per_second(found.run),
    }
