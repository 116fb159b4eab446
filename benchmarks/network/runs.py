"""Runs a case on hosts in network namespaces, and keeps rows of figures."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil
import worker
from links import Links
from worker import Case

# Only against a hang.
PATIENCE_SECONDS = 600
# Forked: torch is imported once, for all.
FORK = multiprocessing.get_context("fork")


def measured(case: Case) -> dict[str, Any]:
    """A row: seconds, bytes and processor time of a step, and how busy the machine was with other things."""
    with Links(case.num_hosts) as links, _workers(case, links) as parents:
        _answers(parents)
        links.limit(case.rate_megabits)
        machine_before, ours_before, began_at = *_busy_seconds(), time.perf_counter()
        for parent in parents:
            parent.send("go")
        answers = _answers(parents)
        machine, ours, ended_at = *_busy_seconds(), time.perf_counter()
    core_seconds = (ended_at - began_at) * (os.cpu_count() or 1)
    by_name = {name: [answer[name] for answer in answers] for name in answers[0]}
    return {
        **case.key(),
        "at": time.strftime("%Y-%m-%d %H:%M"),
        "step_seconds": round(fmean(by_name["step_seconds"]), 5),
        # Workers of a host read the same counter; the host that sends most is the slowest.
        "bytes_out": round(max(by_name["bytes_out"])),
        "bytes_declared": round(case.traffic.bytes_per_step(case.num_workers, case.num_hosts)),
        "processor_seconds": round(fmean(by_name["processor_seconds"]), 4),
        "seconds": round(ended_at - began_at, 1),
        "load_average": round(os.getloadavg()[0], 2),
        "machine_busy": round((machine - machine_before) / core_seconds, 3),
        "busy_with_others": round((machine - machine_before - ours + ours_before) / core_seconds, 3),
    }


@contextmanager
def _workers(case: Case, links: Links) -> Iterator[list[Connection]]:
    started: list[tuple[ForkProcess, Connection]] = []
    try:
        for rank in range(case.num_workers):
            started.append(_start(case, rank, links))
        yield [parent for _, parent in started]
        for process, _ in started:
            process.join(PATIENCE_SECONDS)
    finally:
        for process, _ in started:
            process.kill()
            process.join()


def _start(case: Case, rank: int, links: Links) -> tuple[ForkProcess, Connection]:
    parent, child = FORK.Pipe()
    process = FORK.Process(target=worker.run, args=(case, rank, child))
    with links.on_host(rank // case.workers_per_host):
        process.start()
    return process, parent


def _answers(parents: list[Connection]) -> list[Any]:
    """One of each; whoever answers with a traceback ends it for all."""
    answers: dict[Connection, Any] = {}
    while len(answers) < len(parents):
        ready = wait([parent for parent in parents if parent not in answers], PATIENCE_SECONDS)
        if not ready:
            raise RuntimeError(f"{len(parents) - len(answers)} workers do not answer")
        for parent in ready:
            assert isinstance(parent, Connection)
            answers[parent] = answer = parent.recv()
            if isinstance(answer, str) and answer != "ready":
                raise RuntimeError(answer)
    return [answers[parent] for parent in parents]


def _busy_seconds() -> tuple[float, float]:
    """Of all cores so far: by whomever; by our workers and by the kernel, which carries their packets."""
    times = psutil.cpu_times()
    kernel = times.irq + times.softirq
    workers = [child.cpu_times() for child in psutil.Process().children()]
    ours = kernel + sum(used.user + used.system for used in workers)
    return times.user + times.nice + times.system + times.steal + kernel, ours


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)
