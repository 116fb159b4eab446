"""How large the gradients were, and how often they were clipped or skipped."""

from __future__ import annotations

import numpy as np

from konvoi.analysis.record import RunRecord
from konvoi.analysis.wording import figures, percent
from konvoi.report.blocks import Block, Level, Paragraph, Plot
from konvoi.report.curves import step_curve

TITLE = "Gradient norm"
ORDER = 100
# From here on a linear axis shows the spikes alone.
LOG_FROM_RATIO = 20.0


def render(run: RunRecord) -> list[Block]:
    series = step_curve(run.steps, "gradient_norm", "gradient norm")
    if not series:
        return []
    norms = run.steps["gradient_norm"]
    known = norms[np.isfinite(norms) & (norms > 0)]
    log = len(known) > 0 and known.max() > LOG_FROM_RATIO * known.min()
    limit = run.setting("optim.clip_norm")
    levels = [Level("clipped above", float(limit))] if limit and len(known) and known.max() > limit else []
    return [
        Paragraph(_words(run, limit)),
        Plot("Gradient norm", series, log=log, holds=() if log else (0,), levels=levels),
    ]


def _words(run: RunRecord, limit: float | None) -> str:
    norms = run.steps["gradient_norm"]
    known = norms[np.isfinite(norms)]
    words = f"The norm before clipping was {figures(np.median(known))} in the median and at most "
    words += f"{figures(known.max())} (step {run.steps.numbers[np.nanargmax(norms)]:,.0f})."
    if limit:
        words += f" It was clipped to {limit:g} in {percent((known > limit).mean())} of the steps."
    unknown = len(norms) - len(known)
    if unknown:
        words += f" In {unknown:,} steps it was not a finite number."
    skipped = int(np.nansum(run.steps["skipped"]))
    return f"{words} {skipped:,} steps were skipped because gradients overflowed." if skipped else words
