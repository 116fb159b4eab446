"""How commands speak: JSON for programs, columns and words for people, progress on a terminal."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence

import typer

from konvoi.data.get import Report, silent


def print_json(content: object) -> None:
    typer.echo(json.dumps(content, indent=2, ensure_ascii=False))


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, two blanks apart; never folded, so that grep and cut work on them."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def duration_words(seconds: float) -> str:
    """4.2 s, 3 min 05 s, 1 h 02 min"""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def megabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"


@contextlib.contextmanager
def progress_display() -> Iterator[Report]:
    """Shows the stage and its lines on a terminal; stays silent in a pipe or a log."""
    # Imported here: most commands show no progress.
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield silent
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting")

        def report(stage: str, num_lines: int) -> None:
            progress.update(task, description=f"{stage}: {num_lines:,} lines" if num_lines else stage)

        yield report
