"""What is still there of an earlier training, or in the way of this one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from konvoi.analysis.wording import amount_of_bytes, duration
from konvoi.cluster.checks import Finding
from konvoi.cluster.checks._hosts import judged, seen
from konvoi.cluster.facts import Facts, Job
from konvoi.cluster.survey import Survey

TITLE = "leftovers"
ORDER = 80
# A driver and a desktop take some memory of a GPU, too.
MUCH_GPU_BYTES = 1e9
MOST_LETTERS = 60


def examine(survey: Survey) -> Iterator[Finding]:
    problems = [
        finding
        for host, facts in seen(survey)
        for finding in (*_runs(host.name, facts), *_ports(host.name, facts), *_busy_gpus(host.name, facts))
    ]
    return judged(problems, {host.name: "none" for host, _ in seen(survey)})


def _runs(host: str, facts: Facts) -> Iterator[Finding]:
    """The processes of a training share its id; those of one run its folder."""
    trainings: dict[str, list[Job]] = {}
    for job in facts.jobs:
        trainings.setdefault(job.job or job.run, []).append(job)
    for jobs in trainings.values():
        run = next((job.run for job in jobs if job.run), "a training")
        numbers = " ".join(str(job.process_id) for job in jobs)
        since = duration(max(0.0, facts.time - min(job.started_at for job in jobs)))
        fix = f"konvoi stop runs/{PurePosixPath(run).name}, where it was started; or there: kill {numbers}"
        yield Finding(
            host, "warning", f"{run} has been going on for {since} (processes {numbers})", fix, "run-going-on"
        )


def _ports(host: str, facts: Facts) -> Iterator[Finding]:
    known = {job.process_id for job in facts.jobs}
    for listener in facts.listeners:
        if listener.process_id not in known:
            command = listener.command[:MOST_LETTERS] or "somebody else's process"
            owner = f"process {listener.process_id}: {command}" if listener.process_id else command
            found = f"port {listener.port} is taken on {listener.address} ({owner})"
            yield Finding(host, "warning", found, "end it, or choose other ports = in cluster.toml", "port-taken")


def _busy_gpus(host: str, facts: Facts) -> Iterator[Finding]:
    for number, gpu in enumerate(facts.gpus):
        if gpu.used_bytes > MUCH_GPU_BYTES:
            found = (
                f"{amount_of_bytes(gpu.used_bytes)} of {amount_of_bytes(gpu.memory_bytes)} of GPU {number} are taken"
            )
            yield Finding(host, "warning", found, "nvidia-smi there shows by whom", "gpu-busy")
