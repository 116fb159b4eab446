"""Real training on two hosts whose link is so slow that ddp is some hundred times slower than one host.

    sudo .venv/bin/python benchmarks/network/real_compute.py [--rate 4] [--local-steps 16,32] [--ddp-steps 6]

Trains the demo through `konvoi train`: one worker, two on one host, then with --cluster on two hosts (network
namespaces with their own sshd, tests/hosts.py), by ddp and by diloco. The mean over whole rounds after the first, since
the steps of a round differ. Every run appends a row to real_compute.jsonl.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

# Benchmarks are run as programs, which do not see the tests otherwise.
sys.path.append(str(Path(__file__).parents[2]))

from runs import append
from tests.hosts import Hosts

from konvoi.run_directory import RunDirectory

RESULTS = Path(__file__).with_name("real_compute.jsonl")
ROUNDS = 4
PATIENCE_SECONDS = 3600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=4.0, help="of every host's link, Mbit/s")
    parser.add_argument("--local-steps", default="16,32")
    parser.add_argument("--ddp-steps", type=int, default=6, help="0: not again")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Hosts(2, Path(folder)) as hosts:
        # Alone first: it makes the data ready, too.
        for num_workers in (1, 2):
            measure(hosts, {"name": "ddp"}, num_steps=100, num_workers=num_workers)
        for host in hosts:
            host.limit(arguments.rate)
        if arguments.ddp_steps:
            measure(hosts, {"name": "ddp"}, arguments.ddp_steps, rate_megabits=arguments.rate)
        for local_steps in map(int, arguments.local_steps.split(",")):
            settings = {"name": "diloco", "local_steps": local_steps, "wire": "int4"}
            measure(hosts, settings, ROUNDS * local_steps, local_steps, rate_megabits=arguments.rate)


def measure(
    hosts: Hosts,
    sync: dict[str, Any],
    num_steps: int,
    first_steps: int = 1,
    num_workers: int | None = None,
    rate_megabits: float | None = None,
) -> None:
    """On one host with so many workers; without a number, on all hosts."""
    run = hosts.laptop.home / f"run-{time.time():.0f}"
    where = ["--workers", str(num_workers)] if num_workers else ["--cluster", str(hosts.file)]
    settings = {f"sync.{key}": value for key, value in sync.items()}
    settings |= {"train.duration": f'"{num_steps} steps"', "evaluate.every": '"100000 steps"'}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    hosts.konvoi("train", "demo", *where, "--run", run, *words, "--quiet", timeout=PATIENCE_SECONDS)
    events = [event for event in RunDirectory(run).events_of() if event["kind"] == "step"]
    counted = [event for event in events if event["step"] > first_steps]
    row = {
        "where": f"{num_workers} on one host" if num_workers else "two hosts",
        "rate_megabits": rate_megabits,
        "sync": sync,
        "num_steps": len(counted),
        "step_seconds": round(fmean(event["step_seconds"] for event in counted), 4),
        "loss": round(counted[-1]["loss"], 4),
        "at": time.strftime("%Y-%m-%d %H:%M"),
        "load_average": round(os.getloadavg()[0], 2),
    }
    append(RESULTS, row)


if __name__ == "__main__":
    main()
