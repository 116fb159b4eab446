"""konvoi worker: one worker of a training that mpirun, srun or torchrun starts; every one of them runs this."""

from __future__ import annotations

import os
import time
import tomllib
import uuid
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import typer

from konvoi import exit_codes
from konvoi.cluster.meeting import Meeting, ToldElsewhereError, meet
from konvoi.commands.train import Request, check_devices, check_request, opened, prepare, task_of, train_and_close
from konvoi.config.recipe import Recipe, check, read
from konvoi.cores import usable_cores
from konvoi.engine.worker import work
from konvoi.errors import DataError, MachineError, UserError
from konvoi.folder import read_json, write_json, write_whole
from konvoi.run_directory import RunDirectory, check_free, new_path, newest_of
from konvoi.world import World, from_environment

# Tells a directory on a shared disk, which the first worker has made, from another run under the same name.
JOB_FILE = Path("job") / "launcher.json"
# For the words of whoever failed first to reach the launcher, which then ends the rest.
LISTENING_SECONDS = 10


class WorkerRequest(Request):
    """What the user asked for, through a launcher."""

    def resume_command(self, run: RunDirectory) -> str:
        return f"the same command with --run {run.path} --resume"


@dataclass(frozen=True)
class Plan:
    """What all workers must know before anything is made; the recipe's file may lie on the first one's host alone."""

    path: str
    recipe: str
    """As TOML."""
    resume: bool
    id: str

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(Path(self.path))

    @cached_property
    def checked_recipe(self) -> Recipe:
        return check(tomllib.loads(self.recipe), origin=self.path)


def worker(given: Request) -> int:
    """Trains with all others to the end; returns the exit code."""
    check_request(given)
    world = _launched()
    overrides = [*given.overrides, f"train.workers={world.size}"]
    request = WorkerRequest(**{**vars(given), "overrides": overrides})
    try:
        meeting = meet(world)
    except UserError:
        # The first worker of this host meets the same problem and says it.
        if world.local_rank > 0:
            return exit_codes.USER
        raise
    try:
        with meeting.words_once(), ExitStack() as stack:
            return _take_part(meeting, request, stack)
    except ToldElsewhereError:
        # A launcher ends everyone as soon as one has ended: the one that speaks must come first.
        time.sleep(LISTENING_SECONDS)
        return exit_codes.USER


def _launched() -> World:
    world = from_environment()
    if world.launcher != "none":
        return world
    raise MachineError(
        "konvoi worker is one worker of several, but no launcher has started this one",
        hint="mpirun -n 4 -H a:2,b:2 konvoi worker RECIPE; or srun konvoi worker RECIPE;"
        " or torchrun --nproc-per-node 2 --no-python konvoi worker RECIPE;"
        " on this machine alone: konvoi train RECIPE --workers 2",
    )


def _take_part(meeting: Meeting, request: Request, stack: ExitStack) -> int:
    """The steps of konvoi train, each done where it must be; no one goes on to the next before all can."""
    world = meeting.world
    plan = Plan(**meeting.told_by_first(lambda: _plan(request)))
    # On all hosts at once, and before the directory is made, which should not stay behind.
    meeting.together(lambda: _prepare_host(plan, world))
    begun = meeting.told_by_first(lambda: _begin(plan, request, stack))
    if begun is None:
        return exit_codes.DONE
    meeting.together(lambda: _copy(plan, begun["data"], world, stack))
    if world.rank > 0:
        return _work(plan, world, request, begun["resume"])
    _tell_of_bound_cores(world)
    return train_and_close(plan.run, request, lambda: _work(plan, world, request, begun["resume"]))


def _plan(request: Request) -> dict[str, Any]:
    recipe = read(request.recipe, request.overrides)
    path = request.run or (newest_of(request.recipe).path if request.resume else new_path(request.recipe))
    return asdict(Plan(str(path), recipe.to_toml(), request.resume, uuid.uuid4().hex))


def _prepare_host(plan: Plan, world: World) -> None:
    if world.local_rank > 0:
        return
    check_devices(world.local_size)
    if not plan.resume:
        check_free(plan.run.path)
    prepare(plan.checked_recipe)


def _begin(plan: Plan, request: Request, stack: ExitStack) -> dict[str, Any] | None:
    """On the first rank; None where there is nothing left to train."""
    opening = stack.enter_context(opened(replace(request, run=plan.run.path), plan.checked_recipe))
    if opening is None:
        return None
    _sign(plan)
    return {"resume": opening[1].resume, "data": plan.run.data_content()}


def _copy(plan: Plan, data: dict[str, Any], world: World, stack: ExitStack) -> None:
    """Every other host's own run directory, unless the disk is shared."""
    run, recipe = plan.run, plan.checked_recipe
    if world.local_rank > 0 or read_json(run.path / JOB_FILE).get("id") == plan.id:
        return
    if plan.resume and run.recipe_file.is_file():
        write_whole(run.recipe_file, plan.recipe)
    else:
        RunDirectory.create(run.path, recipe)
    stack.enter_context(run.locked())
    _sign(plan)
    task_of(recipe).carry(prepare(recipe), run)
    if run.data_content() != data:
        raise DataError(
            "the training data is not the same as on the first worker's host",
            hint="bring the same files to all hosts, or share them and KONVOI_HOME",
        )


def _work(plan: Plan, world: World, request: Request, resume: bool) -> int:
    ending = work(plan.run.path, world, resume, request.quiet, request.checkpoint or "last")
    return exit_codes.INTERRUPTED if ending == "interrupted" else exit_codes.DONE


def _sign(plan: Plan) -> None:
    file = plan.run.path / JOB_FILE
    file.parent.mkdir(exist_ok=True)
    write_json(file, {"id": plan.id})


def _tell_of_bound_cores(world: World) -> None:
    """mpirun binds a worker to one core, or to some; of those it would share, its threads are then too few."""
    cores = os.cpu_count() or 1
    if world.launcher == "mpirun" and max(1, usable_cores() // world.local_size) < cores // world.local_size:
        typer.echo(f"mpirun binds each worker to {usable_cores()} of {cores} cores; --bind-to none frees it", err=True)
