"""What went wrong on the way, and what did it cost?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from konvoi.analysis.answer import Answer
from konvoi.analysis.answers.time_taken import repeated_steps
from konvoi.analysis.record import RankRecord, RunRecord
from konvoi.analysis.sessions import sessions
from konvoi.analysis.wording import counted, duration, listed, times

QUESTION = "What went wrong on the way, and what did it cost?"


@dataclass(frozen=True)
class Incident:
    """A line of the story: a worker or a host was lost, the run went on, or it warned of something."""

    time: float
    who: str
    """h1 rank 2; empty where it is the run as a whole."""
    what: str


def answer(run: RunRecord) -> Answer:
    facts = figures(run)
    happened = [
        counted(facts["faults"], "worker or host was", "workers or hosts were") + " lost" if facts["faults"] else "",
        f"the run went on {times(facts['restarts'])}" if facts["restarts"] else "",
        f"{counted(facts['skipped_steps'], 'step')} had no gradient and did nothing" if facts["skipped_steps"] else "",
        f"it went back {times(facts['returns'])} past bad numbers" if facts["returns"] else "",
        f"it warned {times(facts['warnings'])} of something else" if facts["warnings"] else "",
    ]
    if not any(happened):
        return Answer(QUESTION, "nothing", "Nobody was lost, no step was skipped, and nothing warned.", facts)
    words = f"{listed([part for part in happened if part])}."
    if facts["restarts"]:
        words += f" In all no step was made for {duration(facts['stall_seconds'])}"
        words += f", and {counted(facts['repeated_steps'], 'step')} had to be made again."
    short = counted(facts["faults"], "fault") if facts["faults"] else "little"
    return Answer(QUESTION, short, words[0].upper() + words[1:], facts)


def figures(run: RunRecord) -> dict[str, Any]:
    told = teller(run)
    losses = [event for event in told.faults if "what" in event]
    returns = [event for event in told.faults if "back_to" in event]
    skipped = run.summary.get("skipped_steps")
    return {
        "faults": len(losses),
        "who": sorted({_who(event) for event in losses}),
        "restarts": len(stalls(told)),
        "stall_seconds": sum(stalls(told)),
        "repeated_steps": repeated_steps(sessions(run)),
        "skipped_steps": skipped if isinstance(skipped, int) else 0,
        "returns": len(returns),
        "warnings": len(told.faults) - len(losses) - len(returns),
    }


def incidents(run: RunRecord) -> list[Incident]:
    """In their order."""
    told = teller(run)
    found = [_fault(event) for event in told.faults] + [_restart(event) for event in told.restarts]
    return sorted(found, key=lambda incident: incident.time)


def teller(run: RunRecord) -> RankRecord:
    """Who has the most to tell: a host that was away did not hear of all."""
    return max(run.ranks.values(), key=lambda rank: len(rank.faults), default=run.first)


def stalls(told: RankRecord) -> list[float]:
    """Seconds without a step, of each restart after a fault; a resume by hand has none: nobody waited for it."""
    return [_seconds(event) for event in told.restarts if "stall_seconds" in event]


def _fault(event: dict[str, Any]) -> Incident:
    if "what" not in event:
        return Incident(_time(event), "", str(event.get("message", "")))
    doing = f" ({event['doing']})" if event.get("doing") else ""
    return Incident(_time(event), _who(event), f"{event['what']}{doing}")


def _restart(event: dict[str, Any]) -> Incident:
    workers = f" with {event['workers']} workers" if "workers" in event else ""
    stall = f" after {duration(_seconds(event))} without a step" if "stall_seconds" in event else ", resumed"
    return Incident(_time(event), "", f"went on from step {event.get('step')}{workers}{stall}")


def _who(event: dict[str, Any]) -> str:
    return f"{event.get('host')} rank {event['rank']}" if event.get("rank") is not None else str(event.get("host"))


def _time(event: dict[str, Any]) -> float:
    at = event.get("time")
    return float(at) if isinstance(at, int | float) and abs(at) < 1e12 else 0.0


def _seconds(event: dict[str, Any]) -> float:
    stall = event.get("stall_seconds")
    return float(stall) if isinstance(stall, int | float) and 0 <= stall < 1e12 else 0.0
