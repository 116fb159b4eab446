"""konvoi tensorboard: TensorBoard over one or more runs, on loopback."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import typer

from konvoi.errors import MachineError, RunError
from konvoi.run_directory import RunDirectory

ADDRESS = "127.0.0.1"


def tensorboard(runs: list[Path], port: int) -> None:
    """Until Ctrl-C."""
    folders = _folders(runs)
    _check_port(port)
    with tempfile.TemporaryDirectory(prefix="konvoi-tensorboard-") as parent:
        link_runs(folders, Path(parent))
        _run([sys.executable, "-m", "tensorboard.main", "--logdir", parent, "--host", ADDRESS, "--port", str(port)])


def link_runs(folders: list[Path], parent: Path) -> None:
    """A link for each, named by its run: TensorBoard shows these names."""
    for folder in folders:
        name, number = folder.parent.name, 2
        while (parent / name).is_symlink():
            name, number = f"{folder.parent.name}-{number}", number + 1
        (parent / name).symlink_to(folder, target_is_directory=True)


def _folders(runs: list[Path]) -> list[Path]:
    """A run that has only begun has no such folder yet; TensorBoard waits for it."""
    directories = [RunDirectory.open(run) for run in runs]
    if not any(directory.tensorboard.is_dir() for directory in directories):
        raise RunError("there is nothing for TensorBoard yet", hint="wait for the first steps, or name another run")
    return [directory.tensorboard.resolve() for directory in directories]


def _check_port(port: int) -> None:
    """TensorBoard would say it, too, in its own words and without a remedy."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError as error:
            problem = f"port {port} cannot be used: {error.strerror}"
            raise MachineError(problem, hint="name another with --port; --port 0 takes any that is free") from None


def _run(command: list[str]) -> None:
    """It says its address itself. Ctrl-C reaches it as well: it ends by itself, and we wait for it."""
    process = subprocess.Popen(command)
    try:
        status = process.wait()
    except KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):
            process.wait()
        typer.echo()
        return
    if status:
        raise MachineError(f"TensorBoard ended with status {status}", hint="its own words are above")
