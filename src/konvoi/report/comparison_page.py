"""The page of konvoi compare, as data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from konvoi.analysis.comparison import Comparison, Standing, loss_curve
from konvoi.analysis.record import Floats
from konvoi.analysis.wording import counted, duration, figures, metric_name, percent, score
from konvoi.report.blocks import Block, Note, Page, Paragraph, Plot, Section, Series, Table

GROUPS = {"recipe": "Recipe", "machine": "Machines", "version": "Versions", "data": "Data"}
# A longer value would push the others out of the table.
MAX_VALUE_CHARACTERS = 60
SINGLE_RUNS = (
    "Each curve is one run. Two runs that differ in their seed alone differ in their scores too: small differences need"
    " several seeds."
)


def build(found: Comparison) -> Page:
    names = [standing.name for standing in found.standings]
    return Page(
        title=f"Comparison of {counted(len(names), 'run')}",
        subtitle=" · ".join(names),
        lead=lead(found),
        notes=[*_obstacles(found)],
        sections=[section for section in _sections(found) if section.blocks],
        facts=found.as_json(),
    )


def lead(found: Comparison) -> str:
    first = found.standings[0]
    told = (_capital(words, one) for words, one in zip(found.sentences, found.standings[1:], strict=True))
    return f"Against {first.name} ({machines(first)}). {'. '.join(told)}."


def _capital(words: str, standing: Standing) -> str:
    """A run's name stays as it is."""
    return words if words.startswith(standing.name) else words[0].upper() + words[1:]


def machines(standing: Standing) -> str:
    """two workers on one host"""
    return f"{counted(standing.workers, 'worker')} on {counted(standing.hosts, 'host')}"


def rows(found: Comparison) -> Iterator[tuple[str, Callable[[Standing], str]]]:
    """What is told of each run; a row that no run has anything for is left out by the caller."""
    metric, first = found.metric, found.standings[0]
    yield "workers", lambda one: f"{one.workers:,}"
    yield "hosts", lambda one: f"{one.hosts:,}"
    yield "status", lambda one: one.run.status
    yield "steps", lambda one: f"{one.steps:,}"
    yield "epochs", lambda one: _told(one.epochs, figures)
    yield "time", lambda one: duration(one.seconds)
    yield first.speed_unit or "speed", lambda one: _told(one.speed, figures)
    yield "speed-up", lambda one: _told(one.speed_up, lambda value: f"{value:.2f}x")
    yield "efficiency", lambda one: _told(one.efficiency, percent)
    yield f"{metric_name(metric)}, last", lambda one: _told(one.last_score, lambda value: score(value, metric))
    yield f"{metric_name(metric)}, best", lambda one: _told(one.best_score, lambda value: score(value, metric))
    if found.common is not None:
        at = f"{metric_name(metric)} at {figures(found.common)} {found.common_unit}"
        yield at, lambda one: _told(one.score_at_common, lambda value: score(value, metric))
    if found.same_score is not None:
        yield f"time to {metric_name(metric)} {score(found.same_score, metric)}", same_score_time
    yield "cost", lambda one: _told(one.cost, "{:,.2f}".format)
    yield "cost to the same score", lambda one: _told(one.cost_to_same_score, "{:,.2f}".format)


def same_score_time(one: Standing) -> str:
    """At most so long where the first evaluation was past it already."""
    return _told(one.seconds_to_same_score, lambda value: f"{'<= ' if one.at_the_latest else ''}{duration(value)}")


def told_rows(found: Comparison) -> list[tuple[str, ...]]:
    table = [(title, *(cell(standing) for standing in found.standings)) for title, cell in rows(found)]
    return [row for row in table if any(value != "-" for value in row[1:])]


def value_words(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[: MAX_VALUE_CHARACTERS - 1]}…"


def _told(value: float | None, words: Callable[[float], str]) -> str:
    return "-" if value is None else words(value)


def _obstacles(found: Comparison) -> Iterator[Note]:
    for obstacle in found.obstacles:
        yield Note(obstacle.words, title="Not comparable", tone="caution")
    if found.remarks:
        yield Note(" ".join(found.remarks), title="Mind", tone="caution")


def _sections(found: Comparison) -> Iterator[Section]:
    header = ("", *(standing.name for standing in found.standings))
    table = Table("Against the first run", header, told_rows(found))
    yield Section("results", "Results", [table, Paragraph(SINGLE_RUNS)])
    yield Section("scores", metric_name(found.metric), [*_score_plots(found)])
    yield Section("losses", "Training loss", [*_loss_plots(found)])
    yield Section("differences", "What differs", [*_differences(found)])


def _score_plots(found: Comparison) -> Iterator[Block]:
    evaluated = [standing for standing in found.standings if len(standing.curve)]
    name = metric_name(found.metric)
    if not evaluated:
        return
    series = [Series(one.name, one.curve.steps, one.curve.values, style="dots") for one in evaluated]
    yield Plot(f"{name} over steps", series, y_label=name)
    if found.common_unit == "epochs" and found.common is not None:
        yield Plot(f"{name} over epochs", [*_over_epochs(evaluated)], x_label="epochs", y_label=name)
    series = [Series(one.name, one.score_seconds / 60, one.curve.values, style="dots") for one in evaluated]
    yield Plot(f"{name} over time", series, x_label="minutes", y_label=name)


def _over_epochs(evaluated: list[Standing]) -> Iterator[Series]:
    for one in evaluated:
        if one.curve.epochs is not None:
            yield Series(one.name, one.curve.epochs, one.curve.values, style="dots")


def _loss_plots(found: Comparison) -> Iterator[Block]:
    curves: dict[str, tuple[Floats, Floats, Floats]] = {one.name: loss_curve(one) for one in found.standings}
    curves = {name: curve for name, curve in curves.items() if len(curve[0])}
    if not curves:
        return
    by_step = [Series(name, steps, losses) for name, (steps, _, losses) in curves.items()]
    by_time = [Series(name, seconds / 60, losses) for name, (_, seconds, losses) in curves.items()]
    yield Plot("Training loss over steps", by_step, y_label="nats per target")
    yield Plot("Training loss over time", by_time, x_label="minutes", y_label="nats per target")


def _differences(found: Comparison) -> Iterator[Block]:
    header = ("", *(standing.name for standing in found.standings))
    for group, title in GROUPS.items():
        lines = [(each.key, *map(value_words, each.values)) for each in found.differences if each.group == group]
        if lines:
            yield Table(title, header, lines)
    if not found.differences:
        yield Paragraph("Nothing that is recorded.")
