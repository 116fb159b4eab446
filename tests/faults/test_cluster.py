"""konvoi train --cluster on hosts with a network of their own: the first host's agent is killed, a link is cut."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hosts import Hosts

from konvoi.cluster.job import Job
from konvoi.run_directory import RunDirectory, read_events

# Only against a hang.
PATIENCE_SECONDS = 180
ENDLESS = ("--set", 'train.duration="100000 steps"', "--set", 'evaluate.every="100000 steps"')
ENDLESS += ("--set", 'checkpoint.every="5 steps"')


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with Hosts(2, tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


def wait_until(is_so: Callable[[], Any]) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.1)


def restarts(hosts: Hosts, run: Path, node: int) -> list[int]:
    """With how many workers that host went on, each time after it has made a step."""
    found: list[int] = []
    pending: int | None = None
    for event in read_events(hosts[node].home / "konvoi" / "runs" / run.name / "events" / f"rank{node}.jsonl"):
        if event["kind"] == "restart":
            pending = event["workers"]
        elif event["kind"] == "step" and pending is not None:
            found.append(pending)
            pending = None
    return found


def test_a_killed_agent_is_started_again_by_the_launcher_and_a_cut_host_joins_again(
    hosts: Hosts, tiny_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = ["train", tiny_recipe, "--run", run, "--cluster", hosts.file, *ENDLESS]
    process = hosts.launcher(words, stderr=subprocess.PIPE, text=True)
    try:
        steps = lambda: [e for e in RunDirectory(run).events_of() if e["kind"] == "step"]  # noqa: E731
        wait_until(lambda: len(steps()) >= 6 or process.poll() is not None)
        agent = (hosts[0].home / "konvoi" / "runs" / "run" / "job" / "agent.pid").read_text()
        hosts[0].run(["kill", "-KILL", agent])
        # The second alone, since the first is dead for certain; then with it again.
        wait_until(lambda: restarts(hosts, run, 1) in ([1, 2], [2]) or process.poll() is not None)
        assert process.poll() is None, process.communicate()[1]
        before = len(restarts(hosts, run, 0))
        hosts[1].cut()
        # The lower number goes on alone.
        wait_until(lambda: restarts(hosts, run, 0)[before:] == [1])
        hosts[1].mend()
        wait_until(lambda: restarts(hosts, run, 0)[before:] == [1, 2])
        assert "no process of" in hosts.konvoi("stop", run).stdout
    finally:
        hosts[1].mend()
        process.kill()
        process.communicate()
        Job.open(run).stop(now=True)
    log = (hosts[0].home / "konvoi" / "runs" / "run" / "log.txt").read_text()
    assert "h1: is gone: no word for " in log
