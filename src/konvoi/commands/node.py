"""konvoi node RUN: one host's part in a training over several; konvoi train --cluster starts it on each of them."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal

from konvoi.cluster.agent import launch_node
from konvoi.cluster.job_spec import HostState, JobSpec, Outcome, rank_log, read_spec, state_file
from konvoi.cluster.workers import variables
from konvoi.errors import DataError
from konvoi.folder import write_whole
from konvoi.run_directory import RunDirectory


def node(path: Path) -> int:
    """Takes part until the training ends on all hosts; returns the exit code that it has on all of them."""
    run = RunDirectory.open(path)
    spec = read_spec(path, hint="konvoi train --cluster starts trainings over several hosts")
    # Before torch is imported, which reads some of them only then.
    os.environ.update(variables(spec))
    for folder in (run.events, run.checkpoints, rank_log(path, 0).parent):
        folder.mkdir(exist_ok=True)
    with run.locked():
        _tell(run, spec, "preparing")
        outcome = _take_part(run, spec)
        _tell(run, spec, "ended", outcome)
    if outcome.failure:
        place = outcome.failure.host + (f" rank {outcome.failure.rank}" if outcome.failure.rank is not None else "")
        print(f"{place}: {outcome.failure.text}", file=sys.stderr)
    return outcome.exit_code


def _take_part(run: RunDirectory, spec: JobSpec) -> Outcome:
    from konvoi.commands.train import settle
    from konvoi.engine.worker import main

    # Progress is in log.txt, whence whoever follows shows it; a worker's own log is for what else it says.
    words = [str(run.path), "--quiet", *(["--resume", "--checkpoint", spec.checkpoint] if spec.resume else [])]
    outcome = launch_node(
        main,
        words,
        spec,
        run.path,
        prepare=partial(_prepare, run, spec),
        started=partial(_tell, run, spec, "running"),
        waiting=partial(_tell, run, spec, "waiting"),
        faults=run.recipe().faults,
    )
    settle(run, outcome.exit_code)
    return outcome


def _prepare(run: RunDirectory, spec: JobSpec) -> str:
    """Makes this host's data ready, and returns what it is."""
    from konvoi.commands.train import check_devices, check_room_for_run, furnish, prepare, task_of

    recipe = run.recipe()
    check_devices(spec.member.workers)
    try:
        prepared = prepare(recipe)
    except DataError as error:
        hint = f"konvoi cluster setup --recipe RECIPE brings the data to all hosts ({error.hint})"
        raise DataError(error.problem, hint) from None
    if run.data_file.is_file():
        task_of(recipe).check_same(prepared, run)
    else:
        check_room_for_run(run.path, recipe, prepared)
        if spec.node == 0:
            furnish(run, recipe, prepared)
        else:
            task_of(recipe).carry(prepared, run)
    return _digest(run.data_content())


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _tell(
    run: RunDirectory,
    spec: JobSpec,
    state: Literal["preparing", "running", "waiting", "ended"],
    outcome: Outcome | None = None,
) -> None:
    """Whoever follows the training reads it."""
    told = HostState(state, os.getpid(), time.time())
    if outcome:
        told = HostState(state, os.getpid(), time.time(), outcome.exit_code, outcome.failure)
    write_whole(state_file(run.path, spec.member.name), told.to_json())
