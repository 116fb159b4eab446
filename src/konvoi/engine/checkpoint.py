"""Checkpoints: written beside and renamed, checksummed, read without pickle.

checkpoints/index.json              which are the latest, which the best
checkpoints/step-00000500/
    model.safetensors               the weights
    ema.safetensors                 their moving average, where the recipe keeps one
    optimizer.safetensors           the optimiser's moments
    sync.safetensors                what all workers share beside the weights, where the sync keeps any
    state.json                      step, position in the data, scores so far, loss scale
    checksums.json                  SHA-256 of each of these
checkpoints/workers/rank-003/step-00000500/
                                    what one worker has alone, on its own host: its weights where they part, what
                                    rounding cost, its optimiser's moments
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from konvoi.errors import CheckpointError, MachineError, UserError
from konvoi.evaluate.scores import is_better
from konvoi.folder import DAMAGED, is_full, read_json, write_json

Tensors = dict[str, Tensor]


class NoRoomError(MachineError):
    """A disk is full."""


@dataclass
class Checkpoint:
    """Everything that a run needs to go on exactly."""

    step: int
    state: dict[str, Any]
    tensors: dict[str, Tensors] = field(default_factory=dict)
    """By file: model, ema, optimizer, sync."""

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for tensors in self.tensors.values() for t in tensors.values())


class Checkpoints:
    """The checkpoints folder of a run."""

    def __init__(self, folder: Path, keep: int = 3, keep_best: int = 1, metric: str = "loss") -> None:
        self.folder, self.keep, self.keep_best, self.metric = folder, keep, keep_best, metric
        self._saved: tuple[Path, dict[str, Any]] | None = None
        self.freed: list[str] = []
        """What the last save had to delete to find room."""

    def save(self, checkpoint: Checkpoint) -> Path:
        """Writes beside, then renames: a killed run leaves the previous checkpoint whole."""
        self.freed = []
        self.folder.mkdir(parents=True, exist_ok=True)
        final = self.path_of(checkpoint.step)
        # The state may have grown since: an evaluation after the last step belongs to it.
        if (final, checkpoint.state) == self._saved:
            return final
        for half_written in self.folder.glob(".step-*"):
            # A killed run left it; no other writes here while this one does.
            shutil.rmtree(half_written)
        temporary = self.folder / f".{final.name}.{os.getpid()}"
        try:
            while not self._write(temporary, checkpoint):
                self._free_oldest(checkpoint)
            _take_place(temporary, final)
            self._remember(last=final.name)
        except OSError as error:
            raise no_room(self.folder, checkpoint.num_bytes) if is_full(error) else error from None
        self._saved = (final, checkpoint.state)
        return final

    def _write(self, temporary: Path, checkpoint: Checkpoint) -> bool:
        """Whether there was room for it."""
        if not has_room(self.folder, checkpoint.num_bytes):
            return False
        try:
            _write(temporary, checkpoint)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if is_full(error):
                return False
            raise
        return True

    def _free_oldest(self, wanted: Checkpoint) -> None:
        """Never the last one, nor one of the best."""
        index = self.index()
        kept = {*index["last"][-1:], *(entry["checkpoint"] for entry in index["best"])}
        spare = [path for path in sorted(self.folder.glob("step-*")) if path.name not in kept]
        if not spare:
            raise no_room(self.folder, wanted.num_bytes)
        shutil.rmtree(spare[0])
        self.freed.append(spare[0].name)
        index["last"] = [name for name in index["last"] if name != spare[0].name]
        write_json(self.folder / "index.json", index)

    def path_of(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def index(self) -> dict[str, Any]:
        file = self.folder / "index.json"
        index = {"last": [], "best": [], **read_json(file)}
        try:
            names = [*index["last"], *(entry["checkpoint"] for entry in index["best"])]
            # No name leads out of the folder.
            is_whole = all(re.fullmatch(r"step-\d+", name) for name in names)
        except (TypeError, KeyError):
            is_whole = False
        if not is_whole:
            raise CheckpointError(f"{file} names no checkpoints", hint=DAMAGED)
        return index

    def rank_by_score(self, path: Path, value: float) -> None:
        """Notes the score of a checkpoint; the best ones are kept."""
        best = [entry for entry in self.index()["best"] if entry["checkpoint"] != path.name]
        place = sum(1 for entry in best if not is_better(self.metric, value, entry["value"]))
        best.insert(place, {"checkpoint": path.name, "metric": self.metric, "value": value})
        self._remember(best=best[: self.keep_best])

    def forget_after(self, step: int) -> None:
        """Whoever goes back to a step gives up what came after it, lest two histories be averaged or compared."""
        try:
            index = self.index()
        except UserError:
            # Damaged, as by a power cut: another host had the checkpoint to go on from, and a new index begins.
            index = {"last": [], "best": []}
            write_json(self.folder / "index.json", index)
        latest = self.path_of(step).name
        last = [name for name in index["last"] if name <= latest]
        if latest not in last and (self.folder / latest).is_dir():
            # One of the best, and now the one to go on from after the next fault.
            last.append(latest)
        best = [entry for entry in index["best"] if entry["checkpoint"] <= latest]
        if (last, best) != (index["last"], index["best"]):
            write_json(self.folder / "index.json", {"last": last, "best": best})

    def _remember(self, last: str | None = None, best: list[dict[str, Any]] | None = None) -> None:
        index = self.index()
        if last is not None:
            index["last"] = [*(name for name in index["last"] if name != last), last][-self.keep :]
        if best is not None:
            index["best"] = best
        write_json(self.folder / "index.json", index)
        kept = {*index["last"], *(entry["checkpoint"] for entry in index["best"])}
        for path in self.folder.glob("step-*"):
            if path.name not in kept:
                shutil.rmtree(path)

    def best(self) -> Path:
        entries = self.index()["best"]
        return self.folder / entries[0]["checkpoint"] if entries else self.last()

    def last(self) -> Path:
        names = self.index()["last"]
        if not names:
            raise CheckpointError(f"{self.folder} holds no checkpoint", hint="train longer, or lower checkpoint.every")
        return self.folder / str(names[-1])

    def newest_intact(self) -> tuple[Path, str]:
        """What to go on from, and what was wrong with those after it."""
        problems: list[str] = []
        for name in reversed(self.index()["last"]):
            if not (problem := damage(self.folder / name)):
                return self.folder / name, "; ".join(problems)
            problems.append(f"{name} is {problem}")
        # All that the index knows are gone or damaged: an older one that was among the best may be whole.
        latest = max(self.index()["last"], default="")
        intact = [path for path in self.intact() if path.name <= latest]
        if intact and problems:
            return intact[0], "; ".join(problems)
        self.verify(self.last())
        raise AssertionError("verify() has said what is wrong")

    def intact(self) -> list[Path]:
        """All that pass their checksums, latest first."""
        return [path for path in sorted(self.folder.glob("step-*"), reverse=True) if not damage(path)]

    def choose(self, name: str) -> list[Path]:
        """ "best", "last", "average" (of the latest) or a path -> the checkpoints to load, verified."""
        index = self.index()
        chosen = {"best": lambda: [self.best()], "last": lambda: [self.last()]}.get(name)
        if chosen:
            paths = chosen()
        elif name == "average":
            paths = [self.folder / last for last in index["last"]] or [self.last()]
        else:
            paths = [Path(name) if Path(name).exists() else self.folder / name]
        for path in paths:
            self.verify(path)
        return paths

    def verify(self, path: Path) -> None:
        """Raises where a checkpoint is missing or damaged, and names one that is whole."""
        if problem := damage(path):
            others = [other.name for other in self.intact()]
            hint = f"{others[0]} is intact: --checkpoint {others[0]}" if others else "no other checkpoint is intact"
            raise CheckpointError(f"checkpoint {path} is {problem}", hint=hint)


def load(path: Path, device: torch.device | str = "cpu") -> Checkpoint:
    """Reads a checkpoint that was verified."""
    state = read_json(path / "state.json")
    tensors = {file.stem: _tensors(file, device) for file in sorted(path.glob("*.safetensors"))}
    return Checkpoint(int(state["step"]), state, tensors)


def weights(paths: list[Path]) -> Tensors:
    """The model to use: the moving average where there is one; the mean over several checkpoints."""
    mean = _weights_of(paths[0])
    for count, path in enumerate(paths[1:], start=2):
        for name, tensor in _weights_of(path).items():
            if tensor.is_floating_point():
                mean[name] += (tensor - mean[name]) / count
    return mean


def _weights_of(path: Path) -> Tensors:
    """The moving average holds no counters: those are the model's."""
    average = path / "ema.safetensors"
    return {**_tensors(path / "model.safetensors"), **(_tensors(average) if average.exists() else {})}


