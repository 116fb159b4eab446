"""konvoi train --cluster: looks at the hosts, starts an agent on each, and follows the training to its end."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import typer

from konvoi import exit_codes
from konvoi.cluster.hosts import Cluster, read_cluster
from konvoi.cluster.job import Job, checkpoints_there, new_spec
from konvoi.cluster.job_spec import JobSpec, Outcome
from konvoi.commands import resume
from konvoi.commands.attach import ClusterRequest, CtrlC, View, close, follow, mirrored, printed_by
from konvoi.commands.cluster_check import preflight
from konvoi.commands.train import Request, check_request, tell_anew, tell_done
from konvoi.config.recipe import Recipe, read
from konvoi.errors import HostError, RunError
from konvoi.folder import read_json
from konvoi.run_directory import RunDirectory, check_free, new_path, newest_of


def train_cluster(asked: Request, cluster_file: Path, detach: bool) -> int:
    """Trains to the end, or until all hosts are at work; returns the exit code."""
    check_request(asked)
    cluster = read_cluster(cluster_file)
    # Last, so that the run's own recipe tells what it was trained with.
    overrides = [*asked.overrides, f"train.workers={cluster.num_workers}"]
    request = ClusterRequest(**{**vars(asked), "cluster": cluster_file})
    recipe = read(request.recipe, overrides)
    return _go_on(request, recipe, cluster, detach) if request.resume else _begin(request, recipe, cluster, detach)


def _begin(request: ClusterRequest, recipe: Recipe, cluster: Cluster, detach: bool) -> int:
    path = request.run or new_path(request.recipe)
    check_free(path)
    spec = _spec(request, recipe, cluster)
    run = RunDirectory.create(path, recipe)
    job = Job(path, cluster, spec)
    with mirrored(run):
        try:
            job.save()
            job.start(recipe.to_toml(), is_new=True)
        except BaseException:
            # Nothing has been trained: the next try may have the name.
            shutil.rmtree(path)
            raise
        ending = _follow(job, request, detach)
    return close(job, ending, request)


def _go_on(request: ClusterRequest, recipe: Recipe, cluster: Cluster, detach: bool) -> int:
    run = RunDirectory.open(request.run) if request.run else newest_of(request.recipe)
    with mirrored(run):
        former = Job.open(run.path)
        if former.is_alive():
            hint = f"konvoi attach {run.path} shows it, konvoi stop {run.path} ends it"
            raise RunError(f"{run.path} is being trained right now", hint)
        changes = resume.compare(run, recipe)
        if not _has_checkpoint(replace(former, cluster=cluster), run):
            tell_anew(run)
            request = replace(request, resume=False)
        if resume.is_done(run, changes) and not request.checkpoint:
            tell_done(run)
            return exit_codes.DONE
        job = Job(run.path, cluster, _spec(request, recipe, cluster))
        resume.adopt(run, recipe, changes)
        job.save()
        try:
            job.start(recipe.to_toml(), is_new=False)
        except BaseException:
            # Should the former job go on after all, on a host that was out of reach, it can still be stopped.
            former.save()
            raise
        ending = _follow(job, request, detach)
    return close(job, ending, request)


def _spec(request: Request, recipe: Recipe, cluster: Cluster) -> JobSpec:
    """After a look at the hosts, which raises where a training would fail."""
    survey = preflight(cluster, recipe, quick=True, name=request.recipe)
    interfaces = {host.name: survey.interface_of(host.name) for host in cluster.hosts}
    spec = new_spec(cluster, interfaces, request.resume, request.checkpoint or "last")
    return replace(spec, environment={**spec.environment, **survey.data_environment()})


def _has_checkpoint(job: Job, run: RunDirectory) -> bool:
    """On the first host, where they are written; the list here is what it last told."""
    there, told = checkpoints_there(job), read_json(run.checkpoints / "index.json").get("last")
    if told and not there:
        first = job.hosts[0].name
        raise HostError(
            first,
            f"it has no checkpoint of {run.path}, though there were {', '.join(told)}",
            hint="the first host of the cluster file must be the one that it was trained with",
        )
    return bool(there)


def _follow(job: Job, request: Request, detach: bool) -> Outcome | None:
    names = ", ".join(host.name for host in job.hosts)
    typer.echo(f"{job.run}: {job.spec.num_workers} workers on {names}", err=True)

    def all_at_work() -> bool:
        return detach and all(state and state.state == "running" for state in job.states().values())

    return follow(job, View(RunDirectory(job.run), printed_by(job), request.quiet), CtrlC.stop, all_at_work)
