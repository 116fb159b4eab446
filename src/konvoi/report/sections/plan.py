"""What was planned: plan.json in the run directory, as `konvoi plan RECIPE --json > RUN/plan.json` leaves it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from konvoi.analysis.record import RunRecord
from konvoi.report.blocks import Block, Note, Paragraph, Plot, Series

TITLE = "Plan"
ORDER = 55
FILE = "plan.json"
ALONE = "alone"


def render(run: RunRecord) -> list[Block]:
    try:
        plan = json.loads((run.path / FILE).read_text(encoding="utf-8"))
        return _blocks(plan)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError):
        return [Note(f"{FILE} is not what konvoi plan --json writes.", tone="caution")]


def _blocks(plan: dict[str, Any]) -> list[Block]:
    rows = plan["rows"]
    networks = dict.fromkeys(row["network"] for row in rows)
    head = f"Predicted before the run for {plan['recipe']} on {plan['device']}, against one device alone."
    plots = [_plot(network, [row for row in rows if row["network"] == network]) for network in networks]
    return [Paragraph(head), *plots, *(Paragraph(sentence) for sentence in plan["advice"])]


def _plot(network: str, rows: list[dict[str, Any]]) -> Plot:
    alone = [row for row in rows if row["sync"] == ALONE]
    ways = dict.fromkeys(row["sync"] for row in rows if row["sync"] != ALONE)
    series = [_series(way, [*alone, *(row for row in rows if row["sync"] == way)]) for way in ways]
    return Plot(f"Planned speed on {network}", series, x_label="workers", y_label="times one device", holds=(0,))


def _series(name: str, rows: list[dict[str, Any]]) -> Series:
    rows = sorted(rows, key=lambda row: row["workers"])
    x, y = (np.array([float(row[key]) for row in rows]) for key in ("workers", "speed_up"))
    return Series(name, x, y, style="dots")
