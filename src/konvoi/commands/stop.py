"""konvoi stop: ends a training on all of its hosts, or in the background here; knows it from its run directory."""

from __future__ import annotations

from pathlib import Path

import typer

from konvoi import exit_codes
from konvoi.cluster.job import Job, raise_all
from konvoi.commands.attach import bring_rest
from konvoi.commands.detach import LocalJob
from konvoi.run_directory import RunDirectory


def stop(path: Path, now: bool) -> int:
    """Returns when no process is left; raises where that cannot be known."""
    RunDirectory.open(path)
    local = LocalJob.of(path)
    typer.echo("ending every process" if now else "stopping after the step and its checkpoint", err=True)
    had_processes = local.stop(now) if local else _stop_on_hosts(Job.open(path), now)
    typer.echo(f"no process of {path} is left" if had_processes else f"{path} had ended before")
    return exit_codes.DONE


def _stop_on_hosts(job: Job, now: bool) -> bool:
    counts = job.stop(now)
    raise_all(counts)
    raise_all(bring_rest(job))
    return any(counts.values())
