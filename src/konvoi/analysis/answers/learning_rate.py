"""What does the learning-rate plot show?"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import ValidationError

from konvoi.analysis.answer import Answer
from konvoi.analysis.length import planned_steps, steps_per_epoch
from konvoi.analysis.record import Floats, RunRecord
from konvoi.analysis.wording import counted, figures, listed, percent
from konvoi.config.schedules import (
    SCHEDULES,
    Constant,
    Cosine,
    Exponential,
    OneCycle,
    Piecewise,
    Polynomial,
    Schedule,
    Span,
    Transformer,
)

QUESTION = "What does the learning-rate plot show?"
# Logged rates within this share of the schedule's follow it.
TOLERANCE = 0.01
# So many steps are enough to see whether the log follows the schedule.
NUM_CHECKED = 500


def answer(run: RunRecord) -> Answer:
    known = np.isfinite(run.steps["learning_rate"])
    steps, rates = run.steps.numbers[known], run.steps["learning_rate"][known]
    schedule, span = schedule_of(run), _span(run)
    if not len(rates) and schedule is None:
        return Answer(QUESTION, "can't tell", "No step was logged, and the recipe's schedule cannot be read.")
    if schedule is None:
        return Answer(QUESTION, "not the recipe's", _seen_words(steps, rates), _seen_facts(steps, rates))
    if span is None:
        unknown = f"The schedule, {_name(schedule)}, depends on how long the run is, and that is not known."
        return Answer(QUESTION, _name(schedule), f"{unknown} {_seen_words(steps, rates)}", _seen_facts(steps, rates))
    span = _with_width(schedule, span, steps, rates)
    words = [f"{_name(schedule).capitalize()}: {_law(schedule, span)}.", *_reached(span, steps, rates)]
    difference = deviation(schedule, span, steps, rates)
    words += _check_words(difference, was_resumed=bool(run.first.restarts))
    facts = {**_planned_facts(schedule, span), **_seen_facts(steps, rates), "largest_deviation": difference}
    return Answer(QUESTION, _name(schedule), " ".join(words), facts)


def schedule_of(run: RunRecord) -> Schedule | None:
    table = run.tables.get("schedule")
    if not isinstance(table, dict) or table.get("name", "transformer") not in SCHEDULES:
        return None
    try:
        return SCHEDULES[table.get("name", "transformer")].model_validate(table)
    except ValidationError:
        return None


def deviation(schedule: Schedule, span: Span, steps: Floats, rates: Floats) -> float | None:
    """The largest difference between the log and the schedule, as a share of the schedule's highest rate."""
    if not len(steps):
        return None
    some = np.unique(np.linspace(0, len(steps) - 1, min(NUM_CHECKED, len(steps))).astype(int))
    expected = np.array([schedule.rate(int(step), span) for step in steps[some]])
    return float(np.abs(rates[some] - expected).max() / expected.max())


def _span(run: RunRecord) -> Span | None:
    """None where the schedule counts in epochs or by the end, and those are not known."""
    total, per_epoch = planned_steps(run), steps_per_epoch(run)
    text = str(run.tables.get("schedule"))
    depends_on_end = run.setting("schedule.name") in ("one-cycle", "cosine", "polynomial")
    if (depends_on_end and total is None) or ("epoch" in text and per_epoch is None):
        return None
    width = run.setting("model.width", 512)
    return Span(total_steps=total or 0, steps_per_epoch=per_epoch or 1.0, width=width)


def _with_width(schedule: Schedule, span: Span, steps: Floats, rates: Floats) -> Span:
    """A model given by its size has no width in the recipe; "transformer" scales with it, so the log tells."""
    if not isinstance(schedule, Transformer) or not len(rates) or rates[0] <= 0:
        return span
    ratio = schedule.rate(int(steps[0]), span) / float(rates[0])
    return span.model_copy(update={"width": max(1, round(span.width * ratio**2))})


def _name(schedule: Schedule) -> str:
    return str(getattr(schedule, "name", type(schedule).__name__))


def _warmup_steps(schedule: Schedule, span: Span) -> int:
    return span.steps(schedule.warmup) if schedule.warmup else 0


def peak_step(schedule: Schedule, span: Span) -> int:
    """Where the rate is highest."""
    warmup_steps = max(1, _warmup_steps(schedule, span))
    if isinstance(schedule, OneCycle):
        warmup_steps = _warmup_steps(schedule, span)
        return max(1, warmup_steps + round(schedule.rise * (span.total_steps - warmup_steps)))
    if isinstance(schedule, Piecewise):
        starts = [warmup_steps, *(max(warmup_steps, span.steps(boundary) + 1) for boundary in schedule.boundaries)]
        return starts[int(np.argmax(schedule.rates))]
    return warmup_steps


