"""How long did the training take, and where did the time go?"""

from __future__ import annotations

import itertools
from typing import Any

from konvoi.analysis.answer import Answer
from konvoi.analysis.length import planned, planned_steps, steps_done
from konvoi.analysis.record import RunRecord
from konvoi.analysis.sessions import Session, sessions
from konvoi.analysis.wording import counted, duration, listed, percent, times

QUESTION = "How long did the training take, and where did the time go?"
# Parts below this share of the time are not worth a word.
NEGLIGIBLE = 0.005


def answer(run: RunRecord) -> Answer:
    found = sessions(run)
    wall_seconds = found[-1].ended_at - found[0].began_at if found else 0.0
    if wall_seconds <= 0:
        return Answer(QUESTION, "can't tell", "The run has left no events yet, so there is no time to divide.")
    parts = parts_of(found)
    left_seconds = seconds_left(run, found) if run.status == "running" else None
    words = [_how_long(run, wall_seconds), _where(parts, wall_seconds), *_resumes(found, parts)]
    if left_seconds is not None:
        words.append(f"At this pace it needs another {duration(left_seconds)}.")
    facts: dict[str, Any] = {"wall_seconds": wall_seconds, "sessions": len(found)}
    facts |= {f"{name}_seconds": seconds for name, seconds in parts.items()}
    facts |= {"repeated_steps": repeated_steps(found), "left_seconds": left_seconds}
    return Answer(QUESTION, duration(wall_seconds), " ".join(words), facts)


def parts_of(found: list[Session]) -> dict[str, float]:
    """Seconds; they add up to the wall time."""
    pauses = sum(max(0.0, later.began_at - earlier.ended_at) for earlier, later in itertools.pairwise(found))
    parts = {
        "start_up": sum(session.start_up_seconds for session in found),
        "steps": sum(session.step_seconds for session in found),
        "evaluations": sum(session.evaluation_seconds for session in found),
        "checkpoints": sum(session.checkpoint_seconds for session in found),
        "pauses": pauses,
    }
    wall_seconds = found[-1].ended_at - found[0].began_at
    return {**parts, "rest": max(0.0, wall_seconds - sum(parts.values()))}


def repeated_steps(found: list[Session]) -> int:
    """Steps that were done again because a run died between two checkpoints."""
    return sum(len(session.steps) for session in found) - len({step for session in found for step in session.steps})


def seconds_left(run: RunRecord, found: list[Session]) -> float | None:
    """At the pace of the latest session, evaluations and checkpoints included; None where the end is not known."""
    active = sum(session.seconds for session in found)
    limits = (planned(run), planned(run, "train.time_budget"))
    left = [length.seconds - active for length in limits if length and length.seconds]
    session, total = found[-1], planned_steps(run)
    if total and session.steps:
        pace = (session.seconds - session.start_up_seconds) / len(session.steps)
        left.append(pace * (total - steps_done(run)))
    return max(0.0, min(left)) if left else None


def _how_long(run: RunRecord, wall_seconds: float) -> str:
    done = f"{duration(wall_seconds)} for {counted(steps_done(run), 'step')}"
    verbs = {
        "finished": f"The training took {done}.",
        "running": f"The training has been going on for {done}.",
        "interrupted": f"The training was interrupted after {done}.",
    }
    return verbs.get(run.status, f"The training ended before its time, after {done}.")


def _where(parts: dict[str, float], wall_seconds: float) -> str:
    names = {
        "steps": "training steps",
        "start_up": "start-up",
        "evaluations": "evaluations",
        "checkpoints": "checkpoints",
        "pauses": "pauses between sessions",
        "rest": "the rest",
    }
    shares = {key: parts[key] / wall_seconds for key in sorted(parts, key=lambda key: -parts[key])}
    told = [f"{percent(share)} {names[key]}" for key, share in shares.items() if share >= NEGLIGIBLE]
    return f"Of that: {listed(told)}."


def _resumes(found: list[Session], parts: dict[str, float]) -> list[str]:
    if len(found) == 1:
        return []
    words = [f"It was resumed {times(len(found) - 1)}, with {duration(parts['pauses'])} of pauses in between"]
    if count := repeated_steps(found):
        words.append(f"; {counted(count, 'step')} had to be done again")
    return ["".join(words) + "."]
