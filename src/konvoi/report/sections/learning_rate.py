"""What the learning-rate plot shows."""

from __future__ import annotations

from konvoi.analysis.answers import learning_rate
from konvoi.analysis.record import RunRecord
from konvoi.report.blocks import Block, Plot
from konvoi.report.curves import step_curve

TITLE = "Learning rate"
ORDER = 60


def render(run: RunRecord) -> list[Block]:
    series = step_curve(run.steps, "learning_rate", "learning rate")
    plots = [Plot("Learning rate", series, holds=(0,))] if series else []
    return [learning_rate.answer(run), *plots]
