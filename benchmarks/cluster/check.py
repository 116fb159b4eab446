"""How long `konvoi cluster check` takes for four hosts, from the command to its end.

    sudo .venv/bin/python benchmarks/cluster/check.py [--hosts 4] [--rounds 3]

Hosts are network namespaces with their own sshd (tests/hosts.py): they share this machine's cores, as real ones do not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

# Benchmarks are run as programs, which do not see the tests otherwise.
sys.path.append(str(Path(__file__).parents[2]))

from tests.hosts import Hosts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Hosts(arguments.hosts, Path(folder)) as hosts:
        for _ in range(arguments.rounds):
            began = time.perf_counter()
            done = hosts.konvoi("cluster", "check", "--cluster", hosts.file, "--recipe", "demo", "--json")
            seconds = time.perf_counter() - began
            print(
                json.dumps(
                    {"hosts": arguments.hosts, "seconds": round(seconds, 1), **json.loads(done.stdout)["seconds"]}
                )
            )


if __name__ == "__main__":
    main()
