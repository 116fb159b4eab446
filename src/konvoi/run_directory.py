"""The run directory, the interface between training and everything that reads it. Does not import torch.

    recipe.toml  environment.json  data.json  summary.json  log.txt  vocabulary.model
    events/rank0.jsonl ...   hosts/<host>.jsonl   tensorboard/   checkpoints/

Names that a program may rely on; they change only together with FORMAT_VERSION.
"""

from __future__ import annotations

import fcntl
import json
import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from konvoi.config.recipe import Recipe, check, read_toml
from konvoi.errors import RunError
from konvoi.folder import read_json, write_whole

FORMAT_VERSION = 1
NUMBER = (int, float)
LARGEST = 2**63
# What readers count on without looking: a key of another type is left out, as if it had never been written.
EVENT_SHAPE: dict[str, Any] = {
    **dict.fromkeys(("kind", "host", "ending", "device", "job_interface"), str),
    **dict.fromkeys(("step", "rank", "workers"), int),
    **dict.fromkeys(("time", "seconds", "step_seconds", "bytes", "loss", "perplexity", "bleu", "chrf"), NUMBER),
    **dict.fromkeys(("accuracy_1", "accuracy_5", "sentences", "images", "memory_used_bytes", "cores"), NUMBER),
    **dict.fromkeys(("bytes_sent", "bytes_out_of_host"), NUMBER),
    **{key: {"*": NUMBER} for key in ("phases", "communication", "disk")},
    "samples": [dict],
    "interfaces": {"*": dict},
    "cpu_percent": [NUMBER],
    "gpus": [dict],
}
SUMMARY_SHAPE: dict[str, Any] = {
    **dict.fromkeys(("status", "ending", "precision", "device"), str),
    **dict.fromkeys(("steps", "workers", "hosts", "parameters", "threads", "skipped_steps"), int),
    **dict.fromkeys(("seconds", "target_tokens_per_second", "tokens_per_second", "images_per_second"), NUMBER),
    **dict.fromkeys(("bytes_sent_per_step", "bytes_out_per_host_and_step"), NUMBER),
    "step_seconds": {"*": NUMBER},
    "scores": {"bleu_signature": str, "chrf_signature": str, "damaged": list, "*": NUMBER},
    "best": {"metric": str, "checkpoint": str, "value": NUMBER, "step": int},
}
# What of data.json may differ from host to host though the data is the same.
PLACES_AND_TIMES = {"files", "folder", "key", "made_at", "root", "warnings"}


