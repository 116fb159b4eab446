"""What a training says at its end, in the words that people know. Reads the run directory only."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from konvoi.analysis.diagnosis import diagnose
from konvoi.analysis.record import RunRecord
from konvoi.commands.output import aligned, duration_words, megabytes
from konvoi.folder import read_json
from konvoi.run_directory import RunDirectory
from konvoi.telemetry.units import speeds

MAX_SAMPLES = 4
WIDTH = 80
SCORES = {"loss": "validation loss", "bleu": "BLEU", "chrf": "chrF", "accuracy_1": "Acc@1", "accuracy_5": "Acc@5"}
Scores = dict[str, Any]


def closing_lines(run: RunDirectory) -> list[str]:
    """All of it, line by line."""
    summary, evaluations = run.summary(), _evaluations(run)
    rows = [*_data(run), *_speed(summary), *_scores(summary, evaluations), *_best_checkpoint(run, summary)]
    last = evaluations.get(max(evaluations, default=0), {})
    verdict = diagnose(RunRecord.read(run.path)).sentence
    return ["", aligned(rows), "", *textwrap.wrap(verdict, WIDTH), *_samples(last), "", *_further(run)]


def _data(run: RunDirectory) -> Iterator[tuple[str, str]]:
    data = read_json(run.data_file)
    if "filters" in data:
        left = data["filters"][-1]
        yield "trained on", f"{data['set']}: {left['pairs']:,} pairs, {sum(left['mb'].values()):,.1f} MB"
    elif "images" in data:
        pictures, num_bytes = data["images"]["train"], data["bytes"]["train"]
        yield "trained on", f"{data['set']}: {pictures:,} pictures, {megabytes(num_bytes)}"


def _speed(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    seconds = summary["step_seconds"]
    yield "time in all", f"{duration_words(summary['seconds'])} for {summary['steps']:,} steps"
    yield "time per step", f"mean {seconds['mean']:.3f} s, median {seconds['median']:.3f} s"
    for words, speed in speeds(summary):
        yield words, f"{speed:,.0f}"


def _scores(summary: dict[str, Any], evaluations: dict[int, Scores]) -> Iterator[tuple[str, str]]:
    last, best = summary.get("scores", {}), summary.get("best", {})
    at_best = evaluations.get(best.get("step", 0), {})
    for key, name in SCORES.items():
        if last.get(key) is not None:
            form = ".3f" if key == "loss" else ".2f"
            has_best = at_best.get(key) is not None
            best_words = f", at the best checkpoint {at_best[key]:{form}} (step {best['step']:,})" if has_best else ""
            yield name, f"{last[key]:{form}}{best_words}"


def _best_checkpoint(run: RunDirectory, summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    name = summary.get("best", {}).get("checkpoint")
    path = run.checkpoints / name if name else None
    if path and path.is_dir():
        yield "best checkpoint", f"{path} ({megabytes(_size_bytes(path))})"


def _size_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def _samples(evaluation: Scores) -> Iterator[str]:
    for sample in evaluation.get("samples", [])[:MAX_SAMPLES]:
        if "translation" in sample:
            yield ""
            yield aligned([(key, sample[key]) for key in ("source", "translation", "reference")])


def _further(run: RunDirectory) -> Iterator[str]:
    # From the Makefile konvoi is not on the PATH: then its folder belongs to what the user is to type.
    folder = "" if shutil.which("konvoi") else f"{Path(sys.argv[0]).parent}/"
    yield f"the run is in {run.path}; look further with"
    yield f"  {folder}konvoi eval {run.path}"
    if "accuracy_1" in run.summary().get("scores", {}):
        yield f"  {folder}konvoi classify {run.path} IMAGE"
    else:
        yield f'  {folder}konvoi translate {run.path} "Where is the station?"'
    yield f"  {folder}konvoi diagnose {run.path}"
    yield f"  {folder}konvoi report {run.path}"
    yield f"  {folder}konvoi tensorboard {run.path}"
    yield f"  {folder}konvoi runs"


def _evaluations(run: RunDirectory) -> dict[int, Scores]:
    """By step; those after the point to which a resumed run went back do not count."""
    found: dict[int, Scores] = {}
    for event in run.events_of():
        if event.get("kind") == "evaluation":
            found[event["step"]] = event
        elif event.get("kind") == "restart":
            found = {step: scores for step, scores in found.items() if step <= event["step"]}
    return found
