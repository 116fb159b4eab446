"""How much was worked through per second, by all and by each worker."""

from __future__ import annotations

import numpy as np

from konvoi.analysis.record import Floats, RankRecord, RunRecord
from konvoi.report.blocks import Block, Plot, Series, Table, thinned
from konvoi.report.curves import step_curve
from konvoi.telemetry.units import SPEEDS

TITLE = "Throughput"
ORDER = 110
OWN_AMOUNTS = {"own_target_tokens": "target tokens", "own_images": "images"}
MAX_CURVES = 8


def render(run: RunRecord) -> list[Block]:
    key = next((key for key in SPEEDS if run.steps.has(key)), None)
    if key is None:
        return []
    plot = Plot(
        "All workers together", step_curve(run.steps, key, SPEEDS[key]), y_label=SPEEDS[key], holds=(0,), cut=True
    )
    return [_totals(run), plot, *_by_rank(run)]


def _totals(run: RunRecord) -> Table:
    rows = [(words, *_spread(run.steps[key])) for key, words in SPEEDS.items() if run.steps.has(key)]
    return Table("Throughput over the steps", ("", "mean", "median", "slowest 5 %"), rows)


def _spread(values: Floats) -> tuple[str, str, str]:
    known = values[np.isfinite(values)]
    return f"{known.mean():,.0f}", f"{np.median(known):,.0f}", f"{np.percentile(known, 5):,.0f}"


def _by_rank(run: RunRecord) -> list[Block]:
    """Of a rank, what it worked through itself in the time that a step took."""
    amount = next((key for key in OWN_AMOUNTS if run.steps.has(key)), None)
    if amount is None or len(run.ranks) < 2:
        return []
    speeds = {rank: record.steps[amount] / record.steps["step_seconds"] for rank, record in run.ranks.items()}
    speeds = {rank: speed for rank, speed in speeds.items() if np.isfinite(speed).any()}
    rows = [(f"rank {rank}", run.ranks[rank].host or "-", *_spread(speed)) for rank, speed in speeds.items()]
    unit = f"{OWN_AMOUNTS[amount]}/s"
    table = Table(f"Each worker's own {unit}", ("worker", "host", "mean", "median", "slowest 5 %"), rows, num_left=2)
    shown = [_curve(run.ranks[rank], speed) for rank, speed in list(speeds.items())[:MAX_CURVES]]
    return [table, Plot("Each worker", shown, y_label=unit, holds=(0,), cut=True)]


def _curve(record: RankRecord, speed: Floats) -> Series:
    return thinned(f"rank {record.rank}", record.steps.numbers, speed, envelope=False)
