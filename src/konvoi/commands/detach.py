"""konvoi train --detach on this machine: a training in a session of its own, which a closed terminal does not end."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import typer

from konvoi import exit_codes
from konvoi.cluster.job import cluster_file
from konvoi.commands.train import Request, check_request
from konvoi.config.recipe import read
from konvoi.errors import RunError
from konvoi.folder import DAMAGED, write_whole
from konvoi.run_directory import RunDirectory, new_path, newest_of

LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class LocalJob:
    """job/local.json: which process it is."""

    run: Path
    process_id: int
    """It leads a session, in which all of its processes are."""
    began_at: float
    """Numbers of processes are used again; with the time there is only one."""
    host: str

    @classmethod
    def of(cls, run: Path) -> LocalJob | None:
        """None where the run was not detached here."""
        try:
            return cls(run, **json.loads(_file(run).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, RecursionError) as error:
            raise RunError(f"{_file(run)} cannot be read: {error}", hint=DAMAGED) from None

    @property
    def log(self) -> Path:
        return log_file(self.run)

    def save(self) -> None:
        values = asdict(self)
        del values["run"]
        write_whole(_file(self.run), json.dumps(values))

    def is_alive(self) -> bool:
        return bool(self.process_ids())

    def process_ids(self) -> list[int]:
        """Of all that is left of it."""
        if self.host != socket.gethostname():
            raise RunError(f"{self.run} is trained on {self.host}", hint="give the command there")
        return [process.pid for process in psutil.process_iter() if self._has(process)]

    def _has(self, process: psutil.Process) -> bool:
        try:
            is_old_enough = process.create_time() >= self.began_at - 1
            return is_old_enough and os.getsid(process.pid) == self.process_id and process.status() != "zombie"
        except (psutil.Error, OSError):
            return False

    def stop(self, now: bool) -> bool:
        """Returns when nothing is left of it: whether there was anything."""
        found = self.process_ids()
        if not now and self.process_id in found:
            os.kill(self.process_id, signal.SIGTERM)
        while left := self.process_ids():
            if now or self.process_id not in left:
                for process_id in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process_id, signal.SIGKILL)
            time.sleep(LOOK_SECONDS)
        return bool(found)


def train_detached(request: Request) -> int:
    """Returns as soon as it has begun."""
    check_request(request)
    recipe = read(request.recipe, request.overrides)
    if request.resume:
        run = RunDirectory.open(request.run) if request.run else newest_of(request.recipe)
    else:
        run = RunDirectory.create(request.run or new_path(request.recipe), recipe)
    if (former := LocalJob.of(run.path)) and former.is_alive():
        raise RunError(f"{run.path} is being trained right now", hint=f"konvoi attach {run.path}")
    job = _start(request, run)
    typer.echo(f"training in the background, process {job.process_id}; the run is in {run.path}")
    typer.echo(further_commands(run.path))
    return exit_codes.DONE


def _start(request: Request, run: RunDirectory) -> LocalJob:
    for file in (_file(run.path), log_file(run.path)):
        file.parent.mkdir(exist_ok=True)
    # From now on it is trained here.
    cluster_file(run.path).unlink(missing_ok=True)
    with log_file(run.path).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *_words(request, run)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    job = LocalJob(run.path, process.pid, psutil.Process(process.pid).create_time(), socket.gethostname())
    job.save()
    return job


def _words(request: Request, run: RunDirectory) -> list[str]:
    """The same command with the run directory fixed: it has the recipe already, so that it is gone on with."""
    overrides = [word for override in request.overrides for word in ("--set", override)]
    checkpoint = ["--checkpoint", request.checkpoint] if request.checkpoint else []
    # Progress is in log.txt, where attach finds it.
    return [
        *("konvoi", "train", request.recipe, "--run", str(run.path), "--resume", "--quiet"),
        *(*overrides, *checkpoint),
    ]


def further_commands(run: Path) -> str:
    """What can be done with a training that goes on."""
    return "\n".join(f"  {shlex.join(['konvoi', verb, str(run)])}" for verb in ("attach", "stop", "watch"))


def log_file(run: Path) -> Path:
    return run / "logs" / "train.txt"


def _file(run: Path) -> Path:
    return run / "job" / "local.json"
