"""konvoi runs: all runs in a folder at a glance."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import typer

from konvoi.commands.output import aligned, duration_words, print_json
from konvoi.errors import RunError, UserError
from konvoi.run_directory import RunDirectory, find_runs
from konvoi.telemetry.units import SPEEDS, speeds

HEADER = ("run", "status", "steps", "loss", "score", "speed", "time", "when")
SCORES = {"bleu": "BLEU", "accuracy_1": "Acc@1"}


def list_runs(parent: Path, as_json: bool) -> None:
    if not parent.is_dir() and parent != Path("runs"):
        raise RunError(f"there is no folder {parent}", hint="name the folder that holds the runs")
    rows = [_describe(run) for run in find_runs(parent)]
    if as_json:
        print_json(rows)
    elif rows:
        typer.echo(aligned([HEADER, *(_cells(row) for row in rows)]))
    else:
        typer.echo(f"no runs in {parent}/ yet; try: konvoi train demo")


def _describe(run: RunDirectory) -> dict[str, Any]:
    summary, status = _summary(run)
    return {
        "run": str(run.path),
        "status": status,
        "steps": summary.get("steps") or 0,
        "loss": summary.get("scores", {}).get("loss"),
        **{key: value for key in SCORES if (value := _best(summary, key)) is not None},
        **{key: summary[key] for key in SPEEDS if key in summary},
        "seconds": summary.get("seconds"),
        "started_at": _started_at(run),
    }


def _summary(run: RunDirectory) -> tuple[dict[str, Any], str]:
    """One damaged run must not hide the others."""
    try:
        summary = run.summary()
        return summary, summary.get("status", "not started")
    except UserError:
        return {}, "unreadable"


def _best(summary: dict[str, Any], score: str) -> float | None:
    best = summary.get("best", {})
    value: float | None = best.get("value") if best.get("metric") == score else summary.get("scores", {}).get(score)
    return value


def _started_at(run: RunDirectory) -> str:
    try:
        started_at = run.environment().get("started_at")
    except UserError:
        started_at = None
    if isinstance(started_at, str):
        return started_at
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(run.recipe_file.stat().st_mtime))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    def number(key: str, form: str) -> str:
        return "-" if row[key] is None else format(row[key], form)

    seconds = "-" if row["seconds"] is None else duration_words(row["seconds"])
    score = next((f"{words} {row[key]:.1f}" for key, words in SCORES.items() if key in row), "-")
    speed = next((f"{value:,.0f} {words}" for words, value in speeds(row)), "-")
    numbers = (number("steps", ","), number("loss", ".3f"))
    return (row["run"], row["status"], *numbers, score, speed, seconds, row["started_at"][:16].replace("T", " "))
