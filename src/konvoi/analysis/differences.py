"""What differs between runs: recipe, machines, versions, data; and what makes their numbers incomparable."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from konvoi.analysis.record import RunRecord
from konvoi.analysis.wording import listed, percent
from konvoi.run_directory import RunDirectory

# A run whose main thread had to wait for a core for so much of its steps shared the machine, or had too many workers.
CROWDED = 0.1
Group = Literal["recipe", "machine", "version", "data"]


@dataclass(frozen=True)
class Difference:
    group: Group
    key: str
    values: list[Any]
    """One for each run, in their order; None where a run does not have it."""


@dataclass(frozen=True)
class Obstacle:
    """Why some numbers of the runs cannot be set against each other."""

    words: str
    forbids: Literal["speed", "scores", "everything", "nothing"]


def differences(runs: Sequence[RunRecord]) -> list[Difference]:
    sides: dict[Group, Callable[[RunRecord], dict[str, Any]]] = {
        "recipe": _recipe,
        "machine": _machine,
        "version": _versions,
        "data": _data,
    }
    return [found for group, read in sides.items() for found in _unequal(group, [read(run) for run in runs])]


def obstacles(runs: Sequence[RunRecord]) -> list[Obstacle]:
    """The gravest first; where the tasks differ, nothing else matters."""
    finders = (_sets, _held_out, _signatures, _vocabularies)
    return [*_tasks(runs)] or [obstacle for find in finders for obstacle in find(runs)]


def remarks(runs: Sequence[RunRecord]) -> list[str]:
    """What a reader of the numbers should know."""
    found = []
    same_task = not [*_tasks(runs)]
    if same_task and _named(runs, lambda run: run.summary.get("parameters")):
        found.append("The models differ in size: speeds tell about the models, not only about the machines.")
    if same_task and _named(runs, lambda run: run.metric):
        found.append("The recipes choose their best checkpoint by different metrics.")
    found += [
        f"{run.name} had no free core for {percent(share)} of a step: its speed is not what the machine can do."
        for run in runs
        if (share := crowded_share(run)) >= CROWDED
    ]
    endings = {"running": "is still going on", "died": "died", "failed": "failed", "interrupted": "was interrupted"}
    found += [
        f"{run.name} {endings[run.status]}: its last values are not final." for run in runs if run.status in endings
    ]
    return found


def crowded_share(run: RunRecord) -> float:
    """Of a step, how long the first rank was ready to compute but had no core; 0 where that was not measured."""
    delays, seconds = run.steps["run_delay_seconds"], run.steps["step_seconds"]
    known = np.isfinite(delays) & (seconds > 0)
    return float(delays[known].sum() / seconds[known].sum()) if known.any() else 0.0


def _unequal(group: Group, tables: list[dict[str, Any]]) -> Iterator[Difference]:
    for key in dict.fromkeys(key for table in tables for key in table):
        values = [table.get(key) for table in tables]
        if any(value != values[0] for value in values):
            yield Difference(group, key, values)


def _recipe(run: RunRecord) -> dict[str, Any]:
    tables = {name: table for name, table in run.tables.items() if isinstance(table, dict)}
    return {f"{name}.{key}": value for name, table in tables.items() for key, value in table.items()}


def _machine(run: RunRecord) -> dict[str, Any]:
    about = {key: run.environment.get(key) for key in ("processor", "cores", "memory_bytes", "system")}
    # Of the run itself: a cluster's environment.json tells of the first host only.
    used = {key: run.summary.get(key) for key in ("hosts", "device", "threads", "precision")}
    gpus = [name for host in run.hosts.values() for name in host.about.get("gpus") or []]
    return {**used, **about, "devices": gpus or run.environment.get("devices")}


def _versions(run: RunRecord) -> dict[str, Any]:
    git = run.environment.get("git") or {}
    own = {"konvoi": run.environment.get("konvoi"), "python": run.environment.get("python")}
    return {**own, "commit": str(git.get("commit") or "")[:12] or None, **(run.environment.get("libraries") or {})}


def _data(run: RunRecord) -> dict[str, Any]:
    counts = {
        f"{key}.{split}": count for key in ("pairs", "images") for split, count in (run.data.get(key) or {}).items()
    }
    return {"set": run.data.get("set"), **counts, "vocabulary": _vocabulary(run)}


def _vocabulary(run: RunRecord) -> str | None:
    """A few characters that two vocabularies share only if they are the same."""
    try:
        return hashlib.sha256(RunDirectory(run.path).vocabulary_file.read_bytes()).hexdigest()[:12]
    except OSError:
        return None


def _named(runs: Sequence[RunRecord], value_of: Callable[[RunRecord], Any]) -> list[str]:
    """name (value) for each run, where the values that are known differ; else nothing."""
    values = [value_of(run) for run in runs]
    if len({str(value) for value in values if value is not None}) < 2:
        return []
    return [f"{run.name} ({'unknown' if value is None else value})" for run, value in zip(runs, values, strict=True)]


def _tasks(runs: Sequence[RunRecord]) -> Iterator[Obstacle]:
    if named := _named(runs, lambda run: run.setting("task.name")):
        yield Obstacle(f"The runs do different things: {listed(named)}. Nothing can be compared.", "everything")


def _sets(runs: Sequence[RunRecord]) -> Iterator[Obstacle]:
    def trained_on(run: RunRecord) -> str | None:
        counts = run.data.get("pairs") or run.data.get("images") or {}
        return f"{run.data['set']}, {counts.get('train', 0):,}" if run.data.get("set") else None

    if named := _named(runs, trained_on):
        yield Obstacle(f"They were trained on different data: {listed(named)}.", "nothing")


def _held_out(runs: Sequence[RunRecord]) -> Iterator[Obstacle]:
    def scored_on(run: RunRecord) -> str | None:
        last = run.evaluations[-1] if run.evaluations else {}
        count = last.get("sentences") or last.get("images")
        return f"{run.data.get('set')}, {run.setting('evaluate.split', 'dev')}, {count}" if count else None

    if named := _named(runs, scored_on):
        yield Obstacle(f"They were scored on different data, so scores cannot be compared: {listed(named)}.", "scores")


def _signatures(runs: Sequence[RunRecord]) -> Iterator[Obstacle]:
    def signature(run: RunRecord) -> str | None:
        return run.evaluations[-1].get("bleu_signature") if run.evaluations else None

    if named := _named(runs, signature):
        yield Obstacle(f"BLEU was computed in different ways, so it cannot be compared: {listed(named)}.", "scores")


def _vocabularies(runs: Sequence[RunRecord]) -> Iterator[Obstacle]:
    if named := _named(runs, _vocabulary):
        words = "The vocabularies differ, so tokens per second and losses per token are of different tokens"
        yield Obstacle(f"{words}: {listed(named)}.", "speed")
