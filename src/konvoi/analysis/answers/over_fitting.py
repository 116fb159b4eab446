"""Is it over-fitting, and since when?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from konvoi.analysis.answer import Answer
from konvoi.analysis.curve import score_curve, smoothed
from konvoi.analysis.length import epochs_done
from konvoi.analysis.record import Floats, RunRecord
from konvoi.analysis.trend import Trend, trend
from konvoi.analysis.wording import figures, listed, percent
from konvoi.telemetry.events import finite

QUESTION = "Is it over-fitting?"
# A dev loss within this share of its minimum has not risen.
NOISE = 0.005
# The training loss of single steps jumps: the mean over this share of all steps on both sides.
WINDOW = 0.02


@dataclass(frozen=True)
class Gap:
    """Both losses are the plain cross-entropy, at the steps of the evaluations."""

    steps: Floats
    train_loss: Floats
    dev_loss: Floats

    @property
    def values(self) -> Floats:
        return self.dev_loss - self.train_loss

    @property
    def lowest(self) -> int:
        """Which evaluation had the least dev loss."""
        return int(self.dev_loss.argmin())

    @property
    def rises(self) -> bool:
        """Both of the last two evaluations, at least, lie clearly above the least."""
        after = self.dev_loss[self.lowest + 1 :]
        return len(after) >= 2 and bool((after[-2:] > (1 + NOISE) * self.dev_loss[self.lowest]).all())


def gap(run: RunRecord) -> Gap | None:
    """None where no evaluation has a loss, or no step."""
    curve = score_curve(run, "loss")
    known = np.isfinite(run.steps["loss"])
    if not len(curve) or not known.any():
        return None
    half_width = max(5, round(WINDOW * int(known.sum())))
    train_loss = smoothed(run.steps["loss"][known], half_width)
    return Gap(curve.steps, np.interp(curve.steps, run.steps.numbers[known], train_loss), curve.values)


def answer(run: RunRecord) -> Answer:
    found, epochs = gap(run), epochs_done(run)
    if found is None or len(found.steps) < 2:
        return _too_few(found, epochs)
    half = len(found.steps) // 2
    slope = (
        trend(found.steps[half:], found.values[half:]) if len(found.steps) >= 6 else trend(found.steps, found.values)
    )
    short, verdict = _verdict(found, slope)
    words = [verdict, _gap_words(run, found, slope), *_epoch_words(epochs)]
    return Answer(QUESTION, short, " ".join(words), _facts(found, slope, epochs))


def _verdict(found: Gap, slope: Trend) -> tuple[str, str]:
    lowest, last = found.lowest, found.dev_loss[-1]
    if found.rises:
        train_change = found.train_loss[-1] - found.train_loss[lowest]
        beside = f" while the training loss {'fell' if train_change < 0 else 'rose'} by {figures(abs(train_change))}"
        return f"yes, since step {found.steps[lowest]:,.0f}", (
            f"Over-fitting since step {found.steps[lowest]:,.0f}: the dev loss has risen from"
            f" {found.dev_loss[lowest]:.3f} to {last:.3f} ({percent(last / found.dev_loss[lowest] - 1)}){beside}."
        )
    if lowest == len(found.steps) - 1:
        return "no", f"Not over-fitting: the dev loss, {last:.3f}, was never lower than at the last evaluation."
    return "no", (
        f"Not over-fitting: the dev loss is {last:.3f}, no worse than noise above its least"
        f" ({found.dev_loss[lowest]:.3f} at step {found.steps[lowest]:,.0f})."
    )


def _gap_words(run: RunRecord, found: Gap, slope: Trend) -> str:
    value = found.values[-1]
    amount = f"{figures(abs(slope.slope) * 1000)} ± {figures(slope.error * 1000)} per 1,000 steps"
    grows = {1: f"grows by {amount}", -1: f"shrinks by {amount}", 0: "does not clearly grow"}[slope.direction]
    if value >= 0:
        return f"It lies {figures(value)} above the training loss, and this gap {grows}."
    return (
        f"It lies {figures(-value)} below the training loss{_why_below(run)}, so its sign says little;"
        f" the difference, dev minus training loss, {grows}."
    )


def _why_below(run: RunRecord) -> str:
    """What makes the loss of training higher than that of the same model at rest."""
    reasons = []
    if run.setting("task.name") == "classification":
        reasons.append("pictures are cropped and flipped at random in training only")
    elif run.setting("model.dropout", 0.1):
        reasons.append("dropout is on in training only")
    if run.setting("train.ema_decay"):
        reasons.append("the moving average of the weights is what is evaluated")
    return f": {listed(reasons)}" if reasons else ""


def _epoch_words(epochs: float | None) -> list[str]:
    if not epochs or epochs > 1:
        return []
    return [
        f"After {epochs:.2g} epochs nothing was seen twice, so the training loss is one of unseen data too:"
        " there was nothing to learn by heart."
    ]


def _too_few(found: Gap | None, epochs: float | None) -> Answer:
    count = 0 if found is None else len(found.steps)
    words = "One evaluation shows no trend." if count else "There is no evaluation with a loss to compare with."
    if found is not None:
        words += f" The dev loss is {found.dev_loss[-1]:.3f}, the training loss {found.train_loss[-1]:.3f}."
    short = "hardly" if epochs and epochs <= 1 else "can't tell"
    facts = {"epochs": epochs, "evaluations": count}
    return Answer(QUESTION, short, " ".join([words, *_epoch_words(epochs)]), facts)


def _facts(found: Gap, slope: Trend, epochs: float | None) -> dict[str, object]:
    return {
        "gap": float(found.values[-1]),
        "gap_slope_per_1000_steps": 1000 * slope.slope,
        "gap_slope_error_per_1000_steps": finite(1000 * slope.error),
        "dev_loss": float(found.dev_loss[-1]),
        "train_loss": float(found.train_loss[-1]),
        "lowest_dev_loss": float(found.dev_loss[found.lowest]),
        "lowest_dev_loss_step": int(found.steps[found.lowest]),
        "rises": found.rises,
        "epochs": epochs,
    }
