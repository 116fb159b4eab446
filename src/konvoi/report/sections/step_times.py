"""How long an average step was: mean, median, 95th percentile, by phase."""

from __future__ import annotations

import numpy as np

from konvoi.analysis.answers import step_times
from konvoi.analysis.record import Floats, RunRecord
from konvoi.analysis.wording import duration
from konvoi.report.blocks import Block, Plot, Series, Table
from konvoi.report.curves import phase_columns, timed_steps

TITLE = "Step times"
ORDER = 90
NUM_BARS = 40
FEW_STEPS = 10
# Slower steps than all but one in two hundred would squeeze the others into a few bars.
SHOWN_PERCENT = 99.5


def render(run: RunRecord) -> list[Block]:
    return [step_times.answer(run), *_table(run), *_histogram(run.steps["step_seconds"])]


def _table(run: RunRecord) -> list[Block]:
    steps = timed_steps(run.steps)
    columns = {"the whole step": steps["step_seconds"], **phase_columns(steps)}
    rows = [
        (words, *(duration(of) for of in (known.mean(), np.median(known), np.percentile(known, 95))))
        for words, column in columns.items()
        if len(known := column[np.isfinite(column)])
    ]
    header = ("part", "mean", "median", "p95")
    return [Table(f"A step of rank {run.first.rank}, in {len(steps):,} steps", header, rows)] if rows else []


def _histogram(step_seconds: Floats) -> list[Block]:
    known = step_seconds[np.isfinite(step_seconds)]
    if len(known) < FEW_STEPS:
        return []
    limit = np.percentile(known, SHOWN_PERCENT)
    counts, edges = np.histogram(known[known <= limit], bins=min(NUM_BARS, len(known) // 2))
    factor, unit = (1000.0, "ms") if limit < 1 else (1.0, "s")
    slower = int((known > limit).sum())
    caption = f"Not shown: {slower} slower, up to {duration(known.max())}." if slower else ""
    series = Series("steps", factor * edges[:-1], counts.astype(np.float64))
    return [Plot("How many steps took how long", [series], x_label=unit, y_label="steps", kind="bars", caption=caption)]
