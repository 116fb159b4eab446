"""Two and three hosts train the demo as one host with as many workers does: the same losses, bit for bit.

    sudo .venv/bin/python benchmarks/cluster/same_curve.py [--steps 60]

Hosts are network namespaces with their own sshd (tests/hosts.py), trained on with `konvoi train demo --cluster`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

# Benchmarks are run as programs, which do not see the tests otherwise.
sys.path.append(str(Path(__file__).parents[2]))

from tests.hosts import Hosts

from konvoi.run_directory import RunDirectory


def losses(run: Path) -> list[float]:
    return [event["loss"] for event in RunDirectory(run).events_of() if event["kind"] == "step"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    words = ["--set", f'train.duration="{steps} steps"', "--quiet"]
    for num_hosts in (2, 3):
        with tempfile.TemporaryDirectory() as folder, Hosts(num_hosts, Path(folder)) as hosts:
            alone, together = hosts.laptop.home / "alone", hosts.laptop.home / "together"
            hosts.konvoi("train", "demo", "--workers", str(num_hosts), "--run", alone, *words, timeout=1800)
            hosts.konvoi("train", "demo", "--cluster", hosts.file, "--run", together, *words, timeout=1800)
            one, several = losses(alone), losses(together)
            equal = sum(a == b for a, b in zip(one, several, strict=True))
            print(json.dumps({"hosts": num_hosts, "steps": len(one), "equal": equal, "first": one[0], "last": one[-1]}))


if __name__ == "__main__":
    main()
