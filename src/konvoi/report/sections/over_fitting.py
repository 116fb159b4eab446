"""Is it over-fitting: losses on what it learns from and on what it has never seen."""

from __future__ import annotations

from konvoi.analysis.answers import over_fitting
from konvoi.analysis.record import RunRecord
from konvoi.report.blocks import Block, Plot, Series
from konvoi.report.curves import evaluation_curve, step_curve

TITLE = "Losses and over-fitting"
ORDER = 30


def render(run: RunRecord) -> list[Block]:
    return [over_fitting.answer(run), *_losses(run), *_gap(run)]


def _losses(run: RunRecord) -> list[Block]:
    series = step_curve(run.steps, "loss", "training") + evaluation_curve(run, "loss", "dev")
    return [Plot("Loss", series, y_label="nats per target, without label smoothing")] if series else []


def _gap(run: RunRecord) -> list[Block]:
    gap = over_fitting.gap(run)
    if gap is None or len(gap.steps) < 2:
        return []
    series = Series("dev minus training", gap.steps, gap.dev_loss - gap.train_loss, style="dots")
    return [Plot("The gap: dev loss minus training loss", [series], y_label="nats", holds=(0,))]
