"""A paragraph for the methods section of a paper; only what the run directory knows."""

from __future__ import annotations

from typing import Any

from konvoi.analysis.record import RunRecord
from konvoi.analysis.sync import way_of
from konvoi.analysis.wording import amount_of_bytes
from konvoi.report.lead import len_steps

OPTIMISERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}


def methods(run: RunRecord) -> str:
    """Empty for a run that has not begun."""
    if not run.environment or not len(run.steps):
        return ""
    sentences = (_model(run), _data(run), _optimisation(run), _hardware(run), _software(run.environment), _scores(run))
    return " ".join(sentence for sentence in sentences if sentence)


def _model(run: RunRecord) -> str:
    name, size = run.setting("model.name", "model"), run.setting("model.size", "")
    parameters = run.summary.get("parameters")
    count = f" with {parameters:,} parameters" if parameters else ""
    return f"We trained a {name}{f' ({size})' if size else ''}{count} for {len_steps(run):,} steps."


def _data(run: RunRecord) -> str:
    data = run.data
    if not data.get("set"):
        return ""
    text = f"The training set was {data['set']}"
    if "pairs" in data and "train" in data["pairs"]:
        text += f", {data['pairs']['train']:,} sentence pairs ({data.get('source')} to {data.get('target')})"
        text += f", split into {data['vocabulary_size']:,} pieces" if data.get("vocabulary_size") else ""
    elif "images" in data and "train" in data["images"]:
        text += f", {data['images']['train']:,} pictures of {data.get('classes', '?')} classes"
    return f"{text}."


def _optimisation(run: RunRecord) -> str:
    name = str(run.setting("optim.name", ""))
    if not name:
        return ""
    schedule = run.setting("schedule.name", "")
    text = f"The optimiser was {OPTIMISERS.get(name, name)}"
    text += f" with the {schedule} learning-rate schedule" if schedule else ""
    rate = run.setting("schedule.learning_rate")
    text += f" (rate {rate:g})" if isinstance(rate, int | float) else ""
    return f"{text}, the seed {run.setting('train.seed', '?')}, the precision {run.summary.get('precision', '?')}."


def _hardware(run: RunRecord) -> str:
    environment, hosts = run.environment, run.summary.get("hosts") or 1
    text = f"Training ran on {run.num_workers} worker{'s' * (run.num_workers != 1)}"
    text += f" on {hosts} machine{'s' * (hosts != 1)} ({_machine(environment)})"
    return f"{text}{_synchronised(run)}." if run.num_workers > 1 else f"{text}."


def _synchronised(run: RunRecord) -> str:
    way, asked = way_of(run), run.setting("sync.name")
    if not asked:
        return ""
    every = f" every {way.number('local_steps')} steps" if way.number("local_steps") else ""
    # What auto tells later is that it made them more frequent.
    every += " at first" if every and any("chosen" not in event for event in run.first.syncs) else ""
    exact = f", gradients in the first {way.number('exact_steps')}" if way.number("exact_steps") else ""
    by = way.name if way.name == asked else f"{way.name} ({asked})"
    return f", {'weights' if way.is_behind_steps else 'gradients'} synchronised by {by}{every}{exact}"


def _machine(environment: dict[str, Any]) -> str:
    devices = sorted({str(device) for device in environment.get("devices") or [] if device != "cpu"})
    parts = [*devices, str(environment.get("processor") or ""), f"{environment.get('cores', '?')} cores"]
    parts.append(amount_of_bytes(environment.get("memory_bytes") or 0))
    return ", ".join(part for part in parts if part)


def _software(environment: dict[str, Any]) -> str:
    torch = (environment.get("libraries") or {}).get("torch", "?")
    konvoi, python = (environment.get(name, "?") for name in ("konvoi", "python"))
    return f"We used Konvoi {konvoi}, PyTorch {torch} and Python {python}."


def _scores(run: RunRecord) -> str:
    scores = run.summary.get("scores") or {}
    signature = scores.get("bleu_signature")
    return f"BLEU is sacreBLEU's ({signature})." if signature else ""
