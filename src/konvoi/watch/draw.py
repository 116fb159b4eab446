"""Small pictures of characters: curves, bars, lines that fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from rich.text import Text

BLOCKS = "▁▂▃▄▅▆▇█"
# A few wild steps must not flatten all others.
CURVE_PERCENTILES = (1, 97)
# Each phase has a colour, and a pattern for eyes and terminals that know no colours.
PHASE_STYLES = {
    "data": ("▒", "yellow"),
    "forward": ("█", "blue"),
    "backward": ("▓", "cyan"),
    "waiting": ("░", "magenta"),
    "network": ("▚", "red"),
    "exchange": ("▚", "red"),
    "optimiser": ("=", "green"),
}
OTHER_STYLE = ("·", "bright_black")


def sparkline(values: Sequence[float], width: int) -> str:
    """A curve of blocks, the means of equally many values a column; shorter where there are fewer values."""
    finite = np.array([value for value in values if math.isfinite(value)])
    if not len(finite) or width < 1:
        return ""
    columns = np.array([part.mean() for part in np.array_split(finite, min(width, len(finite)))])
    low, high = np.percentile(columns, CURVE_PERCENTILES)
    if high <= low:
        return BLOCKS[len(BLOCKS) // 2 - 1] * len(columns)
    levels = np.clip((columns - low) / (high - low), 0, 1) * (len(BLOCKS) - 1)
    return "".join(BLOCKS[round(level)] for level in levels)


def meter(share: float, width: int, style: str) -> Text:
    """How much of a whole: ━━━━──────"""
    filled = min(width, max(0, round(share * width)))
    return Text.assemble(("━" * filled, style), ("─" * (width - filled), "bright_black"))


def stacked(seconds: Mapping[str, float], width: int, scale_seconds: float) -> Text:
    """Parts one after another; as wide as their sum is of the scale."""
    bar, sum_seconds = Text(), 0.0
    for name, part in seconds.items():
        glyph, style = PHASE_STYLES.get(name, OTHER_STYLE)
        # Each border is rounded, not each part: so the bar is never longer than its sum.
        begin = round(sum_seconds / scale_seconds * width)
        sum_seconds += part
        bar.append(glyph * (round(sum_seconds / scale_seconds * width) - begin), style)
    return bar


def legend(seconds: Mapping[str, float]) -> list[Text]:
    items = []
    for name, part in seconds.items():
        glyph, style = PHASE_STYLES.get(name, OTHER_STYLE)
        items.append(Text.assemble((glyph, style), f" {name} {milliseconds(part)}"))
    return items


def milliseconds(seconds: float) -> str:
    """0.4 ms, 38 ms, 1,240 ms"""
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.01 else f"{seconds * 1e3:,.0f} ms"


def clock_words(seconds: float) -> str:
    """0:42, 3:05, 1:02:07, 2 d 01:40"""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24:02d}:{minutes:02d}"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def fitting(parts: Iterable[Text | str], width: int, gap: str = "  ") -> Text:
    """The parts one after another, as many as fit; the first one is cut where even that does not."""
    line = Text()
    for part in parts:
        if not len(part):
            continue
        if not len(line):
            line.append(part)
        elif line.cell_len + len(gap) + Text.assemble(part).cell_len <= width:
            line.append(gap).append(part)
        else:
            break
    return cut(line, width)


def flowing(parts: Iterable[Text], width: int, gap: str = "  ") -> list[Text]:
    """The parts on as many lines as they need."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + len(gap) + part.cell_len <= width:
            lines[-1].append(gap).append(part)
        else:
            lines.append(Text().append(part))
    return [cut(line, width) for line in lines]


def folded(text: Text, width: int, max_lines: int) -> list[Text]:
    """Words on lines; what is too long ends with dots."""
    words, lines = text.split(" "), [Text()]
    for word in words:
        if len(lines[-1]) and lines[-1].cell_len + 1 + word.cell_len > width:
            lines.append(Text())
        lines[-1].append(" " if len(lines[-1]) else "").append(word)
    if len(lines) > max_lines:
        lines = lines[:max_lines]
        lines[-1].append(" …")
    return [cut(line, width) for line in lines]


def cut(line: Text, width: int) -> Text:
    line.truncate(max(1, width), overflow="ellipsis")
    return line
