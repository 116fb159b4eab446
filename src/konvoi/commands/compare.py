"""konvoi compare: runs against the first of them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import typer

from konvoi.analysis.comparison import Comparison, Standing
from konvoi.analysis.comparison import compare as comparison_of
from konvoi.analysis.record import RunRecord
from konvoi.analysis.wording import figures, metric_name, percent, score
from konvoi.commands.output import aligned, print_json, write_output
from konvoi.errors import UserError
from konvoi.report import html
from konvoi.report.comparison_page import build, machines, same_score_time, value_words
from konvoi.telemetry.events import finite

WIDTH = 80


def compare(runs: list[Path], price_per_hour: float | None, output: Path | None, as_json: bool) -> None:
    if len(runs) < 2:
        raise UserError("one run has nothing to be compared with", hint="name two runs or more: konvoi compare A B")
    found = comparison_of([RunRecord.read(run) for run in runs], price_per_hour)
    if output is not None:
        write_output(output, html.write(build(found)))
        typer.echo(f"wrote {output}", err=True)
    if as_json:
        print_json(finite(found.as_json()))
    else:
        typer.echo("\n".join(_lines(found)))


def _lines(found: Comparison) -> Iterator[str]:
    """The sentences first; in the tables a run is its number."""
    for sentence in found.sentences:
        yield from _wrapped(sentence, "")
    for warning in (*(obstacle.words for obstacle in found.obstacles), *found.remarks):
        yield from _wrapped(warning, "note: ")
    yield ""
    for number, standing in enumerate(found.standings, start=1):
        yield from _wrapped(_about(standing), f"{number}  ")
    yield from ("", aligned(_results(found), numbers=True), *_legend(found))
    if found.standings[0].cost is not None:
        yield from ("", aligned(_costs(found), numbers=True))
    if found.differences:
        yield from ("", aligned(_differences(found)))


def _wrapped(text: str, opening: str) -> Iterator[str]:
    """Never inside a run's name."""
    indent = " " * max(2, len(opening))
    yield from textwrap.wrap(opening + text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _about(standing: Standing) -> str:
    epochs = "" if standing.epochs is None else f", {figures(standing.epochs)} epochs"
    return f"{standing.name}: {machines(standing)}, {standing.steps:,} steps{epochs}, {standing.run.status}"


def _results(found: Comparison) -> list[tuple[str, ...]]:
    metric, first = found.metric, found.standings[0]
    header = ["run", first.speed_unit.split(" ")[-1] or "speed", "speed-up", "efficiency", metric_name(metric)]
    header += [f"same {found.common_unit}", "same score"]
    table = [tuple(header)]
    for number, one in enumerate(found.standings, start=1):
        table.append(
            (
                str(number),
                "-" if one.speed is None else figures(one.speed),
                "-" if one.speed_up is None else f"{one.speed_up:.2f}x",
                "-" if one.efficiency is None else percent(one.efficiency),
                "-" if one.last_score is None else score(one.last_score, metric),
                "-" if one.score_at_common is None else score(one.score_at_common, metric),
                same_score_time(one),
            )
        )
    return table


def _costs(found: Comparison) -> list[tuple[str, ...]]:
    table: list[tuple[str, ...]] = [("run", "host hours", "cost", "cost to the same score")]
    for number, one in enumerate(found.standings, start=1):
        to_score = "-" if one.cost_to_same_score is None else f"{one.cost_to_same_score:,.2f}"
        table.append((str(number), f"{one.hosts * one.seconds / 3600:,.2f}", f"{one.cost or 0.0:,.2f}", to_score))
    return table


def _legend(found: Comparison) -> Iterator[str]:
    metric = metric_name(found.metric)
    words = []
    if found.common is not None:
        words.append(f"same {found.common_unit}: {metric} at {figures(found.common)} {found.common_unit}")
    if found.same_score is not None:
        words.append(f"same score: time to {metric} {score(found.same_score, found.metric)}, the best that all reached")
    for word in words:
        yield from _wrapped(word, "     ")


def _differences(found: Comparison) -> list[tuple[str, ...]]:
    """Cut so that a line fits on 80 columns for a few runs."""
    numbers = [str(number) for number in range(1, len(found.standings) + 1)]
    keys = [each.key if each.group == "recipe" else f"{each.group}: {each.key}" for each in found.differences]
    room = max(8, (WIDTH - max(map(len, ["what differs", *keys]))) // len(numbers) - 2)
    lines = [
        (key, *(_cut(value_words(value), room) for value in each.values))
        for key, each in zip(keys, found.differences, strict=True)
    ]
    return [("what differs", *numbers), *lines]


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"
