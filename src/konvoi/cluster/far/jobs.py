"""Trainings on this host: start one, tell what it writes, end it.

Every process of a training has KONVOI_JOB in its environment, and is known by it.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

LOOK_SECONDS = 0.3
CHUNK_BYTES = 1 << 20
# So much of a file's end as it was last sent tells whether it has grown, or was written anew.
TAIL_BYTES = 256


class Refused(Exception):
    """In words for the user."""


def start(folder: str, run: str, spec: dict[str, Any], recipe: str, python: str, is_new: bool) -> int:
    """Starts the host's agent in a session of its own, which outlives this connection; its process id."""
    path = _path(folder, run)
    _check_startable(path, is_new)
    for part in ("job", "logs", "events", "checkpoints"):
        os.makedirs(os.path.join(path, part), exist_ok=True)
    for former in glob.glob(os.path.join(glob.escape(path), "job", "*")):
        os.remove(former)
    variables = {name: os.path.expanduser(value) for name, value in spec["environment"].items()}
    _write(os.path.join(path, "job", "spec.json"), json.dumps({**spec, "environment": variables}, indent=2))
    _write(os.path.join(path, "recipe.toml"), recipe)
    name = spec["members"][spec["node"]]["name"]
    with open(os.path.join(path, "logs", name + ".txt"), "ab") as log:
        process = _launch(os.path.expanduser(python), path, {**variables, "KONVOI_JOB": spec["id"]}, log)
    _write(_agent_file(path), str(process.pid))
    return process.pid


def start_again(folder: str, run: str, job_id: str, python: str) -> int:
    """Starts the agent of a job that was killed here, to join the others again; 0 where another job came since."""
    path = _path(folder, run)
    with open(os.path.join(path, "job", "spec.json"), encoding="utf-8") as file:
        spec = json.load(file)
    if spec["id"] != job_id or alive(job_id):
        return 0
    name = spec["members"][spec["node"]]["name"]
    with open(os.path.join(path, "logs", name + ".txt"), "ab") as log:
        process = _launch(os.path.expanduser(python), path, {**spec["environment"], "KONVOI_JOB": job_id}, log)
    _write(_agent_file(path), str(process.pid))
    return process.pid


def checkpoints(folder: str, run: str) -> list[str]:
    """The names of those that are here."""
    return sorted(os.path.basename(found) for found in _matching(_path(folder, run), "checkpoints/step-*"))


def follow(
    folder: str, run: str, job_id: str, grow: list[str], replace: list[str], marks: dict[str, Any], once: bool = False
) -> Iterator[Any]:
    """What is new in the run's files until no process of the job is left: a header, then its bytes.

    `grow` are patterns of files that are appended to, and `marks` what the other side has of them: {name: [bytes, the
    last of these as hex]}. `replace` are small files that come as a whole. None, sent at every look, says that we are
    here, and finds out whether anybody listens.
    """
    path = _path(folder, run)
    if not os.path.isdir(path):
        raise Refused(f"{path} is gone")
    stamps: dict[str, tuple[int, ...]] = {}
    while True:
        # Before the look: what is written until the last process ends is then seen.
        goes_on = not once and _goes_on(path, job_id)
        for name in _changed(path, grow, stamps):
            yield from _growth(path, name, marks)
        for name in _changed(path, replace, stamps):
            yield {"file": name, "offset": None}
            with open(os.path.join(path, name), "rb") as file:
                yield file.read()
        if not goes_on:
            return
        yield None
        time.sleep(LOOK_SECONDS)


def stop(folder: str, run: str, job_id: str, now: bool) -> Iterator[int]:
    """Asks the agent to end in good order, or ends every process at once; how many are left, until none is."""
    agent = _agent(_path(folder, run), job_id)
    if agent and not now:
        _signal(agent, signal.SIGTERM)
    while True:
        left = alive(job_id)
        if not left:
            return
        if now or not agent:
            for process_id in left:
                _signal(process_id, signal.SIGKILL)
        yield len(left)
        time.sleep(LOOK_SECONDS)


def alive(job_id: str) -> list[int]:
    """All processes of a job on this host; those that have ended and are not yet buried do not count."""
    process_ids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [process_id for process_id in process_ids if _is_of(process_id, job_id)]


def _path(folder: str, run: str) -> str:
    return os.path.join(os.path.expanduser(folder), "runs", run)


def _check_startable(path: str, is_new: bool) -> None:
    if os.path.exists(os.path.join(path, "job", "cluster.toml")):
        raise Refused(f"{path} is where the run was started from: choose another --run, or folder in cluster.toml")
    spec_file = os.path.join(path, "job", "spec.json")
    if os.path.exists(spec_file):
        with open(spec_file, encoding="utf-8") as file:
            if alive(json.load(file)["id"]):
                raise Refused(f"{path} is being trained right now: konvoi attach shows it, konvoi stop ends it")
    if is_new and (_matching(path, "events/*") or _matching(path, "checkpoints/*")):
        raise Refused(f"{path} holds another run: choose another --run")


def _launch(python: str, path: str, variables: dict[str, str], log: Any) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [python, "-m", "konvoi", "node", path],
            cwd=path,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            start_new_session=True,
        )
    except OSError as error:
        raise Refused(f"{python} cannot be run ({error.strerror}): konvoi cluster setup makes it") from None


def _goes_on(path: str, job_id: str) -> bool:
    """Looking at all processes takes a while: only where the agent is gone."""
    return bool(_agent(path, job_id) or alive(job_id))


def _agent(path: str, job_id: str) -> int:
    """Its process id while it lives, else 0."""
    try:
        with open(_agent_file(path), encoding="utf-8") as file:
            process_id = int(file.read())
    except (OSError, ValueError):
        return 0
    return process_id if _is_of(process_id, job_id) else 0


def _agent_file(path: str) -> str:
    return os.path.join(path, "job", "agent.pid")


def _is_of(process_id: int, job_id: str) -> bool:
    try:
        with open(f"/proc/{process_id}/environ", "rb") as file:
            return f"KONVOI_JOB={job_id}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def _signal(process_id: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process_id, number)


def _matching(path: str, pattern: str) -> list[str]:
    return glob.glob(os.path.join(glob.escape(path), pattern))


def _changed(path: str, patterns: list[str], stamps: dict[str, tuple[int, ...]]) -> Iterator[str]:
    """The names of those that are not as they were at the last look."""
    for pattern in patterns:
        for file in sorted(_matching(path, pattern)):
            try:
                status = os.stat(file)
            except FileNotFoundError:
                continue  # gone since the list was made
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            if stamps.get(file) != stamp:
                stamps[file] = stamp
                yield os.path.relpath(file, path)


def _growth(path: str, name: str, marks: dict[str, Any]) -> Iterator[Any]:
    offset, tail = marks.get(name, (0, ""))
    with open(os.path.join(path, name), "rb") as file:
        file.seek(max(0, offset - TAIL_BYTES))
        if file.read(min(offset, TAIL_BYTES)).hex() != tail:
            offset = 0
            file.seek(0)
        while True:
            chunk = file.read(CHUNK_BYTES)
            if not chunk:
                break
            yield {"file": name, "offset": offset}
            yield chunk
            offset += len(chunk)
        file.seek(max(0, offset - TAIL_BYTES))
        marks[name] = (offset, file.read(min(offset, TAIL_BYTES)).hex())


def _write(path: str, text: str) -> None:
    """Beside, then renamed: the agent of a former start, or a reader, never sees half of it."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)
