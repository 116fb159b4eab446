"""What stands at the top: how long, on what, how good, what bound it, in a paragraph that a person can quote."""

from __future__ import annotations

from typing import Any

from konvoi.analysis.answers import time_taken
from konvoi.analysis.record import RunRecord
from konvoi.analysis.verdict import Verdict
from konvoi.analysis.wording import METRIC_NAMES, counted, duration, metric_name, score
from konvoi.report.blocks import Note
from konvoi.telemetry.units import speeds

STATUS = {
    "running": "has been training for",
    "finished": "was trained for",
    "interrupted": "was interrupted after",
    "failed": "failed after",
    "died": "died after",
}


def lead(run: RunRecord, verdict: Verdict) -> str:
    if not len(run.steps):
        return f"{run.name} ({_what(run)}) has no steps yet, so there is little to say."
    sentences = [_duration(run), _speed(run), _quality(run), _bound(verdict)]
    return " ".join(sentence for sentence in sentences if sentence)


def subtitle(run: RunRecord) -> str:
    started = str(run.environment.get("started_at") or "")[:16].replace("T", " ")
    host = run.environment.get("host")
    parts = [run.status, _what(run), f"started {started}" if started else "", f"on {host}" if host else ""]
    return " · ".join(part for part in parts if part)


def endings(run: RunRecord) -> list[Note]:
    """What a reader must know before any number: that there will be more of them, or that there should be more."""
    if run.status == "running":
        return [Note("All numbers are those so far.", title="The run is still going on", tone="caution")]
    if run.status == "died":
        words = "No worker has written for minutes, and none said that it ended. konvoi train --resume goes on with it."
        return [Note(words, title=f"The run died after step {len_steps(run):,}", tone="caution")]
    if run.status == "failed":
        ending = str(run.summary.get("ending") or "log.txt may say why.")
        return [Note(ending, title=f"The run failed after step {len_steps(run):,}", tone="caution")]
    return []


def len_steps(run: RunRecord) -> int:
    """The last step's number: those before a resume may lie elsewhere."""
    return int(run.steps.numbers[-1]) if len(run.steps) else 0


def score_words(run: RunRecord, scores: dict[str, Any]) -> str:
    """BLEU 31.2 and validation loss 2.10"""
    found = [
        f"{metric_name(key)} {score(scores[key], key)}"
        for key in METRIC_NAMES
        if isinstance(scores.get(key), int | float) and key in (run.metric, "bleu", "accuracy_1", "loss")
    ]
    return " and ".join(found)


def _what(run: RunRecord) -> str:
    """transformer, translation en-de"""
    task, model = str(run.setting("task.name", "")), str(run.setting("model.name", ""))
    pair = f" {run.data['source']}-{run.data['target']}" if run.data.get("source") and run.data.get("target") else ""
    return ", ".join(part for part in (model, f"{task}{pair}") if part) or "unknown task"


def _duration(run: RunRecord) -> str:
    # Not of the summary, which is as old as the last evaluation.
    seconds = time_taken.answer(run).facts.get("wall_seconds")
    time = duration(seconds) if seconds else "an unknown time"
    parameters = run.summary.get("parameters")
    size = f", {parameters / 1e6:,.1f} million parameters" if parameters else ""
    verb = STATUS.get(run.status, "ran for")
    return f"{run.name} ({_what(run)}{size}) {verb} {time}, {counted(len_steps(run), 'step')}, on {_machines(run)}."


def _machines(run: RunRecord) -> str:
    hosts = run.summary.get("hosts") or len(run.hosts) or 1
    device = str(run.summary.get("device") or "").upper()
    workers = f"{run.num_workers} {device} worker{'s' * (run.num_workers != 1)}".replace("  ", " ")
    return f"{workers} on {hosts} machine{'s' * (hosts != 1)}"


def _speed(run: RunRecord) -> str:
    found = next(speeds(run.summary), None)
    return f"It went at {found[1]:,.0f} {found[0]}." if found else ""


def _quality(run: RunRecord) -> str:
    last = next((event for event in reversed(run.evaluations) if event.get("step")), None)
    if not last or not score_words(run, last):
        return "It was not evaluated."
    best = run.summary.get("best") or {}
    text = f"It reached {score_words(run, last)} at step {last['step']:,}"
    best_words = score_words(run, {best.get("metric", ""): best.get("value")})
    if best_words and best.get("step") not in (None, last["step"]):
        text += f"; the best was {best_words} at step {best['step']:,}"
    return f"{text}."


def _bound(verdict: Verdict) -> str:
    return "What bound it can't be told." if verdict.verdict == "unknown" else verdict.sentence
