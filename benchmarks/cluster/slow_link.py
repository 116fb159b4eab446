"""The reference's situation at small scale: two hosts on a slow link against one host with the same two workers.

    sudo .venv/bin/python benchmarks/cluster/slow_link.py [--rate 2.5] [--steps 10]

Trains the demo twice through `konvoi train`, on one machine and with --cluster on two hosts (network namespaces with
their own sshd, tests/hosts.py), prints both step times, their ratio and what `konvoi diagnose` says of the second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

# Benchmarks are run as programs, which do not see the tests otherwise.
sys.path.append(str(Path(__file__).parents[2]))

from tests.hosts import Hosts

from konvoi.run_directory import RunDirectory


def step_seconds(run: Path) -> float:
    """Median, without the first, which opens connections."""
    return statistics.median(
        e["step_seconds"] for e in RunDirectory(run).events_of() if e["kind"] == "step" and e["step"] > 1
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=2.5, help="of every host's link, Mbit/s")
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    words = ["--set", f'train.duration="{arguments.steps} steps"', "--set", 'evaluate.every="1000 steps"', "--quiet"]
    with tempfile.TemporaryDirectory() as folder, Hosts(2, Path(folder)) as hosts:
        alone, together = hosts.laptop.home / "alone", hosts.laptop.home / "together"
        patience = {"timeout": 3600}
        hosts.konvoi("train", "demo", "--workers", "2", "--run", alone, *words, **patience)
        for host in hosts:
            host.limit(arguments.rate)
        hosts.konvoi("train", "demo", "--cluster", hosts.file, "--run", together, *words, **patience)
        one, two = step_seconds(alone), step_seconds(together)
        figures = {
            "rate_megabits": arguments.rate,
            "one_host_seconds": one,
            "two_hosts_seconds": two,
            "factor": two / one,
        }
        print(json.dumps(figures))
        print(hosts.konvoi("diagnose", together).stdout)


if __name__ == "__main__":
    main()
