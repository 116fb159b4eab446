"""konvoi watch: a live view of a run, on a terminal or as lines."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live

from konvoi.analysis.diagnosis import diagnose
from konvoi.analysis.record import RunRecord
from konvoi.analysis.verdict import Verdict
from konvoi.watch.lines import Lines
from konvoi.watch.live import LiveRun
from konvoi.watch.screen import Screen

TERMINAL_SECONDS = 1.0
LINES_SECONDS = 10.0
VERDICT_STEPS = 200


def watch(path: Path, every_seconds: float | None = None, once: bool = False) -> None:
    """Until the run has ended or Ctrl-C, which ends the watching and not the run."""
    console = Console(highlight=False)
    run = LiveRun(path, _judge)
    with contextlib.suppress(KeyboardInterrupt):
        if not _can_draw(console):
            _in_lines(console, run, every_seconds or LINES_SECONDS, once)
        elif once:
            console.print(Screen(run.refresh()))
        else:
            _on_terminal(console, run, every_seconds or TERMINAL_SECONDS)


def _judge(run: RunRecord) -> Verdict:
    return diagnose(run, last_steps=VERDICT_STEPS)


def _can_draw(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")


def _on_terminal(console: Console, run: LiveRun, every_seconds: float) -> None:
    view = run.refresh()
    live = Live(Screen(view), console=console, screen=True, auto_refresh=False)
    try:
        # Not as a context manager: it would leave the terminal as it is after a Ctrl-C while it draws the first view.
        live.start(refresh=True)
        while not view.has_ended:
            time.sleep(every_seconds)
            view = run.refresh()
            live.update(Screen(view), refresh=True)
    finally:
        live.stop()
        # On the main screen again, after Ctrl-C too: the last view stays.
        console.print(Screen(view))


def _in_lines(console: Console, run: LiveRun, every_seconds: float, once: bool) -> None:
    lines = Lines()
    while True:
        view = run.refresh()
        for line in lines.of(view):
            console.print(line, markup=False, soft_wrap=True)
        if once or view.has_ended:
            return
        time.sleep(every_seconds)
