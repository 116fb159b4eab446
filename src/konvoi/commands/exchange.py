"""What an all-reduce costs the processor: two processes, over loopback, where no network is a limit.

`python -m konvoi.commands.exchange FILE RANK` is one of them; they meet in the file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from konvoi.errors import MachineError

NUM_BYTES = 16_000_000
NUM_LARGE, NUM_SMALL = 7, 50
TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Costs:
    seconds_per_byte: float
    """Of each byte that a process sends."""
    latency_seconds: float
    """Of a small one."""
    seconds_per_pass: float
    """To go through a value once: what packing and unpacking messages consists of."""


def measure() -> Costs:
    with tempfile.TemporaryDirectory(prefix="konvoi-exchange-") as folder:
        processes = [_start(Path(folder) / "meeting", rank) for rank in (0, 1)]
        try:
            outputs = [process.communicate(timeout=TIMEOUT_SECONDS)[0] for process in processes]
        except subprocess.TimeoutExpired:
            outputs = []
        finally:
            for process in processes:
                process.kill()
                process.wait()
    if not outputs or any(process.returncode for process in processes):
        raise MachineError(
            "two processes could not exchange anything over loopback", hint="is there an interface lo that is up?"
        )
    return Costs(**json.loads(outputs[0]))


def _start(meeting: Path, rank: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "konvoi.commands.exchange", str(meeting), str(rank)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)


def take_part(meeting: Path, rank: int) -> Costs:
    import torch
    from torch import distributed

    from konvoi.memory import keep_memory

    # As a worker does.
    keep_memory()
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=timedelta(seconds=TIMEOUT_SECONDS)
    )

    vector, little = torch.zeros(NUM_BYTES // 4), torch.zeros(1)
    large = _least_seconds(lambda: distributed.all_reduce(vector), NUM_LARGE)
    small = _least_seconds(lambda: distributed.all_reduce(little), NUM_SMALL)
    # Both at once, as they pack and unpack in a training.
    one_pass = _least_seconds(lambda: vector + vector, NUM_LARGE)
    distributed.destroy_process_group()
    # Of two, each sends 2 (2 - 1) / 2 = all of it.
    return Costs(large / NUM_BYTES, small, one_pass / len(vector))


def _least_seconds(task: Callable[[], object], count: int) -> float:
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        task()
        taken.append(time.perf_counter() - began)
    # What else the machine does is no part of it.
    return min(taken)


if __name__ == "__main__":
    from dataclasses import asdict

    print(json.dumps(asdict(take_part(Path(sys.argv[1]), int(sys.argv[2])))))
