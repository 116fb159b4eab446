"""konvoi train: recipe and data -> run directory -> workers -> what came of it."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import typer

from konvoi import exit_codes, registry
from konvoi.cluster.local import launch_local
from konvoi.cluster.notices import Watcher
from konvoi.commands import resume
from konvoi.commands.closing import closing_lines
from konvoi.commands.output import progress_display
from konvoi.config.recipe import Recipe, read
from konvoi.engine.checkpoint import check_room
from konvoi.engine.worker import main, work
from konvoi.errors import MachineError
from konvoi.folder import write_json
from konvoi.run_directory import RunDirectory, check_free, new_path, newest_of
from konvoi.telemetry.environment import environment
from konvoi.world import World

# The weights and Adam's two moments, in fp32.
CHECKPOINT_BYTES_PER_PARAMETER, CHECKPOINT_BYTES_PER_AVERAGE = 3 * 4, 4
# More processes would end the machine, not train a model.
MAX_WORKERS_HERE = 1024


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    recipe: str
    overrides: list[str]
    run: Path | None = None
    resume: bool = False
    checkpoint: str | None = None
    quiet: bool = False

    def resume_command(self, run: RunDirectory) -> str:
        overrides = [word for override in self.overrides for word in ("--set", override)]
        return shlex.join(["konvoi", "train", self.recipe, "--run", str(run.path), "--resume", *overrides])


def train(request: Request) -> int:
    """Trains to the end; returns the exit code."""
    check_request(request)
    recipe = read(request.recipe, request.overrides)
    check_devices(recipe.train.workers)
    with opened(request, recipe) as opening:
        if opening is None:
            return exit_codes.DONE
        run, request = opening
        return train_and_close(run, request, lambda: _run_workers(run, recipe, request))


def check_request(request: Request) -> None:
    if request.checkpoint and not request.resume:
        raise typer.BadParameter("makes sense only with --resume", param_hint="--checkpoint")
    if request.checkpoint == "average":
        raise typer.BadParameter("one can go on from one checkpoint only", param_hint="--checkpoint")


def opened(request: Request, recipe: Recipe) -> AbstractContextManager[tuple[RunDirectory, Request] | None]:
    """The run directory, locked and with all that workers need; None where there is nothing left to train."""
    return _resumed(request, recipe) if request.resume else _begun(request, recipe)


@contextmanager
def _begun(request: Request, recipe: Recipe) -> Iterator[tuple[RunDirectory, Request] | None]:
    path = request.run or new_path(request.recipe)
    # Before the data, which may take long; and the data before the directory, which should not stay behind.
    check_free(path)
    prepared = prepare(recipe)
    check_room_for_run(path, recipe, prepared)
    run = RunDirectory.create(path, recipe)
    with run.locked():
        furnish(run, recipe, prepared)
        yield run, request


@contextmanager
def _resumed(request: Request, recipe: Recipe) -> Iterator[tuple[RunDirectory, Request] | None]:
    run = RunDirectory.open(request.run) if request.run else newest_of(request.recipe)
    with run.locked():
        changes = resume.compare(run, recipe)
        if not request.checkpoint and resume.has_no_checkpoint(run):
            tell_anew(run)
            request = replace(request, resume=False)
        else:
            resume.check_checkpoint(run, request.checkpoint, request.resume_command(run))
        if resume.is_done(run, changes) and not request.checkpoint:
            tell_done(run)
            yield None
            return
        prepared = prepare(recipe)
        if run.data_file.is_file():
            task_of(recipe).check_same(prepared, run)
        else:
            # Made by --detach, which leaves all else to the process in the background.
            furnish(run, recipe, prepared)
        resume.adopt(run, recipe, changes)
        yield run, request


def tell_anew(run: RunDirectory) -> None:
    if run.data_file.is_file():
        typer.echo("it was stopped before its first checkpoint and begins anew", err=True)


def tell_done(run: RunDirectory) -> None:
    typer.echo(f"{run.path} has finished; to train longer: --set {resume.key_of_ending(run)}=...", err=True)
    typer.echo("\n".join(closing_lines(run)))


def furnish(run: RunDirectory, recipe: Recipe, prepared: Any) -> None:
    """With what workers need of the data, and whoever uses the model later on."""
    task_of(recipe).carry(prepared, run)
    write_json(run.environment_file, environment(_devices(), recipe.train.workers))


def settle(run: RunDirectory, code: int) -> None:
    """Workers that were ended leave a summary that says that they run."""
    if run.summary().get("status") == "running":
        status = "interrupted" if code == exit_codes.INTERRUPTED else "failed"
        write_json(run.summary_file, {**run.summary(), "status": status})


def train_and_close(run: RunDirectory, request: Request, run_workers: Callable[[], int]) -> int:
    """Runs the workers and says what came of it."""
    code = exit_codes.OUR_FAULT
    try:
        code = run_workers()
    finally:
        settle(run, code)
    if code == exit_codes.INTERRUPTED:
        typer.echo(f"interrupted; to go on: {request.resume_command(run)}", err=True)
    if code == exit_codes.DONE:
        typer.echo("\n".join(closing_lines(run)))
    return code


def _run_workers(run: RunDirectory, recipe: Recipe, request: Request) -> int:
    notices = Watcher(recipe.faults.notices, _end_in_good_order)
    try:
        return _run_to_the_end(run, recipe, request)
    finally:
        notices.close()


def _end_in_good_order(notice: str) -> None:
    typer.echo(f"{notice}; saving, and ending", err=True)
    os.kill(os.getpid(), signal.SIGTERM)


def _run_to_the_end(run: RunDirectory, recipe: Recipe, request: Request) -> int:
    checkpoint = request.checkpoint or "last"
    if recipe.train.workers > 1:
        words = [str(run.path), *(["--resume", "--checkpoint", checkpoint] if request.resume else [])]
        words += ["--quiet"] if request.quiet else []
        return launch_local(main, words, recipe.train.workers, recipe.faults.max_restarts)
    with _signals_restored():
        ending = work(run.path, World(), request.resume, request.quiet, checkpoint)
    return exit_codes.INTERRUPTED if ending == "interrupted" else exit_codes.DONE


@contextmanager
def _signals_restored() -> Iterator[None]:
    """The loop takes Ctrl-C for itself; after it, Ctrl-C means what it did before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def task_of(recipe: Recipe) -> Any:
    return registry.find("task", recipe.name_of("task"))