def _tensors(file: Path, device: torch.device | str = "cpu") -> Tensors:
    """A stranger's file may have the right checksum and be anything."""
    try:
        tensors: Tensors = load_file(file, device=str(device))
        return tensors
    except SafetensorError as error:
        raise CheckpointError(f"{file} holds no tensors: {error}", hint="go on from another checkpoint") from None


def damage(path: Path, needed: str = "model.safetensors") -> str:
    """What is wrong with a checkpoint: "missing", "damaged (...)", or nothing."""
    if not path.is_dir():
        return "missing"
    try:
        checksums = json.loads((path / "checksums.json").read_text(encoding="utf-8"))
        for name, expected in checksums.items():
            # Nothing leads out of the folder; a device or pipe might have no end.
            if Path(name).name != name or (path / name).is_symlink() or not (path / name).is_file():
                return f"damaged ({name} is missing)"
            if _sha256(path / name) != expected:
                return f"damaged ({name} differs from its checksum)"
        if needed not in checksums:
            return f"damaged (checksums.json names no {needed})"
        # What is read besides would be read without a word, as the moving average of another checkpoint.
        if strays := {file.name for file in path.glob("*.safetensors")} - checksums.keys():
            return f"damaged ({min(strays)} has no checksum)"
        return _wrong_step(path)
    except FileNotFoundError as error:
        return f"damaged ({Path(error.filename).name} is missing)"
    except (OSError, ValueError, AttributeError, RecursionError):
        return "damaged (checksums.json cannot be read)"
    except (KeyError, TypeError):
        return "damaged (state.json names no step)"


