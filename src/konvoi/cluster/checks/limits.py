"""Whether a process may have what a training asks for: files, processes, shared and locked memory."""

from __future__ import annotations

from collections.abc import Iterator

from konvoi.analysis.wording import amount_of_bytes
from konvoi.cluster.checks import Finding, Level
from konvoi.cluster.checks._hosts import judged, seen
from konvoi.cluster.facts import Facts
from konvoi.cluster.hosts import Host
from konvoi.cluster.survey import Survey

TITLE = "limits"
ORDER = 70
# A worker has a few connections to each other one, and holds pictures and tokens open beside its libraries.
FILES_OF_A_WORKER, FILES_OF_A_PEER = 192, 4
# What every distribution allows; less was set by somebody, and decoders or logs will meet it some day.
USUAL_FILES = 1024
# A worker has a thread for each core in several pools, and decoders beside it.
PROCESSES_OF_A_WORKER = 256
# NCCL moves what GPUs of one host exchange through it. Docker gives 64 MB unless told.
SHARED_BYTES_OF_A_WORKER = 128e6


def examine(survey: Survey) -> Iterator[Finding]:
    problems = [
        finding
        for host, facts in seen(survey)
        for finding in (
            *_files(host, facts, survey.cluster.num_workers),
            *_processes(host, facts),
            *_shared_memory(host, facts),
            *_locked_memory(host, facts),
        )
    ]
    return judged(problems, {host.name: f"{_count(facts)} open files" for host, facts in seen(survey)})


def _files(host: Host, facts: Facts, num_workers: int) -> Iterator[Finding]:
    needed = FILES_OF_A_WORKER + FILES_OF_A_PEER * num_workers
    allowed = facts.limits.open_files
    if allowed is not None and allowed < max(needed, USUAL_FILES):
        level: Level = "error" if allowed < needed else "warning"
        fix = "there: nofile in /etc/security/limits.conf (ulimit -n shows it), then log in again"
        yield Finding(host.name, level, f"a process may open {allowed} files; {needed} are needed", fix, "open-files")


def _processes(host: Host, facts: Facts) -> Iterator[Finding]:
    needed = PROCESSES_OF_A_WORKER * host.workers
    allowed = facts.limits.processes
    if allowed is not None and allowed < needed:
        found = f"{allowed} processes and threads are allowed; {host.workers} workers may want {needed}"
        fix = "there: nproc in /etc/security/limits.conf (ulimit -u shows it), then log in again"
        yield Finding(host.name, "warning", found, fix, "processes")


def _shared_memory(host: Host, facts: Facts) -> Iterator[Finding]:
    needed = SHARED_BYTES_OF_A_WORKER * host.workers
    free = facts.limits.shared_memory_bytes
    if free is not None and free < needed:
        found = f"{amount_of_bytes(free)} free in /dev/shm; {amount_of_bytes(needed)} may be needed"
        fix = "there: sudo mount -o remount,size=50% /dev/shm; in Docker: --ipc=host or --shm-size"
        yield Finding(host.name, "warning", found, fix, "shared-memory")


def _locked_memory(host: Host, facts: Facts) -> Iterator[Finding]:
    """Only cards that read memory by themselves need it to stay where it is."""
    allowed = facts.limits.locked_memory_bytes
    if facts.has_rdma and facts.gpus and allowed is not None:
        found = f"{amount_of_bytes(allowed)} may be locked in memory; its fast network card wants no limit"
        fix = "there: memlock unlimited in /etc/security/limits.conf (ulimit -l shows it), then log in again"
        yield Finding(host.name, "warning", found, fix, "locked-memory")


def _count(facts: Facts) -> str:
    allowed = facts.limits.open_files
    return "any number of" if allowed is None else f"{allowed:,}"