def prepare(recipe: Recipe) -> Any:
    with progress_display() as report:
        return task_of(recipe).prepare(recipe, report)


def check_devices(num_workers: int) -> None:
    if num_workers > MAX_WORKERS_HERE:
        problem = f"{num_workers:,} workers are too many for one machine"
        raise MachineError(problem, hint=f"at most {MAX_WORKERS_HERE:,}; several machines: --cluster FILE")
    num_gpus = torch.cuda.device_count()
    if 0 < num_gpus < num_workers:
        raise MachineError(f"{num_workers} workers want a GPU each, here are {num_gpus}", hint=f"--workers {num_gpus}")


def _devices() -> list[str]:
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())] or ["cpu"]


def check_room_for_run(path: Path, recipe: Recipe, prepared: Any) -> None:
    """Now rather than at the first checkpoint, hours later."""
    model = registry.find("model", recipe.name_of("model"))
    num_parameters = model.num_parameters(recipe.model, task_of(recipe).num_outputs(recipe, prepared))
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
    kept = recipe.checkpoint
    averages = CHECKPOINT_BYTES_PER_AVERAGE if recipe.train.ema_decay else 0
    checkpoint_bytes = (CHECKPOINT_BYTES_PER_PARAMETER + averages) * num_parameters
    check_room(existing, checkpoint_bytes, kept.keep + kept.keep_best)
