"""konvoi diagnose: what binds a run, with evidence, advice, and how sure that is."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import typer

from konvoi.analysis.diagnosis import diagnose as diagnosis_of
from konvoi.analysis.record import RunRecord
from konvoi.analysis.verdict import Advice, Verdict
from konvoi.commands.output import aligned, print_json

WIDTH = 80
BAR_WIDTH = 40


def diagnose(run: Path, as_json: bool) -> None:
    verdict = diagnosis_of(RunRecord.read(run))
    if as_json:
        print_json(verdict.as_json())
    else:
        typer.echo("\n".join(_lines(verdict)))


def _lines(verdict: Verdict) -> Iterator[str]:
    yield from textwrap.wrap(verdict.sentence, WIDTH)
    yield ""
    yield from _bars(verdict.shares)
    if verdict.evidence:
        yield from ("", "evidence", *_items(verdict.evidence))
    if verdict.advice:
        yield from ("", "what would help, as predicted from these numbers", *map(_advice, verdict.advice))
    yield from ("", *textwrap.wrap(f"how sure: {verdict.sure}", WIDTH))


def _bars(shares: dict[str, float]) -> Iterator[str]:
    """A bar for each cause that takes any time, the longest first."""
    present = sorted(((name, share) for name, share in shares.items() if share >= 0.005), key=lambda item: -item[1])
    rows = [(name, f"{100 * share:3.0f} %", "█" * max(1, round(BAR_WIDTH * share))) for name, share in present]
    if rows:
        yield aligned(rows)


def _items(lines: list[str]) -> Iterator[str]:
    for line in lines:
        yield from textwrap.wrap(line, WIDTH, initial_indent="- ", subsequent_indent="  ")


def _advice(advice: Advice) -> str:
    change = (
        f"{_seconds(advice.before_seconds)} -> {_seconds(advice.after_seconds)} s ({advice.gain:.2f} times as fast)"
    )
    return "\n".join(
        (
            *textwrap.wrap(f"{advice.words}: {change}", WIDTH, initial_indent="- ", subsequent_indent="  "),
            *textwrap.wrap(advice.how, WIDTH, initial_indent="    ", subsequent_indent="    ", break_long_words=False),
        )
    )


def _seconds(seconds: float) -> str:
    """Three figures that count: 1.71, 0.0123"""
    return f"{seconds:.2f}" if seconds >= 1 else f"{seconds:.3g}"
