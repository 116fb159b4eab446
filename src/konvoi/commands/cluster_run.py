"""konvoi cluster exec, ssh and pull: a command on all hosts, a shell on one, a run brought here."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import typer

from konvoi.cluster.hosts import Cluster, Host, read_cluster
from konvoi.cluster.job import Job, raise_all
from konvoi.cluster.session import Session
from konvoi.cluster.ssh import remote, ssh_words
from konvoi.cluster.transfer import pull as pull_files
from konvoi.commands.attach import bring_rest
from konvoi.commands.output import megabytes, progress_display
from konvoi.run_directory import RunDirectory

_printing = threading.Lock()


def execute(cluster_file: Path, on: list[str], command: list[str]) -> int:
    """On all hosts at once, or on some; the worst exit code."""
    cluster = read_cluster(cluster_file)
    hosts = [cluster.host(name) for name in on] or list(cluster.hosts)
    with ThreadPoolExecutor(len(hosts)) as pool:
        return max(pool.map(lambda host: _execute_on(cluster, host, command), hosts))


def _execute_on(cluster: Cluster, host: Host, command: list[str]) -> int:
    words = [*ssh_words(cluster, host), remote(command)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as process:
        assert process.stdout and process.stderr
        complaints = threading.Thread(target=_print, args=(host, process.stderr, sys.stderr))
        complaints.start()
        _print(host, process.stdout, sys.stdout)
        complaints.join()
    # As a shell tells of a signal.
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _print(host: Host, lines: IO[bytes], to: IO[str]) -> None:
    for line in lines:
        with _printing:
            to.write(f"{host.name} | {line.decode(errors='replace').rstrip(chr(10))}\n")
            to.flush()


def shell(cluster_file: Path, name: str) -> None:
    """This process becomes ssh."""
    cluster = read_cluster(cluster_file)
    os.execvp("ssh", ssh_words(cluster, cluster.host(name), batch=False))


def pull(path: Path) -> None:
    """All that the hosts have of a run, and the first one's checkpoints."""
    run, job = RunDirectory.open(path), Job.open(path)
    folder = f"{job.cluster.folder}/runs/{job.place['run']}/checkpoints"
    raise_all(bring_rest(job))
    with Session(job.cluster, job.hosts[0]) as session, progress_display() as report:
        moved = pull_files(session, folder, run.checkpoints, report=report, stage="fetching checkpoints")
    typer.echo(f"{path}: {moved.num_files} files of checkpoints brought, {megabytes(moved.num_bytes)}")
