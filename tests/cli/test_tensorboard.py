"""konvoi tensorboard: over one or more runs, on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from urllib.error import URLError
from urllib.request import urlopen

from konvoi.commands.tensorboard import link_runs

PATIENCE_SECONDS = 60


def test_runs_of_the_same_name_stay_apart(tmp_path):
    folders = [tmp_path / parent / "demo" / "tensorboard" for parent in "abc"]
    (tmp_path / "links").mkdir()
    link_runs(folders, tmp_path / "links")
    found = {link.name: link.readlink() for link in (tmp_path / "links").iterdir()}
    assert found == dict(zip(("demo", "demo-2", "demo-3"), folders, strict=True))


def test_a_taken_port_has_a_remedy(konvoi, trained_run):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        result = konvoi("tensorboard", trained_run, "--port", other.getsockname()[1])
    assert result.exit_code == 2
    assert "--port" in result.stderr


def test_a_run_without_anything_to_show(konvoi, trained_run, tmp_path):
    copy = shutil.copytree(trained_run, tmp_path / "copy")
    shutil.rmtree(copy / "tensorboard")
    result = konvoi("tensorboard", copy)
    assert result.exit_code == 2
    assert "nothing for TensorBoard" in result.stderr


def test_a_folder_that_is_no_run(konvoi, tmp_path):
    assert konvoi("tensorboard", tmp_path).exit_code == 2


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(address: str, runs: set[str]) -> list[str]:
    """TensorBoard reads the runs after it listens."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            with urlopen(address, timeout=10) as response:
                found = json.load(response)
            if set(found) >= runs:
                return found
        except (URLError, ConnectionError):
            pass
        time.sleep(0.1)
    raise AssertionError("TensorBoard does not answer")


def test_two_runs_are_shown_under_their_names_until_interrupted(trained_run, tmp_path):
    other = shutil.copytree(trained_run, tmp_path / "other")
    port = free_port()
    command = [sys.executable, "-m", "konvoi", "tensorboard", str(trained_run), str(other), "--port", str(port)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        names = {trained_run.name, "other"}
        assert set(ask(f"http://127.0.0.1:{port}/data/runs", names)) == names
        # As Ctrl-C on a terminal: to all of its processes.
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert not re.search("Traceback", said)
