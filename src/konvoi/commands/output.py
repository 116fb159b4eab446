"""How commands speak: JSON for programs, columns and words for people, progress on a terminal."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from konvoi.errors import MachineError
from konvoi.folder import is_full, write_whole
from konvoi.stages import BYTES, Report, silent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


def print_json(content: object) -> None:
    typer.echo(json.dumps(content, indent=2, ensure_ascii=False))


def write_output(file: Path, text: str) -> None:
    """Where the user said with -o; a full disk is explained elsewhere."""
    try:
        write_whole(file, text)
    except OSError as error:
        if is_full(error):
            raise
        raise MachineError(f"{file} cannot be written: {error.strerror}", hint="name another file with -o") from None


def aligned(rows: Sequence[Sequence[str]], *, numbers: bool = False) -> str:
    """Columns of equal width, two blanks apart; never folded, so that grep and cut work on them.

    In a table of numbers all columns but the first end at the same place.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        "  ".join(
            cell.rjust(width) if numbers and column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
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
def progress_display(*, in_lines: bool = False) -> Iterator[Report]:
    """A bar per stage on a terminal; in a pipe or a log nothing, or a line per stage."""
    # Imported here: most commands show no progress.
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        with _bars(console) as report:
            yield report
    else:
        yield _lines() if in_lines else silent


@contextlib.contextmanager
def _bars(console: Console) -> Iterator[Report]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int = 0, total: int | None = None, unit: str = "lines") -> None:
            if stage not in tasks:
                _finish(progress, list(tasks.values())[-1:])
                tasks[stage] = progress.add_task(stage, total=total, amount="")
            speed = progress.tasks[tasks[stage]].speed
            progress.update(tasks[stage], completed=done, total=total, amount=amount_words(done, total, unit, speed))

        yield report
        _finish(progress, list(tasks.values())[-1:])


def _finish(progress: Progress, tasks: list[TaskID]) -> None:
    """A stage of unknown length is at its end when the next one begins."""
    for task in tasks:
        progress.update(task, total=1, completed=1)


def _lines() -> Report:
    stages: list[str] = []

    def report(stage: str, done: int = 0, total: int | None = None, unit: str = "lines") -> None:
        if stage not in stages:
            stages.append(stage)
            typer.echo(stage, err=True)

    return report


def amount_words(done: int, total: int | None, unit: str, speed: float | None) -> str:
    """12 of 340 MB, 8.1 MB/s"""
    if done == 0:
        return ""
    size, name = (1e6, "MB") if unit == BYTES else (1, unit)
    whole = f" of {total / size:,.0f}" if total else ""
    rate = f", {speed / size:,.1f} {name}/s" if speed and unit == BYTES else ""
    return f"{done / size:,.0f}{whole} {name}{rate}"
