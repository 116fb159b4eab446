"""Speed against one device over the number of workers: a panel for each network, as an SVG that stands alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from konvoi.plan.outlook import ALONE, Outlook

PANEL_WIDTH, PANEL_HEIGHT, MARGIN = 300, 240, 48
# What is slower than 1/8 of one device lies on the ground.
LEAST = -3
# Told apart also by those who see fewer colours (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def svg(rows: Sequence[Outlook], title: str) -> str:
    networks = list(dict.fromkeys(row.network for row in rows))
    ways = [way for way in dict.fromkeys(row.sync for row in rows) if way != ALONE]
    most = max(max(row.prediction.num_workers for row in rows), 2)
    panels = "".join(_panel(network, number, rows, ways, most) for number, network in enumerate(networks))
    width = len(networks) * (PANEL_WIDTH + MARGIN) + MARGIN
    height = PANEL_HEIGHT + 2 * MARGIN + 18 * len(ways) + 18
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="{MARGIN}" y="20" font-weight="bold">{escape(title)}: speed against one device</text>'
        f"{panels}{_legend(ways)}</svg>\n"
    )


def _panel(network: str, number: int, rows: Sequence[Outlook], ways: list[str], most: int) -> str:
    left, top = MARGIN + number * (PANEL_WIDTH + MARGIN), MARGIN

    def place(workers: float, speed: float) -> str:
        """Both axes double from tick to tick."""
        right = math.log2(workers) / math.log2(most)
        up = (max(math.log2(speed), LEAST) - LEAST) / (math.log2(most) - LEAST)
        return f"{left + right * PANEL_WIDTH:.1f},{top + (1 - up) * PANEL_HEIGHT:.1f}"

    parts = [f'<text x="{left}" y="{top - 8}">{escape(network)}</text>']
    for exponent in range(LEAST, math.floor(math.log2(most)) + 1):
        x, y = place(1, 2.0**exponent).split(",")
        parts.append(f'<path d="M{x} {y}h{PANEL_WIDTH}" stroke="#ddd"/>')
        label = "below" if exponent == LEAST else f"{2.0**exponent:g}"
        parts.append(f'<text x="{left - 4}" y="{y}" text-anchor="end" dy="4">{label}</text>')
    for workers in sorted({row.prediction.num_workers for row in rows}):
        x = place(workers, 1).split(",")[0]
        parts.append(f'<text x="{x}" y="{top + PANEL_HEIGHT + 16}" text-anchor="middle">{workers:,}</text>')
    parts.append(f'<path d="M{place(1, 1)} {place(most, most)}" stroke="#999" stroke-dasharray="4 4" fill="none"/>')
    for way, colour in zip(ways, _colours(len(ways)), strict=True):
        points = [place(w, s) for w, s in _curve(rows, network, way)]
        parts.append(f'<path d="M{" ".join(points)}" stroke="{colour}" stroke-width="2" fill="none"/>')
    return "".join(parts)


def _curve(rows: Sequence[Outlook], network: str, way: str) -> list[tuple[int, float]]:
    """The fastest way to place so many workers on nodes; one alone is where all begin."""
    fastest: dict[int, float] = {}
    for row in rows:
        if row.network == network and row.sync in (way, ALONE):
            workers = row.prediction.num_workers
            fastest[workers] = max(row.prediction.speed_up, fastest.get(workers, 0.0))
    return sorted(fastest.items())


def _legend(ways: list[str]) -> str:
    top = PANEL_HEIGHT + 2 * MARGIN
    lines = [f'<text x="{MARGIN}" y="{top}">workers; dashed: linear</text>']
    for number, (way, colour) in enumerate(zip(ways, _colours(len(ways)), strict=True)):
        y = top + 18 * (number + 1)
        lines.append(f'<path d="M{MARGIN} {y - 4}h24" stroke="{colour}" stroke-width="2"/>')
        lines.append(f'<text x="{MARGIN + 32}" y="{y}">{escape(way)}</text>')
    return "".join(lines)


def _colours(count: int) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(count)]
