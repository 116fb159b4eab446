"""A plot as inline SVG that is sharp at any width: curves stretch with the page, texts and lines keep their size.

The outer drawing has no viewBox, so that its unit is a pixel and its places are percentages; the curves lie in an inner
one that is stretched. Colours are classes (c0, c1 ...): the page's style, light, dark or printed, decides on them.
"""

from __future__ import annotations

from html import escape

import numpy as np
from numpy.typing import NDArray

from konvoi.analysis.record import Floats
from konvoi.report.axes import Axis, bar_width, drawn, x_axis, y_axis
from konvoi.report.blocks import Plot, Series
from konvoi.report.words import series_words

Known = NDArray[np.bool_]

WIDTH, HEIGHT = 1000, 220
NUM_COLOURS = 8
# More labels than these do not fit beside each other on a phone; every other one is then hidden.
NUM_LABELS_ON_A_PHONE = 4


def svg(plot: Plot, identity: str) -> str:
    """`identity` is unique on the page."""
    x, y = x_axis(plot), y_axis(plot)
    curves = "".join(_curve(series, number, plot, x, y) for number, series in enumerate(drawn(plot)))
    inner_class = "curves cut" if plot.cut else "curves"
    return (
        f'<svg class="plot" role="img" height="{HEIGHT}" aria-labelledby="{identity}-title {identity}-text">'
        f'<title id="{identity}-title">{escape(plot.title)}</title>'
        f'<desc id="{identity}-text">{escape(describe(plot))}</desc>'
        f"{_x_ticks(x)}{_y_ticks(y)}"
        f'<svg class="{inner_class}" width="100%" height="100%" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'preserveAspectRatio="none">{curves}</svg>'
        f"{_levels(plot, y)}</svg>"
    )


def describe(plot: Plot) -> str:
    """What is drawn, for those who cannot see it."""
    return "; ".join(series_words(series) for series in plot.series)


def _x_ticks(axis: Axis) -> str:
    parts = []
    crowded = len(axis.ticks) > NUM_LABELS_ON_A_PHONE
    for number, (place, label) in enumerate(zip(axis.place(np.array(axis.ticks)), axis.labels(), strict=True)):
        hidden = " spare" if crowded and number % 2 else ""
        parts.append(f'<line class="grid" x1="{100 * place:.2f}%" x2="{100 * place:.2f}%" y1="0" y2="{HEIGHT}"/>')
        parts.append(f'<text class="tick x{hidden}" x="{100 * place:.2f}%" y="{HEIGHT + 16}">{label}</text>')
    return "".join(parts)


def _y_ticks(axis: Axis) -> str:
    parts = []
    for place, label in zip(axis.place(np.array(axis.ticks)), axis.labels(), strict=True):
        height = _round(HEIGHT * (1 - place))
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{height}" y2="{height}"/>')
        parts.append(f'<text class="tick y" x="-8" y="{height}">{label}</text>')
    return "".join(parts)


def _levels(plot: Plot, axis: Axis) -> str:
    parts = []
    for level in plot.levels:
        height = HEIGHT * (1 - float(axis.place(np.array(level.y))))
        parts.append(f'<line class="level" x1="0" x2="100%" y1="{_round(height)}" y2="{_round(height)}"/>')
        parts.append(f'<text class="level" x="100%" dx="-4" y="{_round(height - 5)}">{escape(level.name)}</text>')
    return "".join(parts)


def _curve(series: Series, number: int, plot: Plot, x: Axis, y: Axis) -> str:
    colour = f"c{number % NUM_COLOURS}"
    places, heights = WIDTH * x.place(series.x), HEIGHT * (1 - y.place(series.y))
    if plot.kind == "bars":
        return _bars(series, colour, x, y)
    if plot.kind == "stacked":
        return _band(series, places, y, f"area {colour}")
    if plot.kind == "steps":
        places, heights = np.repeat(places, 2)[1:], np.repeat(heights, 2)[:-1]
    band = _band(series, places, y, f"band {colour}")
    known = np.isfinite(places) & np.isfinite(heights)
    # A point between two gaps has no line, but is to be seen.
    dots = known if series.style == "dots" else _alone(known)
    return (
        f'{band}<path class="line {series.style} {colour}" d="{_line(places, heights)}"/>'
        f'<path class="dot {colour}" d="{_dots(places[dots], heights[dots])}"/>'
    )


def _bars(series: Series, colour: str, x: Axis, y: Axis) -> str:
    """All of one series in one path."""
    left = WIDTH * x.place(series.x)
    right = WIDTH * x.place(series.x + bar_width(series.x))
    tops = HEIGHT * (1 - y.place(series.y))
    bars = (
        f"M{_round(a)} {HEIGHT}V{_round(top)}H{_round(b)}V{HEIGHT}Z"
        for a, b, top in zip(left, right, tops, strict=True)
        if np.isfinite(top) and top < HEIGHT
    )
    return f'<path class="bar {colour}" d="{"".join(bars)}"/>'


def _band(series: Series, places: Floats, y: Axis, classes: str) -> str:
    """The surface between low and high, in as many pieces as there are stretches without gaps."""
    if series.low is None or series.high is None:
        return ""
    tops, bottoms = (HEIGHT * (1 - y.place(values)) for values in (series.high, series.low))
    known = np.isfinite(tops) & np.isfinite(bottoms) & np.isfinite(places)
    pieces = []
    for stretch in _stretches(known):
        # A single point has no width, and would not be seen.
        along = places[stretch] if stretch.stop - stretch.start > 1 else places[stretch] + np.array([-5.0, 5.0])
        top, bottom = (np.broadcast_to(values[stretch], along.shape) for values in (tops, bottoms))
        there, back = _points(along, top), _points(along[::-1], bottom[::-1])
        pieces.append(f"M{there}L{back}Z")
    return f'<path class="{classes}" d="{"".join(pieces)}"/>' if pieces else ""


def _line(places: Floats, heights: Floats) -> str:
    known = np.isfinite(places) & np.isfinite(heights)
    return "".join(f"M{_points(places[stretch], heights[stretch])}" for stretch in _stretches(known))


def _dots(places: Floats, heights: Floats) -> str:
    """Lines of no length: their round ends are dots, however the drawing is stretched."""
    return "".join(f"M{_round(x)} {_round(y)}h0" for x, y in zip(places, heights, strict=True))


def _alone(known: Known) -> Known:
    """Where it is true, but not beside."""
    padded = np.concatenate([[False], known, [False]])
    return np.asarray(known & ~padded[:-2] & ~padded[2:])


def _stretches(known: Known) -> list[slice]:
    """Where it is true without a break."""
    edges = np.flatnonzero(np.diff([False, *known, False]))
    return [slice(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def _points(places: Floats, heights: Floats) -> str:
    return " ".join(f"{_round(x)} {_round(y)}" for x, y in zip(places, heights, strict=True))


def _round(value: float) -> str:
    """A tenth of a pixel; without the zero that most of them end with."""
    return f"{value:.1f}".removesuffix(".0")
