"""Where an axis begins and ends, and which round numbers stand along it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from konvoi.analysis.record import Floats
from konvoi.analysis.wording import figures
from konvoi.report.blocks import Plot, Series

NUM_TICKS = 6
# An axis that begins nearly at 0 (at step 1) begins there.
NEAR_ZERO = 0.15
# A plot that may be cut ends at so many times what all but a few of its values stay below.
CUT_ABOVE = 2.0
ORDINARY_PERCENT = 97


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def place(self, values: Floats) -> Floats:
        """0 at the low end, 1 at the high one; NaN where there is no place."""
        if self.log:
            logs = np.log(np.where(values > 0, values, np.nan))
            return np.asarray((logs - math.log(self.low)) / (math.log(self.high) - math.log(self.low)))
        return np.asarray((values - self.low) / (self.high - self.low))

    def labels(self) -> list[str]:
        return tick_labels(self.ticks)


def x_axis(plot: Plot) -> Axis:
    """As long as the curves; a single point gets room on both sides."""
    values = _finite([series.x for series in plot.series])
    if plot.kind == "bars":
        values = np.append(values, [series.x[-1] + bar_width(series.x) for series in plot.series if len(series.x)])
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    if low == high:
        low, high = low - 1, high + 1
    if 0 < low <= NEAR_ZERO * high:
        low = 0.0
    return Axis(low, high, tuple(t for t in _round_ticks(low, high) if low <= t <= high))


def y_axis(plot: Plot) -> Axis:
    values = _finite([level for series in drawn(plot) for level in _heights(series)])
    values = np.append(values, [*plot.holds, *(level.y for level in plot.levels)])
    if plot.log:
        return _log_axis(values[values > 0])
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    if plot.kind in ("stacked", "bars"):
        low = min(0.0, low)
    if plot.cut and len(values):
        ordinary = float(np.percentile(values, ORDINARY_PERCENT))
        high = min(high, CUT_ABOVE * ordinary) if ordinary > 0 else high
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):
        spread = abs(high) * 0.1 or 1.0
        low, high = low - spread * (low != 0), high + spread
    ticks = _round_ticks(low, high)
    return Axis(min(low, ticks[0]), max(high, ticks[-1]), ticks)


def cut_words(plot: Plot) -> str:
    """What a reader must know of a plot that does not show all; empty where it does."""
    if not plot.cut:
        return ""
    highest = _finite([level for series in drawn(plot) for level in _heights(series)])
    if not len(highest) or highest.max() <= y_axis(plot).high:
        return ""
    return f"The highest peak, {figures(highest.max())}, is cut off."


def drawn(plot: Plot) -> list[Series]:
    """As they lie on the page: stacked ones on top of each other."""
    if plot.kind != "stacked":
        return list(plot.series)
    heights = np.cumsum([np.nan_to_num(series.y) for series in plot.series], axis=0)
    below = [np.zeros_like(heights[0]), *heights[:-1]] if len(heights) else []
    return [
        Series(series.name, series.x, top, bottom, top)
        for series, bottom, top in zip(plot.series, below, heights, strict=True)
    ]


def bar_width(x: Floats) -> float:
    return float(x[1] - x[0]) if len(x) > 1 else 1.0


def tick_labels(ticks: tuple[float, ...]) -> list[str]:
    """Short, and all of one form: 0, 5k, 10k; 0.001, 0.002; 1e-5, 2e-5"""
    largest = max((abs(tick) for tick in ticks), default=0.0)
    # More digits than this are not read at a glance.
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if largest >= 10 * size or (largest >= size and suffix != "k"):
            return [f"{tick / size:g}{suffix}" if tick else "0" for tick in ticks]
    if 0 < largest < 1e-3:
        return [f"{tick:.3g}".replace("e-0", "e-") if tick else "0" for tick in ticks]
    return [f"{tick:,.6g}" for tick in ticks]


def _heights(series: Series) -> list[Floats]:
    return [values for values in (series.y, series.low, series.high) if values is not None]


def _finite(columns: list[Floats]) -> Floats:
    values = np.concatenate(columns) if columns else np.array([])
    return np.asarray(values[np.isfinite(values)], dtype=np.float64)


def _round_ticks(low: float, high: float) -> tuple[float, ...]:
    """Multiples of 1, 2 or 5 times a power of ten, at least from low to high."""
    rough = (high - low) / (NUM_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    # Rounded: 3 x 0.1 is not 0.3.
    return tuple(round(number * step, 12 - math.floor(math.log10(step))) for number in range(first, last + 1))


def _log_axis(values: Floats) -> Axis:
    low, high = (float(values.min()), float(values.max())) if len(values) else (1.0, 10.0)
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    last = max(last, first + 1)
    powers = [10.0**power for power in range(first, last + 1, 1 + (last - first) // NUM_TICKS)]
    if last - first > 2:
        return Axis(10.0**first, 10.0**last, tuple(powers), log=True)
    between = [factor * power for power in powers for factor in (1, 2, 5)]
    ticks = [tick for tick in between if 10.0**first <= tick <= 10.0**last]
    low, high = max(t for t in ticks if t <= low * 1.0001), min(t for t in ticks if t >= high * 0.9999)
    if low == high:
        low, high = ticks[0], ticks[-1]
    return Axis(low, high, tuple(tick for tick in ticks if low <= tick <= high), log=True)
