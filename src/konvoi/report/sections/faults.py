"""Who was lost on the way, how the run went on, and what that cost."""

from __future__ import annotations

import time

from konvoi.analysis.answers import faults
from konvoi.analysis.record import RunRecord
from konvoi.report.blocks import Block, Table

TITLE = "Faults and restarts"
ORDER = 85
MAX_ROWS = 50


def render(run: RunRecord) -> list[Block]:
    found = faults.incidents(run)
    rows = [(_clock(one.time), one.who or "all", one.what) for one in found[-MAX_ROWS:]]
    caption = "What happened" if len(found) <= MAX_ROWS else f"What happened: the last {MAX_ROWS} of {len(found):,}"
    table = [Table(caption, ("time", "who", "what"), rows, num_left=3)] if rows else []
    return [faults.answer(run), *table]


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
