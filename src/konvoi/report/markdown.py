"""A page as Markdown: for a repository, a message, a terminal. A curve becomes a row of blocks and its numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from konvoi.analysis.answer import Answer
from konvoi.analysis.record import Floats
from konvoi.report.blocks import Block, Code, Facts, Note, Page, Paragraph, Plot, Samples, Section, Table
from konvoi.report.words import series_words

SPARK_WIDTH = 48
BLOCKS = "▁▂▃▄▅▆▇█"
# What Markdown or the HTML in it would take for its own; some of it only where a line or a word begins or ends.
SPECIAL = re.compile(r"[\\`*\[\]<|~]|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)|^[-+=>#]|^\d+[.)](?=\s)")


def write(page: Page) -> str:
    parts = [f"# {plain(page.title)}", plain(page.subtitle), plain(page.lead), *map(_note, page.notes)]
    parts += map(_section, page.sections)
    return "\n\n".join(part for part in parts if part) + "\n"


def plain(text: str) -> str:
    """In one line, with nothing in it that Markdown would take for its own."""
    return SPECIAL.sub(_escaped, " ".join(text.split()))


def _escaped(found: re.Match[str]) -> str:
    """Of "1." the point is what makes a list."""
    return f"{found[0][:-1]}\\{found[0][-1]}"


def _section(section: Section) -> str:
    return "\n\n".join([f"## {plain(section.title)}", *map(block_markdown, section.blocks)])


def block_markdown(block: Block) -> str:
    return WRITERS[type(block)](block)


def _answer(answer: Answer) -> str:
    return f"{plain(answer.question)} **{plain(answer.short)}**\n\n{plain(answer.words)}"


def _note(note: Note) -> str:
    title = f"**{plain(note.title)}** " if note.title else ""
    return "\n".join([f"> {title}{plain(note.text)}", *(f">\n> - {plain(line)}" for line in note.details)])


def _facts(facts: Facts) -> str:
    rows = (f"- {plain(label)}: {plain(value)}" for label, value in facts.rows)
    return _captioned(facts.caption, "\n".join(rows))


def _table(table: Table) -> str:
    rule = ["---" if n < table.num_left else "---:" for n in range(len(table.header))]
    lines = [_row([plain(cell) for cell in table.header]), _row(rule)]
    lines += (_row([plain(cell) for cell in row]) for row in table.rows)
    return _captioned(table.caption, "\n".join(lines))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(code: Code) -> str:
    # Longer than any row of back-quotes inside, so that none can end it.
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code.text)), default=0))
    return _captioned(code.caption, f"{fence}\n{code.text}\n{fence}")


def _samples(samples: Samples) -> str:
    items = ("\n".join(f"- {plain(name)}: {plain(text)}" for name, text in item.items()) for item in samples.items)
    return _captioned(samples.caption, "\n\n<!-- -->\n\n".join(items))


def _plot(plot: Plot) -> str:
    unit = f" ({plot.y_label})" if plot.y_label else ""
    lines = [f"    {spark(series.y)}  {series_words(series)}" for series in plot.series]
    lines += [f"    {level.name}: {level.y:,.4g}" for level in plot.levels]
    caption = f"\n\n{plain(plot.caption)}" if plot.caption else ""
    return _captioned(f"{plot.title}{unit}, over {plot.x_label}", "\n".join(lines)) + caption


def _captioned(caption: str, text: str) -> str:
    return f"**{plain(caption)}**\n\n{text}" if caption else text


def spark(values: Floats, width: int = SPARK_WIDTH) -> str:
    """▁▂▄█; a blank where nothing was measured."""
    pieces = np.array_split(values, min(width, len(values))) if len(values) else []
    means = np.array([piece[np.isfinite(piece)].mean() if np.isfinite(piece).any() else np.nan for piece in pieces])
    known = means[np.isfinite(means)]
    if len(known) == 0:
        return ""
    spread = float(known.max() - known.min()) or 1.0
    places = np.nan_to_num((means - known.min()) / spread) * (len(BLOCKS) - 1)
    return "".join(
        BLOCKS[round(float(place))] if there else " " for place, there in zip(places, np.isfinite(means), strict=True)
    )


WRITERS: dict[type[Any], Callable[[Any], str]] = {
    Answer: _answer,
    Paragraph: lambda paragraph: _captioned(paragraph.caption, plain(paragraph.text)),
    Note: _note,
    Facts: _facts,
    Table: _table,
    Code: _code,
    Samples: _samples,
    Plot: _plot,
}