def _law(schedule: Schedule, span: Span) -> str:
    warmup_steps = _warmup_steps(schedule, span)
    rises = ""
    if warmup_steps and not isinstance(schedule, OneCycle | Piecewise):
        rises = (
            f"it rises in a straight line from 0 to {figures(schedule.rate(warmup_steps, span))} over the"
            f" {counted(warmup_steps, 'step')} of the warm-up, then "
        )
    return (rises or "it ") + _after_warmup(schedule, span)


def _after_warmup(schedule: Schedule, span: Span) -> str:
    end = f"{figures(schedule.rate(span.total_steps, span))} at step {span.total_steps:,}" if span.total_steps else ""
    match schedule:
        case Constant():
            return f"stays at {figures(schedule.learning_rate)}"
        case Transformer():
            return f"falls with the square root of the step{f', to {end}' if end else ''}"
        case OneCycle():
            first = _warmup_steps(schedule, span) + 1
            return (
                f"rises along a cosine from {figures(schedule.rate(first, span))} to its peak of"
                f" {figures(schedule.learning_rate)} at step {peak_step(schedule, span):,}"
                f" ({percent(schedule.rise)} of the training), then falls along a cosine to {end}"
            )
        case Cosine():
            return f"falls along half a cosine, slowly at first and at the end, to {end}"
        case Polynomial(power=1.0):
            return f"falls in a straight line to {end}"
        case Polynomial():
            return f"falls with power {schedule.power:g} of the training that is left, to {end}"
        case Exponential():
            return f"falls to {schedule.factor:g} of itself every {schedule.every}{f', to {end}' if end else ''}"
        case Piecewise():
            return _stairs(schedule, span)
    return "follows a law that this answer does not know"


def _stairs(schedule: Piecewise, span: Span) -> str:
    stairs = [
        f"at {figures(rate)} until step {span.steps(boundary):,}"
        for rate, boundary in zip(schedule.rates, schedule.boundaries, strict=False)
    ]
    warmup_steps = _warmup_steps(schedule, span)
    warm = f"rises in a straight line from 0 over {counted(warmup_steps, 'step')}, then " if warmup_steps else ""
    return f"{warm}stays {listed([*stairs, f'at {figures(schedule.rates[-1])} after that'])}"


def _reached(span: Span, steps: Floats, rates: Floats) -> list[str]:
    if not len(rates):
        return ["No step was logged."]
    peak = float(rates.max())
    last = f"{figures(float(rates[-1]))} at step {int(steps[-1]):,}"
    if span.total_steps and steps[-1] < span.total_steps:
        share = percent(steps[-1] / span.total_steps)
        return [f"The plot ends with {last}, after {share} of the planned steps."]
    share_words = f", {percent(rates[-1] / peak)} of the highest" if 0 < rates[-1] < 0.995 * peak else ""
    return [f"The last logged rate is {last}{share_words}."]


def _check_words(difference: float | None, was_resumed: bool) -> list[str]:
    if difference is None:
        return []
    if difference <= TOLERANCE:
        return ["The logged rates follow this schedule."]
    why = ": the run was resumed, perhaps with another duration or number of workers" if was_resumed else ""
    return [f"The logged rates differ from this by up to {percent(difference)} of the peak{why}."]


def _seen_words(steps: Floats, rates: Floats) -> str:
    if not len(rates):
        return "No step was logged."
    peak = int(rates.argmax())
    first, highest, last = (f"{figures(float(rates[at]))} at step {int(steps[at]):,}" for at in (0, peak, -1))
    return f"The log shows a rate that begins with {first}, is highest with {highest} and ends with {last}."


def _planned_facts(schedule: Schedule, span: Span) -> dict[str, Any]:
    peak = peak_step(schedule, span)
    return {
        "schedule": _name(schedule),
        "warmup_steps": _warmup_steps(schedule, span),
        "peak_step": peak,
        "peak_rate": schedule.rate(peak, span),
        "total_steps": span.total_steps or None,
        "end_rate": schedule.rate(span.total_steps, span) if span.total_steps else None,
    }


def _seen_facts(steps: Floats, rates: Floats) -> dict[str, Any]:
    if not len(rates):
        return {}
    return {
        "first_rate": float(rates[0]),
        "highest_rate": float(rates.max()),
        "highest_rate_step": int(steps[rates.argmax()]),
        "last_rate": float(rates[-1]),
        "last_step": int(steps[-1]),
    }
