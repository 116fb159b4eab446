"""What files make up a checkpoint, what does each hold, and how big is it?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from konvoi.analysis.answer import Answer
from konvoi.analysis.record import RunRecord
from konvoi.analysis.wording import amount_of_bytes, counted, listed
from konvoi.run_directory import RunDirectory

QUESTION = "What files make up a checkpoint, and how big is it?"
MOMENTS = {
    "adam": "Adam's two moments (the running means of each gradient and of its square), fp32",
    "adamw": "AdamW's two moments (the running means of each gradient and of its square), fp32",
    "sgd": "the momentum of each weight, fp32",
}
HOLDS = {
    "model.safetensors": "the model's weights, fp32, and the running statistics of its layers where it has any",
    "ema.safetensors": "the moving average of the weights, fp32: what is evaluated and used",
    "sync.safetensors": "what the workers share for their exchange: the common weights of diloco, powersgd's factors",
    "state.json": "step, position in the data, scores so far, loss scale: all that is needed to go on exactly",
    "checksums.json": "the SHA-256 of each of the other files",
}


@dataclass(frozen=True)
class CheckpointFile:
    name: str
    num_bytes: int
    holds: str


def answer(run: RunRecord) -> Answer:
    kept = folders(run)
    if not kept:
        return Answer(QUESTION, "no checkpoint", f"No checkpoint is here. {_written(run)}".strip())
    found = files(run)
    total_bytes = sum(file.num_bytes for file in found)
    parameters = run.summary.get("parameters")
    per_parameter = total_bytes / parameters if parameters else None
    parts = [f"{file.name} ({amount_of_bytes(file.num_bytes)})" for file in found]
    words = f"A checkpoint takes {amount_of_bytes(total_bytes)} in {counted(len(found), 'file')}: {listed(parts)}."
    if per_parameter:
        words += f" That is {per_parameter:.1f} bytes for each of {parameters:,} parameters."
    own_bytes = _own_bytes(run, kept[-1].name)
    if own_bytes:
        words += (
            f" What differs from worker to worker takes another {amount_of_bytes(own_bytes)} for all that are here."
        )
    words += f" {counted(len(kept), 'checkpoint').capitalize()} {'is' if len(kept) == 1 else 'are'} kept."
    facts = {
        "checkpoint": kept[-1].name,
        "bytes": total_bytes,
        "bytes_per_parameter": per_parameter,
        "own_bytes_of_workers": own_bytes,
        "kept": [folder.name for folder in kept],
        "best": _best(run),
        "files": [vars(file) for file in found],
    }
    return Answer(QUESTION, amount_of_bytes(total_bytes), words, facts)


def folders(run: RunRecord) -> list[Path]:
    """What is kept, oldest first."""
    return sorted(folder for folder in RunDirectory(run.path).checkpoints.glob("step-*") if folder.is_dir())


def files(run: RunRecord) -> list[CheckpointFile]:
    """Of the latest checkpoint, the largest first; empty where there is none."""
    kept = folders(run)
    found = [file for file in kept[-1].iterdir() if file.is_file()] if kept else []
    described = [CheckpointFile(file.name, file.stat().st_size, _holds(file.name, run)) for file in found]
    return sorted(described, key=lambda file: (-file.num_bytes, file.name))


def _own_bytes(run: RunRecord, name: str) -> int:
    """Of all workers whose part of this checkpoint is here; each writes it on its own host."""
    parts = (RunDirectory(run.path).checkpoints / "workers").glob(f"rank-*/{name}/*")
    return sum(file.stat().st_size for file in parts if file.is_file())


def _holds(name: str, run: RunRecord) -> str:
    if name == "optimizer.safetensors":
        return MOMENTS.get(str(run.setting("optim.name", "adam")), "the optimiser's state")
    return HOLDS.get(name, "not known to this version of Konvoi")


def _best(run: RunRecord) -> Any:
    try:
        entries = json.loads((RunDirectory(run.path).checkpoints / "index.json").read_text(encoding="utf-8"))["best"]
        return entries[0]["checkpoint"] if entries else None
    except (OSError, ValueError, KeyError, TypeError):
        return run.summary.get("best", {}).get("checkpoint")


def _written(run: RunRecord) -> str:
    steps = sorted({event["step"] for event in run.first.checkpoints if isinstance(event.get("step"), int)})
    if not steps:
        return "The run wrote none." if len(run.steps) else ""
    return f"The run wrote the last one after step {steps[-1]:,}; its files were not copied along, or were deleted."
