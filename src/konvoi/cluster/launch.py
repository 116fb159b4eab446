"""Starts the workers of a run on this machine: in this process where there is one, else by torchrun's agent."""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
import uuid
from collections.abc import Callable, Sequence

from konvoi.cluster.world import COMMAND_BEGAN, began_at
from konvoi.exit_codes import DONE, INTERRUPTED, OUR_FAULT

# After Ctrl-C: for the step, or the evaluation, that goes on, and for the checkpoint.
SHUTDOWN_SECONDS = 900

Worker = Callable[[Sequence[str]], int]


def launch_local(worker: Worker, arguments: Sequence[str], num_workers: int) -> int:
    """Runs all workers to their end; returns the exit code of the run."""
    # Imported here: torch takes its second only when something is trained.
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # The agent warns of what we say ourselves, and in plainer words: a signal, a worker that ended.
    for name in logging.root.manager.loggerDict:
        if name.startswith(("torch.distributed.elastic", "torch.multiprocessing")):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    os.environ.setdefault(COMMAND_BEGAN, str(began_at()))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_workers)))
    # Gloo binds to whatever the host name resolves to; between local workers that must be loopback.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_workers,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.2,
        start_method=_start_method(),
        shutdown_timeout=SHUTDOWN_SECONDS,
    )
    try:
        elastic_launch(config, _work)(worker, arguments)
    except SignalException:
        return INTERRUPTED
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode > 0:
            return failure.exitcode
        print(_killed(rank, -failure.exitcode), file=sys.stderr)
        return OUR_FAULT
    return DONE


def _work(worker: Worker, arguments: Sequence[str]) -> None:
    """In the worker's process: its exit code is how the agent learns what happened, its traceback how a person does."""
    try:
        code = worker(arguments)
    except Exception:
        traceback.print_exc()
        code = OUR_FAULT
    if code:
        sys.exit(code)


def _killed(rank: int, number: int) -> str:
    by_whom = "; the system does that when memory runs out" if number == signal.SIGKILL else ""
    return f"error: worker {rank} was ended by {signal.Signals(number).name}{by_whom}"


def _start_method() -> str:
    """A fork has torch imported already, which saves seconds; a GPU's driver and macOS do not survive one."""
    import torch

    return "fork" if sys.platform == "linux" and not torch.cuda.is_available() else "spawn"