def _wrong_step(path: Path) -> str:
    """Whole folders can be mixed up, too: a checkpoint holds the step that it is named after."""
    named = re.fullmatch(r"step-(\d+)", path.name)
    held = json.loads((path / "state.json").read_text(encoding="utf-8"))["step"]
    return f"damaged (it holds step {held})" if named and int(named[1]) != held else ""


def has_room(folder: Path, needed_bytes: int) -> bool:
    """A little more than the tensors, so that the log and the events fit too."""
    return shutil.disk_usage(folder).free >= needed_bytes * 1.02 + (1 << 20)


def check_room(folder: Path, checkpoint_bytes: int, num_kept: int) -> None:
    """For all that are kept, and the one that is being written."""
    if not has_room(folder, (num_kept + 1) * checkpoint_bytes):
        raise no_room(folder, checkpoint_bytes, num_kept + 1)


def no_room(folder: Path, checkpoint_bytes: int, count: int = 1) -> NoRoomError:
    wanted = f"a checkpoint of {checkpoint_bytes / 1e6:,.1f} MB"
    if count > 1:
        each = f"{count} checkpoints of {checkpoint_bytes / 1e6:,.1f} MB"
        wanted = f"{each} (those that are kept and one more): {count * checkpoint_bytes / 1e6:,.1f} MB"
    return NoRoomError(
        f"{folder}: no space left for {wanted}, {shutil.disk_usage(folder).free / 1e6:,.1f} MB are free",
        hint="free some room, lower checkpoint.keep, or choose a --run on another disk",
    )


def _take_place(temporary: Path, final: Path) -> None:
    """A run that went back to an earlier checkpoint meets its former, perhaps damaged, ones again."""
    former = temporary.with_suffix(".former")
    shutil.rmtree(former, ignore_errors=True)
    if final.exists():
        final.rename(former)
    temporary.rename(final)
    shutil.rmtree(former, ignore_errors=True)


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    folder.mkdir()
    for name, tensors in checkpoint.tensors.items():
        save_file(
            {key: tensor.detach().contiguous() for key, tensor in tensors.items()}, folder / f"{name}.safetensors"
        )
    write_json(folder / "state.json", checkpoint.state)
    write_json(folder / "checksums.json", {file.name: _sha256(file) for file in sorted(folder.iterdir())})
    # On disk before the rename, or a power cut could leave the new name with old blocks.
    for file in folder.iterdir():
        with file.open("rb") as stream:
            os.fsync(stream.fileno())


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
