"""Starts the workers of a run on this machine: in this process where there is one, else by torchrun's agent."""

from __future__ import annotations

import logging
import os
import sys
import uuid
from pathlib import Path

from konvoi.exit_codes import DONE, INTERRUPTED, OUR_FAULT


def launch_local(run: Path, num_workers: int, resume: bool, quiet: bool, checkpoint: str = "last") -> int:
    """Runs all workers to their end; returns the exit code of the run."""
    # Imported here: torch takes its second only when something is trained.
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # The agent warns of what we say ourselves, and in plainer words: a signal, a worker that ended.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
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
    )
    arguments = [
        "-m",
        "konvoi.engine.worker",
        str(run),
        *(["--resume", "--checkpoint", checkpoint] if resume else []),
        *(["--quiet"] if quiet else []),
    ]
    try:
        elastic_launch(config, sys.executable)(*arguments)
    except SignalException:
        return INTERRUPTED
    except ChildFailedError as error:
        # Signals are negative here; they and tracebacks are our own fault.
        code = error.get_first_failure()[1].exitcode
        return code if code > 0 else OUR_FAULT
    return DONE
