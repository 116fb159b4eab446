"""One case as a real training: its hosts, its link, its fault; and what a clock on the wall says of it."""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cases import Case
from disk import slow_disk
from faults import Setting, cores_of, overrides_of
from hosts import INTERFACE, Host, Network, end

from konvoi import registry
from konvoi.config.recipe import read
from konvoi.folder import write_json
from konvoi.run_directory import RunDirectory
from konvoi.telemetry.environment import environment

PREFIX = "knvdiag"
PORT = 29500
WORKER = Path(__file__).with_name("inject.py")
HOG = ["sh", "-c", "while :; do :; done"]
# Only against a hang.
PATIENCE_SECONDS = 600


@dataclass(frozen=True)
class Measured:
    """By the runner's clock and the times of the first rank's events."""

    wall_seconds: float
    start_seconds: float
    step_seconds: float
    """The median."""
    evaluation_seconds: float
    """Of all evaluations."""
    num_parameters: int
    others_cores: float
    """Cores that programs outside of the case kept busy meanwhile."""


def train(case: Case, setting: Setting, path: Path) -> Measured:
    """Trains a case to its end in a new run directory."""
    run = new_run(case, setting, path)
    with contextlib.ExitStack() as stack:
        if rate := setting.disk_megabytes_per_second:
            stack.enter_context(slow_disk(run.checkpoints, rate, size_megabytes=512))
        network = Network(
            case.num_workers,
            PREFIX,
            rate_megabits=setting.rate_megabits,
            delay_seconds=setting.delay_seconds,
            cores=cores_of(case.num_workers),
        )
        hosts = stack.enter_context(network)
        started_at, busy_before, own_before = time.time(), busy_seconds(), own_seconds()
        workers = [start_worker(hosts, rank, setting, path) for rank in range(case.num_workers)]
        with hogs_beside(hosts, case, setting, run, workers):
            wait_for(workers, path)
        wall_seconds = time.time() - started_at
        # Network's own programs are waited for at the end; they do little.
        others = busy_seconds() - busy_before - (own_seconds() - own_before)
    return measure(run, started_at, wall_seconds, others / wall_seconds)


def new_run(case: Case, setting: Setting, path: Path) -> RunDirectory:
    """As konvoi train makes it."""
    name, overrides = overrides_of(case, setting)
    recipe = read(name, overrides)
    task = registry.find("task", recipe.name_of("task"))
    prepared = task.prepare(recipe)
    run = RunDirectory.create(path, recipe)
    task.carry(prepared, run)
    write_json(run.environment_file, environment(["cpu"], case.num_workers))
    return run


def start_worker(hosts: Sequence[Host], rank: int, setting: Setting, path: Path) -> subprocess.Popen[bytes]:
    """One worker on each host, with torchrun's variables."""
    numbers = {"RANK": rank, "WORLD_SIZE": len(hosts), "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "OMP_NUM_THREADS": 1}
    variables = {**numbers, "MASTER_ADDR": hosts[0].address, "MASTER_PORT": PORT, "GLOO_SOCKET_IFNAME": INTERFACE}
    command = [sys.executable, str(WORKER), str(path), setting.fault.to_json()]
    words = {name: str(value) for name, value in variables.items()}
    return hosts[rank].start(command, words, log=path / "workers.txt")


@contextlib.contextmanager
def hogs_beside(
    hosts: Sequence[Host], case: Case, setting: Setting, run: RunDirectory, workers: list[subprocess.Popen[bytes]]
) -> Iterator[None]:
    """From the first step on, lest the start be what takes longest."""
    hogs: list[subprocess.Popen[bytes]] = []
    if setting.num_hogs:
        assert case.culprit is not None
        while not has_stepped(run) and all(worker.poll() is None for worker in workers):
            time.sleep(0.05)
        hogs = [hosts[case.culprit].start(HOG) for _ in range(setting.num_hogs)]
    try:
        yield
    finally:
        for hog in hogs:
            end(hog)


def has_stepped(run: RunDirectory) -> bool:
    return any(event["kind"] == "step" for event in run.events_of())


def wait_for(workers: list[subprocess.Popen[bytes]], path: Path) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    for worker in workers:
        worker.wait(max(0.0, give_up_at - time.monotonic()))
    if any(worker.returncode for worker in workers):
        raise RuntimeError(f"a worker failed:\n{(path / 'workers.txt').read_text()}")


def measure(run: RunDirectory, started_at: float, wall_seconds: float, others_cores: float) -> Measured:
    events = list(run.events_of())
    steps = [event for event in events if event["kind"] == "step"]
    return Measured(
        wall_seconds=wall_seconds,
        start_seconds=steps[0]["time"] - steps[0]["step_seconds"] - started_at,
        step_seconds=statistics.median(event["step_seconds"] for event in steps),
        evaluation_seconds=sum(event["seconds"] for event in events if event["kind"] == "evaluation"),
        num_parameters=run.summary()["parameters"],
        others_cores=others_cores,
    )


def busy_seconds() -> float:
    """Of all cores together, since the machine began: all but idle and waiting for disks."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """Of this process and of all below it that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
