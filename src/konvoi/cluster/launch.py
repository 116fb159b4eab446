"""Starts the workers of a run on this machine: in this process where there is one, else by torchrun's agent."""

from __future__ import annotations

import logging
import os
import sys
import uuid
from collections.abc import Callable, Sequence

from konvoi.exit_codes import DONE, INTERRUPTED, OUR_FAULT

Worker = Callable[[Sequence[str]], int]


def launch_local(worker: Worker, arguments: Sequence[str], num_workers: int) -> int:
    """Runs all workers to their end; returns the exit code of the run."""
    # Imported here: torch takes its second only when something is trained.
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # The agent warns of what we say ourselves, and in plainer words: a signal, a worker that ended.
    for name in logging.root.manager.loggerDict:
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
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
    )
    try:
        elastic_launch(config, _work)(worker, arguments)
    except SignalException:
        return INTERRUPTED
    except ChildFailedError as error:
        # Signals are negative here; they and tracebacks are our own fault.
        code = error.get_first_failure()[1].exitcode
        return code if code > 0 else OUR_FAULT
    return DONE


def _work(worker: Worker, arguments: Sequence[str]) -> None:
    """In the worker's process: its exit code is how the agent learns what happened."""
    if code := worker(arguments):
        sys.exit(code)


def _start_method() -> str:
    """A fork has torch imported already, which saves seconds; a GPU's driver does not survive one."""
    import torch

    return "spawn" if torch.cuda.is_available() else "fork"
