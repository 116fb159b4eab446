"""What a person sees: a progress bar on a terminal, plain lines elsewhere, and the same lines in log.txt."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from konvoi.folder import unless_full
from konvoi.telemetry.units import speeds


class Console:
    """Silent on every rank but the first; the caller need not know which it is."""

    def __init__(self, log_file: Path, is_first: bool, quiet: bool = False) -> None:
        self._log = log_file.open("a", encoding="utf-8", buffering=1) if is_first else None
        self._rich = RichConsole(stderr=True, highlight=False, quiet=quiet or not is_first, soft_wrap=True)
        self._progress: Progress | None = None
        self._bar: Any = None

    def say(self, line: str) -> None:
        """Into the log, and above the progress bar."""
        self._note(line)
        self._rich.print(line, markup=False)

    def start_bar(self, total: float, done: float) -> None:
        if self._rich.is_terminal and not self._rich.quiet:
            columns = (
                BarColumn(bar_width=16),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
            )
            self._progress = Progress(*columns, console=self._rich, transient=True)
            self._bar = self._progress.add_task("starting", total=total, completed=round(done))
            self._progress.start()

    def step(self, event: dict[str, Any], done: float, line_due: bool) -> None:
        """The bar at every step, a line now and then."""
        words, speed = next(speeds(event))
        text = f"step {event['step']:,}  loss {event['loss']:.3f}  {speed:,.0f} {words}"
        if self._progress:
            # Short, so that bar and times fit on 80 columns.
            short = f"step {event['step']:,} loss {event['loss']:.3f} {speed:,.0f} {words.split()[-1]}"
            self._progress.update(self._bar, completed=done, description=short)
        if line_due and self._log:
            extra = f"  rate {event['learning_rate']:.2e}  {event['step_seconds']:.3f} s/step"
            self._note(text + extra)
            if not self._progress:
                self._rich.print(text + extra, markup=False)

    def _note(self, line: str) -> None:
        if self._log:
            with unless_full():
                self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")

    def close(self) -> None:
        if self._progress:
            self._progress.stop()
        if self._log:
            self._log.close()
