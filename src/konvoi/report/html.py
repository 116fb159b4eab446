"""A page as one HTML file that needs nothing else: no fetch, no script; safe whatever the texts hold."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from konvoi.analysis.answer import Answer
from konvoi.report.axes import cut_words
from konvoi.report.blocks import Block, Code, Facts, Note, Page, Paragraph, Plot, Samples, Section, Table
from konvoi.report.svg import NUM_COLOURS, svg

# A table of no more rows stays together on paper.
MAX_UNBROKEN_ROWS = 20
# A longer text in a cell may be folded.
LONGEST_NAME = 28


def write(page: Page, *, live: bool = False) -> str:
    """`live`: the page asks its server for a newer one while the run goes on."""
    style, script = _resource("style.css"), _resource("live.js") if live else ""
    contents = "".join(f'<li><a href="#{s.name}">{escape(s.title)}</a></li>' for s in page.sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}">
<meta name="referrer" content="no-referrer">
<title>{escape(page.title)}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main class="sheet">
<header>
<h1>{escape(page.title)}</h1>
{_below(page, live)}
<p class="lead">{escape(page.lead)}</p>
{"".join(map(_note, page.notes))}
</header>
<nav aria-label="Contents"><ol>{contents}</ol></nav>
{"".join(map(_section, page.sections))}
</main>
{f"<script>{script}</script>" if script else ""}
</body>
</html>
"""


@cache
def _resource(name: str) -> str:
    return resources.files("konvoi.report").joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Nothing may be loaded or run but what is named here by its hash, whatever a sample sentence holds."""
    rules = ["default-src 'none'", "img-src data:", f"style-src {_hash(style)}"]
    if script:
        rules += [f"script-src {_hash(script)}", "connect-src 'self'"]
    return "; ".join(rules)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _below(page: Page, live: bool) -> str:
    mark = ' <span class="live" role="status">live</span>' if live else ""
    return f'<p class="below">{escape(page.subtitle)}{mark}</p>' if page.subtitle or mark else ""


def _section(section: Section) -> str:
    blocks = "\n".join(block_html(block, f"{section.name}-{n}") for n, block in enumerate(section.blocks))
    return f'<section id="{section.name}">\n<h2>{escape(section.title)}</h2>\n{blocks}\n</section>\n'


def block_html(block: Block, identity: str) -> str:
    """`identity` is unique on the page."""
    return _plot(block, identity) if isinstance(block, Plot) else WRITERS[type(block)](block)


def _answer(answer: Answer) -> str:
    return (
        f'<div class="answer"><p class="question">{escape(answer.question)}</p>'
        f'<p class="short">{escape(answer.short)}</p><p>{escape(answer.words)}</p></div>'
    )


def _paragraph(paragraph: Paragraph) -> str:
    text = f"<p>{escape(paragraph.text)}</p>"
    return _captioned(paragraph.caption, text) if paragraph.caption else text


def _note(note: Note) -> str:
    title = f'<p class="title">{escape(note.title)}</p>' if note.title else ""
    items = "".join(f"<li>{escape(line)}</li>" for line in note.details)
    details = f"<ul>{items}</ul>" if items else ""
    return f'<aside class="note {note.tone}">{title}<p>{escape(note.text)}</p>{details}</aside>'


def _facts(facts: Facts) -> str:
    rows = "".join(f"<dt>{escape(label)}</dt><dd>{escape(value)}</dd>" for label, value in facts.rows)
    return _captioned(facts.caption, f"<dl>{rows}</dl>")


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col"{_cell_class(n, "", table)}>{escape(c)}</th>' for n, c in enumerate(table.header))
    cells = (
        "".join(f"<td{_cell_class(n, cell, table)}>{escape(cell)}</td>" for n, cell in enumerate(row))
        for row in table.rows
    )
    rows = "".join(f"<tr>{row}</tr>" for row in cells)
    length = "short" if len(table.rows) <= MAX_UNBROKEN_ROWS else "long"
    # Can be reached by the keyboard, because it may scroll.
    return (
        f'<div class="wide {length}" tabindex="0" role="region" aria-label="{escape(table.caption)}"><table>'
        f"<caption>{escape(table.caption)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _cell_class(column: int, text: str, table: Table) -> str:
    """Numbers to the right; a sentence gets room, lest it becomes a column of single words on a phone."""
    if column >= table.num_left:
        return ' class="number"'
    return ' class="sentence"' if len(text) > LONGEST_NAME else ""


def _code(code: Code) -> str:
    return _captioned(code.caption, f'<pre tabindex="0">{escape(code.text)}</pre>')


def _samples(samples: Samples) -> str:
    if samples.jpegs:
        pictures = "".join(_picture(item, jpeg) for item, jpeg in zip(samples.items, samples.jpegs, strict=True))
        return _captioned(samples.caption, f'<div class="pictures">{pictures}</div>')
    return _captioned(samples.caption, "".join(f'<dl class="sample">{_named(item)}</dl>' for item in samples.items))


def _picture(item: dict[str, str], jpeg: str) -> str:
    words = ", ".join(f"{name}: {text}" for name, text in item.items())
    source = f"data:image/jpeg;base64,{escape(jpeg)}"
    return f'<div class="picture"><img src="{source}" alt="{escape(words)}"><dl>{_named(item)}</dl></div>'


def _named(item: dict[str, str]) -> str:
    return "".join(f'<dt>{escape(name)}</dt><dd dir="auto">{escape(text)}</dd>' for name, text in item.items())


def _captioned(caption: str, content: str) -> str:
    title = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{title}{content}</figure>"


def _plot(plot: Plot, identity: str) -> str:
    unit = f' <span class="unit">{escape(plot.y_label)}</span>' if plot.y_label else ""
    remarks = " ".join(remark for remark in (plot.caption, cut_words(plot)) if remark)
    aside = f'<p class="aside">{escape(remarks)}</p>' if remarks else ""
    return (
        f"<figure><figcaption>{escape(plot.title)}{unit}</figcaption>{_legend(plot)}"
        f'<div class="frame">{svg(plot, identity)}<span class="unit x-label">{escape(plot.x_label)}</span></div>'
        f"{aside}</figure>"
    )


def _legend(plot: Plot) -> str:
    if len(plot.series) < 2:
        return ""
    items = (f'<li class="c{n % NUM_COLOURS}">{escape(series.name)}</li>' for n, series in enumerate(plot.series))
    return f'<ul class="legend">{"".join(items)}</ul>'


WRITERS: dict[type[Any], Callable[[Any], str]] = {
    Answer: _answer,
    Paragraph: _paragraph,
    Note: _note,
    Facts: _facts,
    Table: _table,
    Code: _code,
    Samples: _samples,
}
