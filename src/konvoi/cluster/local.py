"""A run whose workers are all on this machine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from konvoi.cluster.faults import Tally, doing, in_words, last_step, record, why_not
from konvoi.cluster.job_spec import Failure, JobSpec, Member
from konvoi.cluster.rendezvous import serve_store
from konvoi.cluster.workers import (
    FROM_NEWEST,
    LOST_OTHERS,
    TICK_SECONDS,
    Stop,
    Worker,
    Workers,
    failed,
    how,
    kind_of,
    listening,
    variables,
)
from konvoi.exit_codes import INTERRUPTED, OUR_FAULT
from konvoi.world import COMMAND_BEGAN


def launch_local(worker: Worker, arguments: Sequence[str], num_workers: int, max_restarts: int = 0) -> int:
    """Runs all workers on this machine to their end, again from the last checkpoint where one is killed.

    Returns the exit code of the run. The first of the arguments is the run directory.
    """
    alone = Member("localhost", "127.0.0.1", "lo0" if sys.platform == "darwin" else "lo", num_workers)
    spec = JobSpec("local", (alone,), node=0, port=0)
    for name in (COMMAND_BEGAN, "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME"):
        os.environ.setdefault(name, variables(spec)[name])
    tally, words = Tally(), list(arguments)
    with listening() as stop:
        while True:
            codes = _run_local(worker, words, spec, stop)
            if not (failures := failed(codes, stop.is_asked)):
                return INTERRUPTED if stop.is_asked else max(codes.values())
            failure = _local_failure(Path(arguments[0]), *failures[0])
            tally = tally.with_failure_after(last_step(Path(arguments[0]), spec.seats)[0])
            if reason := failure.text if stop.is_asked else why_not(tally, failure, max_restarts):
                return _give_up(*failures[0], reason)
            _tell_fault(Path(arguments[0]), spec, failure)
            words = [*arguments, *FROM_NEWEST]


def _run_local(worker: Worker, arguments: Sequence[str], spec: JobSpec, stop: Stop) -> dict[int, int]:
    """Until all have ended, or one has failed and all were ended; exit codes as they were before that."""
    store = serve_store("127.0.0.1")
    workers = Workers(worker, arguments, replace(spec, port=store.port))
    try:
        while len(codes := workers.exit_codes()) < spec.num_workers and not failed(codes, stop.is_asked):
            if stop.is_asked:
                workers.stop()
            time.sleep(TICK_SECONDS)
        return workers.exit_codes()
    finally:
        workers.end()


def _local_failure(run: Path, rank: int, code: int) -> Failure:
    return Failure("localhost", rank, how(code), kind_of(code), doing(run, rank))


def _give_up(rank: int, code: int, reason: str) -> int:
    """Tells what the worker could not say itself; the exit code of the run."""
    if code < 0:
        print(f"error: worker {rank} {reason}", file=sys.stderr)
    return code if code > 0 and code != LOST_OTHERS else OUR_FAULT


def _tell_fault(run: Path, spec: JobSpec, failure: Failure) -> None:
    line = f"{in_words(failure)}; going on from the newest checkpoint with {spec.num_workers} workers"
    record(run, spec.seats[0], failure, line)
    print(line, file=sys.stderr)
