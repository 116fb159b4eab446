"""How long the training took, and where the time went."""

from __future__ import annotations

import numpy as np

from konvoi.analysis.answers import time_taken
from konvoi.analysis.record import RunRecord
from konvoi.analysis.sessions import sessions
from konvoi.analysis.wording import duration
from konvoi.report.blocks import Block, Plot, Table, thinned
from konvoi.report.curves import phase_columns, timed_steps

TITLE = "Time"
ORDER = 10
# Less would be shown as 0.0 %.
NEGLIGIBLE = 0.0005


def render(run: RunRecord) -> list[Block]:
    return [time_taken.answer(run), *_parts(run), *_phases(run)]


def _parts(run: RunRecord) -> list[Block]:
    """All the time of the rank that speaks for all; that of the steps by phase."""
    found = sessions(run)
    if not found:
        return []
    seconds = time_taken.parts_of(found)
    phases = {words: float(column.sum()) for words, column in phase_columns(timed_steps(run.steps)).items()}
    if sum(phases.values()) > 0:
        # The steps whose phases are known stand for all, those that were repeated after a resume too.
        weight = seconds.pop("steps") / sum(phases.values())
        seconds |= {f"steps: {words}": part * weight for words, part in phases.items()}
    total_seconds = sum(seconds.values())
    rows = [
        (words.replace("_", "-"), duration(part), f"{100 * part / total_seconds:.1f} %")
        for words, part in sorted(seconds.items(), key=lambda item: -item[1])
        if part > NEGLIGIBLE * total_seconds
    ]
    return [Table(f"Where the time of rank {run.first.rank} went", ("part", "time", "share"), rows)] if rows else []


def _phases(run: RunRecord) -> list[Block]:
    steps = timed_steps(run.steps)
    columns = phase_columns(steps)
    if not columns:
        return []
    factor, unit = (1000.0, "ms") if np.median(np.sum(list(columns.values()), axis=0)) < 1 else (1.0, "s")
    series = [thinned(words, steps.numbers, factor * y, envelope=False) for words, y in columns.items()]
    return [Plot("A step's phases over the training", series, y_label=unit, kind="stacked", cut=True)]