class RunDirectory:
    """Where each part of a run lies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe_file = path / "recipe.toml"
        self.environment_file = path / "environment.json"
        self.summary_file = path / "summary.json"
        self.log_file = path / "log.txt"
        self.vocabulary_file = path / "vocabulary.model"
        self.data_file = path / "data.json"
        self.events = path / "events"
        self.hosts = path / "hosts"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = path / "checkpoints"

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run."""
        run = cls(path)
        if not run.recipe_file.is_file():
            raise RunError(f"{path} is not a run directory", hint="konvoi runs lists them; konvoi train makes one")
        return run

    @classmethod
    def create(cls, path: Path, recipe: Recipe) -> RunDirectory:
        """A new run; a folder that holds anything is left as it is."""
        check_free(path)
        run = cls(path)
        try:
            for folder in (run.events, run.checkpoints):
                folder.mkdir(parents=True)
            write_whole(run.recipe_file, recipe.to_toml())
        except OSError as error:
            raise RunError(f"{path} cannot be made: {error.strerror}", hint="choose another --run") from None
        return run

    def recipe(self) -> Recipe:
        return check(read_toml(self.recipe_file), origin=str(self.recipe_file))

    def summary(self) -> dict[str, Any]:
        """What is known so far; empty before the first step."""
        return fitting(read_json(self.summary_file), SUMMARY_SHAPE)

    def environment(self) -> dict[str, Any]:
        return read_json(self.environment_file)

    def data(self) -> dict[str, Any]:
        """The prepared set, as it was described when the run began."""
        return read_json(self.data_file)

    def data_content(self) -> dict[str, Any]:
        """What the data is, wherever it lies."""
        return {key: value for key, value in self.data().items() if key not in PLACES_AND_TIMES}

    def rank_files(self) -> dict[int, Path]:
        """The events of each worker."""
        files = ((file.stem.removeprefix("rank"), file) for file in self.events.glob("rank*.jsonl"))
        return {int(number): file for number, file in sorted(files) if re.fullmatch("[0-9]{1,9}", number)}

    def events_of(self, rank: int = 0) -> Iterator[dict[str, Any]]:
        return read_events(self.events / f"rank{rank}.jsonl")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No two trainings in one directory; the lock dies with its holder."""
        try:
            file = (self.path / ".lock").open("w")
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {error.strerror}", hint="choose another --run") from None
        with file:
            if not _lock(file):
                raise RunError(f"{self.path} is being trained right now", hint="wait for it, or choose another --run")
            yield


def _lock(file: IO[str]) -> bool:
    """Whoever looks whether a run goes on holds the lock for an instant: not everyone who has it trains."""
    for seconds in (0.05, 0.1, 0.2, 0.0):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(seconds)
    return False


def check_free(path: Path) -> None:
    """Raises where a new run may not be made."""
    if (path / "recipe.toml").exists():
        raise RunError(f"{path} holds another run", hint="add --resume to go on with it, or choose another --run")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"{path} exists and is no run directory", hint="choose another --run")
    existing = next(parent for parent in path.absolute().parents if parent.exists())
    if not existing.is_dir():
        raise RunError(f"{path} cannot be made: {existing} is no folder", hint="choose another --run")


def new_path(recipe_name: str, parent: Path = Path("runs")) -> Path:
    """runs/demo-20261115-204512, and -2 after it where that exists."""
    stem = f"{Path(recipe_name).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = parent / stem, 2
    while path.exists():
        path, number = parent / f"{stem}-{number}", number + 1
    return path


def find_runs(parent: Path) -> list[RunDirectory]:
    """All runs below a folder, oldest first."""
    found = [RunDirectory(file.parent) for file in parent.glob("*/recipe.toml")]
    return sorted(found, key=lambda run: run.recipe_file.stat().st_mtime)


def newest_of(recipe_name: str, parent: Path = Path("runs")) -> RunDirectory:
    """The latest run of a recipe, for --resume without --run."""
    # Not by prefix: a run of demo-big is none of demo.
    named = re.compile(rf"{re.escape(Path(recipe_name).stem)}-\d{{8}}-\d{{6}}(-\d+)?")
    runs = [run for run in find_runs(parent) if named.fullmatch(run.path.name)]
    if not runs:
        raise RunError(
            f"there is no run of {recipe_name} in {parent}/", hint="name it with --run, or leave out --resume"
        )
    # By the time in its name: going on with a run rewrites its recipe.
    return max(runs, key=lambda run: run.path.name)


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """One event a line; a last line that is still being written is passed over."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if event := event_of(line):
                yield event


def event_of(line: bytes) -> dict[str, Any]:
    """The event of a line; empty where a killed writer left half of one, or where there is none."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return fitting(event, EVENT_SHAPE) if isinstance(event, dict) else {}


def fitting(value: dict[str, Any], shape: dict[str, Any]) -> dict[str, Any]:
    """Without the keys whose values have another type than the shape says; "*" is any key that it does not name.

    None is a number: it is what one becomes that is none.
    """
    kept, other = {}, shape.get("*", object)
    for key, item in value.items():
        kind = shape.get(key, other)
        fitted = item if kind is object else _fitted(item, kind)
        if fitted is not _MISFIT:
            kept[key] = fitted
    return kept


_MISFIT = object()


def _fitted(value: Any, shape: Any) -> Any:
    if value is None:
        return None if shape in (int, NUMBER) else _MISFIT
    if type(value) is float and shape is NUMBER:
        return value if math.isfinite(value) else None
    if type(value) is shape:
        return value if type(value) is not int or abs(value) <= LARGEST else _MISFIT
    if isinstance(shape, dict):
        return fitting(value, shape) if isinstance(value, dict) else _MISFIT
    if isinstance(shape, list):
        return [item for item in value if isinstance(item, shape[0])] if isinstance(value, list) else _MISFIT
    # Whole numbers may have thousands of digits in JSON; no counter has.
    is_huge = isinstance(value, int) and abs(value) > LARGEST
    return value if isinstance(value, shape) and not is_huge else _MISFIT
