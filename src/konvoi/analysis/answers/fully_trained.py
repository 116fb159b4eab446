"""Is the model fully trained, and what would more steps bring?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from konvoi.analysis import saturation
from konvoi.analysis.answer import Answer
from konvoi.analysis.curve import Curve, score_curve
from konvoi.analysis.length import epochs_done, steps_done, steps_per_epoch
from konvoi.analysis.record import Floats, RunRecord
from konvoi.analysis.trend import Trend, trend
from konvoi.analysis.wording import counted, figures, metric_name, percent
from konvoi.telemetry.events import finite

QUESTION = "Is it fully trained, and what would more steps bring?"
MIN_EVALUATIONS = 4
# Before this share of the steps a curve rises in its own way: the warm-up, the first words.
EARLY = 0.2
NUM_FORECAST_POINTS = 30
# A learning rate below this share of its peak changes nothing any more.
SPENT_RATE = 0.05
# A gain below this is not worth the electricity: points of BLEU or accuracy; of a loss its share.
MIN_POINTS, MIN_LOSS_SHARE = 0.1, 0.005


@dataclass(frozen=True)
class Forecast:
    """The score beyond the last evaluation, if it goes on as before; nine of ten fits lie between low and high."""

    metric: str
    steps: Floats
    middle: Floats
    low: Floats
    high: Floats


def answer(run: RunRecord) -> Answer:
    if (since := diverged_at(run)) is not None:
        lost = f"The loss has not been a number since step {since:,}: what was learnt before is lost."
        return Answer(QUESTION, "no: it diverged", lost, {"diverged_at_step": since})
    curve = _usable_curve(run)
    if len(curve) < MIN_EVALUATIONS:
        return _by_training_loss(run, len(curve))
    late = max(MIN_EVALUATIONS, math.ceil(len(curve) / 3))
    slope = trend(curve.steps[-late:], curve.sign * curve.values[-late:])
    more_steps = horizon(curve)
    gain = _fit(curve).gain(more_steps)
    spent = rate_left(run) < SPENT_RATE
    short, verdict = _verdict(curve, slope, gain, spent)
    unit = unit_of_steps(curve.steps[-1])
    words = [
        f"{verdict} {metric_name(curve.metric)} {_change(curve, slope, unit)} over the last"
        f" {counted(late, 'evaluation')}; {_gain_words(curve, more_steps, gain, spent)}.",
        *(_rate_words(run) if spent else []),
    ]
    return Answer(QUESTION, short, " ".join(words), _facts(run, curve, slope, more_steps, gain))


def forecast(run: RunRecord) -> Forecast | None:
    """From the last evaluation to half as many steps again; None with fewer than four evaluations."""
    curve = _usable_curve(run)
    if len(curve) < MIN_EVALUATIONS:
        return None
    steps = np.linspace(curve.steps[-1], curve.steps[-1] + horizon(curve), NUM_FORECAST_POINTS)
    middle, low, high = saturation.banded(_fit(curve).at(steps))
    if curve.sign < 0:
        middle, low, high = -middle, -high, -low
    return Forecast(curve.metric, steps, middle, low, high)


def diverged_at(run: RunRecord) -> int | None:
    """The first step from which on no loss is a number."""
    finite = np.flatnonzero(np.isfinite(run.steps["loss"]))
    if not len(run.steps) or (len(finite) and finite[-1] == len(run.steps) - 1):
        return None
    return int(run.steps.numbers[finite[-1] + 1 if len(finite) else 0])


def horizon(curve: Curve) -> float:
    """Half as many steps again, as a round number: 5,000 after 8,000 to 13,999."""
    half = float(curve.steps[-1]) / 2
    size = 10.0 ** math.floor(math.log10(max(half, 1.0)))
    return size * min((1, 2, 5, 10), key=lambda digit: abs(digit * size - half))


def unit_of_steps(last_step: float) -> int:
    """Slopes are told per 1,000 steps, or fewer where there were fewer."""
    return next((unit for unit in (1000, 100, 10) if last_step >= unit), 1)


def rate_left(run: RunRecord) -> float:
    """The last learning rate as a share of the highest; 1 where none was logged."""
    rates = run.steps["learning_rate"]
    rates = rates[np.isfinite(rates)]
    return float(rates[-1] / rates.max()) if len(rates) and rates.max() > 0 else 1.0


def _usable_curve(run: RunRecord) -> Curve:
    curve = score_curve(run)
    return curve if len(curve) else score_curve(run, "loss")


def _fit(curve: Curve) -> saturation.Saturation:
    late = int((curve.steps >= EARLY * curve.steps[-1]).sum())
    count = max(MIN_EVALUATIONS, late)
    return saturation.fit(curve.steps[-count:], curve.sign * curve.values[-count:])


def _verdict(curve: Curve, slope: Trend, gain: tuple[float, float, float], spent: bool) -> tuple[str, str]:
    """`slope` and `gain` are positive where the score gets better."""
    is_worth = gain[0] >= (MIN_LOSS_SHARE * abs(curve.values[-1]) if curve.sign < 0 else MIN_POINTS)
    if slope.direction < 0:
        return "past its best", f"Past its best, which was at step {curve.best_step:,}:"
    if spent:
        return "yes, for its schedule", "Fully trained as far as its schedule goes:"
    if slope.direction > 0 and is_worth:
        return "no", "Not fully trained:"
    if slope.direction > 0:
        return "nearly", "Nearly fully trained:"
    if gain[2] > 0 and is_worth:
        return "can't tell", "Perhaps not fully trained, the scores are too uneven to tell:"
    return "yes", "Fully trained:"


def _change(curve: Curve, slope: Trend, unit: int) -> str:
    """still rises by 0.8 ± 0.2 per 1,000 steps"""
    amount = f"{figures(abs(slope.slope) * unit)} ± {figures(slope.error * unit)} per {unit:,} steps"
    if slope.direction == 0:
        return f"no longer changes by more than its noise ({'-' if slope.slope * curve.sign < 0 else '+'}{amount})"
    verb = "rises" if slope.direction * curve.sign > 0 else "falls"
    return f"{'still ' if slope.direction > 0 else ''}{verb} by {amount}"


def _gain_words(curve: Curve, more_steps: float, gain: tuple[float, float, float], spent: bool) -> str:
    middle, low, high = (figures(value) if abs(value) >= 0.001 else "0" for value in gain)
    what = "points" if curve.sign > 0 else "less loss"
    who = f"a schedule longer by {more_steps:,.0f}" if spent else f"another {more_steps:,.0f}"
    return f"{who} steps would bring about {middle} {what} ({low} to {high}), if the curve goes on as it was"


def _rate_words(run: RunRecord) -> list[str]:
    words = [
        f"The learning rate had fallen to {percent(rate_left(run))} of its peak, so a flat end is the schedule's doing:"
        " going on without a longer schedule would change nothing."
    ]
    epochs = epochs_done(run)
    if epochs is not None and epochs < 1:
        words.append(f"It has seen only {percent(epochs)} of its data.")
    return words


def _facts(
    run: RunRecord, curve: Curve, slope: Trend, more_steps: float, gain: tuple[float, float, float]
) -> dict[str, object]:
    per_epoch = steps_per_epoch(run)
    value = curve.sign * slope.slope
    return {
        "metric": curve.metric,
        "last_value": float(curve.values[-1]),
        "best_value": curve.best,
        "best_step": curve.best_step,
        "slope_per_1000_steps": 1000 * value,
        "slope_error_per_1000_steps": finite(1000 * slope.error),
        "slope_per_epoch": value * per_epoch if per_epoch else None,
        "more_steps": more_steps,
        "gain": {name: float(part) for name, part in zip(("middle", "low", "high"), gain, strict=True)},
        "rate_left": rate_left(run),
    }


def _by_training_loss(run: RunRecord, num_evaluations: int) -> Answer:
    """The fall of the loss over the last third of the steps."""
    losses = run.steps["loss"]
    late = len(losses) // 3
    few = f"{counted(num_evaluations, 'evaluation').capitalize()} {'is' if num_evaluations == 1 else 'are'} too few"
    few = few if num_evaluations else "Without evaluations there is too little"
    slope = trend(run.steps.numbers[-late:], losses[-late:]) if late >= MIN_EVALUATIONS else Trend(0.0, float("nan"), 0)
    facts: dict[str, object] = {"metric": "loss", "evaluations": num_evaluations}
    if slope.freedom < 1:
        return Answer(QUESTION, "can't tell", f"{few} to tell from the score, and so are the steps.", facts)
    unit = unit_of_steps(steps_done(run))
    facts |= {"slope_per_1000_steps": 1000 * slope.slope, "slope_error_per_1000_steps": 1000 * slope.error}
    amount = f"{figures(abs(slope.slope) * unit)} ± {figures(slope.error * unit)} per {unit:,} steps"
    if slope.direction < 0:
        words = f"{few} to tell from the score. The training loss still falls by {amount}, so more steps would help."
        return Answer(QUESTION, "probably not", words, facts)
    words = f"{few} to tell from the score. The training loss no longer falls by more than its noise ({amount})."
    return Answer(QUESTION, "can't tell", words, facts)
