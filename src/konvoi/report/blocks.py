"""What a page is made of, as data: no writer decides on content, no section on looks.

Page -> Section -> Block, where a Block is an Answer (analysis/answer.py) or one of the classes below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from konvoi.analysis.answer import Answer
from konvoi.analysis.record import Floats

# A phone is about 350 points wide, a sheet of paper 700: more could not be told apart.
MAX_POINTS = 240


@dataclass(frozen=True)
class Paragraph:
    text: str
    caption: str = ""


@dataclass(frozen=True)
class Note:
    """A remark that stands out: the verdict, a warning."""

    text: str
    title: str = ""
    tone: Literal["verdict", "caution"] = "verdict"
    details: Sequence[str] = ()
    """Lines below the text: evidence, advice."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The same for programs."""


@dataclass(frozen=True)
class Facts:
    """Labels and their values."""

    rows: Sequence[tuple[str, str]]
    caption: str = ""


@dataclass(frozen=True)
class Table:
    """All columns but the first `num_left` hold numbers and are aligned to the right."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_left: int = 1


@dataclass(frozen=True)
class Code:
    text: str
    caption: str = ""


@dataclass(frozen=True)
class Samples:
    """Sentences (or other short texts) under their names: source, translation, reference."""

    items: Sequence[dict[str, str]]
    caption: str = ""
    jpegs: Sequence[str] = ()
    """A picture for each, in base64."""


@dataclass(frozen=True)
class Series:
    """A curve, or a row of bars; NaN is a gap. `low` and `high` bound the band around it."""

    name: str
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None
    style: Literal["line", "dashed", "dots"] = "line"
    """Dots: few points that were measured one by one, joined by a line."""


@dataclass(frozen=True)
class Level:
    """A height to compare with: the speed of the link."""

    name: str
    y: float


@dataclass(frozen=True)
class Plot:
    """Curves over one pair of axes. Bars: bar i reaches from x[i] to x[i + 1], the last is as wide as the first."""

    title: str
    series: Sequence[Series]
    x_label: str = "step"
    y_label: str = ""
    kind: Literal["line", "stacked", "bars", "steps"] = "line"
    log: bool = False
    holds: Sequence[float] = ()
    """Heights that the axis reaches in any case."""
    cut: bool = False
    """A few values that tower above the rest (a first, slow step) may leave the plot."""
    levels: Sequence[Level] = ()
    caption: str = ""


Block = Answer | Paragraph | Note | Facts | Table | Code | Samples | Plot


@dataclass(frozen=True)
class Section:
    name: str
    """The anchor: letters, digits and hyphens."""
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    title: str
    lead: str
    """A paragraph that a person can quote."""
    sections: Sequence[Section]
    subtitle: str = ""
    """When, where, how far: small, below the title."""
    notes: Sequence[Note] = ()
    """Right below the lead."""
    facts: dict[str, Any] = field(default_factory=dict)
    """For programs: name, status ..."""


def thinned(name: str, x: Floats, y: Floats, *, envelope: bool = True, max_points: int = MAX_POINTS) -> Series:
    """A long curve as its mean over equal stretches, in a band from their least to their greatest: spikes stay seen."""
    if len(x) <= max_points:
        return Series(name, x, y)
    starts = np.linspace(0, len(x), max_points, endpoint=False).astype(int)
    known = np.isfinite(y)
    counts = np.add.reduceat(known.astype(float), starts)
    with np.errstate(invalid="ignore"):
        mean = np.add.reduceat(np.where(known, y, 0.0), starts) / counts
    # Of equal length for all curves of a plot: stacked ones must lie above each other.
    middle = np.add.reduceat(x, starts) / np.diff([*starts, len(x)])
    # The curve is as long as it was.
    middle[0], middle[-1] = x[0], x[-1]
    if not envelope:
        return Series(name, middle, mean)
    low = np.minimum.reduceat(np.where(known, y, np.inf), starts)
    high = np.maximum.reduceat(np.where(known, y, -np.inf), starts)
    return Series(name, middle, mean, np.where(counts > 0, low, np.nan), np.where(counts > 0, high, np.nan))
